"""Volumes for one pod, and concurrent calls, on a simulated node."""

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.csi.node_world import (
    BY_ZONE_ID,
    FS,
    IN_ZONE_2,
    NODE_INFO,
    OTHER_FS,
    WITHOUT_ZONE_ID,
    World,
)

from kube_efs.csi import node_volumes
from kube_efs.csi.codes import code_of
from kube_efs.csi.node import NodeOptions, NodeService
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.publication import Publication, parse_mount
from kube_efs.csi.statistics import Statistics
from kube_efs.csi.target import make_target
from kube_efs.model.csi.errors import ExistingVolumeDiffers, VolumeInUse
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    AwsDenied,
    AwsIdentityLate,
    AwsThrottled,
    KubeEfsError,
    MountFailed,
    MountUnfinished,
    TunnelNotReady,
)
from kube_efs.tunnels.reservations import Holder, TunnelSpec

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
Modes = csi.VolumeCapability.AccessMode
TLS = pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
_LEAST_STEPS = 30


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def publish(volumes: NodeVolumes, wanted: Publication) -> Coroutine[Any, Any, None]:
    return volumes.publish(wanted, timeout_seconds=60)


@asynccontextmanager
async def being_mounted(
    world: World, eventually: Eventually, call: Coroutine[Any, Any, None]
) -> AsyncIterator["asyncio.Task[None]"]:
    """The call waits in mount(8) while the context is open."""
    world.gate.clear()
    task = asyncio.create_task(call)
    await eventually(lambda: _is(world.mounting == 1))
    yield task
    world.gate.set()


async def _is(condition: object) -> object:
    return condition


async def refused(call: Awaitable[None]) -> str:
    with pytest.raises(VolumeInUse) as caught:
        await call
    code = code_of(caught.value)
    assert code
    assert code.name == "FAILED_PRECONDITION"
    assert caught.value.value
    assert caught.value.remedy == "wait until the pod that uses it has ended"
    return caught.value.problem


@TLS
@pytest.mark.parametrize("calls", [2, 20])
async def test_one_of_concurrent_publishes_for_one_pod_succeeds(world: World, calls: int, tls: bool) -> None:
    volumes = world.volumes()
    wanted = [world.wanted(f"pod-{number}", tls=tls) for number in range(calls)]
    outcomes = await asyncio.gather(*(publish(volumes, one) for one in wanted), return_exceptions=True)
    assert len(world.mounted) == 1
    assert outcomes.count(None) == 1
    assert [type(one) for one in outcomes if one] == [VolumeInUse] * (calls - 1)
    assert len(world.holders) == (1 if tls else 0)
    # Those that were refused have made nothing.
    assert [path.parent.name for path in world.folder.glob("*/mount")] == [
        target.parent.name for target in world.mounted
    ]


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
@pytest.mark.parametrize("problem", ["", "the tunnel closed the connection"], ids=["up", "down"])
async def test_mount_that_takes_too_long_has_the_reason_of_its_tunnel(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, problem: str, tls: bool
) -> None:
    # Of a volume whose access point does not exist, for example: mount(8) only sees that nothing answers.
    world.tunnel_problem = problem
    await world.ensure(TunnelSpec(file_system_id=FileSystemId(OTHER_FS)), Holder("another"))
    async with being_mounted(
        world, eventually, publish(world.volumes(), world.wanted("pod", tls=tls))
    ) as call:
        now = asyncio.get_running_loop().time
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now() + 60)
        with pytest.raises(MountUnfinished) as caught:
            await call
    error = caught.value
    if problem and tls:
        assert error.problem == "is not mounted within 60 s: the tunnel closed the connection"
        assert error.remedy.startswith("check that the access point exists")
    else:
        assert error.problem == "is not mounted within 60 s"
        assert "are reachable from this node" in error.remedy
    assert world.holders == {"another"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(FS, FS, id="same handle"),
        pytest.param(FS, f"efs:{FS}:/", id="another spelling"),
        pytest.param(f"efs:{FS}:/base/./claim", f"{FS}:/base/claim", id="mark of a created directory"),
    ],
)
@pytest.mark.parametrize("is_first_shared", [False, True])
@pytest.mark.parametrize("is_second_shared", [False, True])
async def test_second_publish_is_refused_while_the_first_is_mounting_and_while_it_is_mounted(
    world: World,
    eventually: Eventually,
    first: str,
    second: str,
    is_first_shared: bool,
    is_second_shared: bool,
) -> None:
    volumes = world.volumes()
    one = world.wanted("one", first, one_pod=not is_first_shared)
    two = world.wanted("two", second, one_pod=not is_second_shared)
    is_exclusive = not (is_first_shared and is_second_shared)
    async with being_mounted(world, eventually, publish(volumes, one)) as first_call:
        if is_exclusive:
            told = await refused(publish(volumes, two))
            assert told == f"has access mode ReadWriteOncePod and is being mounted at '{world.target('one')}'"
    await first_call
    if not is_exclusive:
        await publish(volumes, two)
        assert len(world.mounted) == 2
        return
    told = await refused(publish(volumes, two))
    assert told == f"has access mode ReadWriteOncePod and is mounted at '{world.target('one')}'"
    assert set(world.mounted) == {world.target("one")}
    # Once more at its own target, also while a publish is under way that is going to be refused.
    again = await asyncio.gather(publish(volumes, two), publish(volumes, one), return_exceptions=True)
    assert [type(end) for end in again] == [VolumeInUse, type(None)]

    await volumes.unpublish(one.mount, timeout_seconds=60)
    await publish(volumes, two)
    assert set(world.mounted) == {world.target("two")}


async def test_different_volumes_do_not_exclude_each_other(world: World) -> None:
    volumes = world.volumes()
    ids = (FS, OTHER_FS, f"{FS}:/a", f"{FS}::fsap-01234567", f"{FS}:/a:fsap-01234567")
    await asyncio.gather(*(publish(volumes, world.wanted(str(n), one)) for n, one in enumerate(ids)))
    assert len(world.mounted) == len(ids)


@TLS
@pytest.mark.parametrize("end", ["fails", "is cancelled", "times out"])
async def test_retry_succeeds_after_a_failed_publish(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, end: str, tls: bool
) -> None:
    volumes, loop = world.volumes(), asyncio.get_running_loop()
    first = publish(volumes, world.wanted("one", tls=tls))
    second = world.wanted("two", tls=tls)
    async with being_mounted(world, eventually, first) as call:
        if end == "times out":
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + 60)
            with pytest.raises(MountUnfinished):
                await call
        else:
            await refused(publish(volumes, second))
        if end == "is cancelled":
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        world.failure = MountFailed("ended with status 32") if end == "fails" else None
    if end == "fails":
        with pytest.raises(MountFailed):
            await call
        world.failure = None
    assert not world.target("one").exists()
    await publish(volumes, second)
    assert set(world.mounted) == {world.target("two")}
    assert {mount.target for mount in map(parse_mount, world.holders) if mount} == (
        set(world.mounted) if tls else set()
    )


@TLS
async def test_late_mount_of_a_cancelled_call_excludes_others(
    world: World, eventually: Eventually, tls: bool
) -> None:
    volumes = world.volumes()
    async with being_mounted(world, eventually, publish(volumes, world.wanted("one", tls=tls))) as call:
        world.chance = lambda: True
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        world.chance = lambda: False
    assert set(world.mounted) == {world.target("one")}
    for driver in (volumes, world.volumes()):
        assert "is mounted at" in await refused(publish(driver, world.wanted("two", tls=tls)))


@TLS
@pytest.mark.parametrize("is_first_shared", [False, True])
async def test_restarted_driver_finds_the_first_target(
    world: World, tls: bool, is_first_shared: bool
) -> None:
    await publish(world.volumes(), world.wanted("one", tls=tls, one_pod=not is_first_shared))
    restarted = world.volumes()
    two = world.wanted("two", tls=tls)
    assert "is mounted at" in await refused(publish(restarted, two))
    await publish(restarted, world.wanted("one", tls=tls, one_pod=not is_first_shared))
    world.mounted.clear()  # as after a reboot: a holder without a mount does not exclude others
    await publish(restarted, two)
    assert set(world.mounted) == {world.target("two")}


@TLS
@pytest.mark.parametrize("infos", [(IN_ZONE_2, WITHOUT_ZONE_ID), (WITHOUT_ZONE_ID, IN_ZONE_2)])
async def test_driver_that_restarts_with_another_zone_recognizes_its_mounts(
    world: World, tls: bool, infos: tuple[NodeInfo, NodeInfo]
) -> None:
    before, after = infos
    one = world.wanted("one", tls=tls, at=BY_ZONE_ID)
    await publish(world.volumes(before), one)
    mounts, holders = dict(world.mounted), dict(world.holders_by_spec)
    restarted = world.volumes(after)
    await publish(restarted, one)
    assert await restarted.refresh(one)
    assert "is mounted at" in await refused(publish(restarted, world.wanted("two", tls=tls, at=BY_ZONE_ID)))
    # The mount keeps its mount target and its tunnel.
    assert (world.mounted, world.holders_by_spec) == (mounts, holders)


@TLS
async def test_mount_of_an_address_that_the_volume_does_not_have_is_another_one(
    world: World, tls: bool
) -> None:
    await publish(world.volumes(IN_ZONE_2), world.wanted("one", tls=tls, at=BY_ZONE_ID))
    elsewhere = {"mounttargetipmap": '{"use1-az1":"10.0.1.1","use1-az2":"10.0.9.9"}'}
    with pytest.raises(ExistingVolumeDiffers) as caught:
        await publish(world.volumes(IN_ZONE_2), world.wanted("one", tls=tls, at=elsewhere))
    # The kubelet must unmount what the volume holds; without TLS, the agent knows nothing of the mount.
    assert caught.value.outcome_unknown is tls
    assert str(caught.value) == (
        f"target_path: '{world.target('one')}' is in use: "
        + (
            "127.0.0.1:/ is mounted there, but through another tunnel"
            if tls
            else "10.0.2.1:/ (nfs4) is mounted there, not 10.0.1.1:/ or 10.0.9.9:/"
        )
        + "; unpublish that volume first"
    )


async def test_volume_for_one_pod_is_exclusive_with_and_without_tls(world: World) -> None:
    volumes = world.volumes()
    await publish(volumes, world.wanted("one", tls=False))
    await refused(publish(volumes, world.wanted("two", tls=True)))


async def test_mount_missing_in_the_table_keeps_its_directory_and_tunnel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes, one = world.volumes(), world.wanted("one")
    await publish(volumes, one)
    world.mounted.clear()  # what rmdir(2) finds is another matter
    monkeypatch.setattr(node_volumes, "remove_target", lambda _: False)
    with pytest.raises(MountFailed, match=r"target_path: .* is still a mount point after unmounting"):
        await volumes.unpublish(one.mount, timeout_seconds=60)
    assert world.holders == {one.mount.holder}


async def reconciled(volumes: NodeVolumes) -> None:
    for _ in range(2):  # the agent forgets who is missing twice
        await volumes.reconcile()


@TLS
@pytest.mark.parametrize("is_impatient", [False, True], ids=["cancelled once", "cancelled twice"])
async def test_publish_that_is_cancelled_at_any_step_leaves_nothing_behind(
    world: World, tls: bool, is_impatient: bool
) -> None:
    volumes, ends = world.volumes(), set()
    for step in itertools.count():
        one = world.wanted(f"{step}", tls=tls)
        call = asyncio.create_task(publish(volumes, one))
        for _ in range(step):
            await asyncio.sleep(0.0001 if step % 2 else 0)  # threads have to end, too
        call.cancel()
        await asyncio.sleep(0)
        if is_impatient:
            call.cancel()
        [end] = await asyncio.gather(call, return_exceptions=True)
        ends.add(type(end))
        if (
            one.mount.target in world.mounted
        ):  # it was, when the call was cancelled: the kubelet knows neither
            assert world.holders == ({one.mount.holder} if tls else set())
            await volumes.unpublish(one.mount, timeout_seconds=60)
        assert (world.mounted, world.holders, list(world.folder.glob("*/mount"))) == ({}, set(), [])
        # A busy machine needs more steps until a call has ended before it is cancelled.
        if step >= _LEAST_STEPS and type(None) in ends:
            break
    assert ends == {type(None), asyncio.CancelledError}


async def test_directory_created_during_a_cancellation_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def make_slowly(target: Path) -> None:
        begun.set()
        assert gate.wait(30)
        make_target(target)

    monkeypatch.setattr(node_volumes, "make_target", make_slowly)
    call = asyncio.create_task(publish(world.volumes(), world.wanted("one")))
    await eventually(lambda: _is(begun.is_set()))
    call.cancel()
    ended, _ = await asyncio.wait([call], timeout=0.2)  # it must not end, so there is nothing to wait for
    assert not ended
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (list(world.folder.glob("*/mount")), world.holders) == ([], set())


class Caller:
    """The context of a call without a deadline."""

    def time_remaining(self) -> None:
        return None


def node_of(world: World, volumes: NodeVolumes) -> NodeService:
    return NodeService(volumes, Statistics(refresh_seconds=60), NODE_INFO, NodeOptions())


@pytest.mark.parametrize("seed", range(25))
async def test_concurrent_failed_and_cancelled_calls_leave_nothing_behind(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(node_volumes, "_READING_PAUSE_SECONDS", 0)
    world.chance = lambda: dice.random() < 0.15
    # The source in the mount table separates the volumes.
    kinds = {
        f"{FS}:/one-pod": (True, True),
        f"{FS}:/shared": (False, True),
        f"{OTHER_FS}:/plain": (True, False),
    }
    volumes = world.volumes()
    node, context = node_of(world, volumes), cast("Any", Caller())

    def call() -> Coroutine[Any, Any, object]:
        volume = dice.choice(list(kinds))
        is_for_one_pod, tls = kinds[volume]
        target = str(world.target(f"{volume.partition('/')[2]}-{dice.randrange(3)}"))
        if dice.random() < 0.4:
            unpublishing = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
            return node.NodeUnpublishVolume(unpublishing, context)
        mode = Modes.SINGLE_NODE_SINGLE_WRITER if is_for_one_pod else Modes.MULTI_NODE_MULTI_WRITER
        publishing = csi.NodePublishVolumeRequest(
            volume_id=volume,
            target_path=target,
            volume_capability=csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(), access_mode=Modes(mode=mode)
            ),
            volume_context={"mounttargetip": "127.0.0.1", "encryptInTransit": str(tls).lower()},
        )
        return node.NodePublishVolume(publishing, context)

    async def ended(task: "asyncio.Task[object]") -> bool:
        with suppress(KubeEfsError, asyncio.CancelledError):
            await task
            return True
        return False

    tasks = []
    for _ in range(60):
        tasks.append(asyncio.create_task(call()))
        for _ in range(dice.randrange(12)):
            await asyncio.sleep(0)
        if dice.random() < 0.3:
            dice.choice(tasks).cancel()
    succeeded = [await ended(task) for task in tasks]

    assert any(succeeded)
    world.chance = lambda: False
    await reconciled(volumes)
    for volume, (is_for_one_pod, _) in kinds.items():
        directory = volume.partition(":")[2]
        assert world.most_at_once[f"127.0.0.1:{directory}"] <= (1 if is_for_one_pod else 3)
    tunnelled = {target for target, line in world.mounted.items() if "/plain " not in line}
    assert {mount.target for mount in map(parse_mount, world.holders) if mount} == tunnelled
    # And everything can be removed, also by a kubelet that repeats a call which was cancelled half-way.
    for target in world.folder.glob("*/mount"):
        volume = next(one for one in kinds if one.partition("/")[2] == target.parent.name.rpartition("-")[0])
        request = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(target))
        await node.NodeUnpublishVolume(request, context)
    assert (world.mounted, world.holders, world.mounting) == ({}, set(), 0)
    assert not any(world.folder.glob("*/mount"))


def _has_identity(spec: TunnelSpec) -> bool:
    return spec.iam is not None


def _has_none(spec: TunnelSpec) -> bool:
    return spec.iam is None


NO_CREDENTIALS = AwsDenied("has no credentials", field="instance role")


@pytest.mark.parametrize(
    ("failure", "refuses", "is_signed"),
    [
        pytest.param(None, lambda _: False, True, id="every client is allowed"),
        pytest.param(None, _has_none, True, id="only identities are allowed"),
        pytest.param(None, _has_identity, False, id="this identity is denied"),
        pytest.param(NO_CREDENTIALS, lambda _: False, False, id="without credentials"),
    ],
)
async def test_optional_identity_is_used_where_it_works(
    world: World, failure: KubeEfsError | None, refuses: Callable[[TunnelSpec], bool], is_signed: bool
) -> None:
    world.identity_failure, world.refuses = failure, refuses
    wanted = world.wanted("one", one_pod=False, flags=("tls", "iam=auto"))
    await publish(world.volumes(), wanted)
    (spec,) = (spec for spec, holders in world.holders_by_spec.items() if holders)
    assert _has_identity(spec) is is_signed
    # A repeated call finds the mount, also a restarted driver, which does not know how it was mounted.
    await publish(world.volumes(), wanted)
    assert len(world.mounted) == 1
    assert [len(holders) for holders in world.holders_by_spec.values() if holders] == [1]


@pytest.mark.parametrize(
    "failure",
    [
        TunnelNotReady("is not there in time", field="tunnel"),
        AwsThrottled("was answered with Throttling", field="AssumeRoleWithWebIdentity"),
        AwsIdentityLate("was not answered in time", field="pod identity"),
    ],
)
async def test_slow_tunnel_does_not_lead_to_a_mount_without_identity(
    world: World, failure: KubeEfsError
) -> None:
    wanted = world.wanted("one", flags=("tls", "iam=auto"))
    world.identity_failure = failure
    with pytest.raises(type(failure)):
        await publish(world.volumes(), wanted)
    assert (world.mounted, world.holders) == ({}, set())


async def test_both_reasons_are_reported_if_no_identity_works(world: World) -> None:
    world.identity_failure, world.refuses = NO_CREDENTIALS, _has_none
    wanted = world.wanted("one", flags=("tls", "iam=auto"))
    with pytest.raises(MountFailed) as caught:
        await publish(world.volumes(), wanted)
    assert caught.value.problem == (
        "access denied by server; with the identity of the node: instance role: has no credentials"
    )
    assert (world.mounted, world.holders) == ({}, set())
    assert not world.target("one").exists()


async def test_required_identity_is_never_left_out(world: World) -> None:
    world.refuses = _has_identity
    with pytest.raises(MountFailed):
        await publish(world.volumes(), world.wanted("one", flags=("tls", "iam")))
    assert list(world.holders_by_spec) == [spec for spec in world.holders_by_spec if spec.iam]
