"""The recorded file system of a claim, on the embedded API server."""

import asyncio
from dataclasses import replace

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolumeClaim
from lightkube.types import PatchType

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.reading import read_claim
from kube_efs.model.claims import Claim
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.errors import NotYet
from kube_efs.model.tunnel_volumes import CHOSEN_FILE_SYSTEM

FS1, FS2 = FileSystemId("fs-1"), FileSystemId("fs-2")


@pytest.fixture
async def claim(kube: AsyncClient) -> Claim:
    created = await kube.create(
        PersistentVolumeClaim(
            metadata=ObjectMeta(name="data", namespace="default"),
            spec=PersistentVolumeClaimSpec(
                accessModes=["ReadWriteMany"],
                storageClassName="efs",
                resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            ),
        )
    )
    return read_claim(created.to_dict())


async def live(kube: AsyncClient) -> Claim:
    return read_claim((await kube.get(PersistentVolumeClaim, "data", namespace="default")).to_dict())


async def annotate(kube: AsyncClient, key: str, value: str) -> None:
    patch = {"metadata": {"annotations": {key: value}}}
    await kube.patch(PersistentVolumeClaim, "data", patch, namespace="default", patch_type=PatchType.MERGE)


async def test_one_of_many_controllers_chooses(kube: AsyncClient, claim: Claim) -> None:
    store = ClaimStore(kube)
    choices = [FileSystemId(f"fs-{number}") for number in range(8)]
    results = await asyncio.gather(
        *(store.record_file_system(claim, one) for one in choices), return_exceptions=True
    )
    (recorded,) = [one for one, result in zip(choices, results, strict=True) if result is None]
    assert (await live(kube)).file_system == recorded
    assert all(isinstance(one, NotYet) for one in results if one is not None)
    # The same controller records it again after a failure, with the claim that it read before.
    await store.record_file_system(claim, recorded)


async def test_unrelated_change_of_the_claim_does_not_matter(kube: AsyncClient, claim: Claim) -> None:
    await annotate(kube, "volume.kubernetes.io/storage-provisioner", "example.com/efs")
    await ClaimStore(kube).record_file_system(claim, FS1)
    assert (await live(kube)).file_system == FS1


async def test_choice_is_changed_only_by_a_writer_that_has_read_it(kube: AsyncClient, claim: Claim) -> None:
    store = ClaimStore(kube)
    await store.record_file_system(claim, FS1)
    with pytest.raises(NotYet, match="'fs-1' was recorded for claim default/data after fs-2 was chosen"):
        await store.record_file_system(claim, FS2)
    before = await live(kube)
    await store.record_file_system(before, FS2)
    assert (await live(kube)).file_system == FS2
    # A late watch still shows the earlier choice.
    with pytest.raises(NotYet):
        await store.record_file_system(before, FS1)


@pytest.mark.parametrize("text", ["the first one", "fs-2", "fs-2/of-another-claim"])
async def test_choice_recorded_for_another_claim_is_ignored(
    kube: AsyncClient, claim: Claim, text: str
) -> None:
    await annotate(kube, CHOSEN_FILE_SYSTEM, text)
    assert (await live(kube)).file_system is None
    await ClaimStore(kube).record_file_system(claim, FS1)
    assert (await live(kube)).file_system == FS1


async def test_deleted_claim_is_not_an_error(kube: AsyncClient, claim: Claim) -> None:
    await ClaimStore(kube).record_file_system(replace(claim, name="gone"), FS1)


async def test_new_claim_of_the_same_name_gets_no_record(kube: AsyncClient, claim: Claim) -> None:
    await ClaimStore(kube).record_file_system(replace(claim, uid=ClaimUid("of-a-former-one")), FS1)
    found = await kube.get(PersistentVolumeClaim, "data", namespace="default")
    assert not (found.metadata and found.metadata.annotations)
