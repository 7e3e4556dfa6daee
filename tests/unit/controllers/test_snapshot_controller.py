"""What keeps the object of a snapshot in Kubernetes, and what ends that."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lightkube import AsyncClient
from prometheus_client import CollectorRegistry

from kube_efs.controllers.snapshots import SnapshotController
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import InvalidArgument, VolumePending
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.errors import KubeEfsError, WorkerFailed
from kube_efs.model.snapshots import BEING_CREATED, BEING_DELETED, FINALIZER, SnapshotContent
from kube_efs.model.volumes import DRIVER
from kube_efs.provisioning.snapshots import Snapshot, Snapshots
from kube_efs.telemetry.duties import Duties

HANDLE = "fs-0123456789abcdef0:/data"
SNAPSHOT = "efs:fs-0123456789abcdef0:/.kube-efs-snapshots/one"


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

    async def delete(self, snapshot_id: str) -> None:
        raise self._error


@asynccontextmanager
async def controller_of(
    kube: AsyncClient, store: Content, error: KubeEfsError
) -> AsyncIterator[SnapshotController]:
    """The controller of that content; every call for its snapshot raises the error."""
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        duties = Duties(CollectorRegistry())
        controller = SnapshotController(kube, Failing(error), recorder, backoff_seconds=1.0, duties=duties)
        controller._store = store
        yield controller


@pytest.mark.parametrize(("error", "may_exist"), [(InvalidArgument, False), (VolumePending, True)])
async def test_content_is_kept_while_its_copy_may_exist(
    kube: AsyncClient, error: type[KubeEfsError], may_exist: bool
) -> None:
    store = Content()
    failure = error("has failed", field="file system", value=HANDLE)
    async with controller_of(kube, store, failure) as controller:
        # The copy is complete, but its file system is being removed, so the call fails.
        assert await controller._handle("content") is not None
    assert (store.known.is_being_created, "has failed" in store.known.problem) == (may_exist, True)


async def test_content_whose_file_system_is_gone_is_deleted_with_the_policy_retain(kube: AsyncClient) -> None:
    store = Content()
    store.known = replace(
        store.known,
        deleting=True,
        annotations={BEING_DELETED: "yes"},
        handle=SNAPSHOT,
        finalizers=(FINALIZER,),
    )
    failure = WorkerFailed("cannot be mounted", field="file system", value=HANDLE)
    async with controller_of(kube, store, failure) as controller:
        assert await controller._handle("content") is not None
        assert store.known.finalizers == (FINALIZER,)
        before = store.known.inputs
        store.known = replace(store.known, deletion_policy=ReclaimPolicy.RETAIN)
        # Otherwise the change would have no effect before the next attempt.
        assert store.known.inputs != before
        assert await controller._handle("content") is None
        assert store.known.finalizers == ()
