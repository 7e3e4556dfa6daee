"""Directory volumes: their group IDs, despite failures, and the scans of existing directories."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs
from structlog.typing import EventDict
from tests.unit.provisioning.world import (
    AWS_EFS,
    DIRECTORY_PROVISIONER,
    World,
    directory_claim,
)

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    ClaimRefused,
    GidRangeFull,
    KubeAlreadyExists,
    KubeEfsError,
    KubeUnavailable,
    NotYet,
    RemovalRefused,
    WorkerFailed,
)
from kube_efs.model.volumes import FINALIZER, Location, NfsSource, Volume, VolumePhase
from kube_efs.provisioning.backends.directory import DirectoryPlan, ScanPace
from kube_efs.provisioning.engine import DataFate

FS1 = FileSystemId("fs-1")
FULL = (
    "StorageClass aws-efs parameters.gidMin-gidMax: '2000-2002' has no free group ID; "
    "delete a volume, or create a class with a wider range"
)


@pytest.fixture
async def world() -> World:
    """A world whose directories have been scanned."""
    made = World()
    await made.scan()
    return made


def at(name: str) -> Location:
    return Location(file_system_id=FS1, directory=Directory(("pvs", name)))


def place_of(claim: Claim) -> Location:
    return at(f"{claim.name}-pvc-{claim.uid}")


ONE, TWO, THREE, FOUR = (directory_claim(number) for number in (1, 2, 3, 4))


def gids(world: World) -> list[int]:
    return sorted(volume.gid or 0 for volume in world.store.volumes.values())


def failing_at(world: World, moment: str, error: BaseException) -> None:
    def fail(name: str) -> int:
        if name == moment:
            raise error
        return 0

    world.moment.on_moment = fail


def clear_faults(world: World) -> None:
    world.moment.on_moment = lambda _: 0


def use_class(world: World, **parameters: str) -> StorageClass:
    world.index.classes[AWS_EFS.name] = replace(AWS_EFS, parameters=parameters)
    return world.index.classes[AWS_EFS.name]


async def release(world: World, volume: Volume, **changes: object) -> Volume:
    released = replace(volume, phase=VolumePhase.RELEASED, **changes)  # type: ignore[arg-type]  # by name
    world.add(released)
    return released


# --- making


async def test_volume_is_a_directory_with_its_own_group(world: World) -> None:
    volumes = [await world.provision(one) for one in (ONE, TWO)]
    assert [volume.gid for volume in volumes] == [2000, 2001]
    assert volumes[0].nfs == NfsSource(server="efs.example.com", path=f"/pvs/data-pvc-{ONE.uid}")
    assert world.folders.permissions == {
        place_of(ONE): Permissions(mode=0o2771, gid=2000, enforced=True, own_group=True),
        place_of(TWO): Permissions(mode=0o2771, gid=2001, enforced=True, own_group=True),
    }


async def test_class_can_disable_groups(world: World) -> None:
    use_class(world, gidAllocate="false")
    volume = await world.provision(ONE)
    assert volume.gid is None
    assert world.folders.permissions == {place_of(ONE): Permissions(mode=0o777, enforced=True, exact=True)}
    assert len(world.index.gids) == 0


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(WorkerFailed("is full"), id="failed"),
        pytest.param(asyncio.CancelledError(), id="cancelled"),
    ],
)
async def test_group_of_a_failed_creation_is_free_when_a_scan_finds_no_directory(
    world: World, error: BaseException
) -> None:
    use_class(world, gidMin="2000", gidMax="2000")
    failing_at(world, "before make", error)
    with pytest.raises(type(error)):
        await world.provision(ONE)
    clear_faults(world)
    with pytest.raises(GidRangeFull):
        await world.provision(TWO)
    await world.scan()
    assert (await world.provision(TWO)).gid == 2000


@pytest.mark.parametrize("moment", ["before create", "after create"])
async def test_group_is_held_when_its_directory_exists(world: World, moment: str) -> None:
    failing_at(world, moment, KubeUnavailable("is down"))
    with pytest.raises(KubeUnavailable):
        await world.provision(ONE)
    clear_faults(world)
    assert (await world.provision(TWO)).gid == 2001
    again = await world.provision(ONE)
    assert again.gid == 2000
    assert world.store.volumes[again.name] == again


async def test_directory_keeps_its_group_when_its_next_creation_fails(world: World) -> None:
    failing_at(world, "before create", KubeUnavailable("is down"))
    with pytest.raises(KubeUnavailable):
        await world.provision(ONE)
    failing_at(world, "before make", WorkerFailed("is gone"))
    with pytest.raises(WorkerFailed):
        await world.provision(ONE)
    clear_faults(world)
    assert (await world.provision(TWO)).gid == 2001


async def test_scan_does_not_free_the_group_of_a_directory_being_created(world: World) -> None:
    """Its group was found with a directory that is gone now, and is taken again meanwhile."""
    world.folders.there.add(place_of(ONE))
    world.folders.permissions[place_of(ONE)] = Permissions(gid=2000)
    await world.scan()
    world.folders.there.clear()
    plan = world.engine.plan(ONE)
    assert plan is not None
    world.moment.on_moment = lambda name: 20 if name == "before make" else 0
    making = asyncio.create_task(world.engine.provision(plan))
    await asyncio.sleep(0)
    await world.scan()
    clear_faults(world)
    assert (await world.provision(TWO)).gid == 2001
    assert (await making).gid == 2000


async def test_scan_started_before_a_creation_does_not_free_its_group(world: World) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def stale_children(location: Location) -> list[FoundDirectory]:
        asked.set()
        await answered.wait()
        return []

    world.folders.children = stale_children  # type: ignore[method-assign]
    plan = world.engine.plan(ONE)
    assert plan is not None
    scanning = asyncio.create_task(world.scan())
    await asked.wait()
    failing_at(world, "before create", KubeUnavailable("is down"))
    with pytest.raises(KubeUnavailable):
        await world.engine.provision(plan)
    clear_faults(world)
    answered.set()
    await scanning
    assert (await world.provision(TWO)).gid == 2001


async def test_group_of_an_unconfirmed_directory_is_not_assigned_to_others(world: World) -> None:
    failing_at(world, "after make", WorkerFailed("did not answer"))
    with pytest.raises(WorkerFailed):
        await world.provision(TWO)
    clear_faults(world)
    # The worker has created the directory, with the mark for its group.
    assert (await world.provision(ONE)).gid in {2001, 2002}
    await world.scan()
    assert (await world.provision(TWO)).gid == 2000
    assert world.folders.permissions[place_of(TWO)].gid == 2000


# --- adopting existing volumes


async def test_directory_of_an_existing_volume_gets_its_group_back(world: World) -> None:
    plan = world.engine.plan(ONE)
    assert isinstance(plan, DirectoryPlan)
    before = replace(plan.volume(0), gid=2002, uid="before")
    world.store.volumes[before.name] = before
    assert await world.engine.provision(plan) == before
    assert world.folders.permissions[place_of(ONE)] == Permissions(mode=0o2771, gid=2002, enforced=True)
    assert world.index.gids.of(before.name) == 2002
    # The directory was marked with 2000 before its volume was seen.
    assert (await world.provision(TWO)).gid == 2001


async def test_volume_that_appears_during_the_creation_of_its_directory_keeps_its_group(world: World) -> None:
    plan = world.engine.plan(ONE)
    assert isinstance(plan, DirectoryPlan)
    before = replace(plan.volume(0), gid=2002, uid="before")

    def show(moment: str) -> int:
        if moment == "after make":
            world.store.volumes[before.name] = before
            world.index.put_volume(before)
        return 0

    world.moment.on_moment = show
    assert await world.engine.provision(plan) == before
    assert world.folders.permissions[place_of(ONE)] == Permissions(mode=0o2771, gid=2002, enforced=True)
    assert world.index.gids.of(before.name) == 2002


async def test_directory_keeps_the_group_of_an_unclear_volume_creation(world: World) -> None:
    plan = world.engine.plan(ONE)
    assert isinstance(plan, DirectoryPlan)
    failing_at(world, "before create", KubeUnavailable("did not answer"))
    late: list[Volume] = []

    async def again(error: KubeEfsError, is_unclear: bool) -> bool:
        assert is_unclear, error
        if late:
            world.add(*late)
            return True
        late.append(replace(plan.volume(0), uid="late"))
        other = NfsSource(server="efs.example.com", path="/pvs/other")
        world.add(replace(late[0], name="other", uid="other", claim=None, nfs=other))
        return True

    assert await world.engine.provision(plan, again=again) == late[0]
    assert late[0].gid == 2000
    assert world.folders.permissions[place_of(ONE)].gid == 2000


async def test_existing_volume_is_found_again(world: World) -> None:
    plan = world.engine.plan(ONE)
    assert plan is not None
    first = await world.engine.provision(plan)
    assert await world.engine.provision(plan) == first
    assert world.store.volumes == {first.name: first}


@pytest.mark.parametrize(
    "nfs",
    [
        pytest.param(NfsSource(server="other.example.com", path=f"/pvs/data-pvc-{ONE.uid}"), id="server"),
        pytest.param(NfsSource(server="efs.example.com", path="/pvs/elsewhere"), id="path"),
        pytest.param(None, id="no NFS source"),
    ],
)
async def test_volume_with_another_target_is_an_error(world: World, nfs: NfsSource | None) -> None:
    plan = world.engine.plan(ONE)
    assert isinstance(plan, DirectoryPlan)
    foreign = replace(plan.volume(0), nfs=nfs, gid=2002)
    world.store.volumes[foreign.name] = foreign
    with pytest.raises(KubeAlreadyExists) as caught:
        await world.engine.provision(plan)
    assert str(caught.value) == (
        f"volume: 'pvc-{ONE.uid}' leads to another location; check its server and path; "
        "they differ from what this provisioner sets"
    )
    assert world.store.volumes == {foreign.name: foreign}


# --- full ranges


async def test_claim_waits_for_a_group_when_the_range_is_full(world: World) -> None:
    volumes = [await world.provision(one) for one in (ONE, TWO, THREE)]
    world.moment.passed.clear()
    freed = list[None]()
    world.index.gids.on_free = lambda: freed.append(None)
    with pytest.raises(GidRangeFull) as caught:
        world.engine.plan(FOUR)
    assert str(caught.value) == FULL
    assert world.moment.passed == []  # nothing has begun
    await world.engine.reclaim(await release(world, volumes[1]))
    assert freed == [None]
    assert (await world.provision(FOUR)).gid == 2001


async def test_range_that_becomes_full_after_planning_is_an_error(world: World) -> None:
    plan = world.engine.plan(FOUR)
    assert plan is not None
    for one in (ONE, TWO, THREE):
        await world.provision(one)
    with pytest.raises(GidRangeFull):
        await world.engine.provision(plan)
    assert place_of(FOUR) not in world.folders.there


async def test_claim_with_an_assigned_group_is_served_from_a_full_range(world: World) -> None:
    failing_at(world, "before create", KubeUnavailable("is down"))
    with pytest.raises(KubeUnavailable):
        await world.provision(ONE)
    clear_faults(world)
    for one in (TWO, THREE):
        await world.provision(one)
    assert (await world.provision(ONE)).gid == 2000


async def test_full_range_causes_a_scan_that_frees_the_groups_of_removed_directories(world: World) -> None:
    (kept, *_) = [await world.provision(one) for one in (ONE, TWO, THREE)]
    freed = asyncio.Event()
    world.index.gids.on_free = freed.set
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.directory.run())
        # A user deletes a volume, then its directory.
        del world.store.volumes[kept.name]
        world.index.drop_volume(kept)
        with pytest.raises(GidRangeFull):
            world.engine.plan(FOUR)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not freed.is_set()  # the directory still exists
        world.folders.there.discard(place_of(ONE))
        with pytest.raises(GidRangeFull):
            world.engine.plan(FOUR)
        await freed.wait()
        running.cancel()
    assert (await world.provision(FOUR)).gid == 2000


# --- deleting


async def test_group_is_free_only_after_its_volume_is_deleted(world: World) -> None:
    released = await release(world, await world.provision(ONE))
    failing_at(world, "before release", KubeUnavailable("is down"))
    with pytest.raises(KubeUnavailable):
        await world.engine.reclaim(released)
    assert world.folders.removed == [place_of(ONE)]
    clear_faults(world)
    assert (await world.provision(TWO)).gid == 2001
    done = await world.engine.reclaim(released)
    assert done is not None
    assert (done.data, done.location) == (DataFate.REMOVED, place_of(ONE))
    assert (await world.provision(THREE)).gid == 2000


async def test_volumes_can_be_deleted_after_their_class(world: World) -> None:
    released = await release(world, await world.provision(ONE))
    world.index.classes.clear()
    await world.engine.reclaim(released)
    assert (world.store.volumes, world.folders.there, len(world.index.gids)) == ({}, set(), 0)


async def test_directory_used_by_another_volume_keeps_its_group(world: World) -> None:
    volume = await world.provision(ONE)
    world.add(replace(volume, name="sharer", uid="s", gid=None, claim=None, provisioned_by=None))
    done = await world.engine.reclaim(await release(world, volume))
    assert done is not None
    assert done.data is DataFate.SHARED
    assert (await world.provision(TWO)).gid == 2001


async def test_directory_keeps_its_group_when_its_volume_was_deleted_before_the_removal(
    world: World,
) -> None:
    released = await release(world, await world.provision(ONE))
    world.store.volumes.clear()
    assert await world.engine.reclaim(released) is None
    assert world.folders.there == {place_of(ONE)}
    assert (await world.provision(TWO)).gid == 2001


async def test_removal_of_a_directory_with_an_unexpected_name_is_logged(world: World) -> None:
    volume = await world.provision(ONE)
    nested = replace(volume, nfs=NfsSource(server="efs.example.com", path="/pvs/pv/foo"))
    with capture_logs() as logs:
        await world.engine.reclaim(await release(world, nested))
    assert [line for line in logs if line["event"] == "directory-name-unexpected"] == [
        {
            "event": "directory-name-unexpected",
            "log_level": "warning",
            "volume": volume.name,
            "location": "fs-1:/pvs/pv/foo",
        }
    ]


@pytest.mark.parametrize(
    "nfs",
    [
        pytest.param(NfsSource(server="efs.example.com", path="/pvs"), id="base directory"),
        pytest.param(NfsSource(server="efs.example.com", path="/pvs2/a"), id="sibling of the base"),
        pytest.param(NfsSource(server="efs.example.com", path="/pvs/../etc"), id="path that leaves the base"),
        pytest.param(NfsSource(server="efs.example.com.cn", path="/pvs/a"), id="longer server name"),
        pytest.param(None, id="no NFS source"),
    ],
)
async def test_path_outside_the_base_is_refused(world: World, nfs: NfsSource | None) -> None:
    released = await release(world, await world.provision(ONE), nfs=nfs)
    with pytest.raises(RemovalRefused):
        await world.engine.reclaim(released)
    assert (world.folders.removed, set(world.store.volumes)) == ([], {released.name})


# --- scanning existing directories


async def test_directories_are_scanned_again_when_no_range_is_full() -> None:
    world = World()
    world.pace = ScanPace(retry_seconds=0, least_seconds=0, most_seconds=0)
    world.start()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(world.directory.run())
        await world.directory.scanned.wait()
        put(world, "by hand", 2000)
        while not world.index.gids.holders(2000):  # noqa: ASYNC110
            await asyncio.sleep(0)
        running.cancel()
    assert (await world.provision(ONE)).gid == 2001


def put(world: World, name: str, gid: int) -> None:
    world.folders.there.add(at(name))
    world.folders.permissions[at(name)] = Permissions(gid=gid)


def orphans(world: World) -> float | None:
    labels = {"provisioner": DIRECTORY_PROVISIONER.name}
    return world.registry.get_sample_value("kube_efs_directories_without_volume", labels)


async def test_nothing_is_created_before_the_directories_are_read() -> None:
    world = World()
    with pytest.raises(NotYet) as caught:
        world.engine.plan(ONE)
    assert str(caught.value) == ("base directory: 'fs-1:/pvs' has not been read yet; it is retried")
    await world.scan()
    assert world.engine.plan(ONE) is not None


async def test_unsupported_claim_is_refused_before_the_directories_are_read() -> None:
    with pytest.raises(ClaimRefused):
        World().engine.plan(replace(ONE, match_labels={}))


@pytest.mark.parametrize("name", ["by hand", "new\nline", "\udcff", f"data-pvc-{TWO.uid}"])
async def test_groups_of_existing_directories_are_not_assigned(world: World, name: str) -> None:
    put(world, name, 2000)
    await world.scan()
    assert (await world.provision(ONE)).gid == 2001


async def test_directory_with_another_group_than_its_volume_holds_both(world: World) -> None:
    await world.provision(ONE)
    world.folders.permissions[place_of(ONE)] = Permissions(gid=2001)
    await world.scan()
    assert (await world.provision(TWO)).gid == 2002
    world.folders.permissions[place_of(ONE)] = Permissions(gid=2000)
    await world.scan()
    assert (await world.provision(THREE)).gid == 2001


async def test_two_directories_named_after_one_volume_keep_their_groups(world: World) -> None:
    put(world, f"a-pvc-{TWO.uid}", 2000)
    put(world, f"b-pvc-{TWO.uid}", 2001)
    await world.scan()
    assert (await world.provision(ONE)).gid == 2002


async def test_directories_without_a_volume_are_counted_and_logged(world: World) -> None:
    await world.provision(ONE)
    put(world, f"web-pvc-{TWO.uid}", 2001)
    put(world, "by hand", 2002)
    with capture_logs() as logs:
        await world.scan()
    assert _lines(logs, "directory-without-volume") == [f"fs-1:/pvs/web-pvc-{TWO.uid}"]
    assert orphans(world) == 1
    # The claim of this directory still exists and is served.
    world.index.classes[AWS_EFS.name] = replace(AWS_EFS, parameters={})
    await world.provision(replace(TWO, name="web"))
    assert orphans(world) == 0


def _lines(logs: list[EventDict], event: str) -> list[str]:
    return [line["location"] for line in logs if line["event"] == event]


async def test_unresponsive_file_system_is_read_later() -> None:
    world = World()
    faults = iter([WorkerFailed("did not answer"), WorkerFailed("did not answer")])

    def fail_twice(_: str) -> int:
        if fault := next(faults, None):
            raise fault
        return 0

    world.moment.on_moment = fail_twice
    with capture_logs() as logs:
        await world.scan()
    assert [line["event"] for line in logs] == ["directories-not-read"] * 2
    assert logs[0]["reason"] == "did not answer"
    assert world.engine.plan(ONE) is not None


# --- classes


async def test_class_warning_is_reported_once(world: World) -> None:
    use_class(world, gidAllocate="false", gidMin="many", archiveOnDelete="true")
    with capture_logs() as logs:
        for one in (ONE, TWO):
            world.engine.plan(one)
    said = [line for line in logs if line["event"] == "storage-class-warning"]
    assert {line["storage_class"] for line in said} == {"aws-efs"}
    assert sorted(line["reason"].partition(":")[0] for line in said) == [
        "StorageClass aws-efs parameters.archiveOnDelete",
        "StorageClass aws-efs parameters.gidMin",
    ]


# --- all operations in any order


class _Crash(BaseException):
    """The process ends here."""


_NUMBERS = st.integers(1, 8)
_FAULTS = st.none() | st.tuples(st.integers(1, 7), st.sampled_from([KubeUnavailable, WorkerFailed, _Crash]))
_Fault = tuple[int, type[BaseException]] | None


class Life(RuleBasedStateMachine):
    """Claims are created and deleted, users interfere, the process fails and restarts, events are late."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.claims: dict[int, Claim] = {}
        self.gone: set[int] = set()  # the UID of a claim is never reused
        self.removed = 0
        self.loop.run_until_complete(self.world.scan())

    def teardown(self) -> None:
        try:
            self._settle()
        finally:
            self.loop.close()

    # What the process does.

    @rule(number=_NUMBERS, fault=_FAULTS)
    def serve(self, number: int, fault: _Fault) -> None:
        if number in self.gone:
            return
        claim = self.claims.setdefault(number, directory_claim(number))
        self._attempt(self._serve(claim), fault)

    @rule(number=_NUMBERS, fault=_FAULTS)
    def reclaim(self, number: int, fault: _Fault) -> None:
        volume = self.world.index.volumes.get(self._name(number))
        if volume is None:
            return
        stored = self.world.store.volumes.get(volume.name)
        self._attempt(self._reclaim(volume), fault)
        removed = self.world.folders.removed[self.removed :]
        self.removed += len(removed)
        if removed:
            assert stored is not None
            assert (stored.phase, stored.reclaim_policy) == (VolumePhase.RELEASED, ReclaimPolicy.DELETE)
            assert removed == [place_of(directory_claim(number))]

    @rule()
    def scan_directories(self) -> None:
        self.loop.run_until_complete(self.world.scan())

    @rule()
    def receive_events(self) -> None:
        index, stored = self.world.index, self.world.store.volumes
        for volume in stored.values():
            index.put_volume(volume)
        for volume in list(index.volumes.values()):
            if volume.name not in stored:
                index.drop_volume(volume)

    @rule()
    def restart(self) -> None:
        self.world.start()
        self.loop.run_until_complete(self.world.scan())

    # What users and Kubernetes do.

    @rule(number=_NUMBERS)
    def bind(self, number: int) -> None:
        if number in self.claims:
            self._change(number, phase=VolumePhase.BOUND)

    @rule(number=_NUMBERS)
    def delete_claim(self, number: int) -> None:
        if self.claims.pop(number, None):
            self.gone.add(number)
            self._change(number, phase=VolumePhase.RELEASED)

    @rule(number=_NUMBERS)
    def retain(self, number: int) -> None:
        if number in self.claims:
            self._change(number, reclaim_policy=ReclaimPolicy.RETAIN)

    @rule(number=_NUMBERS)
    def delete_volume(self, number: int) -> None:
        self._change(number, deleting=True)

    @precondition(lambda self: self.world.store.volumes)
    @rule(number=_NUMBERS)
    def remove_volume_object(self, number: int) -> None:
        self.world.store.volumes.pop(self._name(number), None)

    @rule(number=_NUMBERS)
    def remove_unused_directory(self, number: int) -> None:
        if self._name(number) not in self.world.store.volumes:
            self.world.folders.there.discard(place_of(directory_claim(number)))

    # What is true at every moment.

    @invariant()
    def no_two_volumes_share_a_group(self) -> None:
        found = gids(self.world)
        assert len(found) == len(set(found))
        assert set(found) <= {2000, 2001, 2002}

    @invariant()
    def every_volume_in_use_has_its_directory(self) -> None:
        for volume in self.world.store.volumes.values():
            if (volume.phase, volume.reclaim_policy) != (VolumePhase.RELEASED, ReclaimPolicy.DELETE):
                assert volume.nfs is not None
                location = Location(file_system_id=FS1, directory=parse_directory(volume.nfs.path))
                assert location in self.world.folders.there
                assert self.world.folders.permissions[location].gid == volume.gid
                assert volume.finalizers == (FINALIZER,)

    @invariant()
    def directories_are_removed_only_by_reclaiming(self) -> None:
        assert len(self.world.folders.removed) == self.removed

    async def _serve(self, claim: Claim) -> None:
        plan = self.world.engine.plan(claim)
        if plan is not None:
            await self.world.engine.provision(plan)

    async def _reclaim(self, volume: Volume) -> None:
        stored = self.world.store.volumes.get(volume.name)
        if stored is not None and stored.deleting:
            # The engine waits until the watch shows that, which it does meanwhile.
            asyncio.get_running_loop().call_soon(self.world.index.put_volume, stored)
        await self.world.engine.reclaim(volume)

    def _attempt(self, attempt: Coroutine[None, None, None], fault: _Fault) -> None:
        left = fault[0] if fault else 0

        def fail(name: str) -> int:
            nonlocal left
            left -= 1
            if fault and left == 0:
                raise fault[1](name)
            return 0

        self.world.moment.on_moment = fail
        try:
            with suppress(KubeUnavailable, WorkerFailed, GidRangeFull):
                self.loop.run_until_complete(attempt)
            clear_faults(self.world)
        except _Crash:
            clear_faults(self.world)
            self.restart()

    def _settle(self) -> None:
        """Without failures, a claim has no volume only when all group IDs are in use.

        An ID is also in use while its mark names a directory that exists. That directory may have another ID:
        if people remove the first one by hand, the claim can get a directory of the same name again.
        """
        self.receive_events()
        self.loop.run_until_complete(self.world.scan())
        for number in list(self.claims):
            self.serve(number, None)
            if self._name(number) not in self.world.store.volumes:
                there = self.world.folders.children(
                    Location(file_system_id=FS1, directory=Directory(("pvs",)))
                )
                used = {found.gid for found in self.loop.run_until_complete(there)}
                folders = self.world.folders
                marked = {gid for gid, places in folders.marks.items() if places & folders.there}
                assert used | marked | set(gids(self.world)) >= {2000, 2001, 2002}

    def _change(self, number: int, **changes: object) -> None:
        volume = self.world.store.volumes.get(self._name(number))
        if volume is not None:
            self.world.store.volumes[volume.name] = replace(volume, **changes)  # type: ignore[arg-type]  # by name

    def _name(self, number: int) -> str:
        return f"pvc-{directory_claim(number).uid}"


def test_mark_of_a_directory_that_was_removed_by_hand_and_made_again_keeps_its_id() -> None:
    life = Life()
    life.serve(7, None)
    life.serve(5, (3, KubeUnavailable))
    life.serve(2, None)
    life.delete_claim(7)
    life.serve(8, (2, KubeUnavailable))
    life.receive_events()
    life.remove_unused_directory(5)
    life.reclaim(7, None)
    life.teardown()


def test_removal_waits_until_the_watch_shows_that_the_volume_is_terminating() -> None:
    life = Life()
    life.serve(7, None)
    life.bind(7)
    life.delete_claim(7)
    life.receive_events()
    life.delete_volume(7)
    life.reclaim(7, None)
    assert life.world.folders.removed == [place_of(directory_claim(7))]
    life.teardown()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
