"""What a removal says it has removed."""

from typing import cast

from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod

from kube_efs.operator.cluster_facts import InstallationFacts
from kube_efs.operator.desired_objects import Component, ProcessSettings, desired_objects
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import RenderOptions
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.platforms import Platform
from kube_efs.operator.uninstaller import Uninstaller


async def use_a_volume(kube: AsyncClient) -> None:
    resources = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"]}
    volume = {
        "metadata": {"name": "data"},
        "spec": {**resources, "csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"}},
    }
    claim = {
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {
            "volumeName": "data",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    pod = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "nodeName": "a",
            "containers": [{"name": "c", "image": "example.com/c"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }
    await kube.create(cast("PersistentVolume", PersistentVolume.from_dict(volume)))
    await kube.create(cast("PersistentVolumeClaim", PersistentVolumeClaim.from_dict(claim)))
    await kube.create(cast("Pod", Pod.from_dict(pod)))


async def test_removal_that_is_blocked_half_way_says_what_is_removed(kube: AsyncClient) -> None:
    objects = ObjectClient(kube)
    options = RenderOptions(platform=Platform.KUBERNETES, namespace="default", csi=True)
    for one in desired_objects(options, InstallationFacts(), ProcessSettings()):
        if one["kind"] in WORKLOADS:
            await objects.apply(one)
    uninstaller = Uninstaller(objects, "default", lambda _reference, _change: None)

    progress = await uninstaller.step(forced=False)
    assert progress.waiting
    assert progress.removed == {Component.CONTROLLER}

    await use_a_volume(kube)
    progress = await uninstaller.step(forced=False)
    assert "default/web" in progress.blocked
    assert progress.removed == {Component.CONTROLLER}
