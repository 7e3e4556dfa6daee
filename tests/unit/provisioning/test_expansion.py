"""Expansion of volumes, on the embedded API server."""

from collections.abc import Mapping
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    NFSVolumeSource,
    ObjectReference,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.types import PatchType

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.reading import read_claim
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim
from kube_efs.model.errors import KubeConflict
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.expansion import Expansions, wants_expansion

Json = Mapping[str, Any]


class Scene:
    """A Bound claim of 1Gi with its volume."""

    def __init__(self, kube: AsyncClient) -> None:
        self.kube = kube
        self.volumes = VolumeStore(kube)
        self.ours = True
        self.expansions = Expansions(
            claims=ClaimStore(kube), volumes=self.volumes, serves=lambda _: self.ours
        )

    async def bind(self) -> None:
        requests = VolumeResourceRequirements(requests={"storage": "1Gi"})
        claim = PersistentVolumeClaim(
            metadata=ObjectMeta(name="data", namespace="default"),
            spec=PersistentVolumeClaimSpec(
                accessModes=["ReadWriteMany"], storageClassName="efs", volumeName="pv", resources=requests
            ),
        )
        uid = (await self.kube.create(claim)).to_dict()["metadata"]["uid"]
        reference = ObjectReference(namespace="default", name="data", uid=uid)
        spec = PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            claimRef=reference,
            nfs=NFSVolumeSource(server="127.0.0.1", path="/data"),
        )
        await self.kube.create(PersistentVolume(metadata=ObjectMeta(name="pv"), spec=spec))
        await self.set_status({"phase": "Bound", "capacity": {"storage": "1Gi"}})

    async def request(self, size: str) -> None:
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        await self.kube.patch(
            PersistentVolumeClaim, "data", patch, namespace="default", patch_type=PatchType.MERGE
        )

    async def set_status(self, status: Json) -> None:
        await self.kube.patch(
            PersistentVolumeClaim.Status,
            "data",
            {"status": status},
            namespace="default",
            patch_type=PatchType.STRATEGIC,
        )

    async def body(self) -> Json:
        return (await self.kube.get(PersistentVolumeClaim, "data", namespace="default")).to_dict()

    async def claim(self) -> Claim:
        return read_claim(await self.body())

    async def expand(self) -> Volume | None:
        return await self.expansions.expand(await self.claim())

    async def sizes(self) -> tuple[str, str | None]:
        """The capacity of the volume, and that of the claim."""
        return (await self.volumes.get("pv")).capacity, (await self.claim()).capacity


@pytest.fixture
async def scene(kube: AsyncClient) -> Scene:
    scene = Scene(kube)
    await scene.bind()
    return scene


async def test_volume_and_claim_get_the_requested_capacity(scene: Scene) -> None:
    await scene.request("5Gi")
    assert wants_expansion(await scene.claim())
    expanded = await scene.expand()
    assert expanded is not None
    assert expanded.capacity == "5Gi"
    assert await scene.sizes() == ("5Gi", "5Gi")
    assert not (await scene.body())["status"].get("conditions")
    assert not wants_expansion(await scene.claim())


@pytest.mark.parametrize("size", ["1Gi", "1024Mi"])
async def test_claim_that_has_what_it_requests_is_not_changed(scene: Scene, size: str) -> None:
    await scene.request(size)
    before = await scene.body()
    assert await scene.expand() is None
    assert (await scene.body(), await scene.sizes()) == (before, ("1Gi", "1Gi"))


async def test_volume_of_another_provisioner_is_not_changed(scene: Scene) -> None:
    scene.ours = False
    await scene.request("5Gi")
    assert await scene.expand() is None
    assert await scene.sizes() == ("1Gi", "1Gi")


async def test_volume_of_another_claim_is_not_changed(scene: Scene) -> None:
    await scene.request("5Gi")
    other = {"spec": {"claimRef": {"name": "data", "namespace": "default", "uid": "another"}}}
    await scene.kube.patch(PersistentVolume, "pv", other, patch_type=PatchType.MERGE)
    assert await scene.expand() is None
    assert await scene.sizes() == ("1Gi", "1Gi")


@pytest.mark.parametrize("volume", ["1Gi", "5Gi", "9Gi"])
async def test_interrupted_expansion_is_completed(scene: Scene, volume: str) -> None:
    """The last leader was killed; the volume can already have the requested size, or an earlier request's."""
    await scene.request("5Gi")
    await scene.set_status({"conditions": [{"type": "Resizing", "status": "True"}]})
    await scene.volumes.expand(await scene.volumes.get("pv"), volume)
    assert await scene.expand() is not None
    size = "9Gi" if volume == "9Gi" else "5Gi"
    assert await scene.sizes() == (size, size)
    assert not (await scene.body())["status"].get("conditions")


async def test_condition_that_remained_is_removed(scene: Scene) -> None:
    await scene.set_status({"conditions": [{"type": "Resizing", "status": "True"}]})
    assert await scene.expand() is not None
    assert await scene.sizes() == ("1Gi", "1Gi")
    assert not (await scene.body())["status"].get("conditions")


async def test_late_write_for_a_smaller_request_has_no_effect(scene: Scene) -> None:
    before = await scene.volumes.get("pv")
    await scene.request("5Gi")
    await scene.expand()
    with pytest.raises(KubeConflict):
        await scene.volumes.expand(before, "2Gi")
    assert await scene.sizes() == ("5Gi", "5Gi")


async def test_claim_and_volume_that_change_meanwhile_are_read_again(scene: Scene) -> None:
    await scene.request("5Gi")
    changes = iter(range(3))

    class Changing(VolumeStore):
        async def expand(self, volume: Volume, capacity: str) -> None:
            number = next(changes, None)
            if number is not None:
                patch = {"metadata": {"labels": {"change": str(number)}}}
                await scene.kube.patch(PersistentVolume, "pv", patch, patch_type=PatchType.MERGE)
            await super().expand(volume, capacity)

    expansions = Expansions(
        claims=ClaimStore(scene.kube), volumes=Changing(scene.kube), serves=lambda _: True
    )
    assert await expansions.expand(await scene.claim()) is not None
    assert await scene.sizes() == ("5Gi", "5Gi")
