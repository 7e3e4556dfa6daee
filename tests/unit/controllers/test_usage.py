"""Rounds that measure volumes, with the embedded API server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Event, PersistentVolumeClaim
from prometheus_client import CollectorRegistry

from kube_efs.controllers.usage import (
    Measurable,
    UsageParts,
    UsageRounds,
    in_order,
    measuring_terms,
    meters,
    nowhere,
)
from kube_efs.kube.events import EventRecorder
from kube_efs.kube.usage_store import UsageStore
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import KubeDenied, WorkerFailed
from kube_efs.model.usage import MeasuredDirectory, TreeSize, VolumeUsage
from kube_efs.model.volumes import ClaimReference, CsiSource, Location, NfsSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.orders import MeasuringTerms
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.loading import load
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import UsageMetrics

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]

FS = FileSystemId("fs-1")
MIB = 1024**2


class Scales:
    """A meter with sizes from the test; it measures at most ``reach`` directories in a call."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.reach = 100
        self.error: Exception | None = None
        self.asked: list[list[str]] = []

    async def measure(
        self, root: Location, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        assert root == Location(file_system_id=FS, directory=Directory())
        self.asked.append([str(one) for one in directories])
        if self.error:
            raise self.error
        return [self._measured(one) for one in directories[: self.reach]]

    def _measured(self, directory: Directory) -> MeasuredDirectory:
        used = self.sizes.get(str(directory))
        if used is None:
            return MeasuredDirectory(directory=directory, problem="is not there")
        return MeasuredDirectory(directory=directory, size=TreeSize(used_bytes=used, entries=1))


class World:
    def __init__(self, client: AsyncClient, recorder: EventRecorder) -> None:
        self.client = client
        self.scales = Scales()
        self.index = VolumeIndex()
        self.registry = CollectorRegistry()
        self.parts = UsageParts(
            client=client,
            store=UsageStore(client, "default"),
            index=self.index,
            recorder=recorder,
            metrics=UsageMetrics(self.registry),
            meter_for=lambda _: self.scales,
            locate=nowhere,
        )
        self.duties = Duties(self.registry)
        self.rounds = self.rounds_of(self.parts)

    def rounds_of(self, parts: UsageParts, *, interval_seconds: float = 3600) -> UsageRounds:
        """Rounds with these parts."""
        return UsageRounds(parts, MeasuringTerms(), interval_seconds=interval_seconds, duties=self.duties)

    def next_leader(self) -> UsageRounds:
        """Another process; it knows only the state of the cluster."""
        self.registry = CollectorRegistry()
        parts = replace(self.parts, metrics=UsageMetrics(self.registry))
        return self.rounds_of(parts)

    async def volume(self, name: str, *, request: str = "1Mi") -> None:
        spec = PersistentVolumeClaimSpec(
            accessModes=["ReadWriteMany"],
            storageClassName="efs",
            resources=VolumeResourceRequirements(requests={"storage": request}),
        )
        metadata = ObjectMeta(namespace="default", name=name)
        made = await self.client.create(PersistentVolumeClaim(metadata=metadata, spec=spec))
        assert made.metadata
        claim = ClaimReference(namespace="default", name=name, uid=ClaimUid(made.metadata.uid or ""))
        source = NfsSource(server="127.0.0.1", path=f"/{name}")
        self.index.put_volume(
            Volume(name=f"pv-{name}", uid=name, claim=claim, nfs=source, file_system_id=FS, capacity="5Gi")
        )

    def sample(self, metric: str, name: str) -> float | None:
        labels = {"volume": f"pv-{name}", "claim_namespace": "default", "claim": name, "file_system": FS}
        return self.registry.get_sample_value(f"kube_efs_volume_{metric}", labels)

    async def events(self) -> list[str]:
        found = [event async for event in self.client.list(Event, namespace="default")]
        return [f"{one.involvedObject.name} {one.type} {one.reason} {one.count}" for one in found]


@pytest.fixture
async def world(kube: AsyncClient) -> AsyncIterator[World]:
    async with EventRecorder(kube, component="kube-efs-controller") as recorder:
        yield World(kube, recorder)


async def test_usage_is_in_the_metrics_and_in_the_config_map(world: World) -> None:
    await world.volume("small")
    await world.volume("large", request="3Mi")
    world.scales.sizes = {"/small": 1000, "/large": 2 * MIB}
    await world.rounds.round()

    assert (world.sample("used_bytes", "small"), world.sample("requested_bytes", "small")) == (1000, MIB)
    assert (world.sample("used_bytes", "large"), world.sample("requested_bytes", "large")) == (
        2 * MIB,
        3 * MIB,
    )
    known = await world.parts.store.load()
    assert {name: one.size.used_bytes for name, one in known.items()} == {
        "pv-small": 1000,
        "pv-large": 2 * MIB,
    }
    assert world.scales.asked == [["/large", "/small"]]


async def test_claim_gets_one_event_when_over_its_request_and_one_when_below(
    world: World, eventually: Eventually
) -> None:
    await world.volume("data")
    over = []
    for used in (MIB, 2 * MIB, 3 * MIB, MIB + 1, MIB - 1, MIB // 2, MIB // 2):
        world.scales.sizes = {"/data": used}
        await world.rounds.round()
        over.append(world.sample("over_request", "data"))
    assert over == [0, 1, 1, 1, 1, 0, 0]

    async def both() -> bool:
        return len(await world.events()) > 1

    await eventually(both)
    assert sorted(await world.events()) == [
        "data Normal VolumeWithinRequest 1",
        "data Warning VolumeOverRequest 1",
    ]


async def test_next_leader_repeats_no_event(world: World, eventually: Eventually) -> None:
    await world.volume("data")
    world.scales.sizes = {"/data": 2 * MIB}
    await world.rounds.round()
    successor = world.next_leader()
    assert await successor._take_over() > 3500
    assert world.sample("used_bytes", "data") == 2 * MIB
    await successor.round()

    async def told() -> bool:
        return bool(await world.events())

    await eventually(told)
    assert await world.events() == ["data Warning VolumeOverRequest 1"]


async def test_unmeasured_directories_go_to_the_next_pod(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.volume(name)
        world.scales.sizes[f"/{name}"] = 1
    world.scales.reach = 2
    await world.rounds.round()
    assert world.scales.asked == [["/a", "/b", "/c"], ["/c"]]


async def test_volume_that_cannot_be_measured_keeps_its_last_size(
    world: World,
) -> None:
    await world.volume("a")
    await world.volume("b")
    world.scales.sizes = {"/a": 1, "/b": 1}
    await world.rounds.round()
    world.scales.sizes = {"/b": 2}
    await world.rounds.round()
    assert (world.sample("used_bytes", "a"), world.sample("used_bytes", "b")) == (1, 2)
    failed = world.registry.get_sample_value("kube_efs_usage_measurements_total", {"outcome": "failed"})
    assert failed == 1


async def test_unresponsive_file_system_ends_its_part_of_the_round(world: World) -> None:
    await world.volume("a")
    world.scales.error = WorkerFailed("did not end", field="worker pod", value="efs-usage")
    await world.rounds.round()
    assert len(world.scales.asked) == 1
    assert world.sample("used_bytes", "a") is None
    assert world.sample("requested_bytes", "a") == MIB


async def test_whole_file_system_is_not_measured(world: World) -> None:
    await world.volume("all")
    whole = world.index.volumes["pv-all"]
    world.index.put_volume(replace(whole, nfs=NfsSource(server="127.0.0.1", path="/")))
    world.scales.sizes = {"/": 1}
    await world.rounds.round()
    assert world.scales.asked == []
    assert world.sample("requested_bytes", "all") is None


async def test_deleted_volumes_are_forgotten(world: World) -> None:
    await world.volume("a")
    world.scales.sizes = {"/a": 1}
    await world.rounds.round()
    world.index.drop_volume(world.index.volumes["pv-a"])
    await world.rounds.round()
    assert world.sample("used_bytes", "a") is None
    assert await world.parts.store.load() == {}


async def test_volume_that_is_deleted_during_a_round_is_not_measured(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.volume("a")
    await world.volume("b")
    world.scales.sizes = {"/a": 1, "/b": 1}
    world.scales.reach = 1
    measure = world.scales.measure

    async def slowly(
        root: Location, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        measured = await measure(root, directories, terms)
        # Its file system may be removed with it, so a pod could not mount it.
        world.index.forget_volume("pv-b")
        return measured

    monkeypatch.setattr(world.scales, "measure", slowly)
    await world.rounds.round()
    assert world.scales.asked == [["/a", "/b"]]


async def test_round_writes_the_config_map_at_most_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    save = UsageStore.save

    async def counted(store: UsageStore, usages: Mapping[str, VolumeUsage]) -> None:
        written.append(len(usages))
        await save(store, usages)

    monkeypatch.setattr(UsageStore, "save", counted)
    for number in range(20):
        await world.volume(str(number))
        world.scales.sizes[f"/{number}"] = 1
    world.scales.reach = 1
    await world.rounds.round()
    assert written == [1, 20]


def test_unmeasured_volumes_are_first_then_the_oldest() -> None:
    def one(name: str) -> Measurable:
        location = Location(file_system_id=FS, directory=parse_directory(f"/{name}"))
        claim = ClaimReference(namespace="default", name=name)
        return Measurable(name=name, claim=claim, location=location, requested_bytes=1)

    def known(hour: int) -> VolumeUsage:
        return VolumeUsage(
            size=TreeSize(used_bytes=1, entries=1), measured_at=datetime(2026, 11, 21, hour, tzinfo=UTC)
        )

    volumes = [one("late"), one("early"), one("never"), one("never-too")]
    ordered = in_order(volumes, {"late": known(5), "early": known(4)})
    assert [each.name for each in ordered] == ["never", "never-too", "early", "late"]


def test_volume_without_a_tunnel_is_not_measured() -> None:
    location = Location(file_system_id=FS, directory=Directory())
    pool = WorkerPool.__new__(WorkerPool)
    meter_for = meters([None], VolumeIndex(), pool, discovers=True, uses_driver=True)
    assert meter_for(location) is None


@pytest.mark.parametrize("uses_driver", [True, False])
def test_volume_of_s3_files_is_measured_by_pods_for_which_the_driver_mounts(uses_driver: bool) -> None:
    pool = WorkerPool.__new__(WorkerPool)
    location = Location(file_system_id=FS, directory=Directory(("a",)), kind=FileSystemKind.S3_FILES)
    meter_for = meters([None], VolumeIndex(), pool, discovers=True, uses_driver=uses_driver)
    assert meter_for(location) is (pool if uses_driver else None)


async def test_meter_gets_the_kind_of_the_file_system(world: World) -> None:
    asked: list[FileSystemKind] = []

    class Noting(Scales):
        async def measure(
            self, root: Location, directories: Sequence[Directory], terms: MeasuringTerms
        ) -> Sequence[MeasuredDirectory]:
            asked.append(root.kind)
            return await super().measure(root, directories, terms)

    scales = Noting()
    parts = replace(world.parts, meter_for=lambda _: scales)
    await world.volume("a")
    source = CsiSource(handle=f"s3files:{FS}:/a")
    volume = replace(world.index.volumes["pv-a"], nfs=None, csi=source, file_system_id=None)
    world.index.put_volume(volume)
    await world.rounds_of(parts).round()
    assert (asked, scales.asked) == ([FileSystemKind.S3_FILES], [["/a"]])


def test_measuring_pods_end_before_their_timeout() -> None:
    settings = load(
        ControllerSettings,
        {
            "KUBE_EFS_USAGE_ENTRIES_PER_SECOND": "50",
            "KUBE_EFS_USAGE_VOLUME_SECONDS": "3600",
            "KUBE_EFS_WORKER_TIMEOUT_SECONDS": "100",
        },
    )
    expected = MeasuringTerms(entries_per_second=50, directory_seconds=80, total_seconds=80)
    assert measuring_terms(settings) == expected


async def test_unreadable_document_is_recreated(world: World) -> None:
    await world.client.create(
        ConfigMap(metadata=ObjectMeta(namespace="default", name="efs-usage"), data={"usage.json": "{"})
    )
    assert await world.rounds._take_over() == 0


async def test_error_ends_the_round_but_not_the_controller(world: World, eventually: Eventually) -> None:
    rounds = world.rounds_of(world.parts, interval_seconds=0.01)
    await world.volume("a")
    world.scales.sizes = {"/a": 1}
    world.scales.error = ZeroDivisionError("a mistake")
    running = asyncio.create_task(rounds.run())

    async def tried_twice() -> bool:
        return len(world.scales.asked) > 1

    async def measured() -> bool:
        return world.sample("used_bytes", "a") == 1

    await eventually(tried_twice)
    assert any("ZeroDivisionError" in one for one in world.duties.problems)
    world.scales.error = None
    await eventually(measured)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_refused_write_does_not_stop_the_measurement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise KubeDenied("may not be written", field="ConfigMap", value="efs-usage")

    monkeypatch.setattr(UsageStore, "save", refuse)
    await world.volume("a")
    world.scales.sizes = {"/a": 1}
    await world.rounds.round()
    assert world.sample("used_bytes", "a") == 1
