import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.simulation.virtual import VirtualLoop

from kube_efs.aws.catalogue import Catalogue, DiscoveryChange, compare
from kube_efs.model.efs.file_systems import Discovery, FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, SubnetId, ZoneName
from kube_efs.model.errors import (
    AwsDenied,
    AwsNotFound,
    AwsNotPermitted,
    AwsThrottled,
    AwsUnavailable,
    KubeEfsError,
)
from kube_efs.telemetry.health import Health
from kube_efs.telemetry.metrics import AwsMetrics

FS1, FS2, FS3 = (FileSystemId(f"fs-{number}") for number in (1, 2, 3))


def target(file_system_id: FileSystemId, address: str = "10.0.0.1") -> MountTarget:
    return MountTarget(
        mount_target_id=MountTargetId(f"fsmt-{file_system_id}-{address}"),
        file_system_id=file_system_id,
        subnet_id=SubnetId("subnet-a"),
        zone=ZoneName("us-east-1a"),
        address=address,
        state=LifeCycleState.AVAILABLE,
    )


class FakeEfs:
    """A source with content, failures and delays from the test."""

    def __init__(self, *file_system_ids: FileSystemId) -> None:
        self.systems = {fs: FileSystem(file_system_id=fs) for fs in file_system_ids}
        self.targets: dict[FileSystemId, tuple[MountTarget, ...]] = {
            fs: (target(fs),) for fs in file_system_ids
        }
        self.listing_error: KubeEfsError | None = None
        self.target_errors: dict[FileSystemId, KubeEfsError] = {}
        self.listings = 0
        self.lookups: list[FileSystemId] = []
        self.open = asyncio.Event()
        self.open.set()

    async def file_systems(self) -> tuple[FileSystem, ...]:
        self.listings += 1
        listed = tuple(
            replace(system, number_of_mount_targets=len(self.targets[system.file_system_id]))
            for system in self.systems.values()
        )
        await self.open.wait()
        if self.listing_error:
            raise self.listing_error
        return listed

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        self.lookups.append(file_system_id)
        if file_system_id in self.target_errors:
            raise self.target_errors[file_system_id]
        if file_system_id not in self.targets:
            raise AwsNotFound("was answered with FileSystemNotFound")
        return self.targets[file_system_id]

    def remove(self, file_system_id: FileSystemId) -> None:
        del self.systems[file_system_id], self.targets[file_system_id]

    def add(self, file_system_id: FileSystemId) -> None:
        self.systems[file_system_id] = FileSystem(file_system_id=file_system_id)
        self.targets[file_system_id] = (target(file_system_id),)


class Clock:
    """A clock that moves only when the catalog sleeps, and then waits for the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: asyncio.Queue[float] = asyncio.Queue()
        self.wake = asyncio.Event()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.put_nowait(seconds)
        await self.wake.wait()
        self.wake.clear()
        self.now += seconds

    async def asleep_for(self) -> float:
        return await asyncio.wait_for(self.sleeps.get(), timeout=30)


@asynccontextmanager
async def running(catalogue: Catalogue) -> AsyncIterator[None]:
    task = asyncio.create_task(catalogue.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def addresses(discovery: Discovery) -> dict[str, list[str]]:
    return {fs: [t.address for t in system.mount_targets] for fs, system in discovery.file_systems.items()}


async def test_poll_returns_file_systems_with_their_mount_targets() -> None:
    catalogue = Catalogue(FakeEfs(FS1, FS2), 300)
    assert catalogue.discovery == Discovery()
    assert not catalogue.discovery.complete

    discovery = await catalogue.refresh()

    assert discovery is catalogue.discovery
    assert discovery.complete
    assert addresses(discovery) == {FS1: ["10.0.0.1"], FS2: ["10.0.0.1"]}
    assert catalogue.last_error is None


async def test_failed_mount_target_call_keeps_the_last_known_and_updates_others() -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    await catalogue.refresh()
    efs.targets = {FS1: (target(FS1, "10.0.0.9"),), FS2: (target(FS2, "10.0.0.9"),)}
    efs.target_errors[FS1] = AwsThrottled(
        "was answered with ThrottlingException", field="DescribeMountTargets"
    )

    with capture_logs() as logs:
        discovery = await catalogue.refresh()

    assert addresses(discovery) == {FS1: ["10.0.0.1"], FS2: ["10.0.0.9"]}
    assert discovery.unclear == frozenset()
    assert catalogue.last_error is efs.target_errors[FS1]
    (entry,) = [entry for entry in logs if entry["event"] == "mount-targets-not-listed"]
    assert (entry["file_system"], entry["log_level"]) == (FS1, "warning")
    assert "ThrottlingException" in entry["error"]


async def test_new_file_system_is_unclear_until_its_mount_targets_are_known() -> None:
    efs = FakeEfs(FS1, FS2)
    efs.target_errors[FS2] = AwsUnavailable("was not answered")
    catalogue = Catalogue(efs, 300)

    first = await catalogue.refresh()
    efs.target_errors.clear()
    second = await catalogue.refresh()

    assert (first.usable, first.unclear, first.complete) == ((FS1,), frozenset({FS2}), True)
    assert (second.usable, second.unclear) == ((FS1, FS2), frozenset())


async def test_file_system_deleted_between_the_two_calls_is_omitted() -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    await catalogue.refresh()
    efs.target_errors[FS2] = AwsNotFound("was answered with FileSystemNotFound")

    discovery = await catalogue.refresh()

    assert (discovery.usable, discovery.unclear) == ((FS1,), frozenset())
    assert catalogue.last_error is None


@pytest.mark.parametrize("listed", [(), (FS1,)], ids=["empty list", "incomplete list"])
async def test_file_system_omitted_from_a_list_is_kept_while_it_exists(
    listed: tuple[FileSystemId, ...],
) -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    before = await catalogue.refresh()
    efs.systems = {fs: efs.systems[fs] for fs in listed}

    with capture_logs() as logs:
        after = await catalogue.refresh()

    assert after == before
    assert isinstance(catalogue.last_error, AwsUnavailable)
    assert "fs-2" in str(catalogue.last_error)
    assert "file-systems-in-doubt" in [entry["event"] for entry in logs]
    efs.targets[FS2] = (target(FS2, "10.0.0.8"),)
    assert addresses(await catalogue.refresh())[FS2] == ["10.0.0.8"]


async def test_omitted_file_system_is_kept_when_its_lookup_fails() -> None:
    efs = FakeEfs(FS1)
    catalogue = Catalogue(efs, 300)
    before = await catalogue.refresh()
    efs.systems, efs.target_errors[FS1] = {}, AwsThrottled("was answered with ThrottlingException")
    for _ in range(3):
        assert await catalogue.refresh() == before


async def test_omitted_file_system_is_removed_when_it_is_not_found() -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    await catalogue.refresh()
    efs.remove(FS2)
    assert (await catalogue.refresh()).usable == (FS1,)
    assert catalogue.last_error is None


async def test_file_system_without_lookup_permission_is_removed_when_omitted_twice() -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    before = await catalogue.refresh()
    efs.remove(FS2)
    efs.target_errors[FS2] = AwsNotPermitted("was answered with AccessDenied")
    assert await catalogue.refresh() == before
    assert (await catalogue.refresh()).usable == (FS1,)


async def test_omitted_file_system_stays_while_aws_refuses_the_credentials() -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    before = await catalogue.refresh()
    efs.remove(FS2)
    efs.target_errors[FS2] = AwsDenied("was answered with ExpiredToken")
    for _ in range(3):
        assert (await catalogue.refresh()).usable == before.usable


async def test_after_a_restart_referenced_file_systems_are_unclear_until_listed() -> None:
    efs = FakeEfs(FS1)
    listed, efs.systems = efs.systems, {}
    catalogue = Catalogue(efs, 300)
    catalogue.expected = lambda: {FS1, FS2}

    first = await catalogue.refresh()
    assert (first.usable, first.unclear, first.complete) == ((), frozenset({FS1}), True)
    catalogue.expected = tuple
    assert (await catalogue.refresh()).unclear == {FS1}
    efs.systems = listed
    assert (await catalogue.refresh()).usable == (FS1,)


@pytest.mark.parametrize("restarted", [False, True])
async def test_disappearance_of_all_mount_targets_needs_a_second_answer(restarted: bool) -> None:
    efs = FakeEfs(FS1)
    catalogue = Catalogue(efs, 300)
    catalogue.expected = lambda: {FS1}
    before = Discovery(unclear=frozenset({FS1}), complete=True)
    if not restarted:
        before = await catalogue.refresh()
    efs.targets[FS1] = ()

    after = await catalogue.refresh()
    assert (addresses(after), after.unclear) == (addresses(before), before.unclear)
    doubt: KubeEfsError | None = catalogue.last_error
    assert isinstance(doubt, AwsUnavailable)
    assert addresses(await catalogue.refresh()) == {FS1: []}
    assert catalogue.last_error is None
    efs.targets[FS1] = (target(FS1),)
    assert addresses(await catalogue.refresh()) == {FS1: ["10.0.0.1"]}


async def test_failed_listing_keeps_everything_and_its_age_grows() -> None:
    efs, clock = FakeEfs(FS1), Clock()
    catalogue = Catalogue(efs, 300, clock=clock)
    assert (catalogue.age_seconds, catalogue.last_error) == (None, None)
    before = await catalogue.refresh()
    clock.now += 40
    efs.listing_error = AwsDenied(
        "was answered with AccessDenied",
        field="DescribeFileSystems",
        remedy="allow elasticfilesystem:DescribeFileSystems to the role of this process",
    )

    with capture_logs() as logs:
        after = await catalogue.refresh()

    assert after is before
    failure: KubeEfsError | None = catalogue.last_error
    assert failure is efs.listing_error
    assert catalogue.age_seconds == 40
    assert "allow elasticfilesystem:DescribeFileSystems" in logs[0]["error"]
    efs.listing_error = None
    await catalogue.refresh()
    assert (catalogue.age_seconds, catalogue.last_error) == (0, None)


async def test_error_that_is_not_from_aws_is_raised() -> None:
    class Broken(FakeEfs):
        async def file_systems(self) -> tuple[FileSystem, ...]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Catalogue(Broken(), 300).refresh()


async def test_refreshes_during_a_poll_share_the_next_one() -> None:
    efs = FakeEfs(FS1)
    catalogue = Catalogue(efs, 300)
    efs.open.clear()
    early = asyncio.create_task(catalogue.refresh())
    await asyncio.sleep(0)
    efs.add(FS2)
    late = [asyncio.create_task(catalogue.refresh()) for _ in range(20)]
    await asyncio.sleep(0)
    efs.open.set()

    seen_early = await early
    seen_late = await asyncio.gather(*late)

    assert efs.listings == 2
    assert seen_early.complete
    assert all(discovery.usable == (FS1, FS2) for discovery in seen_late)


async def test_cancelled_refresh_does_not_cancel_the_poll_of_others() -> None:
    efs = FakeEfs(FS1)
    catalogue = Catalogue(efs, 300)
    efs.open.clear()
    first, second = (asyncio.create_task(catalogue.refresh()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    efs.open.set()

    assert (await second).usable == (FS1,)


async def test_reader_gets_the_newest_state_at_once_and_never_an_old_one() -> None:
    efs = FakeEfs()
    catalogue = Catalogue(efs, 300)
    changes = catalogue.changes()
    first = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    assert not first.done()

    await catalogue.refresh()
    assert (await asyncio.wait_for(first, 30)).usable == ()

    for new in (FS1, FS2, FS3):
        efs.add(new)
        await catalogue.refresh()
    assert (await asyncio.wait_for(anext(changes), 30)).usable == (FS1, FS2, FS3)
    assert (await asyncio.wait_for(anext(catalogue.changes()), 30)).usable == (FS1, FS2, FS3)


async def test_reader_is_not_notified_when_only_the_size_grew() -> None:
    efs = FakeEfs(FS1)
    catalogue = Catalogue(efs, 300)
    await catalogue.refresh()
    changes = catalogue.changes()
    await anext(changes)
    waiting = asyncio.ensure_future(anext(changes))

    efs.systems[FS1] = replace(efs.systems[FS1], size_bytes=4096)
    await catalogue.refresh()
    await asyncio.sleep(0)
    assert not waiting.done()
    assert catalogue.discovery.file_systems[FS1].size_bytes == 4096

    efs.systems[FS1] = replace(efs.systems[FS1], state=LifeCycleState.DELETING)
    await catalogue.refresh()
    assert (await asyncio.wait_for(waiting, 30)).usable == ()


async def test_changes_are_logged() -> None:
    efs = FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300)
    await catalogue.refresh()
    efs.add(FS3)
    efs.remove(FS1)
    efs.targets[FS2] = (target(FS2, "10.0.0.7"),)

    with capture_logs() as logs:
        await catalogue.refresh()
        await catalogue.refresh()

    assert logs == [
        {
            "event": "file-systems-changed",
            "log_level": "info",
            "added": (FS3,),
            "changed": (FS2,),
            "removed": (FS1,),
        }
    ]


async def test_order_of_mount_targets_is_not_a_change() -> None:
    efs = FakeEfs(FS1)
    pair = (target(FS1, "10.0.0.1"), target(FS1, "10.0.0.2"))
    catalogue = Catalogue(efs, 300)
    efs.targets[FS1] = pair
    before = await catalogue.refresh()
    efs.targets[FS1] = pair[::-1]

    assert compare(before, await catalogue.refresh()) == DiscoveryChange()


async def test_catalogue_polls_at_each_interval_and_sooner_after_a_failure() -> None:
    efs, clock = FakeEfs(FS1), Clock()
    catalogue = Catalogue(efs, 300, clock=clock, sleep=clock.sleep)
    async with running(catalogue):
        assert await clock.asleep_for() == 300
        efs.listing_error = AwsUnavailable("was not answered")
        clock.wake.set()
        assert await clock.asleep_for() == 15
        efs.listing_error = None
        clock.wake.set()
        assert await clock.asleep_for() == 300
    assert efs.listings == 3


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """A loop in virtual time."""
    loop = VirtualLoop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()


MANY = tuple(FileSystemId(f"fs-{number:04}") for number in range(500))


async def test_poll_of_many_file_systems_asks_only_for_mount_targets_that_may_have_changed() -> None:
    efs = FakeEfs(*MANY)
    catalogue = Catalogue(efs, 300)
    await catalogue.refresh()
    assert sorted(efs.lookups) == sorted(MANY)

    async def asked_in_a_poll() -> set[FileSystemId]:
        efs.lookups.clear()
        await catalogue.refresh()
        assert len(efs.lookups) == len(set(efs.lookups))
        return set(efs.lookups)

    assert await asked_in_a_poll() == set()
    creating = replace(target(MANY[1], "10.0.0.2"), state=LifeCycleState.CREATING)
    efs.targets[MANY[1]] += (creating,)
    assert await asked_in_a_poll() == {MANY[1]}
    # Its state may change, which the list does not show.
    efs.targets[MANY[1]] = (target(MANY[1]), target(MANY[1], "10.0.0.2"))
    assert await asked_in_a_poll() == {MANY[1]}
    assert await asked_in_a_poll() == set()
    efs.add(FS1)
    efs.remove(MANY[2])
    assert await asked_in_a_poll() == {FS1, MANY[2]}
    efs.targets[MANY[3]] = ()
    assert await asked_in_a_poll() == {MANY[3]}
    # The first answer without any mount target needs a second one.
    assert await asked_in_a_poll() == {MANY[3]}
    assert await asked_in_a_poll() == set()
    assert catalogue.discovery.file_systems[MANY[3]].mount_targets == ()


def test_mount_targets_of_many_file_systems_are_asked_for_in_turn(loop: VirtualLoop) -> None:
    """A mount target that replaced another one between two polls is not visible in the list."""
    efs = FakeEfs(*MANY)
    catalogue = Catalogue(efs, 300, clock=loop.time, sleep=asyncio.sleep)
    _running = loop.create_task(catalogue.run())
    loop.run_until_complete(asyncio.sleep(10))
    efs.lookups.clear()
    efs.targets |= {fs: (target(fs, "10.0.0.9"),) for fs in MANY}
    loop.run_until_complete(asyncio.sleep(620))
    assert len(efs.lookups) / 620 < 1
    assert set(efs.lookups) == set(MANY)
    assert set(map(tuple, addresses(catalogue.discovery).values())) == {("10.0.0.9",)}
    assert efs.listings == 3


@pytest.mark.parametrize("unsure", [(), AwsThrottled("was answered with ThrottlingException"), None])
def test_unsure_answer_in_between_is_asked_for_again_in_the_next_poll(
    unsure: tuple[()] | KubeEfsError | None, loop: VirtualLoop
) -> None:
    efs = FakeEfs(*MANY)
    catalogue = Catalogue(efs, 300, clock=loop.time, sleep=asyncio.sleep)
    _running = loop.create_task(catalogue.run())
    loop.run_until_complete(asyncio.sleep(0.5))
    match unsure:
        case None:
            efs.target_errors[MANY[0]] = AwsNotFound("was answered with FileSystemNotFound")
        case KubeEfsError():
            efs.target_errors[MANY[0]] = unsure
        case _:
            efs.targets[MANY[0]] = ()
    loop.run_until_complete(asyncio.sleep(3))
    assert efs.lookups.count(MANY[0]) == 2
    efs.target_errors.clear()
    efs.targets[MANY[0]] = (target(MANY[0], "10.0.0.9"),)
    assert addresses(catalogue.discovery)[MANY[0]] == ["10.0.0.1"]
    loop.run_until_complete(asyncio.sleep(300))
    assert addresses(catalogue.discovery)[MANY[0]] == ["10.0.0.9"]


async def test_health_shows_a_stuck_poll_but_not_a_failed_one() -> None:
    efs, clock = FakeEfs(FS1), Clock()
    efs.listing_error = AwsUnavailable("was not answered")
    catalogue = Catalogue(efs, 300, clock=clock, sleep=clock.sleep)
    assert catalogue.health() == Health()
    async with running(catalogue):
        await clock.asleep_for()
        assert catalogue.health() == Health()
        clock.now += 901
        assert catalogue.health().reasons == (
            "discovery made no progress for 901 s (expected at most 900 s)",
        )
    assert catalogue.health() == Health()


async def test_age_before_the_first_list_is_that_of_the_polling() -> None:
    registry, clock, efs = CollectorRegistry(), Clock(), FakeEfs(FS1)
    efs.listing_error = AwsUnavailable("was not answered")
    catalogue = Catalogue(efs, 300, metrics=AwsMetrics(registry), clock=clock, sleep=clock.sleep)

    def age() -> float:
        return registry.get_sample_value("kube_efs_discovery_age_seconds") or 0

    assert math.isnan(age())
    for _ in range(2):  # an internal error makes it run again, which is no success
        async with running(catalogue):
            await clock.asleep_for()
            clock.now += 1000
    assert age() == 2000
    efs.listing_error = None
    async with running(catalogue):
        await clock.asleep_for()
        clock.now += 5
        assert age() == 5


async def test_metrics_show_count_age_and_failures() -> None:
    registry, clock, efs = CollectorRegistry(), Clock(), FakeEfs(FS1, FS2)
    catalogue = Catalogue(efs, 300, metrics=AwsMetrics(registry), clock=clock)
    assert math.isnan(registry.get_sample_value("kube_efs_discovery_age_seconds") or 0)
    efs.target_errors[FS2] = AwsUnavailable("was not answered")

    await catalogue.refresh()
    clock.now += 7
    efs.listing_error = AwsUnavailable("was not answered")
    await catalogue.refresh()

    failures = "kube_efs_discovery_failures_total"
    assert registry.get_sample_value("kube_efs_discovery_age_seconds") == 7
    assert registry.get_sample_value("kube_efs_file_systems") == 1
    assert registry.get_sample_value(failures, {"part": "mount_targets"}) == 1
    assert registry.get_sample_value(failures, {"part": "file_systems"}) == 1
