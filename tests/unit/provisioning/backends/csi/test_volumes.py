"""The driver's volumes: one for each name; data is removed only when no other volume uses it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.provisioning.backends.csi.csi_world import FS, OTHER, CsiWorld, request

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.copies import Copied, CopySource, CopyTerms
from kube_efs.model.csi.access_points import (
    AccessPoint,
    AccessPointRequest,
    VolumeRequest,
    volume_request,
)
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument, NoMountTarget, VolumePending
from kube_efs.model.csi.volume_attributes import render_attributes
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.file_systems import LifeCycleState
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsLimitReached,
    AwsNotListed,
    AwsThrottled,
    AwsUnavailable,
    GidRangeFull,
    KubeNotFound,
    NotYet,
    PlatformError,
    RemovalRefused,
    WorkerFailed,
)
from kube_efs.model.volumes import CsiSource, Location, Volume, VolumePhase
from kube_efs.provisioning.backends.csi import volumes as volumes_module
from kube_efs.provisioning.guards import RemovableDirectory, Removal

ROLE = CrossAccountRole(role_arn="arn:aws:iam::123456789012:role/storage")
LEAVING = {"phase": VolumePhase.RELEASED, "reclaim_policy": ReclaimPolicy.DELETE}
SHARED = {"subPathPattern": "both", "ensureUniqueDirectory": "false", "uid": "7", "gid": "7"}


async def test_access_point_is_created_once_despite_retries() -> None:
    world = CsiWorld()
    first = await world.volumes.create(request())
    assert await world.volumes.create(request()) == first
    assert str(first.handle) == f"efs:{FS}::fsap-{1:017x}"
    assert len(world.api.points) == 1


@pytest.mark.parametrize("fixed", ["uid", "gid"])
async def test_volumes_that_share_one_id_differ_in_the_other(fixed: str) -> None:
    parameters = {fixed: "7", "gidRangeStart": "1000", "gidRangeEnd": "1003"}
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    made = [await world.volumes.create(request(f"pvc-{number}", **parameters)) for number in range(3)]
    # The next leader reads the same from the access points.
    later = CsiWorld(removes_directories=tuple(FileSystemKind))
    later.api.points, later.api.calls = world.api.points, world.api.calls
    made.append(await later.volumes.create(request("pvc-3", **parameters)))
    with pytest.raises(GidRangeFull):
        await later.volumes.create(request("pvc-4", **parameters))

    users = [later.api.points[one.handle.access_point_id].user for one in made if one.handle.access_point_id]
    assert [{user.uid, user.gid} for user in users if user] == [{7, 1000 + number} for number in range(4)]
    await later.volumes.delete(made[1].handle)
    again = await later.volumes.create(request("pvc-4", **parameters))
    assert again.handle.access_point_id
    user = later.api.points[again.handle.access_point_id].user
    assert user
    assert {user.uid, user.gid} == {7, 1001}


@pytest.mark.parametrize("asked", [True, False])
async def test_zone_is_looked_up_only_on_request(asked: bool) -> None:
    world = CsiWorld()
    world.gateway.zone = ZoneName("us-east-1a")
    made = await world.volumes.create(request(enforceZoneAffinity=str(asked)))
    assert made.zone == ("us-east-1a" if asked else None)
    assert world.api.calls["file_system"] == asked


@pytest.mark.parametrize(
    ("role", "parameters", "attributes", "looks"),
    [
        pytest.param(replace(ROLE, by_zone_id=True), {"az": "us-east-1b"}, {"crossaccount": "true"}, 0),
        pytest.param(ROLE, {"az": "us-east-1b"}, {"mounttargetip": "10.0.1.1"}, 1),
        pytest.param(ROLE, {"az": "us-east-1z"}, {"mounttargetip": "10.0.2.1"}, 1),
        pytest.param(
            ROLE,
            {},
            {"mounttargetipmap": '{"use1-az1":"10.0.2.1","use1-az2":"10.0.1.1","use1-az3":"10.0.0.1"}'},
            1,
        ),
        pytest.param(None, {"az": "us-east-1b"}, {}, 0),
    ],
    ids=["by DNS name", "one zone", "zone without a mount target", "all zones", "own account"],
)
async def test_cross_account_volume_has_the_addresses_of_its_mount_targets(
    role: CrossAccountRole | None, parameters: dict[str, str], attributes: dict[str, str], looks: int
) -> None:
    world = CsiWorld()
    made = await world.volumes.create(request(**parameters), role)
    assert render_attributes(made.attributes) == attributes
    assert world.api.calls["mount_targets"] == looks
    assert world.account_roles == {role}


async def test_nothing_is_created_when_the_file_system_is_unreachable() -> None:
    world = CsiWorld()
    world.gateway.states = [LifeCycleState.CREATING] * 3
    with pytest.raises(NoMountTarget, match="has no mount target that is available"):
        await world.volumes.create(request(), ROLE)
    assert world.api.calls["create"] == 0


@pytest.mark.parametrize("fault", ["file_system", "list"])
async def test_nothing_is_created_when_a_lookup_fails(fault: str) -> None:
    world = CsiWorld()
    world.api.faults[fault] = AwsUnavailable("is away", field=fault)
    with pytest.raises(AwsUnavailable):
        await world.volumes.create(request(enforceZoneAffinity="true"))
    assert not world.api.points


async def test_unsupported_request_causes_no_aws_call() -> None:
    world = CsiWorld()
    with pytest.raises(InvalidArgument, match="too deep"):
        await world.volumes.create(request(basePath="/a/b/c/d"))
    assert not world.api.calls


async def test_pool_is_filled_in_order_and_then_refused() -> None:
    world = CsiWorld(quota=1)
    names = [request(f"pvc-{number}", fileSystemId=f"{FS},{OTHER}") for number in range(3)]
    made = [(await world.volumes.create(one)).handle.file_system_id for one in names[:2]]
    assert made == [FS, OTHER]
    with pytest.raises(AwsLimitReached, match="have no room for another access point"):
        await world.volumes.create(names[2])


async def test_file_system_can_be_read_from_another_object() -> None:
    world = CsiWorld()
    wanted = request(fileSystemId="-", fileSystemIdConfigRef="team/efs/id")
    with pytest.raises(InvalidArgument, match=r"ConfigMap team/efs data\.id: is missing or empty"):
        await world.volumes.create(wanted)
    world.texts.texts["ConfigMap team/efs data.id"] = f" {OTHER}\n"
    assert (await world.volumes.create(wanted)).handle.file_system_id == OTHER


# --- removals


async def test_access_point_is_deleted_and_its_directory_is_kept() -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request())).handle
    await world.volumes.delete(handle)
    assert not world.api.points
    assert not world.folders.removed
    await world.volumes.delete(handle)


async def test_csi_provisioner_gets_a_reason_while_the_directory_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy can wait for its turn for hours; a call takes 15 s."""
    monkeypatch.setattr(volumes_module, "CALLER_PATIENCE_SECONDS", 0.01)
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request())).handle
    point = next(iter(world.api.points.values()))
    place = Location(file_system_id=FS, directory=point.directory)
    async with world.guards.reservations.making(place):
        with pytest.raises(NotYet, match=f"'{place}' is being copied"):
            await world.volumes.delete(handle)
    assert not world.folders.removed
    await world.volumes.delete(handle)
    assert world.folders.removed


async def test_volume_without_our_access_point_is_not_changed() -> None:
    world = CsiWorld()
    await world.volumes.delete(VolumeHandle(file_system_id=FS, directory=parse_directory("/a")))
    assert not world.api.calls
    assert not world.folders.removed


async def test_access_point_of_another_file_system_is_not_deleted() -> None:
    world = CsiWorld()
    made = (await world.volumes.create(request())).handle
    with pytest.raises(RemovalRefused, match=f"belongs to {FS}"):
        await world.volumes.delete(VolumeHandle(file_system_id=OTHER, access_point_id=made.access_point_id))
    assert len(world.api.points) == 1


@pytest.mark.parametrize(
    ("form", "option"),
    [
        pytest.param("efs:{}::{}", "tls", id="same"),
        pytest.param("{}::{}", "tls", id="older form"),
        pytest.param("efs:{}:/below:{}", "tls", id="with a path"),
        pytest.param("{}", "tls,accesspoint={}", id="in the mount options"),
    ],
)
async def test_access_point_is_kept_while_another_volume_uses_it(form: str, option: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request())).handle
    world.note("going", handle, **LEAVING)
    other = form.format(handle.file_system_id, handle.access_point_id)
    options = (option.format(handle.access_point_id),)
    world.note("staying", other, mount_options=options)

    with pytest.raises(RemovalRefused, match="also leads to the data of volume staying") as caught:
        await world.volumes.delete(handle)
    assert caught.value.value == handle.access_point_id
    assert caught.value.volumes == {"staying"}
    assert not world.folders.removed

    world.note("staying", other, mount_options=options, **LEAVING)
    await world.volumes.delete(handle)
    assert not world.api.points


@pytest.mark.parametrize("is_shown", [True, False], ids=["volume exists", "volume is awaited"])
async def test_directory_of_an_access_point_that_a_list_omits_is_kept(*, is_shown: bool) -> None:
    """Such as one that was just created: the list of AWS may be older."""
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    shared = {"subPathPattern": "${.PVC.namespace}", "ensureUniqueDirectory": "false"}
    going = (await world.volumes.create(request("pvc-1", **shared))).handle
    world.note("pvc-1", going, **LEAVING)
    staying = (await world.volumes.promise(request("pvc-2", **shared))).handle
    if is_shown:
        world.note("pvc-2", staying, phase=VolumePhase.BOUND)
    assert staying.access_point_id
    world.api.omitted.add(staying.access_point_id)
    await world.volumes.delete(going)
    assert (set(world.api.points), world.folders.removed) == ({staying.access_point_id}, [])


@pytest.mark.parametrize("is_known", [True, False], ids=["created here", "created by another leader"])
async def test_directory_of_s3_files_is_kept_while_only_lists_omit_the_access_point_of_a_volume(
    *, is_known: bool
) -> None:
    """The managed policy does not allow GetAccessPoint."""
    now = 0.0
    before = CsiWorld(removes_directories=tuple(FileSystemKind), clock=lambda: now)
    shared = {"subPathPattern": "both", "ensureUniqueDirectory": "false", "uid": "7", "gid": "7"}
    wanted = [request(name, provisioningMode="s3files-ap", **shared) for name in ("pvc-1", "pvc-2")]
    going, staying = [(await before.volumes.create(one)).handle for one in wanted]
    world = before
    if not is_known:
        world = CsiWorld(removes_directories=tuple(FileSystemKind), clock=lambda: now)
        world.s3_api.points = before.s3_api.points
    world.note("pvc-1", going, **LEAVING)
    world.note("pvc-2", staying, phase=VolumePhase.BOUND)
    assert staying.access_point_id
    world.s3_api.may_get = False
    world.s3_api.omitted.add(staying.access_point_id)
    for moment in (0.0, 59.0):
        now = moment
        with pytest.raises(AwsNotListed):
            await world.volumes.delete(going)
    assert (len(world.s3_api.points), world.folders.removed) == (2, [])
    world.s3_api.omitted.clear()
    await world.volumes.delete(going)
    assert (set(world.s3_api.points), world.folders.removed) == ({staying.access_point_id}, [])


async def test_volume_of_s3_files_is_removed_although_lists_omit_another_access_point_that_is_gone() -> None:
    """The list is the only answer that AWS permits, and after a minute it is certain."""
    now = 0.0
    world = CsiWorld(removes_directories=tuple(FileSystemKind), clock=lambda: now)
    world.s3_api.may_get = False
    handle = (await world.volumes.create(request(provisioningMode="s3files-ap"))).handle
    world.note("pvc-1", handle, **LEAVING)
    world.note("left behind", f"s3files:{FS}::fsap-00000000000000099")
    with pytest.raises(AwsNotListed):
        await world.volumes.delete(handle)
    now = 60.0
    await world.volumes.delete(handle)
    assert (world.s3_api.points, len(world.folders.removed)) == ({}, 1)
    await world.volumes.delete(handle)  # as after a lost answer to csi-provisioner


async def test_access_point_of_s3_files_that_a_list_omits_is_removed_later() -> None:
    """Otherwise it would stay without a volume, with its directory."""
    now = 0.0
    world = CsiWorld(removes_directories=tuple(FileSystemKind), clock=lambda: now)
    world.s3_api.may_get = False
    handle = (await world.volumes.create(request(provisioningMode="s3files-ap"))).handle
    world.note("pvc-1", handle, **LEAVING)
    world.s3_api.hidden = True
    with pytest.raises(AwsNotListed):
        await world.volumes.delete(handle)
    world.s3_api.hidden = False
    await world.volumes.delete(handle)
    assert (world.s3_api.points, len(world.folders.removed)) == ({}, 1)


async def test_directory_of_a_volume_that_appears_during_a_list_of_volumes_is_kept() -> None:
    """The volume is no longer awaited, and not in the list."""
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    shared = {"subPathPattern": "${.PVC.namespace}", "ensureUniqueDirectory": "false"}
    going = (await world.volumes.create(request("pvc-1", **shared))).handle
    world.note("pvc-1", going, **LEAVING)
    staying = (await world.volumes.promise(request("pvc-2", **shared))).handle
    assert staying.access_point_id
    world.api.omitted.add(staying.access_point_id)
    list_now = world.store.list

    async def list_before() -> Sequence[Volume]:
        listed = [one for one in await list_now() if one.name != "pvc-2"]
        world.note("pvc-2", staying, phase=VolumePhase.BOUND)
        return listed

    world.store.list = list_before  # type: ignore[method-assign]
    await world.volumes.delete(going)
    assert (set(world.api.points), world.folders.removed) == ({staying.access_point_id}, [])


async def test_directory_is_removed_although_a_volume_names_a_missing_access_point() -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request())).handle
    world.note("pvc-1", handle, **LEAVING)
    world.note("left behind", f"{FS}::fsap-00000000000000099")
    await world.volumes.delete(handle)
    assert (world.api.points, len(world.folders.removed)) == ({}, 1)


async def test_volume_released_in_the_api_server_does_not_keep_the_access_point() -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request())).handle
    world.note("going", handle, phase=VolumePhase.BOUND)
    with pytest.raises(RemovalRefused, match="also leads to the data of volume going"):
        await world.volumes.delete(handle)
    seen = world.index.volumes["going"]
    world.store.newer["going"] = replace(seen, **LEAVING)  # type: ignore[arg-type]
    await world.volumes.delete(handle)
    assert not world.api.points


async def test_access_point_about_to_be_deleted_is_not_reused() -> None:
    world = CsiWorld()
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.create(request("pvc-1", **again))).handle
    world.note("pvc-1", handle, **LEAVING)

    with pytest.raises(VolumePending, match="is about to be removed with volume pvc-1"):
        await world.volumes.create(request("pvc-2", **again))

    await world.volumes.delete(handle)
    assert (await world.volumes.create(request("pvc-2", **again))).handle != handle


async def test_access_point_that_another_claim_keeps_is_reused_while_a_removal_waits_for_it() -> None:
    world = CsiWorld()
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.create(request("pvc-1", **again))).handle
    world.note("pvc-1", handle, **LEAVING)
    # A volume of another namespace; as long as it stays, the access point is not removed.
    world.note("pvc-2", handle, phase=VolumePhase.BOUND)
    assert (await world.volumes.create(request("pvc-3", **again))).handle == handle
    with pytest.raises(RemovalRefused, match="also leads to the data of volume pvc-2"):
        await world.volumes.delete(handle)


async def test_access_point_is_not_reused_while_an_earlier_leader_may_still_remove_it() -> None:
    now = 1000.0
    world = CsiWorld(clock=lambda: now)
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.create(request("pvc-1", **again))).handle
    world.note("pvc-1", handle, **LEAVING)
    # Its claim is gone, and people have decided that it stays: perhaps after the removal was ordered.
    world.note("pvc-2", handle, phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.RETAIN)
    with pytest.raises(VolumePending, match="is about to be removed with volume pvc-1"):
        await world.volumes.create(request("pvc-3", **again))
    now += 200.0
    assert (await world.volumes.create(request("pvc-3", **again))).handle == handle


async def test_reused_access_point_is_kept_until_the_volume_of_the_next_claim_exists() -> None:
    now = 1000.0
    world = CsiWorld(clock=lambda: now)
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.promise(request("pvc-1", **again))).handle
    # Kubernetes has not released the volume of the deleted claim yet, and the next claim has the same name.
    world.note("pvc-1", handle, phase=VolumePhase.BOUND)
    assert (await world.volumes.promise(request("pvc-2", **again))).handle == handle
    world.note("pvc-1", handle, **LEAVING)
    with pytest.raises(NotYet, match="is about to be used by volume pvc-2"):
        await world.volumes.delete(handle)
    world.note("pvc-2", handle, phase=VolumePhase.BOUND)
    with pytest.raises(RemovalRefused, match="also leads to the data of volume pvc-2"):
        await world.volumes.delete(handle)


async def test_reused_access_point_is_kept_however_late_the_volume_of_the_next_claim_appears() -> None:
    now = 1000.0
    world = CsiWorld(clock=lambda: now)
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.promise(request("pvc-1", **again))).handle
    world.note("pvc-1", handle, phase=VolumePhase.BOUND)
    await world.volumes.promise(request("pvc-2", **again))
    world.note("pvc-1", handle, **LEAVING)
    now += 100 * 24 * 3600
    with pytest.raises(NotYet, match=r"is about to be used by volume pvc-2.*restart the controller"):
        await world.volumes.delete(handle)
    # It was created and deleted, and nothing was removed in between.
    world.note("pvc-2", handle, phase=VolumePhase.BOUND)
    world.index.drop_volume(world.index.volumes["pvc-2"])
    await world.volumes.delete(handle)
    assert not world.api.points


# Every form of the handle of a volume that is an access point.
FORMS = pytest.mark.parametrize(
    "form",
    [
        pytest.param("efs:{}::{}", id="since 3.0"),
        pytest.param("{}::{}", id="before 3.0"),
        pytest.param("efs:{}:/:{}", id="with the root as its path"),
        pytest.param("{}:/a/..:{}", id="with a longer path"),
    ],
)


@FORMS
async def test_volume_with_any_form_of_handle_is_not_taken_for_a_promised_one(form: str) -> None:
    world = CsiWorld()
    again = {"reuseAccessPoint": "true"}
    made = (await world.volumes.create(request("pvc-1", **again))).handle
    text = form.format(made.file_system_id, made.access_point_id)
    world.note("pvc-1", text, phase=VolumePhase.BOUND)
    await world.volumes.promise(request("pvc-2", **again))
    world.note("pvc-1", text, **LEAVING)
    with pytest.raises(NotYet, match="is about to be used by volume pvc-2"):
        await world.volumes.delete(parse_volume_handle(text))
    assert world.api.points


async def test_volume_of_another_driver_is_not_the_one_of_a_removal() -> None:
    world = CsiWorld()
    handle = (await world.volumes.promise(request("pvc-1", **SHARED_DIRECTORY))).handle
    foreign = CsiSource(driver="example.com", handle=str(handle))
    world.index.put_volume(Volume(name="foreign", uid="uid-of-foreign", csi=foreign))
    assert await world.guards.volumes_of(handle) == frozenset()


async def test_unused_volume_of_a_reused_access_point_is_discarded_at_once() -> None:
    world = CsiWorld()
    handle = (await world.volumes.promise(request("pvc-1", reuseAccessPoint="true"))).handle
    await world.volumes.delete(handle)
    assert not world.api.points


async def test_discarded_volume_keeps_the_access_point_of_another_one_that_is_being_created() -> None:
    world = CsiWorld()
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.promise(request("pvc-1", **again))).handle
    assert (await world.volumes.promise(request("pvc-2", **again))).handle == handle
    with pytest.raises(NotYet, match="is about to be used by volume pvc-2"):
        await world.volumes.delete(handle)
    assert world.api.points


async def test_volume_that_appears_after_the_list_of_a_removal_keeps_its_access_point() -> None:
    world = CsiWorld()
    again = {"reuseAccessPoint": "true"}
    handle = (await world.volumes.promise(request("pvc-1", **again))).handle
    world.note("pvc-1", handle, phase=VolumePhase.BOUND)
    await world.volumes.promise(request("pvc-2", **again))
    world.note("pvc-1", handle, **LEAVING)
    listed, lists = world.store.list, 0

    async def late() -> Sequence[Volume]:
        nonlocal lists
        found = await listed()
        lists += 1
        if lists == 2:  # the first list is of the volumes with the handle, the second one that of the guards
            world.note("pvc-2", handle, phase=VolumePhase.BOUND)
        return found

    world.store.list = late  # type: ignore[method-assign]
    with pytest.raises(NotYet, match="is about to be used by volume pvc-2"):
        await world.volumes.delete(handle)
    assert lists == 2
    assert world.api.points


SHARED_DIRECTORY = {**SHARED, "provisioningMode": "efs-dir", "basePath": "/b"}


async def test_shared_directory_is_kept_until_the_volume_of_the_next_claim_exists() -> None:
    world = CsiWorld()
    handle = (await world.volumes.promise(request("pvc-1", **SHARED_DIRECTORY))).handle
    world.note("pvc-1", handle, phase=VolumePhase.BOUND)
    assert (await world.volumes.promise(request("pvc-2", **SHARED_DIRECTORY))).handle == handle
    world.note("pvc-1", handle, **LEAVING)
    with pytest.raises(NotYet, match="is about to be used by volume pvc-2"):
        await world.volumes.delete(handle)
    world.note("pvc-2", handle, phase=VolumePhase.BOUND)
    with pytest.raises(RemovalRefused, match="is also used by pvc-2"):
        await world.volumes.delete(handle)
    assert not world.folders.removed


async def test_volume_of_another_kind_waits_for_a_volume_with_its_directory() -> None:
    world = CsiWorld()
    handle = (await world.volumes.promise(request("pvc-2", **SHARED_DIRECTORY))).handle
    volume = Volume(name="tunnel-1", uid="1")

    def removal(path: str) -> Removal:
        place = Location(file_system_id=handle.file_system_id, directory=parse_directory(path))
        return Removal(directory=RemovableDirectory(location=place))

    for path in (str(handle.directory), "/b"):
        with pytest.raises(NotYet, match="is about to be used by volume pvc-2"):
            await world.guards.check(removal(path), volume)
    await world.guards.check(removal("/b/beside"), volume)


async def test_unused_volume_with_a_directory_is_discarded_at_once() -> None:
    world = CsiWorld()
    handle = (await world.volumes.promise(request("pvc-1", **SHARED_DIRECTORY))).handle
    await world.volumes.delete(handle)
    assert world.folders.removed


async def test_discarded_volume_is_not_awaited_any_more() -> None:
    world = CsiWorld()
    handle = (await world.volumes.promise(request("pvc-1", **SHARED_DIRECTORY))).handle
    await world.volumes.delete(handle)
    await world.volumes.promise(request("pvc-2", **SHARED_DIRECTORY))
    await world.volumes.delete(handle)
    assert len(world.folders.removed) == 2


async def test_only_a_volume_with_the_same_handle_is_discarded() -> None:
    world = CsiWorld()
    below = {**SHARED_DIRECTORY, "basePath": "/b/both", "subPathPattern": "below"}
    await world.volumes.promise(request("pvc-1", **below))
    handle = (await world.volumes.create(request("pvc-2", **SHARED_DIRECTORY))).handle
    with pytest.raises(NotYet, match="is about to be used by volume pvc-1"):
        await world.volumes.delete(handle)


async def test_claim_that_is_not_served_by_csi_provisioner_blocks_no_removal() -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request("pvc-1", **SHARED_DIRECTORY))).handle
    world.note("pvc-1", handle, **LEAVING)
    # Its object is created in the same task, which has a reservation.
    await world.volumes.create(request("pvc-2", **SHARED_DIRECTORY))
    await world.volumes.delete(handle)
    assert world.folders.removed


async def test_directory_of_a_kind_that_worker_pods_cannot_mount_stays() -> None:
    world = CsiWorld(removes_directories=[FileSystemKind.EFS])
    handle = (await world.volumes.create(request("pvc-1", provisioningMode="s3files-ap"))).handle
    world.note("pvc-1", handle, **LEAVING)
    await world.volumes.delete(handle)
    assert not world.s3_api.points
    assert not world.folders.removed


# --- directories of access points, on both kinds of file systems

BOTH_KINDS = pytest.mark.parametrize("mode", ["efs-ap", "s3files-ap"])


def points_in(world: CsiWorld, mode: str) -> int:
    """The number of access points in the API of that mode's file systems."""
    return len((world.api if mode == "efs-ap" else world.s3_api).points)


@BOTH_KINDS
async def test_directory_is_removed_with_its_access_point_if_configured(mode: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=mode, basePath="/base"))).handle
    await world.volumes.delete(handle)
    assert world.folders.removed == [f"{FS}:/base/pvc-1 in /"]
    assert [one.kind for one in world.folders.removed_from] == [handle.kind]
    assert not points_in(world, mode)


@BOTH_KINDS
async def test_directory_stays_unless_configured(mode: str) -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request(provisioningMode=mode))).handle
    await world.volumes.delete(handle)
    assert (world.folders.removed, points_in(world, mode)) == ([], 0)


@BOTH_KINDS
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(SHARED, id="same directory"),
        pytest.param(SHARED | {"subPathPattern": "both/below"}, id="subdirectory"),
    ],
)
async def test_directory_used_by_another_access_point_is_kept(other: dict[str, str], mode: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=mode, **SHARED))).handle
    await world.volumes.create(request("pvc-2", provisioningMode=mode, **other))
    await world.volumes.delete(handle)
    assert not world.folders.removed
    assert points_in(world, mode) == 1


@BOTH_KINDS
async def test_access_point_above_a_directory_does_not_keep_it(mode: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=mode, **SHARED))).handle
    all_of_it = SHARED | {"subPathPattern": "", "provisioningMode": mode}
    whole = (await world.volumes.create(request("pvc-2", **all_of_it))).handle
    world.note("whole", whole)
    await world.volumes.delete(handle)
    assert world.folders.removed == [f"{FS}:/both in /"]


@BOTH_KINDS
@pytest.mark.parametrize("path", ["/both", "/both/deep"])
async def test_volume_that_uses_a_directory_through_a_parent_access_point_keeps_it(
    path: str, mode: str
) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=mode, **SHARED))).handle
    all_of_it = SHARED | {"subPathPattern": "", "provisioningMode": mode}
    whole = (await world.volumes.create(request("pvc-2", **all_of_it))).handle
    world.note("inside", replace(whole, directory=parse_directory(path)))
    await world.volumes.delete(handle)
    assert not world.folders.removed


@BOTH_KINDS
async def test_root_of_the_file_system_is_never_removed(mode: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    all_of_it = SHARED | {"subPathPattern": "", "provisioningMode": mode}
    handle = (await world.volumes.create(request(**all_of_it))).handle
    await world.volumes.delete(handle)
    assert not world.folders.removed
    assert not points_in(world, mode)


@BOTH_KINDS
@pytest.mark.parametrize("path", ["/both", "/both/deep"])
async def test_directory_used_by_a_volume_without_access_point_is_kept(path: str, mode: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=mode, **SHARED))).handle
    world.note("by-hand", replace(handle, directory=parse_directory(path), access_point_id=None))
    await world.volumes.delete(handle)
    assert not world.folders.removed


@BOTH_KINDS
async def test_removal_waits_for_a_claim_that_gets_the_directory(mode: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=mode, **SHARED))).handle
    place = Location(file_system_id=FS, directory=parse_directory("/both"))
    async with world.guards.reservations.making(place):
        removal = asyncio.create_task(world.volumes.delete(handle))
        await asyncio.sleep(0)
        await world.volumes.create(request("pvc-2", provisioningMode=mode, **SHARED))
    await removal
    assert (world.folders.removed, points_in(world, mode)) == ([], 1)


# --- changes while csi-provisioner waits for a removal


@pytest.mark.parametrize("provisioning", ["efs-ap", "efs-dir", "s3files-ap"])
async def test_data_is_kept_when_the_volume_is_deleted_while_its_removal_waits(provisioning: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=provisioning))).handle
    world.note("pvc-1", handle, **LEAVING)
    volume = world.index.volumes["pvc-1"]
    place = Location(file_system_id=FS, directory=parse_directory("/pvc-1"))
    async with world.guards.reservations.making(place):
        removal = asyncio.create_task(world.volumes.delete(handle))
        await asyncio.sleep(0)
        # A user sets Retain, and csi-provisioner removes its finalizer.
        world.index.drop_volume(volume)
    with pytest.raises(NotYet, match="was deleted after its removal was requested"):
        await removal
    assert not world.folders.removed
    assert bool({**world.api.points, **world.s3_api.points}) is (provisioning != "efs-dir")
    # A removal that is requested without a volume is carried out.
    await world.volumes.delete(handle)
    assert not {**world.api.points, **world.s3_api.points}


@FORMS
async def test_data_is_kept_for_every_form_of_the_handle_of_the_deleted_volume(form: str) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    made = (await world.volumes.create(request())).handle
    text = form.format(made.file_system_id, made.access_point_id)
    world.note("pvc-1", text, **LEAVING)
    volume = world.index.volumes["pvc-1"]
    place = Location(file_system_id=FS, directory=parse_directory("/pvc-1"))
    async with world.guards.reservations.making(place):
        removal = asyncio.create_task(world.volumes.delete(parse_volume_handle(text)))
        await asyncio.sleep(0)
        # A user sets Retain and deletes the object.
        world.index.drop_volume(volume)
    with pytest.raises(NotYet, match="was deleted after its removal was requested"):
        await removal
    assert world.api.points
    assert not world.folders.removed


async def test_directory_is_kept_for_a_deleted_volume_with_an_access_point_in_its_mount_options() -> None:
    """csi-provisioner calls with the handle alone, which names the directory."""
    world = CsiWorld()
    handle = (await world.volumes.create(request(provisioningMode="efs-dir"))).handle
    world.note("pvc-1", handle, mount_options=("accesspoint=fsap-0123456789abcdef0",), **LEAVING)
    volume = world.index.volumes["pvc-1"]
    async with world.guards.reservations.making(Location(file_system_id=FS, directory=handle.directory)):
        removal = asyncio.create_task(world.volumes.delete(handle))
        await asyncio.sleep(0)
        world.index.drop_volume(volume)
    with pytest.raises(NotYet, match="was deleted after its removal was requested"):
        await removal
    assert not world.folders.removed


@pytest.mark.parametrize("provisioning", ["efs-ap", "efs-dir", "s3files-ap"])
async def test_data_of_a_retained_volume_deleted_between_two_checks_is_kept(
    provisioning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    handle = (await world.volumes.create(request(provisioningMode=provisioning))).handle
    world.note("pvc-1", handle, phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.RETAIN)

    async def gone(name: str) -> Volume:
        raise KubeNotFound("answered 404", field=f"volume {name}")

    monkeypatch.setattr(world.store, "get", gone)
    with pytest.raises(NotYet, match="was deleted after its removal was requested"):
        await world.volumes.delete(handle)
    assert not world.folders.removed
    assert bool({**world.api.points, **world.s3_api.points}) is (provisioning != "efs-dir")


async def test_ids_of_access_points_of_other_replicas_are_not_assigned() -> None:
    now, narrow = 100.0, {"gidRangeStart": "5", "gidRangeEnd": "9"}
    world, other = CsiWorld(is_alone=False, clock=lambda: now), CsiWorld()
    other.api.points, other.api.calls = world.api.points, world.api.calls
    await world.volumes.create(request("pvc-1", **narrow))
    await other.volumes.create(request("pvc-2", **narrow))
    now += 15
    await world.volumes.create(request("pvc-3", **narrow))
    assert [one.user.gid for one in world.api.points.values() if one.user] == [5, 6, 7]


@pytest.mark.parametrize("is_deleted_by_people", [False, True])
async def test_ids_of_a_directory_that_stays_are_assigned_last_if_its_access_point_is_gone_already(
    *, is_deleted_by_people: bool
) -> None:
    world, narrow = CsiWorld(), {"gidRangeStart": "5", "gidRangeEnd": "6"}
    handle = (await world.volumes.create(request("pvc-1", **narrow))).handle
    assert handle.access_point_id is not None
    if is_deleted_by_people:
        del world.api.points[handle.access_point_id]
    else:
        world.api.lost.add("delete")
        with pytest.raises(AwsUnavailable):
            await world.volumes.delete(handle)
        world.api.lost.clear()
    await world.volumes.delete(handle)
    for name in ("pvc-2", "pvc-3"):
        await world.volumes.create(request(name, **narrow))
    assert [one.user.gid for one in world.api.points.values() if one.user] == [6, 5]


# --- volumes without access points


async def test_without_worker_pods_only_access_points_are_supported() -> None:
    world = CsiWorld(has_workers=False)
    await world.volumes.create(request())
    with pytest.raises(PlatformError, match="put tunnel into the controller's KUBE_EFS_BACKENDS"):
        await world.volumes.create(request(provisioningMode="efs-dir"))


# --- earlier orders and calls


async def test_access_point_is_created_only_when_no_earlier_order_can_change_its_directory() -> None:
    world = CsiWorld()
    world.folders.busy = WorkerFailed("works on this directory", field="worker pod")
    with pytest.raises(WorkerFailed):
        await world.volumes.create(request())
    world.folders.busy = None
    handle = (await world.volumes.create(request())).handle
    assert list(world.api.points) == [handle.access_point_id]


async def test_access_point_of_a_volume_that_is_kept_during_the_last_read_of_it_stays() -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request())).handle
    world.note("pvc-1", handle, **LEAVING)
    async with world.accounts.of(None) as account:
        account.access_points[handle.kind].known.forget(FS)
    get, reads = world.api.get, 0

    async def kept_meanwhile(access_point_id: AccessPointId, _file_system_id: FileSystemId) -> AccessPoint:
        nonlocal reads
        reads += 1
        if reads == 2:  # The first one found out what is removed.
            world.note("pvc-1", handle, phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.RETAIN)
        return await get(access_point_id, _file_system_id)

    world.api.get = kept_meanwhile  # type: ignore[method-assign]
    with pytest.raises(RemovalRefused):
        await world.volumes.delete(handle)
    assert list(world.api.points) == [handle.access_point_id]


async def test_volume_is_kept_while_an_earlier_call_can_delete_its_access_point() -> None:
    now = 1000.0
    world = CsiWorld(clock=lambda: now)
    handle = (await world.volumes.create(request())).handle
    removal = await world.volumes.removal(handle)
    with pytest.raises(NotYet, match="may still be deleted by an earlier call to AWS"):
        await world.volumes.settled(removal)  # of the former leader
    now += 181
    await world.volumes.settled(removal)
    world.api.faults["delete"] = AwsUnavailable("was not answered", field="DeleteAccessPoint")
    with pytest.raises(AwsUnavailable):
        await world.volumes.delete(handle)
    with pytest.raises(NotYet, match="released in 180 s"):
        await world.volumes.settled(removal)
    now += 181
    await world.volumes.settled(removal)


async def test_access_point_is_not_deleted_while_an_unanswered_creation_can_recreate_it() -> None:
    now = 1000.0
    world = CsiWorld(clock=lambda: now)
    world.api.faults["create"] = AwsUnavailable("was not answered", field="CreateAccessPoint")
    with pytest.raises(AwsUnavailable):
        await world.volumes.create(request())
    del world.api.faults["create"]
    handle = (await world.volumes.create(request())).handle
    now += 299
    with pytest.raises(NotYet, match=r"may be created again by an earlier call to AWS.*in 1 s"):
        await world.volumes.delete(handle)
    assert list(world.api.points) == [handle.access_point_id]
    now += 1
    await world.volumes.delete(handle)
    assert not world.api.points


async def test_access_point_is_not_deleted_soon_after_a_cancelled_creation() -> None:
    world = CsiWorld()
    asked, made = asyncio.Event(), world.api.create

    async def unanswered(request: AccessPointRequest) -> AccessPoint:
        asked.set()
        await asyncio.Event().wait()
        return await made(request)

    world.api.create = unanswered  # type: ignore[method-assign]
    call = asyncio.create_task(world.volumes.create(request()))
    await asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    world.api.create = made  # type: ignore[method-assign]
    handle = (await world.volumes.create(request())).handle
    with pytest.raises(NotYet, match="may be created again"):
        await world.volumes.delete(handle)


async def test_access_point_is_deleted_at_once_after_a_throttled_creation() -> None:
    world = CsiWorld()
    world.api.faults["create"] = AwsThrottled("was throttled", field="CreateAccessPoint")
    with pytest.raises(AwsThrottled):
        await world.volumes.create(request())
    del world.api.faults["create"]
    await world.volumes.delete((await world.volumes.create(request())).handle)
    assert not world.api.points


async def test_retry_after_a_lost_answer_is_not_blocked_by_its_own_volume() -> None:
    world = CsiWorld()
    handle = (await world.volumes.create(request("pvc-1"))).handle
    world.note("pvc-1", handle, **LEAVING)
    assert (await world.volumes.create(request("pvc-1"))).handle == handle


@pytest.mark.parametrize("first", ["efs-ap", "efs-dir"])
async def test_directories_and_access_points_get_different_ids_after_a_restart(first: str) -> None:
    narrow = {"gidRangeStart": "5", "gidRangeEnd": "9", "basePath": "/b"}
    second = {"efs-ap": "efs-dir", "efs-dir": "efs-ap"}[first]
    before, after = CsiWorld(), CsiWorld()
    made = await before.volumes.create(request("pvc-1", **narrow, provisioningMode=first))
    after.api.points, after.folders.made = before.api.points, before.folders.made
    after.note("pvc-1", made.handle, directory_id=made.directory_id)
    await after.volumes.create(request("pvc-2", **narrow, provisioningMode=second))
    ids = [one.user.gid for one in after.api.points.values() if one.user]
    ids += [one.gid for one in after.folders.made.values() if one.gid]
    assert sorted(ids) == [5, 6]


async def test_access_point_is_reused_only_while_its_directory_is_reserved() -> None:
    again = {"reuseAccessPoint": "true", "basePath": "/re"}
    before, after = CsiWorld(), CsiWorld()
    made = (await before.volumes.create(request("pvc-1", **again))).handle
    after.api.points = before.api.points
    # Created between the list and the answer, so its directory is not reserved yet.
    after.api.hidden = True
    with pytest.raises(VolumePending, match="must be reserved first") as caught:
        await after.volumes.create(request("pvc-2", **again))
    assert caught.value.has_begun  # A new access point would not be removed without its volume.
    after.api.hidden = False
    places = await after.volumes.places(request("pvc-2", **again))
    assert {str(place) for place in places} == {f"{FS}:/re/pvc-1", f"{FS}:/re/pvc-2"}
    assert (await after.volumes.create(request("pvc-2", **again))).handle == made


async def test_volume_keeps_the_directory_of_its_access_point_when_a_label_has_changed() -> None:
    labeled = request("pvc-1", subPathPattern="${.PVC.labels.app}", ensureUniqueDirectory="false")

    def with_label(app: str) -> VolumeRequest:
        return replace(labeled, origin=replace(labeled.origin, labels={"app": app}))

    before, after = CsiWorld(), CsiWorld()
    made = (await before.volumes.create(with_label("shop"))).handle
    # A process that was killed before it created the volume object.
    after.api.points = before.api.points
    places = await after.volumes.places(with_label("blog"))
    assert {str(place) for place in places} == {f"{FS}:/shop", f"{FS}:/blog"}
    assert (await after.volumes.create(with_label("blog"))).handle == made
    assert len(after.api.points) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"subPathPattern": "${.PVC.namespace}"}),
        ({"subPathPattern": "${.PVC.namespace}"}, {}),
        ({"subPathPattern": "a"}, {"subPathPattern": "a", "ensureUniqueDirectory": "false"}),
        ({"basePath": "/volumes"}, {}),
    ],
    ids=["pattern added", "pattern removed", "suffix removed", "base widened"],
)
async def test_access_point_from_before_a_change_of_the_class_serves_its_volume(
    first: dict[str, str], second: dict[str, str]
) -> None:
    before, after = CsiWorld(), CsiWorld()
    made = (await before.volumes.create(request(**first))).handle
    # A process that was killed before it created the volume object, and a class that was created again.
    after.api.points = before.api.points
    assert (await after.volumes.create(request(**second))).handle == made


async def test_access_point_with_a_suffix_of_the_aws_driver_serves_its_volume() -> None:
    before, after = CsiWorld(), CsiWorld()
    wanted = request(subPathPattern="${.PVC.namespace}")
    made = (await before.volumes.create(wanted)).handle
    (point,) = before.api.points.values()
    random = parse_directory("/team-0b7e0f6e-1111-4222-8333-9d5a5a5a5a5a")
    after.api.points = {point.access_point_id: replace(point, directory=random)}
    assert (await after.volumes.create(wanted)).handle == made


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_access_point_on_a_former_file_system_of_the_class_is_refused(is_restarted: bool) -> None:
    world = CsiWorld()
    wanted = request(fileSystemId="-", fileSystemIdConfigRef="team/efs/id")
    key = str(wanted.parameters.file_systems)
    world.texts.texts[key] = FS
    await world.volumes.create(wanted)
    if is_restarted:
        before, world = world, CsiWorld()
        world.api.points = before.api.points
    world.texts.texts[key] = OTHER
    for _ in range(2):
        with pytest.raises(ExistingVolumeDiffers, match=f"is on {FS}, which the class does not name; delete"):
            await world.volumes.create(wanted)


async def test_access_point_without_an_identity_belongs_to_its_volume() -> None:
    before, after = CsiWorld(), CsiWorld()
    made = (await before.volumes.create(request("pvc-1", posixUser="none"))).handle
    (point,) = before.api.points.values()
    assert point.user is None
    assert len(before.index.gids) == 0, "no number is allocated"
    after.api.points = before.api.points
    assert (await after.volumes.create(request("pvc-1", posixUser="none"))).handle == made


async def test_directory_without_an_access_point_has_the_owner_and_mode_that_its_claim_chooses() -> None:
    world, asked = CsiWorld(), request("pvc-1", provisioningMode="efs-dir", allowedUids="7", allowedGids="8")
    chosen = {"efs.csi.aws.com/uid": "7", "efs.csi.aws.com/gid": "8"}
    origin = replace(asked.origin, annotations=chosen)
    await world.volumes.create(volume_request(asked.name, asked.parameters, origin, 0))
    (permissions,) = world.folders.made.values()
    assert (permissions.uid, permissions.gid, permissions.mode) == (7, 8, 0o700)


async def test_directory_of_another_account_is_removed_after_a_look_at_its_access_points_there() -> None:
    world = CsiWorld()
    made = await world.volumes.create(request(provisioningMode="efs-dir", uid="1", gid="1"), ROLE)
    world.note("pvc-1", made.handle, **LEAVING)
    world.accounts.roles.clear()
    await world.volumes.delete(made.handle, ROLE)
    assert world.account_roles == {ROLE}


# --- S3 Files


async def test_volume_of_s3_files_is_an_access_point_of_its_own_api() -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    wanted = request(provisioningMode="s3files-ap")
    made = await world.volumes.create(wanted, ROLE)
    assert str(made.handle) == f"s3files:{FS}::fsap-{1:017x}"
    assert (made.attributes.cross_account, made.zone) == (False, None)
    assert await world.volumes.create(wanted) == made
    assert (len(world.s3_api.points), world.api.points) == (1, {})
    assert await world.volumes.exists(made.handle)

    world.note("pvc-1", made.handle, **LEAVING)
    await world.volumes.delete(made.handle, ROLE)

    assert world.s3_api.points == {}
    assert world.folders.removed == [f"{FS}:/pvc-1 in /"]
    assert not await world.volumes.exists(made.handle)
    assert world.account_roles == {None}, "as in the AWS driver, a role is only for EFS"


@pytest.mark.parametrize("may_get", [True, False])
async def test_later_leader_removes_a_volume_of_s3_files_although_lists_have_no_tokens(
    may_get: bool,
) -> None:
    earlier, later = CsiWorld(), CsiWorld(removes_directories=tuple(FileSystemKind))
    made = await earlier.volumes.create(request(provisioningMode="s3files-ap"))
    later.s3_api.points, later.s3_api.may_get = earlier.s3_api.points, may_get
    later.note("pvc-1", made.handle, **LEAVING)
    await later.volumes.delete(made.handle)
    assert later.folders.removed == [f"{FS}:/pvc-1 in /"]
    assert later.s3_api.points == {}


async def test_without_worker_pods_for_s3_files_its_volume_stays() -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    made = await world.volumes.create(request(provisioningMode="s3files-ap"))
    world.folders.fault = PlatformError("has no port", field="file system", value=FS)
    with pytest.raises(PlatformError, match="has no port"):
        await world.volumes.delete(made.handle)
    assert len(world.s3_api.points) == 1


@pytest.mark.parametrize("may_get", [True, False])
@pytest.mark.parametrize("lost", ["answer", "call"])
async def test_access_point_of_s3_files_stays_gone_after_a_lost_creation(lost: str, may_get: bool) -> None:
    """The list that finds it has no token, by which a late creation is known."""
    now = 0.0
    world = CsiWorld(removes_directories=tuple(FileSystemKind), clock=lambda: now)
    world.s3_api.may_get = may_get
    wanted = request(provisioningMode="s3files-ap")
    world.s3_api.lost = {"create"}
    with pytest.raises(AwsUnavailable):
        await world.volumes.create(wanted)
    world.s3_api.lost = set()
    if lost == "answer":  # and the next call is refused, so that the list decides
        world.s3_api.faults["create"] = AwsLimitReached("is full", field="file system")
    made = await world.volumes.create(wanted)
    world.s3_api.faults.clear()
    now = 299.0
    with pytest.raises(NotYet, match="may be created again"):
        await world.volumes.delete(made.handle)
    assert (world.folders.removed, len(world.s3_api.points)) == ([], 1)
    now = 301.0
    await world.volumes.delete(made.handle)
    assert world.s3_api.points == {}


async def test_access_point_of_s3_files_stays_while_another_volume_uses_it() -> None:
    world = CsiWorld(removes_directories=tuple(FileSystemKind))
    made = await world.volumes.create(request(provisioningMode="s3files-ap"))
    world.note("pvc-1", made.handle, **LEAVING)
    world.note("of-a-user", replace(made.handle, directory=parse_directory("/below", field="path")))
    with pytest.raises(RemovalRefused, match="also leads to the data of volume of-a-user"):
        await world.volumes.delete(made.handle)
    assert (world.folders.removed, len(world.s3_api.points)) == ([], 1)


@pytest.mark.parametrize("mode", ["efs-dir", "efs-ap"])
async def test_volume_whose_copy_must_wait_has_begun(mode: str) -> None:
    """Its claim may be deleted now, and without its volume nothing would remove what exists of it."""
    world = CsiWorld()

    async def wait(target: Location, terms: CopyTerms, **_: object) -> Copied:
        raise VolumePending("is being removed", field="file system", value=FS)

    world.folders.copy = wait  # type: ignore[method-assign]
    source = CopySource(location=Location(file_system_id=FS, directory=parse_directory("/old")))
    wanted = replace(request("pvc-1", provisioningMode=mode, basePath="/b"), source=source)
    with pytest.raises(VolumePending) as caught:
        await world.volumes.create(wanted)
    assert caught.value.has_begun


_SHARED = {"subPathPattern": "both", "ensureUniqueDirectory": "false", "uid": "7", "gid": "7"}


@pytest.mark.parametrize("mode", ["efs-ap", "efs-dir"])
async def test_clone_does_not_replace_the_directory_of_another_volume(mode: str) -> None:
    world = CsiWorld()
    source = CopySource(location=Location(file_system_id=FS, directory=parse_directory("/old")))
    first = await world.volumes.create(request("pvc-1", provisioningMode=mode, **_SHARED))
    world.note("pvc-1", first.handle)
    wanted = replace(request("pvc-2", provisioningMode=mode, **_SHARED), source=source)
    await world.volumes.create(wanted)
    ((_, terms),) = world.folders.copies
    assert terms.in_use
    world.folders.copies.clear()
    # After the removal of the other one, with its own access point and volume.
    world.index.drop_volume(world.index.volumes["pvc-1"])
    if first.handle.access_point_id is not None:
        points = world.accounts._account.access_points[FileSystemKind.EFS]
        await points.delete(await points.to_delete(first.handle), is_directory_gone=True)
    made = await world.volumes.create(wanted)
    world.note("pvc-2", made.handle)
    await world.volumes.create(wanted)
    assert [terms.in_use for _, terms in world.folders.copies] == [False, False]


async def test_clone_does_not_replace_the_directory_of_a_volume_that_csi_provisioner_creates_next() -> None:
    world = CsiWorld()
    source = CopySource(location=Location(file_system_id=FS, directory=parse_directory("/old")))
    await world.volumes.promise(request("pvc-1", provisioningMode="efs-dir", **_SHARED))
    wanted = replace(request("pvc-2", provisioningMode="efs-dir", **_SHARED), source=source)
    await world.volumes.promise(wanted)
    ((_, terms),) = world.folders.copies
    assert terms.in_use
