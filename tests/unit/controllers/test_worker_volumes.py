"""The volumes of worker pods on the embedded API server, after their pods are gone."""

from dataclasses import replace
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, Pod

from kube_efs.controllers.worker_volumes import WorkerVolumes
from kube_efs.kube.building import build_volume
from kube_efs.kube.reading import read_volume
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import ClaimReference, Volume, VolumePhase
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.pod_objects import observe_pod
from kube_efs.provisioning.workers.roots import root_objects

POD = "efs-init-fs-1-a-bcdef"


@pytest.fixture
async def root(kube: AsyncClient) -> Volume:
    """The volume of a worker pod that exists."""
    metadata = ObjectMeta(name=POD, namespace="default", annotations={FILE_SYSTEM_ID: "fs-1"})
    pod = await kube.create(
        Pod(metadata=metadata, spec=PodSpec(containers=[Container(name="worker", image="i")]))
    )
    volume, _ = root_objects(observe_pod(pod, since=0), FileSystemKind.EFS, "default")
    return read_volume((await kube.create(volume)).to_dict())


async def deleted(kube: AsyncClient, volume: Volume) -> bool:
    """Whether the controller deletes the volume that is in this state."""
    index = VolumeIndex()
    index.replace_volumes([volume])
    await WorkerVolumes(kube, index, namespace="default").delete_unused()
    found = await kube.get(PersistentVolume, volume.name)
    return bool(found.metadata and found.metadata.deletionTimestamp)


@pytest.mark.parametrize("phase", [VolumePhase.AVAILABLE, VolumePhase.RELEASED])
async def test_volume_is_deleted_after_its_pod(kube: AsyncClient, root: Volume, phase: VolumePhase) -> None:
    assert not await deleted(kube, replace(root, phase=phase))
    await kube.delete(Pod, POD, namespace="default")
    assert await deleted(kube, replace(root, phase=phase))


async def test_bound_volume_waits_for_its_claim(kube: AsyncClient, root: Volume) -> None:
    await kube.delete(Pod, POD, namespace="default")
    assert not await deleted(kube, replace(root, phase=VolumePhase.BOUND))


async def test_new_volume_of_the_same_name_is_not_deleted(kube: AsyncClient, root: Volume) -> None:
    await kube.delete(Pod, POD, namespace="default")
    assert not await deleted(kube, replace(root, phase=VolumePhase.RELEASED, uid="earlier"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"storage_class": "efs"}, id="of another class"),
        pytest.param({"claim": ClaimReference(namespace="other", name="pv")}, id="of another namespace"),
        pytest.param({"claim": ClaimReference(namespace="default", name="data")}, id="of another claim"),
        pytest.param({"claim": None}, id="of no claim"),
    ],
)
async def test_other_volumes_are_not_deleted(
    kube: AsyncClient, root: Volume, changes: dict[str, Any]
) -> None:
    other = replace(root, name="pv", claim=ClaimReference(namespace="default", name="pv"))
    made = read_volume((await kube.create(build_volume(replace(other, **changes)))).to_dict())
    assert not await deleted(kube, replace(made, phase=VolumePhase.RELEASED))
