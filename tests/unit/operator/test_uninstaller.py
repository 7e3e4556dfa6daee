"""What a removal says it has removed."""

from typing import cast

import pytest
from lightkube import AsyncClient
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.volumes import FINALIZER
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


async def uninstaller_of(kube: AsyncClient) -> Uninstaller:
    """The uninstaller of a complete installation."""
    objects = ObjectClient(kube)
    options = RenderOptions(platform=Platform.KUBERNETES, namespace="default", csi=True)
    for one in desired_objects(options, InstallationFacts(), ProcessSettings()):
        if one["kind"] in WORKLOADS:
            await objects.apply(one)
    return Uninstaller(objects, "default", lambda _reference, _change: None)


async def test_removal_that_is_blocked_half_way_says_what_is_removed(kube: AsyncClient) -> None:
    uninstaller = await uninstaller_of(kube)

    progress = await uninstaller.step(forced=False)
    assert progress.waiting
    assert progress.removed == {Component.CONTROLLER}

    await use_a_volume(kube)
    progress = await uninstaller.step(forced=False)
    assert "default/web" in progress.blocked
    assert progress.removed == {Component.CONTROLLER}


async def controller_runs(kube: AsyncClient) -> None:
    status = {"status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}}
    async for one in kube.list(Deployment, namespace="*"):
        assert one.metadata
        name, namespace = str(one.metadata.name), one.metadata.namespace
        await kube.patch(Deployment.Status, name, status, namespace=namespace, patch_type=PatchType.MERGE)


async def leaving_volume(kube: AsyncClient, policy: str, provisioner: str = "efs.csi.aws.com") -> None:
    """A released volume that is Terminating until the controller has removed its data."""
    made_by = {"pv.kubernetes.io/provisioned-by": provisioner}
    volume = {
        "metadata": {"name": "leaving", "finalizers": [FINALIZER], "annotations": made_by},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": policy,
            "csi": {"driver": "efs.csi.aws.com", "volumeHandle": "fs-1"},
        },
    }
    await kube.create(cast("PersistentVolume", PersistentVolume.from_dict(volume)))
    released = {"status": {"phase": "Released"}}
    await kube.patch(PersistentVolume.Status, "leaving", released, patch_type=PatchType.MERGE)
    await kube.delete(PersistentVolume, "leaving")


async def test_controller_first_completes_the_removal_of_volumes(kube: AsyncClient) -> None:
    uninstaller = await uninstaller_of(kube)
    await controller_runs(kube)
    await leaving_volume(kube, "Delete")

    progress = await uninstaller.step(forced=False)
    assert progress.waiting == (
        "the controller removes the volumes leaving; see their events, or set the annotation"
        " efs.csi.aws.com/uninstall-while-mounted to true and leave them Terminating"
    )
    assert progress.removed == set()
    without = {"metadata": {"finalizers": None}}
    await kube.patch(PersistentVolume, "leaving", without, patch_type=PatchType.MERGE)
    progress = await uninstaller.step(forced=False)
    assert progress.removed == {Component.CONTROLLER}


async def test_forced_removal_waits_for_no_volume(kube: AsyncClient) -> None:
    uninstaller = await uninstaller_of(kube)
    await leaving_volume(kube, "Delete")
    progress = await uninstaller.step(forced=True)
    assert progress.removed == {Component.CONTROLLER}


async def test_controller_that_does_not_run_is_not_waited_for(kube: AsyncClient) -> None:
    uninstaller = await uninstaller_of(kube)
    await leaving_volume(kube, "Delete")
    progress = await uninstaller.step(forced=False)
    assert progress.removed == {Component.CONTROLLER}


@pytest.mark.parametrize(
    ("policy", "provisioner"), [("Retain", "efs.csi.aws.com"), ("Delete", "another.example.com")]
)
async def test_volumes_that_the_controller_keeps_delay_no_removal(
    kube: AsyncClient, policy: str, provisioner: str
) -> None:
    uninstaller = await uninstaller_of(kube)
    await controller_runs(kube)
    await leaving_volume(kube, policy, provisioner)
    progress = await uninstaller.step(forced=False)
    assert progress.removed == {Component.CONTROLLER}


async def worker_pod(kube: AsyncClient, name: str, namespace: str = "default", **spec: object) -> None:
    pod = {
        "metadata": {"name": name, "namespace": namespace, "labels": dict(WORKER_LABELS)},
        "spec": {"containers": [{"name": "c", "image": "example.com/c"}], **spec},
    }
    await kube.create(cast("Pod", Pod.from_dict(pod)))


async def names_of_pods(kube: AsyncClient) -> set[str]:
    return {str(one.metadata.name) async for one in kube.list(Pod, namespace="*") if one.metadata}


async def controller_is_gone(kube: AsyncClient, uninstaller: Uninstaller) -> None:
    progress = await uninstaller.step(forced=False)
    assert progress.removed == {Component.CONTROLLER}
    async for one in kube.list(Deployment, namespace="*"):
        assert one.metadata
        without = {"metadata": {"finalizers": None}}
        name, namespace = str(one.metadata.name), one.metadata.namespace
        await kube.patch(Deployment, name, without, namespace=namespace, patch_type=PatchType.MERGE)


async def test_worker_pods_are_removed_after_the_controller(kube: AsyncClient) -> None:
    """One that waits for a node could later remove the directory of a volume of another installation."""
    uninstaller = await uninstaller_of(kube)
    await worker_pod(kube, "efs-worker-clean-1")
    await kube.create(cast("Namespace", Namespace.from_dict({"metadata": {"name": "other"}})))
    await worker_pod(kube, "efs-worker-clean-2", namespace="other")
    await uninstaller.step(forced=False)
    assert "efs-worker-clean-1" in await names_of_pods(kube), "the controller still needs its result"

    await controller_is_gone(kube, uninstaller)
    progress = await uninstaller.step(forced=False)
    assert progress.waiting.startswith("the worker pods efs-worker-clean-1 are ending; if the machine")
    assert progress.removed == {Component.CONTROLLER}
    assert await names_of_pods(kube) == {"efs-worker-clean-2"}
    progress = await uninstaller.step(forced=False)
    assert progress.removed == {Component.CONTROLLER, Component.NODE}


async def test_driver_stays_until_worker_pods_have_ended_unless_forced(kube: AsyncClient) -> None:
    """A worker that still writes needs its tunnel; that of a dead node may never end."""
    uninstaller = await uninstaller_of(kube)
    await controller_is_gone(kube, uninstaller)
    await worker_pod(kube, "efs-worker-clean-1", nodeName="dead")
    for _ in range(2):
        progress = await uninstaller.step(forced=False)
        assert progress.waiting.startswith("the worker pods efs-worker-clean-1 are ending")
    progress = await uninstaller.step(forced=True)
    assert progress.removed == {Component.CONTROLLER, Component.NODE}


async def test_worker_pods_of_an_installation_of_another_tool_stay(kube: AsyncClient) -> None:
    uninstaller = Uninstaller(ObjectClient(kube), "default", lambda _reference, _change: None)
    await worker_pod(kube, "efs-worker-clean-1")
    assert (await uninstaller.step(forced=False)).done
    assert await names_of_pods(kube) == {"efs-worker-clean-1"}
