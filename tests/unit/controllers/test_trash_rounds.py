"""Rounds that empty the trash of file systems: turns, pauses and reports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, PersistentVolumeClaim
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kube_efs.controllers import trash_rounds
from kube_efs.controllers.trash_rounds import Trashes, TrashRounds
from kube_efs.kube.events import EventRecorder, Subject
from kube_efs.model.claims import StorageClass
from kube_efs.model.csi.errors import VolumePending
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import AwsNotFound, WorkerFailed
from kube_efs.model.trash import StuckEntry, TrashReport
from kube_efs.model.tunnel_volumes import ROOT_CLASS, root_name
from kube_efs.model.volumes import DRIVER, CsiSource, Location, Volume
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.orders import EmptyingTerms
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.loading import load
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

A, B, C = (FileSystemId(f"fs-{letter}") for letter in "abc")
HELD = StuckEntry(entry="4fa1.7-0", path="deep/file", reason="Operation not permitted")


def root(file_system_id: FileSystemId) -> Location:
    return Location(file_system_id=file_system_id, directory=Directory())


class Clock:
    """A clock that the test sets; the rounds read it again after each change."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bin:
    """Trashes with ``left`` entries each; a round removes ``speed`` of them, except ``stuck`` ones."""

    def __init__(self) -> None:
        self.left = {A: 0, B: 0, C: 0}
        self.stuck = {A: 0, B: 0, C: 0}
        self.speed = 1
        self.error: Exception | None = None
        self.rounds: list[FileSystemId] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most_at_once = 0
        self._removed: Callable[[FileSystemId], None] = lambda _: None

    def on_removed(self, call: Callable[[FileSystemId], None]) -> None:
        self._removed = call

    def throw_away(self, file_system_id: FileSystemId, entries: int = 1) -> None:
        self.left[file_system_id] += entries
        self._removed(file_system_id)

    def roots(self) -> Collection[Location]:
        return [root(one) for one in self.left]

    async def empty(self, root: Location, terms: EmptyingTerms) -> TrashReport:
        assert (terms, root.directory) == (EmptyingTerms(seconds=9), Directory())
        file_system_id = root.file_system_id
        self.rounds.append(file_system_id)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.running -= 1
        if self.error:
            raise self.error
        stuck = self.stuck[file_system_id]
        removed = min(self.speed, self.left[file_system_id] - stuck)
        self.left[file_system_id] -= removed
        return TrashReport(
            entries=self.left[file_system_id],
            stuck=stuck,
            removed=removed,
            examples=(HELD,) if stuck else (),
        )


class World:
    def __init__(self, client: AsyncClient, recorder: EventRecorder, *, is_alone: bool = True) -> None:
        self.client = client
        self.bin = Bin()
        self.clock = Clock()
        self.registry = CollectorRegistry()
        self.subject = Subject(
            api_version="v1", kind="PersistentVolumeClaim", name="root", uid="u", namespace="default"
        )

        async def subject(_: FileSystemId) -> Subject:
            return self.subject

        self.rounds = TrashRounds(
            [Trashes(emptier=self.bin, roots=self.bin.roots, subject=subject)],
            EmptyingTerms(seconds=9),
            recorder,
            ControllerMetrics(self.registry),
            Duties(self.registry),
            is_alone=is_alone,
            clock=self.clock,
        )

    def sample(self, name: str, file_system_id: FileSystemId) -> float | None:
        return self.registry.get_sample_value(f"kube_efs_trash_{name}", {"file_system": file_system_id})

    async def settled(self) -> None:
        """Wait until everything that is due is done."""
        for _ in range(200):
            await asyncio.sleep(0)
        assert self.bin.running == 0 or not self.bin.gate.is_set()

    async def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.rounds._changed.set()
        await self.settled()

    async def events(self) -> list[tuple[str, str, str, int]]:
        found = [event async for event in self.client.list(Event, namespace="default")]
        return sorted((one.type or "", one.reason or "", one.message or "", one.count or 0) for one in found)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    task = asyncio.create_task(world.rounds.run())
    await world.settled()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(kube: AsyncClient) -> AsyncIterator[World]:
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        yield World(kube, recorder)


async def test_leader_checks_every_trash_at_its_start_and_each_week(world: World) -> None:
    """Abandoned copies get into the trash in a round; there may be no removals."""
    async with running(world):
        assert world.bin.rounds == [A, B, C]
        await world.later(6 * 24 * 3600)
        assert world.bin.rounds == [A, B, C]
        await world.later(24 * 3600)
        assert world.bin.rounds == [A, B, C, A, B, C]


async def test_trash_of_other_replicas_is_found_later(kube: AsyncClient) -> None:
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        world = World(kube, recorder, is_alone=False)
        async with running(world):
            world.bin.left[B] = 1
            await world.later(600)
            assert world.bin.rounds == [A, B, C]
            await world.later(601)
            assert world.bin.rounds == [A, B, C, A, B, C]
            assert world.bin.left[B] == 0


async def test_burst_of_removals_causes_one_round(world: World) -> None:
    world.bin.speed = 100
    async with running(world):
        for _ in range(30):
            world.bin.throw_away(B)
        await world.later(2)
        assert world.bin.rounds == [A, B, C, B]
        assert world.sample("entries", B) == 0


async def test_two_file_systems_at_a_time_are_emptied(world: World) -> None:
    world.bin.left = {A: 6, B: 2, C: 1}
    async with running(world):
        assert world.bin.left == {A: 0, B: 0, C: 0}
    assert world.bin.most_at_once == 2
    assert world.bin.rounds.index(C) <= 2
    assert world.bin.rounds[-3:] == [A, A, A]


async def test_removal_during_a_round_causes_another_round(world: World) -> None:
    world.bin.gate.clear()
    async with running(world):
        world.bin.throw_away(A)
        world.bin.gate.set()
        world.bin.left[A] = 0
        await world.settled()
        world.bin.left[A] = 1
        await world.later(2)
    assert world.bin.rounds.count(A) == 2
    assert world.bin.left[A] == 0


async def test_new_file_system_is_checked_and_a_deleted_one_is_forgotten(world: World) -> None:
    async with running(world):
        new = FileSystemId("fs-new")
        world.bin.left[new] = world.bin.stuck[new] = 0
        del world.bin.left[A]
        await world.later(30)
        assert world.bin.rounds == [A, B, C, new]
        assert (world.sample("entries", new), world.sample("entries", A)) == (0, None)


async def test_stuck_trash_is_reported_and_retried_with_growing_pauses(
    world: World, eventually: Eventually
) -> None:
    world.bin.left, world.bin.stuck = {A: 5, B: 0, C: 0}, {A: 2, B: 0, C: 0}
    world.bin.speed = 100
    async with running(world):
        assert (world.sample("entries", A), world.sample("stuck", A)) == (2, 2)
        assert world.sample("stuck", B) == 0
        begun, now = world.bin.rounds.count(A), world.clock.now
        pauses: list[float] = []
        while len(pauses) < 8:
            await world.later(10)
            if world.bin.rounds.count(A) > begun:
                pauses.append(world.clock.now - now)
                begun, now = world.bin.rounds.count(A), world.clock.now
        assert pauses == [60, 120, 240, 480, 960, 1800, 1800, 1800]
        assert world.bin.rounds.count(B) == 1

        world.bin.stuck[A] = 0
        await world.later(1800)
        assert (world.sample("entries", A), world.sample("stuck", A)) == (0, 0)

        async def told() -> bool:
            return [one[:2] + one[3:] for one in await world.events()] == [
                ("Normal", "TrashEmptied", 1),
                ("Warning", "TrashNotEmptied", 9),
            ]

        await eventually(told)
    (well, stuck) = await world.events()
    assert well[2] == "File system fs-a: all entries of the trash can be removed again"
    assert stuck[2] == (
        "File system fs-a: 2 entries of the trash cannot be removed, such as 4fa1.7-0/deep/file (Operation "
        "not permitted); check what protects it (lsattr, mounts, the file system's policy). It is retried"
    )


async def test_removal_does_not_wait_for_the_pause_of_stuck_trash(world: World) -> None:
    world.bin.left[A] = world.bin.stuck[A] = 1
    async with running(world):
        await world.later(60)
        await world.later(120)
        world.bin.throw_away(A)
        await world.later(2)
        assert world.bin.left[A] == 1
        assert world.sample("entries", A) == 1


async def test_failed_round_is_reported_only_for_a_trash_that_is_not_empty(
    world: World, eventually: Eventually
) -> None:
    world.bin.error = WorkerFailed("did not end after 360 s", field="worker pod", value="efs-empty-x")
    with capture_logs() as logs:
        async with running(world):
            assert world.bin.rounds == [A, B, C]
            world.bin.throw_away(B)
            await world.later(2)

            async def told() -> bool:
                return len(await world.events()) == 1

            await eventually(told)
            world.bin.error = None
            await world.later(3600)
            assert world.bin.left[B] == 0

            async def well() -> bool:
                return len(await world.events()) == 2

            await eventually(well)
    assert [one["file_system"] for one in logs if one["event"] == "trash-not-emptied"][:3] == [A, B, C]
    (normal, warning) = await world.events()
    assert normal[:2] == ("Normal", "TrashEmptied")
    assert warning[2] == (
        "File system fs-b: the trash could not be emptied: worker pod: 'efs-empty-x' did not end after 360 "
        "s. It is retried"
    )


async def test_trash_of_a_file_system_that_is_removed_is_left_without_an_event(
    world: World, eventually: Eventually
) -> None:
    world.bin.throw_away(A)
    world.bin.error = VolumePending("is being removed", field="file system", value="fs-a")
    async with running(world):
        world.bin.throw_away(A)
        await world.later(2)
        assert world.bin.left[A] == 2
        world.bin.error = None
        await world.later(120)
        assert world.bin.left[A] == 0

        async def told() -> bool:
            return len(await world.events()) == 1

        world.bin.error = WorkerFailed("has failed", field="worker pod", value="efs-empty-x")
        world.bin.throw_away(A)
        await world.later(2)
        await eventually(told)
    (failed,) = await world.events()
    assert "has failed" in failed[2]


async def test_trash_of_a_deleted_file_system_gets_no_more_rounds(kube: AsyncClient) -> None:
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        world = World(kube, recorder, is_alone=False)
        world.bin.left[A], world.bin.stuck[A] = 2, 2
        async with running(world):
            assert world.sample("entries", A) == 2
            world.bin.error = AwsNotFound("does not exist", field="file system", value="fs-a")
            await world.later(7200)
            assert world.sample("entries", A) == 0
            world.bin.rounds.clear()
            await world.later(7200)
            assert world.bin.rounds == []
            world.bin.stuck[A] = 0
            world.bin.error = None
            world.bin.throw_away(A)
            await world.later(2)
            assert world.bin.left[A] == 0


async def test_error_stops_neither_the_rounds_nor_the_controller(world: World) -> None:
    world.bin.error = ZeroDivisionError()
    with capture_logs() as logs:
        async with running(world):
            world.bin.error = None
            world.bin.left[A] = 1
            await world.later(60)
            assert world.bin.left[A] == 0
    assert len([one for one in logs if one["log_level"] == "error"]) == 3
    assert world.registry.get_sample_value("kube_efs_duty_failures_total", {"duty": "trash"}) == 3


async def test_round_without_success_is_not_repeated_at_once(world: World) -> None:
    world.bin.left[A], world.bin.speed = 3, 0
    async with running(world):
        assert world.bin.rounds.count(A) == 1
        world.bin.speed = 1
        await world.later(60)
        assert world.bin.rounds.count(A) == 4


async def test_object_of_events_is_found_by_its_name(kube: AsyncClient) -> None:
    spec = PersistentVolumeClaimSpec(
        accessModes=["ReadWriteMany"], resources=VolumeResourceRequirements(requests={"storage": "1Gi"})
    )
    metadata = ObjectMeta(namespace="default", name="efs-stunnel-fs-a")
    made = await kube.create(PersistentVolumeClaim(metadata=metadata, spec=spec))
    assert made.metadata
    there = await trash_rounds._subject(kube, PersistentVolumeClaim, "efs-stunnel-fs-a", "default")
    assert (there.kind, there.uid) == ("PersistentVolumeClaim", made.metadata.uid)
    missing = await trash_rounds._subject(kube, PersistentVolumeClaim, "other", "default")
    assert (missing.name, missing.uid) == ("other", "")


async def test_trash_waits_for_the_root_volume_of_its_pods() -> None:
    index = VolumeIndex()
    index.targets = TunnelTargets(targets={A: TunnelTarget(file_system_id=A, port=20490)})
    assert not trash_rounds._with_root(index)
    index.put_volume(Volume(name=root_name(A), uid="r", storage_class=ROOT_CLASS))
    assert trash_rounds._with_root(index) == [root(A)]


# --- the file systems on which worker pods have removed directories


class Pool(WorkerPool):
    """A pool that starts no pods."""

    def __init__(self) -> None:
        """Without a client."""

    def on_removed(self, call: Callable[[FileSystemId], None]) -> None:
        """No directory is removed."""


def emptied(index: VolumeIndex, kube: AsyncClient, **settings: str) -> dict[str, str]:
    """The kind of each file system whose trash is emptied by worker pods, by its ID."""
    rounds = trash_rounds.trash_rounds(
        load(ControllerSettings, {"KUBE_EFS_WORKER_MOUNTS": "csi", "KUBE_EFS_BACKENDS": "csi", **settings}),
        kube,
        index,
        EventRecorder(kube, component="kube-efs-controller"),
        ControllerMetrics(CollectorRegistry()),
        Duties(CollectorRegistry()),
        [Pool()],
    )
    (trashes,) = rounds._trashes
    return {str(one.file_system_id): str(one.kind) for one in trashes.roots()}


def driver_volume(name: str, handle: str, **changes: Any) -> Volume:
    given = {"provisioned_by": DRIVER, **changes}
    return Volume(name=name, uid=name, csi=CsiSource(driver=DRIVER, handle=handle), **given)


def driver_class(name: str, mode: str, file_system: str, secret: str = "") -> StorageClass:
    parameters = {"provisioningMode": mode, "fileSystemId": file_system, "directoryPerms": "700"}
    if secret:
        of_secret = "csi.storage.k8s.io/provisioner-secret"
        parameters |= {f"{of_secret}-name": secret, f"{of_secret}-namespace": "efs"}
    return StorageClass(name=name, provisioner=DRIVER, parameters=parameters)


REMOVES_ROOTS = {"KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR": "true"}
POINT = "fsap-01234567"


async def test_trash_of_root_directories_is_emptied_on_both_kinds_of_file_systems(kube: AsyncClient) -> None:
    index = VolumeIndex()
    secret = {"deletion_secret": ("efs", "role")}
    for volume in (
        driver_volume("a", f"efs:fs-0000000a::{POINT}"),
        driver_volume("b", f"s3files:fs-0000000b::{POINT}"),
        driver_volume("c", "efs:fs-0000000c:/./data"),
        driver_volume("d", f"s3files:fs-0000000d::{POINT}", **secret),
        driver_volume("of-another-account", f"efs:fs-0000000e::{POINT}", **secret),
        driver_volume("of-a-user", f"s3files:fs-0000000f::{POINT}", provisioned_by=None),
        driver_volume("whole", "s3files:fs-0000001f"),
    ):
        index.put_volume(volume)
    index.classes["1"] = driver_class("1", "efs-ap", "fs-00000001")
    index.classes["2"] = driver_class("2", "s3files-ap", "fs-00000002")
    index.classes["3"] = driver_class("3", "efs-dir", "fs-00000003")
    for number, mode in enumerate(("efs-ap", "efs-dir", "s3files-ap"), start=4):
        name = str(number)
        index.classes[name] = driver_class(name, mode, f"fs-0000000{name}", "role")
    without = {"fs-0000000c": "efs", "fs-00000003": "efs"}
    s3_files = {f"fs-0000000{one}": "s3files" for one in "bd26"}
    assert emptied(index, kube) == without
    assert emptied(index, kube, **REMOVES_ROOTS) == {
        **without,
        "fs-0000000a": "efs",
        "fs-00000001": "efs",
        **s3_files,
    }
    # With tunnels, discovery knows those of EFS.
    index.targets = TunnelTargets(targets={A: TunnelTarget(file_system_id=A, port=20490)})
    both = {"KUBE_EFS_BACKENDS": "tunnel,csi"}
    assert emptied(index, kube, **both) == {A: "efs"}
    assert emptied(index, kube, **both, **REMOVES_ROOTS) == {A: "efs", **s3_files}
    # Without the driver, worker pods mount through ports, which S3 Files does not have.
    ports = {"KUBE_EFS_WORKER_MOUNTS": "tunnel"}
    index.put_volume(Volume(name=root_name(A), uid="r", storage_class=ROOT_CLASS))
    assert emptied(index, kube, **both, **REMOVES_ROOTS, **ports) == {A: "efs"}


async def test_trash_is_emptied_after_the_last_volume_is_gone(kube: AsyncClient) -> None:
    index = VolumeIndex()
    volume = driver_volume("b", f"s3files:fs-0000000b::{POINT}")
    index.put_volume(volume)
    rounds = trash_rounds.trash_rounds(
        load(ControllerSettings, {"KUBE_EFS_BACKENDS": "csi", **REMOVES_ROOTS}),
        kube,
        index,
        EventRecorder(kube, component="kube-efs-controller"),
        ControllerMetrics(CollectorRegistry()),
        Duties(CollectorRegistry()),
        [Pool()],
    )
    (trashes,) = rounds._trashes
    assert len(trashes.roots()) == 1
    index.removed_volume(volume, with_directory=True)
    assert [one.kind for one in trashes.roots()] == [FileSystemKind.S3_FILES]
