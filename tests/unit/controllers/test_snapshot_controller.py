"""What keeps the object of a snapshot in Kubernetes, and what ends that."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lightkube import AsyncClient
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType
from prometheus_client import CollectorRegistry
from tests.unit.provisioning.backends.csi.csi_world import CsiWorld, Texts

from kube_efs.controllers.snapshots import SnapshotController
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.snapshots import SnapshotStore, VolumeSnapshotContent
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.copies import Copied, CopySource, CopyTerms
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import InvalidArgument, VolumePending
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.errors import KubeConflict, KubeEfsError, KubeUnavailable, RemovalRefused, WorkerFailed
from kube_efs.model.snapshots import (
    BEING_CREATED,
    BEING_DELETED,
    FINALIZER,
    SECRET_NAME,
    SECRET_NAMESPACE,
    SnapshotContent,
)
from kube_efs.model.volumes import DRIVER, Location
from kube_efs.provisioning.copies import Follower
from kube_efs.provisioning.snapshots import Snapshot, Snapshots
from kube_efs.provisioning.workers.contract import Confirm
from kube_efs.provisioning.workers.pods import Busy
from kube_efs.telemetry.duties import Duties

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

KINDS = Path(__file__).parents[2] / "scenarios" / "snapshot-kinds.yaml"
HANDLE = "fs-0123456789abcdef0:/data"
SNAPSHOT = "fs-0123456789abcdef0:/.kube-efs-snapshots/one"


class Content(SnapshotStore):
    """The API server has one content."""

    def __init__(self) -> None:
        self.known = SnapshotContent(name="content", uid="uid-1", driver=DRIVER, volume_handle=HANDLE)

    async def content(self, name: str) -> SnapshotContent | None:
        return self.known

    async def mark_being_created(self, content: SnapshotContent, *, is_being_created: bool) -> None:
        others = {key: value for key, value in content.annotations.items() if key != BEING_CREATED}
        added = {BEING_CREATED: "yes"} if is_being_created else {}
        self.known = replace(content, annotations=others | added)

    async def release(self, content: SnapshotContent) -> None:
        self.known = replace(content, finalizers=())

    async def record_problem(self, content: SnapshotContent, problem: str, *, now: str) -> None:
        self.known = replace(self.known, problem=problem)


class Failing(Snapshots):
    """Creates and removes no snapshot, for that reason."""

    def __init__(self, error: KubeEfsError) -> None:
        self._error = error

    async def create(
        self,
        name: str,
        handle: VolumeHandle,
        role: CrossAccountRole | None,
        follower: Follower | None = None,
    ) -> Snapshot:
        raise self._error

    async def delete(self, snapshot_id: str, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        raise self._error


@asynccontextmanager
async def controller_of(
    kube: AsyncClient, store: SnapshotStore, snapshots: Snapshots
) -> AsyncIterator[SnapshotController]:
    """The controller of that content."""
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        duties = Duties(CollectorRegistry())
        controller = SnapshotController(kube, snapshots, recorder, backoff_seconds=1.0, duties=duties)
        controller._store = store
        yield controller


@pytest.mark.parametrize(("error", "may_exist"), [(InvalidArgument, False), (VolumePending, True)])
async def test_content_is_kept_while_its_copy_may_exist(
    kube: AsyncClient, error: type[KubeEfsError], may_exist: bool
) -> None:
    store = Content()
    failure = error("has failed", field="file system", value=HANDLE)
    async with controller_of(kube, store, Failing(failure)) as controller:
        # The copy is complete, but its file system is being removed, so the call fails.
        assert await controller._handle("content") is not None
    assert (store.known.is_being_created, "has failed" in store.known.problem) == (may_exist, True)


async def test_snapshot_waits_for_the_secret_of_its_account(kube: AsyncClient) -> None:
    store, world = Content(), CsiWorld()
    secret = {SECRET_NAMESPACE: "system", SECRET_NAME: "missing"}
    store.known = replace(store.known, annotations=secret)
    async with controller_of(kube, store, world.snapshots) as controller:
        controller._references = Texts()
        assert await controller._handle("content") is not None
    assert "provisioner secret: 'system/missing' does not exist" in store.known.problem
    assert not store.known.is_being_created


def being_deleted() -> Content:
    """A content of a snapshot whose data must be removed."""
    store = Content()
    store.known = replace(
        store.known,
        deleting=True,
        annotations={BEING_DELETED: "yes"},
        handle=SNAPSHOT,
        finalizers=(FINALIZER,),
    )
    return store


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_data_stays_if_the_policy_becomes_retain_while_the_removal_waits(
    kube: AsyncClient, is_recreated: bool
) -> None:
    store, world = being_deleted(), CsiWorld()
    remove = world.folders.remove

    async def remove_late(location: Location, base: Directory, confirm: Confirm, *, tenant: str = "") -> None:
        store.known = replace(
            store.known,
            deletion_policy=store.known.deletion_policy if is_recreated else ReclaimPolicy.RETAIN,
            uid="uid-2" if is_recreated else store.known.uid,
        )
        await remove(location, base, confirm, tenant=tenant)

    world.folders.remove = remove_late  # type: ignore[method-assign]
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
        assert not world.folders.removed
        if not is_recreated:
            assert await controller._handle("content") is None
            assert (store.known.finalizers, world.folders.removed) == ((), [])


async def test_content_whose_file_system_is_gone_is_deleted_with_the_policy_retain(kube: AsyncClient) -> None:
    store = being_deleted()
    failure = WorkerFailed("cannot be mounted", field="file system", value=HANDLE)
    async with controller_of(kube, store, Failing(failure)) as controller:
        assert await controller._handle("content") is not None
        assert store.known.finalizers == (FINALIZER,)
        before = store.known.inputs
        store.known = replace(store.known, deletion_policy=ReclaimPolicy.RETAIN)
        # Otherwise the change would have no effect before the next attempt.
        assert store.known.inputs != before
        assert await controller._handle("content") is None
        assert store.known.finalizers == ()


def deleted_early(policy: ReclaimPolicy = ReclaimPolicy.DELETE, handle: str = HANDLE) -> Content:
    """A content whose VolumeSnapshot was deleted before it was ready."""
    store = Content()
    store.known = replace(
        store.known,
        volume_handle=handle,
        snapshot_uid="one",
        deleting=True,
        deletion_policy=policy,
        annotations={BEING_CREATED: "yes", BEING_DELETED: "yes"},
        finalizers=(FINALIZER,),
    )
    return store


PLACE = Location(
    file_system_id=parse_volume_handle(HANDLE).file_system_id,
    directory=parse_directory("/.kube-efs-snapshots/snapshot-one"),
)
REMOVED = {ReclaimPolicy.DELETE: [f"{PLACE} in /.kube-efs-snapshots"], ReclaimPolicy.RETAIN: []}
POLICIES = pytest.mark.parametrize("policy", [ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN])


@POLICIES
async def test_snapshot_that_is_deleted_before_it_is_ready_is_not_copied_again(
    kube: AsyncClient, policy: ReclaimPolicy
) -> None:
    store, world = deleted_early(policy), CsiWorld()
    # For example, a directory is too deep; another attempt would fail, too.
    world.folders.copy_fault = WorkerFailed("cannot be copied (is deeper than 200 directories)", field="file")
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
        assert not store.known.is_being_created
        assert await controller._handle("content") is None
    assert store.known.finalizers == ()
    assert world.folders.discarded == [(PLACE, "snapshot.snapshot-one")]
    # With Retain, a complete copy stays.
    assert world.folders.removed == REMOVED[policy]


@POLICIES
async def test_copy_of_an_earlier_leader_is_stopped_before_it_is_discarded(
    kube: AsyncClient, policy: ReclaimPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, world = deleted_early(policy), CsiWorld()
    world.copies._first_look_seconds = 0.01
    stopped = asyncio.Event()

    async def copy_ended(target: Location) -> None:
        await stopped.wait()

    async def stop_copy(target: Location) -> None:
        assert not world.folders.removed
        assert not world.folders.discarded
        stopped.set()

    monkeypatch.setattr(world.folders, "copy_ended", copy_ended)
    monkeypatch.setattr(world.folders, "stop_copy", stop_copy)
    async with asyncio.timeout(10), controller_of(kube, store, world.snapshots) as controller:
        await controller._handle("content")
    assert stopped.is_set()
    assert (len(world.folders.discarded), world.folders.removed) == (1, REMOVED[policy])


@POLICIES
@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        pytest.param(Busy, {ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN}, id="its pod still runs"),
        pytest.param(
            KubeUnavailable, {ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN}, id="the API server does not answer"
        ),
        # As for a complete snapshot: nothing can mount the file system any more.
        pytest.param(WorkerFailed, {ReclaimPolicy.DELETE}, id="its file system is gone"),
    ],
)
async def test_content_is_kept_until_its_unfinished_copy_is_gone(
    kube: AsyncClient,
    policy: ReclaimPolicy,
    error: type[KubeEfsError],
    is_kept: set[ReclaimPolicy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, world = deleted_early(policy), CsiWorld()

    async def fail(target: Location, key: str) -> None:
        raise error("has failed", field="worker pod")

    monkeypatch.setattr(world.folders, "discard_copy", fail)
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
    assert store.known.is_being_created is (policy in is_kept)
    assert store.known.problem == "", "the VolumeSnapshot does not exist any more"


async def test_complete_copy_stays_if_the_policy_becomes_retain_while_its_removal_waits(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, world = deleted_early(), CsiWorld()
    remove = world.folders.remove

    async def remove_late(location: Location, base: Directory, confirm: Confirm, *, tenant: str = "") -> None:
        store.known = replace(store.known, deletion_policy=ReclaimPolicy.RETAIN)
        await remove(location, base, confirm, tenant=tenant)

    monkeypatch.setattr(world.folders, "remove", remove_late)
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
        assert store.known.is_being_created
        assert await controller._handle("content") is not None
        assert await controller._handle("content") is None
    assert (store.known.finalizers, world.folders.removed) == ((), [])


@POLICIES
@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"volume_handle": "fs-0123456789abcdef0:/other"}, id="being created"),
        pytest.param({"handle": str(PLACE), "is_ready": True}, id="complete"),
    ],
)
async def test_copy_of_another_content_with_the_uid_of_the_snapshot_is_not_changed(
    kube: AsyncClient, policy: ReclaimPolicy, other: dict[str, str]
) -> None:
    store, world = deleted_early(policy), CsiWorld()
    known = SnapshotContent(name="other", uid="uid-2", driver=DRIVER, snapshot_uid="one")
    world.contents.known = [store.known, replace(known, **other)]  # type: ignore[arg-type]
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
    assert store.known.is_being_created
    folders = world.folders
    assert (folders.removed, folders.discarded, folders.stopped) == ([], [], [])


@pytest.mark.virtual_time
async def test_concurrent_removals_share_lists_that_begin_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world, lists = CsiWorld(), 0

    async def contents(driver: str) -> tuple[SnapshotContent, ...]:
        nonlocal lists
        lists += 1
        found = tuple(world.contents.known)
        await asyncio.sleep(1)
        return found

    monkeypatch.setattr(world.contents, "contents", contents)
    late = f"{SNAPSHOT}-late"
    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(world.snapshots.delete(f"{SNAPSHOT}-{number}"))
        await asyncio.sleep(0.5)
        # The running list does not contain it.
        world.contents.known = [
            SnapshotContent(name="other", uid="uid-2", driver=DRIVER, given_handle=late),
        ]
        with pytest.raises(RemovalRefused, match="is also used by VolumeSnapshotContent other"):
            await world.snapshots.delete(late)
    assert (len(world.folders.removed), lists) == (100, 2)


async def test_data_stays_while_the_cluster_seems_to_lack_the_kind_of_contents(kube: AsyncClient) -> None:
    """An API server that starts, or a proxy before it, may answer as without the kind."""
    world = CsiWorld()
    world.snapshots._store = SnapshotStore(kube)
    with pytest.raises(KubeUnavailable) as caught:
        await world.snapshots.delete(SNAPSHOT)
    assert str(caught.value) == (
        "kind: 'VolumeSnapshotContent' does not seem to exist, so the snapshots that need their data are "
        "unknown; check that the cluster has the kinds of snapshots"
    )
    assert (world.folders.removed, world.folders.discarded) == ([], [])


class OnceHidden(SnapshotStore):
    """A store to which the first answer of the API server is that the content does not exist."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client)
        self.is_hidden = True

    async def content(self, name: str) -> SnapshotContent | None:
        if self.is_hidden:
            self.is_hidden = False
            return None
        return await super().content(name)


async def create_content(kube: AsyncClient) -> None:
    """A content with a snapshot that exists already."""
    for body in yaml.safe_load_all(await asyncio.to_thread(KINDS.read_text)):
        await kube.create(from_dict(body))
    spec = {"driver": DRIVER, "deletionPolicy": "Retain", "source": {"snapshotHandle": SNAPSHOT}}
    await kube.create(VolumeSnapshotContent(metadata=ObjectMeta(name="content"), spec=spec))


async def read_content(kube: AsyncClient) -> SnapshotContent:
    found = await SnapshotStore(kube).content("content")
    assert found is not None
    return found


@asynccontextmanager
async def watching(kube: AsyncClient, store: SnapshotStore) -> AsyncIterator[None]:
    async with controller_of(kube, store, CsiWorld().snapshots) as controller:
        watch = asyncio.create_task(controller.watch())
        yield
        watch.cancel()
        await asyncio.wait([watch])


async def test_content_that_a_read_does_not_find_is_served_while_the_watch_knows_it(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await create_content(kube)

    async def is_ready() -> bool:
        return (await read_content(kube)).is_ready

    async with watching(kube, OnceHidden(kube)):
        await eventually(is_ready)


async def test_snapshot_that_is_marked_as_not_ready_late_becomes_ready_again(
    kube: AsyncClient, eventually: Eventually
) -> None:
    await create_content(kube)

    async def is_ready() -> bool:
        return (await read_content(kube)).is_ready

    async with watching(kube, SnapshotStore(kube)):
        await eventually(is_ready)
        late = {"status": {"readyToUse": False, "error": {"message": "was not copied"}}}
        await kube.patch(VolumeSnapshotContent.Status, "content", late, patch_type=PatchType.MERGE)
        await eventually(is_ready)


async def test_late_problem_does_not_replace_a_newer_status(kube: AsyncClient) -> None:
    await create_content(kube)
    store, before = SnapshotStore(kube), await read_content(kube)
    await store.record_ready(before, SNAPSHOT, created=0)
    with pytest.raises(KubeConflict):
        await store.record_problem(before, "was not copied", now="2026-01-01T00:00:00Z")
    assert (await read_content(kube)).is_ready


class Overtaken(Failing):
    """An attempt fails although its snapshot has become ready, by an earlier request or another leader."""

    def __init__(self, store: SnapshotStore) -> None:
        super().__init__(WorkerFailed("was deleted", field="worker pod"))
        self._contents = store

    async def create(self, name: str, *_: object) -> Snapshot:
        content = await self._contents.content("content")
        assert content is not None
        await self._contents.record_ready(content, SNAPSHOT, created=0)
        raise self._error


@pytest.mark.parametrize("is_overtaken", [False, True])
async def test_problem_is_recorded_unless_the_snapshot_is_ready_meanwhile(
    kube: AsyncClient, is_overtaken: bool
) -> None:
    await create_content(kube)
    source = {"spec": {"source": {"snapshotHandle": None, "volumeHandle": HANDLE}}}
    await kube.patch(VolumeSnapshotContent, "content", source, patch_type=PatchType.MERGE)
    store = SnapshotStore(kube)
    failing = Overtaken(store) if is_overtaken else Failing(WorkerFailed("was deleted", field="worker pod"))
    async with controller_of(kube, store, failing) as controller:
        assert await controller._handle("content") is not None
    content = await read_content(kube)
    assert (content.is_ready, bool(content.problem)) == (is_overtaken, not is_overtaken)


@pytest.mark.parametrize("handle", ["not ours", "s3files:fs-0123456789abcdef0::fsap-0123456789abcdef0"])
async def test_content_of_a_volume_that_cannot_be_copied_needs_no_worker(
    kube: AsyncClient, handle: str
) -> None:
    store, world = deleted_early(handle=handle), CsiWorld()
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
        assert await controller._handle("content") is None
    assert (store.known.finalizers, world.folders.removed, world.folders.discarded) == ((), [], [])


async def test_running_copy_stops_when_its_snapshot_is_deleted(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, world = Content(), CsiWorld()
    store.known = replace(store.known, snapshot_uid="one", finalizers=(FINALIZER,))
    world.copies._first_look_seconds = 0.01
    world.sources.by_handle[f"efs:{HANDLE}"] = CopySource(
        location=replace(PLACE, directory=parse_directory("/data"))
    )
    began, stopped = asyncio.Event(), asyncio.Event()

    async def copy(target: Location, terms: CopyTerms, **_: object) -> Copied:
        began.set()
        await stopped.wait()
        raise WorkerFailed("was deleted before it ended", field="worker pod")

    async def stop_copy(target: Location) -> None:
        stopped.set()

    monkeypatch.setattr(world.folders, "copy", copy)
    monkeypatch.setattr(world.folders, "stop_copy", stop_copy)
    async with asyncio.timeout(10), controller_of(kube, store, world.snapshots) as controller:
        first = asyncio.ensure_future(controller._handle("content"))
        await began.wait()
        leaving = {**store.known.annotations, BEING_DELETED: "yes"}
        store.known = replace(store.known, deleting=True, annotations=leaving)
        assert await first is not None
        while await controller._handle("content") is not None:
            pass
    assert store.known.finalizers == ()
    assert (len(world.folders.discarded), world.folders.removed) == (1, REMOVED[ReclaimPolicy.DELETE])


async def test_snapshot_that_became_ready_before_its_mark_was_removed_is_deleted_at_once(
    kube: AsyncClient,
) -> None:
    store, world = deleted_early(), CsiWorld()
    store.known = replace(store.known, handle=SNAPSHOT, is_ready=True)
    async with controller_of(kube, store, world.snapshots) as controller:
        assert await controller._handle("content") is not None
        assert not store.known.is_being_created
