"""What keeps the object of a snapshot in Kubernetes, and what ends that."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry
from tests.unit.provisioning.backends.csi.csi_world import CsiWorld, Texts

from kube_efs.controllers.snapshots import SnapshotController
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import InvalidArgument, VolumePending
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import KubeEfsError, WorkerFailed
from kube_efs.model.snapshots import (
    BEING_CREATED,
    BEING_DELETED,
    FINALIZER,
    SECRET_NAME,
    SECRET_NAMESPACE,
    SnapshotContent,
)
from kube_efs.model.volumes import DRIVER, Location
from kube_efs.provisioning.snapshots import Snapshot, Snapshots
from kube_efs.provisioning.workers.contract import Confirm
from kube_efs.telemetry.duties import Duties

HANDLE = "fs-0123456789abcdef0:/data"
SNAPSHOT = "fs-0123456789abcdef0:/.kube-efs-snapshots/one"


class Content(SnapshotStore):
    """The API server has one content."""

    def __init__(self) -> None:
        self.known = SnapshotContent(name="content", uid="uid-1", driver=DRIVER, volume_handle=HANDLE)

    async def content(self, name: str) -> SnapshotContent | None:
        return self.known

    async def mark_being_created(self, content: SnapshotContent, *, is_being_created: bool) -> None:
        self.known = replace(content, annotations={BEING_CREATED: "yes"} if is_being_created else {})

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
        report: Callable[[str], None] | None = None,
    ) -> Snapshot:
        raise self._error

    async def delete(self, snapshot_id: str, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        raise self._error


@asynccontextmanager
async def controller_of(
    kube: AsyncClient, store: Content, snapshots: Snapshots
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
