"""Filling a new volume with a copy: progress, deleted claims, reservations, refusals."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.provisioning.copying import CopiedFolders, GivenSources

from kube_efs.model.claims import Claim
from kube_efs.model.copies import Copied, CopyProgress, CopySource, CopyTerms, FileOwner
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.errors import (
    AwsDenied,
    AwsNotFound,
    CopyDiffers,
    KubeDenied,
    KubeEfsError,
    KubeUnavailable,
    NotYet,
    WorkerFailed,
)
from kube_efs.model.volumes import Location
from kube_efs.provisioning.copies import Copies, Follower, Recipient, check_copy, volume_key
from kube_efs.provisioning.guards import tenant_of_namespace
from kube_efs.provisioning.reservations import DirectoryReservations
from kube_efs.provisioning.workers.contract import UNPROTECTED, Protection

CLAIM = Claim(namespace="team", name="copy", uid=ClaimUid("1"))


def at(path: str, file_system_id: str = "fs-1") -> Location:
    return Location(file_system_id=FileSystemId(file_system_id), directory=parse_directory(path))


SOURCE = CopySource(location=at("/old"), owner=FileOwner(uid=7, gid=8))


class SlowFolders(CopiedFolders):
    """Copies that end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()
        self.fault: WorkerFailed | None = None

    async def copy(
        self,
        target: Location,
        terms: CopyTerms,
        *,
        tenant: str = "",
        protection: Protection = UNPROTECTED,
    ) -> Copied:
        copied = await super().copy(target, terms, tenant=tenant, protection=protection)
        await self.ended.wait()
        if self.fault:
            raise self.fault
        return copied

    async def stop_copy(self, target: Location) -> None:
        await super().stop_copy(target)
        self.fault = WorkerFailed("was deleted before it ended", field="worker pod")
        self.ended.set()


class Scene:
    def __init__(self) -> None:
        self.folders = SlowFolders()
        self.told: list[str] = []
        self.sources = GivenSources()
        self.sources.by_claim[CLAIM.uid] = SOURCE
        self.is_gone: Callable[[], bool] = lambda: False
        self.asked = 0
        self.has_users = False
        self.reservations = DirectoryReservations()
        self.copies = Copies(
            sources=self.sources,
            reservations=self.reservations,
            is_gone=self._is_gone,
            notice=lambda claim, text: self.told.append(text),
            first_look_seconds=0.01,
            first_pause_seconds=0.05,
        )

    async def _is_gone(self, claim: Claim) -> bool:
        self.asked += 1
        return self.is_gone()

    async def fill(self, claim: Claim | None = CLAIM, source: CopySource = SOURCE) -> Copied | None:
        return await self.copies.fill(
            self.folders,  # type: ignore[arg-type]
            source,
            at("/new"),
            Recipient(claim=claim, has_other_users=lambda: self.has_users),
            key=volume_key(CLAIM),
            maps_owner=True,
        )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


async def test_claim_gets_progress_and_the_end() -> None:
    scene = Scene()
    filling = asyncio.ensure_future(scene.fill())
    await until(lambda: scene.told)
    scene.folders.ended.set()
    copied = await filling
    assert copied is not None
    assert copied.progress == CopyProgress(entries=3, copied_bytes=2048)
    assert scene.told[0] == "Copying: 1 file or directory (1.0 KiB) so far"
    assert scene.told[-1] == "Copied 3 files and directories (2.0 KiB) to fs-1:/new"
    terms = CopyTerms(key="pvc-1", source=parse_directory("/old"), owner=SOURCE.owner, maps_owner=True)
    assert scene.folders.copies == [(at("/new"), terms)]
    # The tenant of its namespace, as for removals.
    assert scene.folders.tenants == [tenant_of_namespace("team")]


async def test_snapshot_gets_its_progress_without_a_claim() -> None:
    scene = Scene()
    source = replace(SOURCE, owner=None)
    filling = asyncio.ensure_future(
        scene.copies.fill(
            scene.folders,  # type: ignore[arg-type]
            source,
            at("/new"),
            Recipient(follower=Follower(report=scene.told.append)),
            key="snapshot.a",
            maps_owner=False,
        )
    )
    await until(lambda: scene.told)
    scene.folders.ended.set()
    assert await filling is not None
    assert set(scene.told) == {"Copying: 1 file or directory (1.0 KiB) so far"}


async def test_copy_for_a_deleted_claim_is_stopped_and_then_discarded() -> None:
    scene = Scene()
    filling = asyncio.ensure_future(scene.fill())
    await until(lambda: scene.folders.copies)
    scene.is_gone = lambda: True
    with pytest.raises(WorkerFailed, match="was deleted before it ended"):
        await filling
    assert scene.folders.stopped == [at("/new")]
    assert await scene.fill() is None
    assert scene.folders.discarded == [(at("/new"), "pvc-1")]
    assert len(scene.folders.copies) == 1


async def test_copy_without_a_worker_is_stopped_too() -> None:
    scene = Scene()
    await scene.copies.stop(scene.folders, at("/new"))  # type: ignore[arg-type]
    assert scene.folders.stopped == [at("/new")]


async def test_complete_copy_of_an_earlier_source_is_sufficient_for_its_claim() -> None:
    scene = Scene()
    scene.folders.copy_fault = CopyDiffers("is the name of a copy of another directory", field="copy")
    assert await scene.fill() is None
    assert (scene.told, scene.folders.discarded) == ([], [])
    with pytest.raises(CopyDiffers):
        await scene.fill(claim=None)


async def test_unanswered_question_about_the_claim_does_not_end_the_copy() -> None:
    scene, asked = Scene(), 0

    def is_gone() -> bool:
        nonlocal asked
        asked += 1
        if asked in {2, 3}:
            raise KubeUnavailable("no answer", field="claim")
        return False

    scene.is_gone = is_gone
    filling = asyncio.ensure_future(scene.fill())
    await until(lambda: asked > 3)
    scene.folders.ended.set()
    assert await filling is not None
    assert scene.folders.stopped == []


async def test_attempts_after_failures_wait_longer_each_time() -> None:
    scene, clock = Scene(), asyncio.get_running_loop().time
    scene.folders.ended.set()
    scene.folders.fault = WorkerFailed("cannot be copied", field="file")
    waited = []
    for _ in range(3):
        began = clock()
        with pytest.raises(WorkerFailed):
            await scene.fill()
        waited.append(clock() - began)
    assert [one >= least for one, least in zip(waited, (0.0, 0.05, 0.1), strict=True)] == [True] * 3
    scene.folders.fault = None
    await scene.fill()
    assert scene.copies._pauses == {}


@pytest.mark.parametrize("later", [None, replace(SOURCE, location=at("/later"))], ids=["gone", "another"])
async def test_source_that_is_removed_before_the_copy_begins_is_not_an_empty_volume(
    later: CopySource | None,
) -> None:
    """Its directory may be missing before the first mount, so the worker could not tell the difference."""
    scene = Scene()
    scene.folders.ended.set()
    found = replace(SOURCE, may_be_missing=True)
    scene.sources.by_claim[CLAIM.uid] = found
    async with scene.reservations.removing(SOURCE.location):
        filling = asyncio.ensure_future(scene.fill(source=found))
        await asyncio.sleep(0)
        if later is None:
            scene.sources.fault = NotYet("does not exist", field="spec.dataSource")
        else:
            scene.sources.by_claim[CLAIM.uid] = later
    with pytest.raises(NotYet) as caught:
        await filling
    text = "does not exist" if later is None else "'fs-1:/old' is no longer the data to copy"
    assert text in str(caught.value)
    assert caught.value.has_begun
    assert scene.folders.copies == []


@pytest.mark.parametrize("error", [AwsDenied, AwsNotFound, InvalidArgument, KubeDenied])
async def test_source_that_cannot_be_read_again_is_never_a_final_refusal(error: type[KubeEfsError]) -> None:
    """After one, csi-provisioner would forget the access point that was made for the copy."""
    scene = Scene()
    scene.sources.fault = error("is refused", field="DescribeAccessPoints")
    with pytest.raises(NotYet, match="is refused") as caught:
        await scene.fill()
    assert caught.value.has_begun


async def test_source_that_is_removed_in_the_pause_after_a_failure_is_not_copied_further() -> None:
    scene = Scene()
    scene.folders.ended.set()
    scene.folders.fault = WorkerFailed("cannot be copied", field="file")
    with pytest.raises(WorkerFailed):
        await scene.fill()
    scene.folders.fault = None
    filling, asked = asyncio.ensure_future(scene.fill()), scene.asked
    await until(lambda: scene.asked > asked)
    scene.sources.fault = NotYet("does not exist", field="spec.dataSource")
    with pytest.raises(NotYet):
        await filling
    assert len(scene.folders.copies) == 1


async def test_volume_of_a_handle_that_is_removed_before_the_copy_begins_is_not_an_empty_snapshot() -> None:
    scene, handle = Scene(), parse_volume_handle("fs-01234567::fsap-01234567")
    scene.folders.ended.set()
    scene.sources.by_handle[str(handle)] = SOURCE
    found = await scene.sources.of_handle(handle, None)
    del scene.sources.by_handle[str(handle)]
    # Not final: csi-provisioner would forget what was created for the copy.
    with pytest.raises(NotYet, match="fs-01234567::fsap-01234567' does not exist"):
        await scene.fill(claim=None, source=found)
    assert scene.folders.copies == []


async def test_source_cannot_be_removed_during_the_copy() -> None:
    scene, removed = Scene(), asyncio.Event()

    async def remove() -> None:
        async with scene.reservations.removing(at("/old/below")):
            removed.set()

    filling = asyncio.ensure_future(scene.fill(claim=None))
    await until(lambda: scene.folders.copies)
    removing = asyncio.ensure_future(remove())
    await asyncio.sleep(0.05)
    assert not removed.is_set()
    scene.folders.ended.set()
    await filling
    await removing
    assert removed.is_set()


async def test_copy_can_protect_its_source_longer_than_the_call_takes() -> None:
    scene = Scene()
    filling = asyncio.ensure_future(scene.fill())
    await until(lambda: scene.folders.copies)
    (protection,) = scene.folders.protections
    async with protection.reserved():
        filling.cancel()
        await asyncio.wait([filling])
        removing = asyncio.ensure_future(scene.reservations.removing(SOURCE.location).__aenter__())
        await asyncio.sleep(0)
        assert not removing.done()
        await protection.confirm()
        scene.sources.by_claim[CLAIM.uid] = replace(SOURCE, location=at("/later"))
        with pytest.raises(NotYet, match="is no longer the data to copy"):
            await protection.confirm()
    await removing


@pytest.mark.parametrize("has_users", [False, True])
async def test_worker_learns_whether_others_use_the_directory(has_users: bool) -> None:
    """The rename of the copy accepts an empty directory, also one that pods have mounted."""
    scene = Scene()
    scene.folders.ended.set()
    scene.has_users = has_users
    await scene.fill()
    ((_, terms),) = scene.folders.copies
    assert terms.in_use == has_users


async def test_cancelled_caller_cancels_the_call() -> None:
    scene = Scene()
    filling = asyncio.ensure_future(scene.fill())
    await until(lambda: scene.folders.copies)
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (at("/old", "fs-2"), "'fs-2:/old' is on fs-2, but the new volume is on fs-1"),
        (at("/"), "'fs-1:/' is, contains or is inside the directory of the copy, /new"),
        (at("/new/below"), "'fs-1:/new/below' is, contains or is inside the directory of the copy, /new"),
    ],
)
async def test_source_that_cannot_be_copied_is_refused_before_anything_is_created(
    location: Location, text: str
) -> None:
    scene = Scene()
    scene.sources.by_claim[CLAIM.uid] = CopySource(location=location)
    with pytest.raises(InvalidArgument) as caught:
        await scene.copies.source_for(CLAIM, at("/new"))
    assert text in str(caught.value)
    # What an earlier attempt has created for a claim that is gone is removed with its volume.
    scene.is_gone = lambda: True
    assert await scene.copies.source_for(CLAIM, at("/new")) is None


@pytest.mark.parametrize(("owner", "is_refused"), [(None, False), (FileOwner(uid=7, gid=8), True)])
def test_volume_with_an_identity_is_copied_only_to_another_one(
    owner: FileOwner | None, is_refused: bool
) -> None:
    source = CopySource(location=at("/old"), owner=owner)
    check_copy(source, at("/new"), enforces_identity=True)
    with pytest.raises(InvalidArgument, match="enforces an identity") if is_refused else nullcontext():
        check_copy(source, at("/new"), enforces_identity=False)


def test_key_is_that_of_csi_provisioner() -> None:
    fields: dict[str, Any] = {"namespace": "a", "name": "b", "uid": ClaimUid("0-1")}
    assert volume_key(Claim(**fields)) == "pvc-0-1"
