"""Guards that keep data; they are checked for every kind of volume and at the last moment."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.unit.provisioning.test_engine import DATA, FS1, RELEASED
from tests.unit.provisioning.world import World, claim

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, MadeFileSystem, Stage
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsNoCredentialsYet,
    AwsNotFound,
    AwsNotPermitted,
    AwsUnavailable,
    KubeConflict,
    KubeDenied,
    KubeEfsError,
    KubeUnavailable,
    NotYet,
    RemovalRefused,
    WorkerFailed,
)
from kube_efs.model.volumes import DRIVER, FINALIZER, CsiSource, Location, NfsSource, Volume, VolumePhase
from kube_efs.provisioning import guards
from kube_efs.provisioning.backends.tunnel import TunnelPlan
from kube_efs.provisioning.engine import DataFate
from kube_efs.provisioning.guards import Permit, RemovableDirectory, Removal, RemovalOrder

POINT = AccessPointId("fsap-0123456789abcdef0")
SHARER = replace(RELEASED, name="sharer", uid="s", phase=VolumePhase.BOUND, provisioned_by=None)


@pytest.fixture
def world() -> World:
    made = World()
    made.add(RELEASED)
    made.folders.there.add(DATA)
    return made


# Handles of the CSI driver need IDs of this length.
FS = FileSystemId("fs-0123456789abcdef0")
ON_FS = replace(RELEASED, file_system_id=str(FS))


def access_point(path: str, file_system_id: FileSystemId = FS1) -> AccessPoint:
    return AccessPoint(access_point_id=POINT, file_system_id=file_system_id, directory=parse_directory(path))


def lead_through(world: World, path: str, options: tuple[str, ...] = ()) -> None:
    """Add a volume on ``FS`` that uses that path below the root of the access point.

    The access point is in the handle, or else in the mount options.
    """
    target = TunnelTarget(file_system_id=FS, port=20500)
    world.index.targets = TunnelTargets(targets={**world.index.targets.targets, FS: target})
    handle = f"{FS}:{path}" if options else f"{FS}:{path}:{POINT}"
    through = Volume(
        name="through",
        uid="t",
        phase=VolumePhase.BOUND,
        csi=CsiSource(handle=handle),
        mount_options=options,
    )
    world.add(ON_FS, through)


def denied(moment: str) -> int:
    if moment == "before roots":
        raise AwsNotPermitted("was answered with AccessDenied", field="DescribeAccessPoints")
    return 0


# --- access points, which only AWS lists


async def test_access_point_of_the_same_directory_keeps_the_data(world: World) -> None:
    world.access_points.append(access_point("/team/example"))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert (done.data, done.reason) == (
        DataFate.SHARED,
        f"fs-1:/team/example is also used by access point {POINT}",
    )
    assert world.folders.there == {DATA}


async def test_access_point_below_a_directory_refuses_its_removal(world: World) -> None:
    world.access_points.append(access_point("/team/example/deep"))
    with pytest.raises(RemovalRefused, match=f"contains the directory of access point {POINT}"):
        await world.engine.reclaim(RELEASED)
    assert world.folders.there == {DATA}


@pytest.mark.parametrize("path", ["/", "/team", "/team/other", "/team/example2"])
async def test_access_point_above_or_beside_blocks_no_removal(world: World, path: str) -> None:
    world.access_points.append(access_point(path))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


@pytest.mark.parametrize("options", [(), ("tls", f"accesspoint={POINT}")], ids=["handle", "mount options"])
@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/example", DataFate.SHARED),
        ("/other", DataFate.REMOVED),
        ("", DataFate.REMOVED),
        # From the root of the file system, this would be the removed directory.
        ("/team/example", DataFate.REMOVED),
    ],
)
async def test_volume_path_is_relative_to_the_root_of_its_access_point(
    world: World, path: str, data: DataFate, options: tuple[str, ...]
) -> None:
    world.access_points.append(access_point("/team", FS))
    lead_through(world, path, options)
    done = await world.engine.reclaim(ON_FS)
    assert done is not None
    assert done.data is data


@pytest.mark.parametrize(
    ("attributes", "data"),
    [
        ({"server": "fs-1.efs.us-east-1.amazonaws.com", "share": "/team/example"}, DataFate.SHARED),
        (
            {"Server": "fs-1.efs.us-east-1.amazonaws.com", "Share": "/", "subDir": "team/example"},
            DataFate.SHARED,
        ),
        (
            {
                "server": "fs-1.efs.us-east-1.amazonaws.com",
                "share": "/team/",
                "subDir": "${pvc.metadata.name}",
                "csi.storage.k8s.io/pvc/name": "example",
            },
            DataFate.SHARED,
        ),
        ({"server": "127.0.0.1", "share": "/team/example"}, DataFate.SHARED),
        # Without the attribute, the driver mounts the text itself.
        (
            {
                "server": "fs-1.efs.us-east-1.amazonaws.com",
                "share": "/team/example",
                "subDir": "../example${pvc.metadata.name}",
            },
            DataFate.REMOVED,
        ),
        ({"server": "fs-1.efs.us-east-1.amazonaws.com", "share": "/team/other"}, DataFate.REMOVED),
        ({"server": "nfs.example.com", "share": "/team/example"}, DataFate.REMOVED),
        ({}, DataFate.REMOVED),
    ],
)
async def test_volume_of_the_csi_driver_for_nfs_keeps_the_data_of_its_directory(
    world: World, attributes: dict[str, str], data: DataFate
) -> None:
    source = CsiSource(driver="nfs.csi.k8s.io", handle="some/handle", attributes=attributes)
    ports = RELEASED.mount_options
    world.add(Volume(name="other", uid="o", phase=VolumePhase.BOUND, csi=source, mount_options=ports))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is data


@pytest.mark.parametrize("options", [(), ("port=20491",)])
async def test_port_in_the_attributes_of_the_csi_driver_for_nfs_comes_last(
    world: World, options: tuple[str, ...]
) -> None:
    """The driver appends these options to those of the volume, and the kernel takes the last port."""
    attributes = {"server": "127.0.0.1", "share": "/team/example", "mountOptions": "port=20490"}
    source = CsiSource(driver="nfs.csi.k8s.io", handle="some/handle", attributes=attributes)
    world.add(Volume(name="other", uid="o", phase=VolumePhase.BOUND, csi=source, mount_options=options))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.SHARED


async def test_volume_of_the_csi_driver_for_nfs_on_an_unknown_file_system_keeps_data_of_the_same_path(
    world: World,
) -> None:
    attributes = {"server": "127.0.0.1", "share": "/team/example"}
    source = CsiSource(driver="nfs.csi.k8s.io", handle="some/handle", attributes=attributes)
    world.add(Volume(name="other", uid="o", phase=VolumePhase.BOUND, csi=source))
    with pytest.raises(NotYet, match="may be used by volume other"):
        await world.engine.reclaim(RELEASED)
    assert world.folders.there == {DATA}


@pytest.mark.parametrize(
    ("finalizers", "data"),
    [((FINALIZER,), DataFate.SHARED), (("kubernetes.io/pv-protection",), DataFate.REMOVED)],
)
async def test_terminating_volume_without_our_finalizer_does_not_keep_the_data(
    world: World, finalizers: tuple[str, ...], data: DataFate
) -> None:
    leaving = replace(RELEASED, name="leaving", uid="l", deleting=True, finalizers=finalizers)
    world.add(leaving)
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is data


async def test_access_point_created_after_the_first_check_keeps_the_data(world: World) -> None:
    def make(moment: str) -> int:
        if moment == "before confirm":
            world.access_points.append(access_point("/team/example"))
        return 0

    world.moment.on_moment = make
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert (done.data, world.folders.there) == (DataFate.SHARED, {DATA})


def failing(error: KubeEfsError) -> Callable[[str], int]:
    def fail(moment: str) -> int:
        if moment == "before roots":
            raise error
        return 0

    return fail


@pytest.mark.parametrize(
    "error",
    [
        AwsUnavailable("was not answered", field="DescribeAccessPoints"),
        AwsDenied("was answered with ExpiredToken", field="DescribeAccessPoints"),
        AwsNoCredentialsYet("could not be signed", field="DescribeAccessPoints"),
    ],
)
async def test_nothing_is_removed_while_aws_does_not_answer_or_refuses_the_credentials(
    world: World, error: AwsError
) -> None:
    world.moment.on_moment = failing(error)
    with pytest.raises(type(error)):
        await world.engine.reclaim(RELEASED)
    assert (world.folders.there, world.store.volumes["pv"].deleting) == ({DATA}, False)


async def test_removal_does_not_need_permission_to_list_unused_access_points(world: World) -> None:
    world.moment.on_moment = denied
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


async def test_removal_needs_permission_to_list_access_points_that_volumes_use(world: World) -> None:
    lead_through(world, "/elsewhere")
    world.moment.on_moment = denied
    with pytest.raises(AwsNotPermitted):
        await world.engine.reclaim(ON_FS)
    assert world.folders.there == {DATA}


async def test_file_system_of_another_account_keeps_what_volumes_may_use_through_access_points(
    world: World,
) -> None:
    """AWS does not find it in our account, so nobody knows where its access points lead to."""
    lead_through(world, "/elsewhere")
    world.moment.on_moment = failing(AwsNotFound("was answered with FileSystemNotFound", field="fs-1"))
    with pytest.raises(AwsNotFound):
        await world.engine.reclaim(ON_FS)
    assert world.folders.there == {DATA}


async def test_deleted_file_system_has_no_access_points(world: World) -> None:
    world.moment.on_moment = failing(AwsNotFound("is not there", field="DescribeAccessPoints"))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


# --- the last moment


async def test_policy_changed_to_retain_before_the_deletion_keeps_the_volume(world: World) -> None:
    def retain(moment: str) -> int:
        if moment == "before delete":
            changed = replace(world.store.volumes["pv"], reclaim_policy=ReclaimPolicy.RETAIN)
            world.store.write(changed)
        return 0

    world.moment.on_moment = retain
    assert await world.engine.reclaim(RELEASED) is None
    assert (world.folders.there, world.store.volumes["pv"].deleting) == ({DATA}, False)


async def test_policy_changed_to_retain_in_the_worker_queue_keeps_the_data(world: World) -> None:
    def retain(moment: str) -> int:
        if moment == "before confirm":
            changed = replace(world.store.volumes["pv"], reclaim_policy=ReclaimPolicy.RETAIN)
            world.store.write(changed)
        return 0

    world.moment.on_moment = retain
    with pytest.raises(KubeConflict, match="must no longer be removed"):
        await world.engine.reclaim(RELEASED)
    done = await world.engine.reclaim(world.store.volumes["pv"])
    assert done is not None
    assert (done.data, done.reason) == (DataFate.KEPT, "its reclaim policy is Retain")
    assert (world.folders.there, world.store.volumes) == ({DATA}, {})


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/team/example", "is also used by sharer"), ("/team/example/deep", "contains the directory")],
)
async def test_volume_created_during_the_wait_for_a_worker_keeps_the_data(
    world: World, path: str, reason: str
) -> None:
    def appear(moment: str) -> int:
        if moment == "before confirm":
            world.store.write(replace(SHARER, nfs=NfsSource(server="127.0.0.1", path=path)))
        return 0

    world.moment.on_moment = appear
    try:
        done = await world.engine.reclaim(RELEASED)
        told = done.reason if done else ""
    except RemovalRefused as error:
        told = str(error)
    assert reason in told
    assert world.folders.there == {DATA}


async def test_last_check_waits_until_the_watch_shows_the_volume_terminating(world: World) -> None:
    """Then the watch has shown each volume that was created before, even if it is late."""
    unseen: list[Volume] = []
    world.store.on_change = unseen.append
    world.moment.on_moment = lambda moment: _made_unseen(world, moment)
    reclaiming = asyncio.create_task(world.engine.reclaim(RELEASED))
    await _until(lambda: bool(unseen) and unseen[-1].name == "pv")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not reclaiming.done()
    assert world.folders.there == {DATA}
    for volume in unseen:
        world.index.put_volume(volume)
    done = await reclaiming
    assert done is not None
    assert (done.data, world.folders.there) == (DataFate.SHARED, {DATA})


def _made_unseen(world: World, moment: str) -> int:
    if moment == "before delete" and "sharer" not in world.store.volumes:
        world.store.write(SHARER)
    return 0


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - each step of the loop may make it true
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_begun", [False, True])
async def test_choice_made_before_a_removal_is_repeated_unless_creation_has_begun(
    world: World, is_begun: bool
) -> None:
    elsewhere = Location(file_system_id=FileSystemId("fs-2"), directory=DATA.directory)
    world.add(replace(SHARER, provisioned_by=RELEASED.provisioned_by))
    plan = world.engine.plan(claim("u2"))
    assert isinstance(plan, TunnelPlan)
    assert list(await plan.locations()) == [DATA]
    async with world.guards.reservations.removing(DATA):
        making = asyncio.create_task(world.engine.provision(plan, is_begun=is_begun))
        await asyncio.sleep(0)
        for gone in list(world.store.volumes.values()):
            world.index.drop_volume(world.store.volumes.pop(gone.name))
        world.add(
            replace(SHARER, nfs=NfsSource(server="127.0.0.1", path="/team/example"), file_system_id="fs-2")
        )
        assert world.index.volumes_at(elsewhere)
    if is_begun:
        assert (await making).claim == plan.volume(0).claim
    else:
        with pytest.raises(NotYet, match="was chosen before a removal"):
            await making
        again = world.engine.plan(claim("u2"))
        assert again is not None
        assert list(await again.locations()) == [elsewhere]


# --- unclear answers and refusals of the API server


async def test_unclear_creation_is_repeated_with_the_same_plan(world: World) -> None:
    plan = world.engine.plan(claim("u2", volume_name="other"))
    assert plan is not None
    asked: list[bool] = []
    world.moment.on_moment = _lost_answers(2)
    volume = await world.engine.provision(plan, again=_noting(asked))
    assert asked == [True]
    assert set(world.store.volumes) == {"pv", volume.name}


@pytest.mark.parametrize("has_begun", [True, False])
async def test_storage_of_a_volume_that_must_wait_is_completed(world: World, has_begun: bool) -> None:
    plan = world.engine.plan(claim("u2", volume_name="other"))
    assert plan is not None
    asked: list[bool] = []

    def wait(moment: str) -> int:
        if moment == "before make" and not asked:
            error = NotYet("is about to be removed with another volume", field="file system")
            error.has_begun = has_begun
            raise error
        return 0

    world.moment.on_moment = wait
    if has_begun:
        await world.engine.provision(plan, again=_noting(asked))
        assert asked == [False]
    else:
        with pytest.raises(NotYet):
            await world.engine.provision(plan, again=_noting(asked))


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_unclear_creation_reserves_the_directory_only_while_it_can_take_effect(
    world: World, is_carried_out: bool
) -> None:
    plan = world.engine.plan(claim("u2", volume_name="other"))
    assert isinstance(plan, TunnelPlan)
    unclear: list[float] = []

    def fail(moment: str) -> int:
        if unclear and moment == "before make":
            raise NotYet("is about to be removed with another volume", field="directory")
        if moment == ("after create" if is_carried_out else "before create"):
            raise KubeUnavailable("could not be reached", field="volume")
        return 0

    async def again(_error: KubeEfsError, is_unclear: bool) -> bool:
        if is_unclear:
            unclear.append(world.now)
        world.now += 100
        if is_carried_out and world.now > 400:
            world.index.replace_volumes(world.store.volumes.values())
        return is_unclear

    world.moment.on_moment = fail
    if is_carried_out:
        assert (await world.engine.provision(plan, again=again)).claim == plan.volume(0).claim
        assert unclear == [0, 100, 200, 300, 400]
        return
    with pytest.raises(NotYet):
        await world.engine.provision(plan, again=again)
    assert unclear == [0, 100, 200]
    [location] = await plan.locations()
    async with asyncio.timeout(5), world.guards.reservations.removing(location):
        assert not world.index.directories.users(location) - {"pv"}


def _lost_answers(count: int) -> Callable[[str], int]:
    left = count

    def lose(moment: str) -> int:
        nonlocal left
        if moment == "after create" and left:
            left -= 1
            raise KubeUnavailable("could not be reached", field="volume")
        return 0

    return lose


def _noting(asked: list[bool]) -> Callable[[KubeEfsError, bool], Awaitable[bool]]:
    async def again(_error: KubeEfsError, is_unclear: bool) -> bool:
        asked.append(is_unclear)
        return True

    return again


async def test_volume_refused_by_the_api_server_blocks_no_removal(world: World) -> None:
    def refuse(moment: str) -> int:
        if moment == "before create":
            raise KubeDenied("answered 403", field="volume")
        return 0

    world.moment.on_moment = refuse
    with pytest.raises(KubeDenied):
        await world.provision(claim("u2"))
    related = world.index.directories.related(DATA)
    assert {name for names in related.values() for name in names} == {"pv"}


# --- volumes of unknown file systems


@pytest.mark.parametrize(
    ("server", "options", "path", "is_in_the_way"),
    [
        pytest.param("127.0.0.1", ("port=20499",), "/team/example", True, id="unknown port"),
        pytest.param("localhost", ("port=20499",), "/team/example/deep", True, id="below"),
        pytest.param("10.9.9.9", (), "/team/example", True, id="unknown address"),
        pytest.param("127.0.0.1", ("port=20499",), "/", False, id="above"),
        pytest.param("127.0.0.1", ("port=20499",), "/team/other", False, id="beside"),
        pytest.param("nfs.example.com", (), "/team/example", False, id="name of another server"),
    ],
)
async def test_volume_of_an_unknown_file_system_keeps_data_of_the_same_path(
    world: World, server: str, options: tuple[str, ...], path: str, is_in_the_way: bool
) -> None:
    source = NfsSource(server=server, path=path)
    world.add(replace(SHARER, nfs=source, mount_options=options, file_system_id=None))
    if is_in_the_way:
        with pytest.raises(NotYet, match="may be used by volume sharer, whose file system is not known"):
            await world.engine.reclaim(RELEASED)
        assert world.folders.there == {DATA}
    else:
        done = await world.engine.reclaim(RELEASED)
        assert done is not None
        assert done.data is DataFate.REMOVED


@pytest.mark.parametrize("server", ["127.0.0.1", "10.9.9.9", "nas.example.com"])
@pytest.mark.parametrize(("annotation", "data"), [("fs-1", DataFate.SHARED), ("fs-2", DataFate.REMOVED)])
async def test_annotation_gives_the_file_system_of_any_server(
    world: World, server: str, annotation: str, data: DataFate
) -> None:
    """It is the remedy in the refusal above."""
    source = NfsSource(server=server, path="/team/example")
    world.add(replace(SHARER, nfs=source, mount_options=(), file_system_id=annotation))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is data


async def test_volume_protects_what_is_behind_its_port_also_against_its_annotation(world: World) -> None:
    """Such as one of another cluster: pods mount what is behind the port."""
    port = world.index.targets.port_of(FS1)
    other = replace(SHARER, mount_options=(f"port={port}",), file_system_id="fs-2")
    world.add(other)
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.SHARED
    world.add(replace(other, nfs=NfsSource(server="127.0.0.1", path="/team/example/deep")), RELEASED)
    with pytest.raises(RemovalRefused, match="contains the directory of volume sharer"):
        await world.engine.reclaim(RELEASED)
    assert world.folders.there == {DATA}


@pytest.mark.parametrize(
    ("path", "is_kept"), [("/team/example", True), ("/team/example/a", True), ("/team/other", False)]
)
async def test_address_of_a_made_file_system_protects_the_directory_also_against_an_annotation(
    world: World, path: str, is_kept: bool
) -> None:
    """The tunnels do not know the file system, such as one outside of the discovered ones."""
    made = MadeFileSystem(
        file_system_id=FS,
        owner=FileSystemOwner(scope=Scope.NAMESPACE, name="team", cluster="c"),
        stage=Stage.READY,
        token="t",
        addresses=frozenset({"10.9.9.9"}),
    )
    place = Location(file_system_id=FS, directory=DATA.directory)
    removal = Removal(directory=RemovableDirectory(location=place), file_system=made)
    of_namespace = CsiSource(handle=f"{FS}:/next")
    world.add(Volume(name="next", uid="n", csi=of_namespace, provisioned_by=DRIVER))
    mounted = NfsSource(server="10.9.9.9", path=path)
    world.add(Volume(name="static", uid="s", nfs=mounted, file_system_id="fs-2"))
    check = world.guards.check_without_volume(removal)
    if path.endswith("/a"):
        with pytest.raises(RemovalRefused, match="contains the directory of volume static"):
            await check
        return
    permit = await check
    assert ("volume next" in permit.keeps_file_system, "static" in permit.keeps) == (True, is_kept)


async def test_unnoticed_deletion_of_volumes_of_unknown_file_systems_blocks_no_removal(world: World) -> None:
    for number in range(3):
        gone = replace(
            SHARER,
            name=f"gone-{number}",
            file_system_id=None,
            nfs=NfsSource(server="10.9.9.9", path="/team/example"),
        )
        world.index.put_volume(gone)
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


async def test_outdated_permit_is_refused() -> None:
    """A process that was stopped between the permit and the change must check again."""
    now = 0.0

    async def slow() -> Permit:
        nonlocal now
        now += 31
        return Permit()

    with pytest.raises(NotYet, match="took too long"):
        await RemovalOrder(slow, clock=lambda: now).confirm()


async def test_volume_is_kept_while_an_earlier_order_can_take_effect(world: World) -> None:
    held = replace(RELEASED, deleting=True, finalizers=(FINALIZER,), reclaim_policy=ReclaimPolicy.RETAIN)
    world.store.write(held)
    world.folders.busy = WorkerFailed("works on this directory", field="worker pod")
    with pytest.raises(WorkerFailed):
        await world.engine.reclaim(held)
    assert set(world.store.volumes) == {"pv"}
    world.folders.busy = None
    done = await world.engine.reclaim(held)
    assert done is not None
    assert (done.data, world.store.volumes) == (DataFate.KEPT, {})


async def test_removal_is_retried_when_the_watch_does_not_show_the_volume_terminating(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "_BARRIER_SECONDS", 0.05)
    removal = Removal(directory=RemovableDirectory(location=DATA))
    with pytest.raises(NotYet) as caught:
        await world.guards.check_last(removal, RELEASED)
    assert str(caught.value) == (
        f"volume: {RELEASED.name!r} is not shown as Terminating by the watch of volumes; "
        "check that the API server answers; the removal is retried"
    )
    world.index.put_volume(replace(RELEASED, deleting=True))
    assert await world.guards.check_last(removal, RELEASED) == Permit()
