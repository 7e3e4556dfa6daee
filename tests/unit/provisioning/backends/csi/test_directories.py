"""Directories as volumes of the driver: each has its own ID while it exists."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.provisioning.backends.csi.csi_world import FS, OTHER, CsiWorld, request

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    AwsDenied,
    AwsNoCredentialsYet,
    AwsNotPermitted,
    GidRangeFull,
    GidTaken,
    RemovalRefused,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.volumes import Location, VolumePhase
from kube_efs.provisioning.workers.contract import Confirm

LEAVING = {"phase": VolumePhase.RELEASED, "reclaim_policy": ReclaimPolicy.DELETE}
SHARED = {"subPathPattern": "both", "ensureUniqueDirectory": "false", "uid": "7", "gid": "7"}
PLAIN = {"provisioningMode": "efs-dir", "gidRangeStart": "5", "gidRangeEnd": "9", "basePath": "/b"}


async def test_directory_volume_has_its_own_ids_and_releases_them() -> None:
    world = CsiWorld()
    plain = {"provisioningMode": "efs-dir", "gidRangeStart": "5", "gidRangeEnd": "6", "basePath": "/b"}
    made = [await world.volumes.create(request(f"pvc-{number}", **plain)) for number in (1, 2)]
    assert [str(one.handle) for one in made] == [f"efs:{FS}:/b/./pvc-1", f"efs:{FS}:/b/./pvc-2"]
    permissions = world.folders.made
    assert [(one.mode, one.uid, one.gid) for one in permissions.values()] == [(0o700, 5, 5), (0o700, 6, 6)]
    assert world.api.calls == {"list": 1}  # their IDs are in use, too
    with pytest.raises(GidRangeFull, match="5-6"):
        await world.volumes.create(request("pvc-3", **plain))
    await world.volumes.delete(made[0].handle)
    assert world.folders.removed == [f"{FS}:/b/pvc-1 in /b"]
    await world.volumes.create(request("pvc-3", **plain))
    assert permissions[f"{FS}:/b/pvc-3"].gid == 5


@pytest.mark.parametrize("error", [AwsDenied, AwsNoCredentialsYet])
async def test_ids_of_access_points_are_not_taken_while_aws_refuses_the_credentials(
    error: type[AwsDenied],
) -> None:
    world = CsiWorld()
    world.api.faults["list"] = error("was answered with ExpiredToken", field="DescribeAccessPoints")
    with pytest.raises(AwsDenied):
        await world.volumes.create(request("pvc-1", **PLAIN))
    assert world.folders.made == {}
    world.api.faults["list"] = AwsNotPermitted("was answered with AccessDenied", field="DescribeAccessPoints")
    await world.volumes.create(request("pvc-1", **PLAIN))
    assert world.folders.made[f"{FS}:/b/pvc-1"].gid == 5


@pytest.mark.parametrize("is_made", [True, False])
async def test_volumes_of_one_directory_share_its_ids(is_made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world, gate = CsiWorld(), asyncio.Event()
    shared = {"subPathPattern": "both", "ensureUniqueDirectory": "false", "provisioningMode": "efs-dir"}
    plain = {**shared, "gidRangeStart": "5", "gidRangeEnd": "7"}
    make, arrived = world.folders.make, asyncio.Queue[Location]()

    async def wait_and_make(location: Location, permissions: Permissions) -> None:
        arrived.put_nowait(location)
        await gate.wait()
        await make(location, permissions)

    monkeypatch.setattr(world.folders, "make", wait_and_make)
    first = asyncio.create_task(world.volumes.create(request("pvc-1", **plain)))
    await arrived.get()
    if is_made:
        gate.set()
        world.note("pvc-1", (await first).handle)
    world.index.gids.hold(5, "a volume that was created again late")
    second = asyncio.create_task(world.volumes.create(request("pvc-2", **plain)))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, second)
    assert {one.gid for one in world.folders.made.values()} == {5}
    assert (await second).directory_id == 5


async def test_restarted_controller_does_not_assign_the_ids_of_existing_directories() -> None:
    plain = {"provisioningMode": "efs-dir", "gidRangeStart": "5", "gidRangeEnd": "6", "basePath": "/b"}
    before, world = CsiWorld(), CsiWorld()
    await before.volumes.create(request("pvc-1", **plain))
    world.folders.made = before.folders.made
    await world.volumes.create(request("pvc-2", **plain))
    await world.volumes.create(request("pvc-1", **plain))
    assert [one.gid for one in world.folders.made.values()] == [5, 6]


@pytest.mark.parametrize("base", [{"basePath": "/b"}, {"basePath": "/b", "uid": "0"}])
async def test_access_point_does_not_get_the_id_of_a_directory_from_before_a_restart(
    base: dict[str, str],
) -> None:
    before, world = CsiWorld(), CsiWorld()
    plain = {**PLAIN, **base}
    await before.volumes.create(request("pvc-1", **plain))
    world.folders.made = before.folders.made
    world.add_class("plain", **plain)
    for name in ("pvc-2", "pvc-3"):
        await world.volumes.create(request(name, gidRangeStart="5", gidRangeEnd="9"))
    assert [one.user and one.user.gid for one in world.api.points.values()] == [6, 7]
    assert world.folders.listed == [f"{FS}:/b"]


@pytest.mark.parametrize(
    "others",
    [
        {"fileSystemId": OTHER},
        {"uid": "7", "gid": "7", "gidRangeStart": "-", "gidRangeEnd": "-"},
        {"provisioningMode": "efs-ap"},
        {"directoryPerms": "999"},
    ],
    ids=["other file system", "without a range", "access points", "invalid"],
)
async def test_only_bases_with_ids_of_the_file_system_are_read_for_an_access_point(
    others: dict[str, str],
) -> None:
    world = CsiWorld()
    world.add_class("others", **{**PLAIN, **others})
    await world.volumes.create(request("pvc-1"))
    assert world.folders.listed == []


async def test_full_range_of_access_points_frees_the_ids_of_directories_removed_by_others() -> None:
    now = 0.0
    world, other = CsiWorld(is_alone=False, clock=lambda: now), CsiWorld()
    points = {"gidRangeStart": "5", "gidRangeEnd": "6"}
    for name in ("pvc-1", "pvc-2"):
        handle = (await other.volumes.create(request(name, **{**PLAIN, **points}))).handle
        world.note(name, handle, **LEAVING)
    world.folders.made = dict(other.folders.made)
    with pytest.raises(GidRangeFull):
        await world.volumes.create(request("pvc-3", **points))
    world.index.drop_volume(world.index.volumes["pvc-1"])
    del world.folders.made[f"{FS}:/b/pvc-1"]
    with pytest.raises(GidRangeFull):  # the directories were read less than a minute ago
        await world.volumes.create(request("pvc-3", **points))
    now += 60
    await world.volumes.create(request("pvc-3", **points))
    assert [one.user and one.user.gid for one in world.api.points.values()] == [5]
    with pytest.raises(GidRangeFull):
        await world.volumes.create(request("pvc-4", **points))


async def test_call_that_ends_early_frees_ids_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now, arrived, gate = 0.0, asyncio.Event(), asyncio.Event()
    world = CsiWorld(clock=lambda: now)
    children = world.folders.children
    plain = {**PLAIN, "gidRangeStart": "5", "gidRangeEnd": "6"}
    for name in ("pvc-1", "pvc-2"):
        await world.volumes.create(request(name, **plain))
    world.folders.made.clear()

    async def wait_and_list(location: Location) -> Sequence[FoundDirectory]:
        arrived.set()
        await gate.wait()
        return await children(location)

    monkeypatch.setattr(world.folders, "children", wait_and_list)
    now += 60
    call = asyncio.create_task(world.volumes.create(request("pvc-3", **plain)))
    await arrived.wait()
    call.cancel()
    await asyncio.wait({call})
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await world.volumes.create(request("pvc-3", **plain))
    assert world.folders.made[f"{FS}:/b/pvc-3"].gid == 5


async def test_full_range_frees_the_ids_of_directories_removed_by_others() -> None:
    now = 0.0
    world = CsiWorld(clock=lambda: now)
    plain = {"provisioningMode": "efs-dir", "gidRangeStart": "5", "gidRangeEnd": "6", "basePath": "/b"}
    made = [await world.volumes.create(request(f"pvc-{number}", **plain)) for number in (1, 2)]
    world.note("still-there", made[1].handle)
    world.folders.made.clear()
    now += 60
    await world.volumes.create(request("pvc-3", **plain))
    assert world.folders.made[f"{FS}:/b/pvc-3"].gid == 5
    world.folders.made.clear()
    with pytest.raises(GidRangeFull):  # the directories were scanned less than a minute ago
        await world.volumes.create(request("pvc-4", **plain))
    now += 60
    await world.volumes.create(request("pvc-4", **plain))
    assert world.folders.made[f"{FS}:/b/pvc-4"].gid == 5


async def test_failed_directory_does_not_use_a_second_id() -> None:
    world = CsiWorld()
    plain = {"provisioningMode": "efs-dir", "gidRangeStart": "5", "gidRangeEnd": "6"}
    world.folders.fault = WorkerFailed("has failed", field="pod")
    with pytest.raises(WorkerFailed):
        await world.volumes.create(request("pvc-1", **plain))
    world.folders.fault = None
    for name in ("pvc-2", "pvc-1"):
        await world.volumes.create(request(name, **plain))
    assert {place: one.gid for place, one in world.folders.made.items()} == {
        f"{FS}:/pvc-1": 5,
        f"{FS}:/pvc-2": 6,
    }


async def test_shared_directory_is_removed_with_its_last_volume() -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request("going", provisioningMode="efs-dir", **SHARED))).handle
    world.note("going", handle, **LEAVING)
    world.note("staying", handle)
    with pytest.raises(RemovalRefused, match="is also used by staying; delete the other volumes"):
        await world.volumes.delete(handle)
    world.note("staying", handle, **LEAVING)
    await world.volumes.delete(handle)
    assert not world.folders.made


async def test_ids_of_directories_of_other_replicas_are_not_assigned() -> None:
    world, other = CsiWorld(is_alone=False), CsiWorld()
    await world.volumes.create(request("pvc-1", **PLAIN))
    other.folders.made = world.folders.made
    world.note("pvc-2", (await other.volumes.create(request("pvc-2", **PLAIN))).handle)
    await world.volumes.create(request("pvc-3", **PLAIN))
    assert [one.gid for one in world.folders.made.values()] == [5, 6, 7]


@pytest.mark.parametrize(
    ("on", "fixed", "is_read"), [(FS, {}, True), (OTHER, {}, False), (FS, {"uid": "7", "gid": "7"}, False)]
)
async def test_directories_of_other_replicas_are_read_only_to_assign_an_id(
    on: FileSystemId, fixed: dict[str, str], is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CsiWorld(is_alone=False)

    async def fail(location: Location) -> list[FoundDirectory]:
        raise WorkerFailed("has failed", field="directories", value=str(location))

    monkeypatch.setattr(world.folders, "children", fail)
    world.note("pvc-1", f"efs:{on}:/b/./pvc-1")
    if not is_read:
        await world.volumes.create(request("pvc-2", **fixed))
        return
    for name in ("pvc-2", "pvc-3"):
        with pytest.raises(WorkerFailed, match="/b"):
            await world.volumes.create(request(name, **fixed))
    assert not world.api.points


async def test_cancelled_call_does_not_interrupt_the_scan_of_directories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, arrived, gate = CsiWorld(is_alone=False), asyncio.Event(), asyncio.Event()
    children, asked = world.folders.children, []

    async def wait_and_list(location: Location) -> Sequence[FoundDirectory]:
        asked.append(location)
        arrived.set()
        await gate.wait()
        return await children(location)

    monkeypatch.setattr(world.folders, "children", wait_and_list)
    call = asyncio.create_task(world.volumes.create(request("pvc-1", **PLAIN)))
    await arrived.wait()
    call.cancel()
    again = asyncio.create_task(world.volumes.create(request("pvc-1", **PLAIN)))
    await asyncio.sleep(0)
    gate.set()
    await again
    assert len(asked) == 1


async def test_id_of_another_directory_is_not_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    world = CsiWorld()
    make, asked = world.folders.make, []

    async def five_is_taken(location: Location, permissions: Permissions) -> None:
        assert permissions.own_group
        asked.append(permissions.gid)
        if permissions.gid == 5:
            raise GidTaken("belongs to another", field="group ID", value=5)
        await make(location, permissions)

    monkeypatch.setattr(world.folders, "make", five_is_taken)
    made = [await world.volumes.create(request(name, **PLAIN)) for name in ("pvc-1", "pvc-2")]
    assert asked[0] == 5
    assert [one.directory_id for one in made] == asked[1:]
    assert len({*asked}) == 3


@pytest.mark.parametrize("subdirectory", ["", "team/"])
async def test_link_in_place_of_foreign_directories_blocks_no_claim(
    subdirectory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = CsiWorld(is_alone=False), []

    async def refuse(location: Location) -> list[FoundDirectory]:
        asked.append(str(location))
        raise WorkerRefused("has a link in the way", field="directory", value=str(location))

    monkeypatch.setattr(world.folders, "children", refuse)
    world.note("pvc-1", f"efs:{FS}:/b/./{subdirectory}pvc-1")
    for name in ("pvc-2", "pvc-3"):
        await world.volumes.create(request(name))
    assert asked == [f"{FS}:/b/{subdirectory}".rstrip("/")]


async def test_volume_that_appears_during_a_scan_causes_another_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, arrived, gate = CsiWorld(is_alone=False), asyncio.Event(), asyncio.Event()
    children = world.folders.children

    async def list_and_wait(location: Location) -> Sequence[FoundDirectory]:
        found = await children(location)
        arrived.set()
        await gate.wait()
        return found

    monkeypatch.setattr(world.folders, "children", list_and_wait)
    world.note("pvc-1", f"efs:{FS}:/b/./pvc-1")
    first = asyncio.create_task(world.volumes.create(request("pvc-2", gidRangeStart="5", gidRangeEnd="9")))
    await arrived.wait()
    await world.folders.make(
        Location(file_system_id=FS, directory=Directory(("b", "pvc-3"))), Permissions(gid=5)
    )
    world.note("pvc-3", f"efs:{FS}:/b/./pvc-3")
    second = asyncio.create_task(world.volumes.create(request("pvc-4", gidRangeStart="5", gidRangeEnd="9")))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, second)
    assert sorted(one.user.gid for one in world.api.points.values() if one.user) == [6, 7]


async def test_concurrent_creations_of_one_directory_avoid_the_id_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, gate, arrived = CsiWorld(), asyncio.Event(), asyncio.Queue[Location]()
    named = {**PLAIN, "subPathPattern": "both", "ensureUniqueDirectory": "false"}
    make = world.folders.make

    async def wait_and_refuse_five(location: Location, permissions: Permissions) -> None:
        arrived.put_nowait(location)
        await gate.wait()
        if permissions.own_group and permissions.gid == 5:
            raise GidTaken("belongs to another", field="group ID", value=5)
        await make(location, permissions)

    monkeypatch.setattr(world.folders, "make", wait_and_refuse_five)
    both = [asyncio.create_task(world.volumes.create(request(f"pvc-{one}", **named))) for one in (1, 2)]
    await arrived.get()
    gate.set()
    ids = {(await one).directory_id for one in both}
    assert len(ids) == 1
    assert ids != {5}
    assert {one.gid for one in world.folders.made.values()} == ids


async def test_id_of_a_directory_is_assigned_after_its_removal_with_another_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, arrived, gate = CsiWorld(), asyncio.Event(), asyncio.Event()
    named = {**PLAIN, "subPathPattern": "both", "ensureUniqueDirectory": "false"}
    remove = world.folders.remove

    async def wait_and_remove(
        location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        arrived.set()
        await gate.wait()
        await remove(location, base, confirm, tenant=tenant)

    monkeypatch.setattr(world.folders, "remove", wait_and_remove)
    handle = (await world.volumes.create(request("pvc-1", **named))).handle
    world.note("pvc-1", handle, **LEAVING)
    removal = asyncio.create_task(world.volumes.delete(handle))
    await arrived.wait()
    creation = asyncio.create_task(world.volumes.create(request("pvc-2", **named)))
    await asyncio.sleep(0)
    gate.set()
    await removal
    beside = await world.volumes.create(request("pvc-3", **PLAIN))
    assert {(await creation).directory_id, beside.directory_id} == {5, 6}
