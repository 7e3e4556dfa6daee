"""The Node service over gRPC, with a real tunnel agent, a real stunnel and real mounts of directories."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from tests.integration.folder_mounter import FolderMounter, private_folder, run
from tests.integration.nfs_backend import Authority
from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import Node as TunnelNode
from tests.integration.tunnel_node import running, stunnels_of

from kube_efs.csi import node_volumes
from kube_efs.csi.file_counts import FileCounts
from kube_efs.csi.interceptors import CallInterceptor
from kube_efs.csi.node import NodeOptions, NodeService, node_service
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.csi.publication import NodeMount, Publication, UnmountOptions, VolumeUse
from kube_efs.csi.server import UnixEndpoint, serving
from kube_efs.csi.statistics import Statistics
from kube_efs.model.csi.capabilities import AccessMode, VolumeCapability
from kube_efs.model.csi.mount_options import plan_mount
from kube_efs.model.csi.volume_attributes import parse_attributes
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.model.errors import PlatformError
from kube_efs.mounts.mount import SystemMounter
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.mounts.table import MountTable
from kube_efs.mounts.usage import count_bytes
from kube_efs.telemetry.metrics import CsiMetrics
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Holder

pytestmark = [
    pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
Modes = csi.VolumeCapability.AccessMode
FS, OTHER_FS = "fs-0123456789abcdef0", "fs-0123456789abcdef1"
POINT, OTHER_POINT = "fsap-0123456789abcdef0", "fsap-0123456789abcdef1"
NODE_INFO = NodeInfo(
    node_id="i-0a1b2c3d", region=Region("us-east-1"), zone=ZoneName("us-east-1a"), zone_id="use1-az1"
)
# Not asked for a connection before a volume is used.
HERE = {"mounttargetip": "127.0.0.1"}
PLAN = plan_mount(
    parse_volume_handle(FS),
    parse_attributes(HERE),
    VolumeCapability(access_mode=AccessMode.MULTI_NODE_MULTI_WRITER),
    read_only=False,
)


@pytest.fixture
def place() -> Iterator[Path]:
    with private_folder() as folder:
        for name in ("exports/data", "pods"):
            (folder / name).mkdir(parents=True)
        yield folder


@pytest.fixture
def mounter(place: Path) -> FolderMounter:
    return FolderMounter(place / "exports")


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[TunnelNode]:
    """A tunnel agent, which releases everything at the end, so that stunnel ends too."""
    on_demand = on_demand_options(tmp_path / "tunnel.sock")
    options = TunnelOptions(
        region=Region("us-east-1"),
        conf_path=tmp_path / "stunnel.conf",
        ca_file=Authority(tmp_path, "ca").file,
        probe_interval_seconds=0.1,
        retry_seconds=0.1,
        on_demand=on_demand,
    )
    async with running(options) as node:
        yield node
        async with connect_tunnels(on_demand.socket_path) as client:
            for holder in {one for tunnel in await client.tunnels() for one in tunnel.holders}:
                await client.release(holder)


@pytest.fixture
async def tunnels(agent: TunnelNode) -> AsyncIterator[TunnelClient]:
    assert agent.options.on_demand
    async with connect_tunnels(agent.options.on_demand.socket_path) as client:
        yield client


@dataclass(slots=True)
class Served:
    """The Node service, and a client of it."""

    volumes: NodeVolumes
    stub: Any
    place: Path

    def target(self, name: str = "mount") -> Path:
        return self.place / "pods" / name

    async def publish(self, target: Path | None = None, volume: str = FS, **rest: Any) -> None:
        await self.stub.NodePublishVolume(
            publish_request(target or self.target(), volume, **rest), timeout=120
        )

    async def unpublish(self, target: Path | None = None, volume: str = FS) -> None:
        request = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(target or self.target()))
        await self.stub.NodeUnpublishVolume(request, timeout=120)

    async def statistics(self, path: Path) -> csi.NodeGetVolumeStatsResponse:
        request = csi.NodeGetVolumeStatsRequest(volume_id=FS, volume_path=str(path))
        answer: csi.NodeGetVolumeStatsResponse = await self.stub.NodeGetVolumeStats(request, timeout=120)
        return answer


def publish_request(
    target: Path | str,
    volume: str = FS,
    *,
    flags: tuple[str, ...] = (),
    mode: Modes.Mode.ValueType = Modes.MULTI_NODE_MULTI_WRITER,
    readonly: bool = False,
    context: dict[str, str] | None = None,
) -> csi.NodePublishVolumeRequest:
    return csi.NodePublishVolumeRequest(
        volume_id=volume,
        target_path=str(target),
        volume_capability=csi.VolumeCapability(
            mount=csi.VolumeCapability.MountVolume(mount_flags=flags), access_mode=Modes(mode=mode)
        ),
        readonly=readonly,
        volume_context=HERE if context is None else context,
    )


@asynccontextmanager
async def node_served(
    mounter: FolderMounter,
    tunnels: TunnelClient,
    place: Path,
    options: NodeOptions | None = None,
    unmount_options: UnmountOptions | None = None,
    file_counts: FileCounts | None = None,
) -> AsyncIterator[Served]:
    volumes = NodeVolumes(mounter, tunnels, NODE_INFO, unmount_options)
    statistics = Statistics(refresh_seconds=60)
    node = NodeService(volumes, statistics, NODE_INFO, options or NodeOptions(), file_counts)
    endpoint = UnixEndpoint(path=place / "csi.sock")
    interceptors = [CallInterceptor(CsiMetrics(CollectorRegistry()))]
    async with (
        serving(endpoint, node_service(node), interceptors=interceptors) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield Served(volumes=volumes, stub=NodeStub(channel), place=place)


@pytest.fixture
async def node(mounter: FolderMounter, tunnels: TunnelClient, place: Path) -> AsyncIterator[Served]:
    async with node_served(mounter, tunnels, place) as served:
        yield served


async def refused(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def holders_of(tunnels: TunnelClient) -> list[str]:
    return sorted(one for tunnel in await tunnels.tunnels() for one in tunnel.holders)


def mounted(target: Path) -> int:
    return sum(entry.mount_point == target for entry in read_mountinfo())


async def test_volume_is_mounted_through_a_tunnel_and_leaves_nothing_behind(
    node: Served, mounter: FolderMounter, tunnels: TunnelClient
) -> None:
    await node.publish(volume=f"{FS}:/data")

    target = node.target()
    (target / "hello").write_text("world")
    assert (node.place / "exports/data/hello").read_text() == "world"
    [tunnel] = await tunnels.tunnels()
    assert tunnel.holders == {f"{FS}:/data {target}"}
    assert mounter.asked[target].source == "127.0.0.1:/data"
    assert mounter.asked[target].options == (
        *("nfsvers=4.1", "rsize=1048576", "wsize=1048576", "hard", "timeo=600", "retrans=2"),
        *("noresvport", "nosharecache", f"port={tunnel.port}"),
    )

    await node.unpublish(volume=f"{FS}:/data")

    assert not target.exists()
    assert mounted(target) == 0
    assert await holders_of(tunnels) == []
    assert (node.place / "exports/data/hello").read_text() == "world"


async def test_repeated_calls_change_nothing(
    node: Served, mounter: FolderMounter, tunnels: TunnelClient
) -> None:
    for _ in range(3):
        await node.publish(volume=f"{FS}::{POINT}")

    assert mounter.calls == mounted(node.target()) == 1
    assert len(await holders_of(tunnels)) == 1

    for _ in range(3):
        await node.unpublish(volume=f"{FS}::{POINT}")
    assert not node.target().exists()


@pytest.mark.parametrize(
    ("volume", "rest", "told"),
    [
        pytest.param(
            f"{FS}:/data", {}, "127.0.0.1:/ (nfs4) is mounted there, not 127.0.0.1:/data", id="path"
        ),
        pytest.param(OTHER_FS, {}, "but through another tunnel", id="another file system with the same path"),
        pytest.param(f"{FS}::{POINT}", {}, "but through another tunnel", id="access point"),
        pytest.param(
            FS, {"flags": ("az=us-east-1b",), "context": {}}, "but through another tunnel", id="other options"
        ),
        pytest.param(FS, {"readonly": True}, "127.0.0.1:/ is mounted for writing there", id="read-only"),
        pytest.param(
            FS,
            {"context": {**HERE, "encryptInTransit": "false"}},
            "but through a tunnel",
            id="unencrypted",
        ),
    ],
)
async def test_target_in_use_is_refused_and_not_changed(
    node: Served,
    mounter: FolderMounter,
    tunnels: TunnelClient,
    volume: str,
    rest: dict[str, Any],
    told: str,
) -> None:
    await node.publish()
    before = await holders_of(tunnels)

    code, text = await refused(node.publish(volume=volume, **rest))

    # After ALREADY_EXISTS, the kubelet would not unmount its own volume, whose options have changed.
    assert code is (grpc.StatusCode.UNAVAILABLE if volume == FS else grpc.StatusCode.ALREADY_EXISTS)
    assert told in text
    assert mounter.calls == mounted(node.target()) == 1
    assert await holders_of(tunnels) == before


async def test_foreign_mount_on_the_target_is_not_changed(node: Served, tunnels: TunnelClient) -> None:
    node.target().mkdir()
    await run("mount", "-t", "tmpfs", "precious", str(node.target()))

    code, text = await refused(node.publish())

    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "precious (tmpfs) is mounted there, not 127.0.0.1:/" in text
    assert mounted(node.target()) == 1
    assert await holders_of(tunnels) == []


async def test_failed_mount_leaves_nothing_behind(node: Served, tunnels: TunnelClient) -> None:
    code, text = await refused(node.publish(volume=f"{FS}:/missing"))

    assert code is grpc.StatusCode.INTERNAL
    assert text == f"target: '{node.target()}' No such file or directory"
    assert not node.target().exists()
    assert await holders_of(tunnels) == []


async def test_unavailable_tunnel_is_an_error_and_leaves_nothing_behind(node: Served) -> None:
    code, text = await refused(node.publish(context={}, flags=("region=mars-1",)))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "fs-0123456789abcdef0.efs.mars-1.amazonaws.com" in text
    assert not node.target().exists()


async def test_mount_is_read_only_by_request_or_access_mode(node: Served) -> None:
    await node.publish(readonly=True)
    await node.publish(node.target("other"), mode=Modes.SINGLE_NODE_READER_ONLY)

    for target in (node.target(), node.target("other")):
        with pytest.raises(OSError, match="Read-only"):
            (target / "x").touch()


async def test_mount_target_is_mounted_directly_without_encryption(
    node: Served, mounter: FolderMounter, tunnels: TunnelClient
) -> None:
    context = {"encryptInTransit": "false", "mounttargetip": "10.0.0.7"}
    await node.publish(context=context)
    await node.publish(context=context)
    await node.publish(node.target("named"), context={"encryptInTransit": "false"}, flags=("az=us-east-1b",))

    assert mounter.calls == 2
    assert mounter.asked[node.target()].source == "10.0.0.7:/"
    name = "us-east-1b.fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:/"
    assert mounter.asked[node.target("named")].source == name
    assert not any(option.startswith("port=") for option in mounter.asked[node.target()].options)
    assert await tunnels.tunnels() == ()


async def test_200_mounts_of_20_access_points_share_20_tunnels_of_two_processes(
    node: Served, tunnels: TunnelClient, agent: TunnelNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many releases at once take longer on a busy machine, and reconciliation would do the rest later.
    monkeypatch.setattr(node_volumes, "_RELEASE_SECONDS", 60.0)
    volumes = {node.target(str(number)): f"{FS}::fsap-{number % 20:017x}" for number in range(200)}
    await asyncio.gather(*(node.publish(target, volume) for target, volume in volumes.items()))

    assert [len(tunnel.holders) for tunnel in await tunnels.tunnels()] == [10] * 20
    assert len(stunnels_of(agent.options.conf_path)) == 2

    await asyncio.gather(*(node.unpublish(target, volume) for target, volume in volumes.items()))
    assert await holders_of(tunnels) == []


async def test_repeated_publish_holds_the_tunnel_again(
    node: Served, mounter: FolderMounter, tunnels: TunnelClient
) -> None:
    await node.publish()
    [holder] = await holders_of(tunnels)
    await tunnels.release(Holder(holder))

    # The next reconciliation notices it; its readings of the mount table take longer than this tunnel stays.
    node.volumes._forget_lost(await node.volumes._holders())
    await node.publish()

    assert await holders_of(tunnels) == [holder]
    assert mounter.calls == 1


async def test_address_is_selected_by_the_zone_of_the_node(node: Served, tunnels: TunnelClient) -> None:
    await node.publish(context={"mounttargetipmap": '{"use1-az1":"10.0.0.1","us-east-1b":"10.0.0.2"}'})
    [tunnel] = await tunnels.tunnels()
    assert tunnel.spec
    assert tunnel.spec.address == "10.0.0.1"


@pytest.mark.parametrize("name", ["a b", "back\\slash", "été", "deleted", "x (deleted)"])
async def test_targets_can_have_unusual_names(node: Served, tunnels: TunnelClient, name: str) -> None:
    await node.publish(node.target(name))
    await node.publish(node.target(name))
    assert mounted(node.target(name)) == 1
    await node.volumes.reconcile()
    assert len(await holders_of(tunnels)) == 1
    await node.unpublish(node.target(name))
    assert not node.target(name).exists()


async def test_links_in_the_path_of_a_target_are_resolved(node: Served, mounter: FolderMounter) -> None:
    (node.place / "link").symlink_to(node.place / "pods")
    await node.publish(node.place / "link" / "mount")
    await node.publish()
    assert mounter.calls == 1
    await node.unpublish(node.place / "link" / "mount")
    assert not node.target().exists()


async def test_target_that_is_a_link_is_not_followed(node: Served) -> None:
    node.target().symlink_to(node.place / "exports")
    for call in (node.publish, node.unpublish):
        code, text = await refused(call())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"target_path: '{node.target()}' is a link; remove the link" in text


async def test_target_mounted_twice_is_unmounted_twice(node: Served, mounter: FolderMounter) -> None:
    await node.publish()
    await mounter.mount("127.0.0.1:/", node.target(), "rw")
    assert mounted(node.target()) == 2
    await node.unpublish()
    assert mounted(node.target()) == 0


async def test_data_below_a_mount_is_not_removed(node: Served) -> None:
    node.target().mkdir()
    (node.target() / "precious").touch()
    await node.publish()
    await node.unpublish()
    assert (node.target() / "precious").exists()


async def test_only_one_call_for_a_target_runs_at_a_time(
    node: Served, mounter: FolderMounter, eventually: Eventually
) -> None:
    mounter.gate.clear()
    first = asyncio.create_task(node.publish())
    await eventually(lambda: _is(mounter.waiting == 1))

    for call in (node.publish(), node.unpublish()):
        code, text = await refused(call)
        assert code is grpc.StatusCode.ABORTED
        assert "is in use by an earlier call" in text

    mounter.gate.set()
    await first
    assert mounter.calls == 1


async def test_concurrent_mounts_are_limited(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path, eventually: Eventually
) -> None:
    async with node_served(mounter, tunnels, place, NodeOptions(max_inflight=2)) as node:
        mounter.gate.clear()
        running = [asyncio.create_task(node.publish(node.target(name))) for name in "ab"]
        await eventually(lambda: _is(mounter.waiting == 2))
        code, text = await refused(node.publish(node.target("c")))
        assert code is grpc.StatusCode.ABORTED
        assert "mounts of this node: 2 are in progress, which is the limit" in text
        mounter.gate.set()
        await asyncio.gather(*running)
        await node.publish(node.target("c"))


async def test_slow_mount_times_out_before_the_deadline_of_the_caller(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path
) -> None:
    async with node_served(mounter, tunnels, place) as node:
        mounter.gate.clear()
        code, text = await refused(node.stub.NodePublishVolume(publish_request(node.target()), timeout=4))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    # A second before the deadline of the call. gRPC rounds the time that is left up to at most 1 % more.
    [limit] = re.findall(r"is not mounted within ([\d.]+) s", text)
    assert 0 < float(limit) <= 3.05
    assert mounter.waiting == 0
    assert not node.target().exists()
    assert await holders_of(tunnels) == []


async def test_cancelled_call_leaves_nothing_behind(
    node: Served, mounter: FolderMounter, tunnels: TunnelClient, eventually: Eventually
) -> None:
    mounter.gate.clear()
    call = node.stub.NodePublishVolume(publish_request(node.target()))
    await eventually(lambda: _is(mounter.waiting == 1))
    call.cancel()

    async def nothing() -> bool:
        return not node.target().exists() and await holders_of(tunnels) == []

    await eventually(nothing)
    mounter.gate.set()
    await node.publish()


@pytest.mark.parametrize("force", [True, False])
async def test_hanging_unmount_is_forced_if_configured(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path, force: bool
) -> None:
    unmount_options = UnmountOptions(timeout_seconds=0.2, force=force)
    async with node_served(mounter, tunnels, place, unmount_options=unmount_options) as node:
        await node.publish()
        mounter.is_stuck = True
        if force:
            await node.unpublish()
            assert mounter.forced == [node.target()]
            assert not node.target().exists()
        else:
            code, text = await refused(node.unpublish())
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "is not unmounted within 0.2 s" in text
            assert mounted(node.target()) == 1
            assert len(await holders_of(tunnels)) == 1


async def test_volume_in_use_is_not_unmounted_and_keeps_its_tunnel(
    node: Served, tunnels: TunnelClient
) -> None:
    await node.publish()
    with (node.target() / "open").open("w"):
        code, text = await refused(node.unpublish())
        assert code is grpc.StatusCode.INTERNAL
        assert "target is busy" in text
        assert len(await holders_of(tunnels)) == 1
    await node.unpublish()


async def test_volume_in_use_is_unmounted_by_force_after_the_timeout(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path
) -> None:
    unmount_options = UnmountOptions(timeout_seconds=2, force=True)
    async with node_served(mounter, tunnels, place, unmount_options=unmount_options) as node:
        await node.publish()
        with (node.target() / "open").open("w"):
            await node.unpublish()
            assert set(mounter.forced) == {node.target()}
            assert not node.target().exists()
            assert await holders_of(tunnels) == []


async def test_restarted_driver_keeps_mounted_holders_and_removes_others(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path
) -> None:
    async with node_served(mounter, tunnels, place) as node:
        await node.publish()
        await node.publish(node.target("gone"))
    await mounter.unmount(node.target("gone"))

    async with node_served(mounter, tunnels, place) as node:
        await node.publish()
        assert mounter.calls == 2
        await node.volumes.reconcile()
        assert len(await holders_of(tunnels)) == 2  # one look is not enough
        async with asyncio.timeout(60):
            while len(await holders_of(tunnels)) == 2:
                await node.volumes.reconcile()
        assert await holders_of(tunnels) == [f"{FS} {node.target()}"]
        await node.unpublish()


async def test_holder_without_a_mount_is_removed(node: Served, tunnels: TunnelClient) -> None:
    await node.publish()
    [holder] = await holders_of(tunnels)
    [tunnel] = await tunnels.tunnels()
    assert tunnel.spec
    await tunnels.ensure(tunnel.spec, Holder("somebody"))

    async with asyncio.timeout(60):
        while len(await holders_of(tunnels)) == 2:
            await node.volumes.reconcile()

    assert await holders_of(tunnels) == [holder]


async def test_volume_that_is_being_mounted_keeps_its_holder(
    node: Served, mounter: FolderMounter, tunnels: TunnelClient, eventually: Eventually, agent: TunnelNode
) -> None:
    mounter.gate.clear()
    publishing = asyncio.create_task(node.publish())
    await eventually(lambda: _is(mounter.waiting == 1))
    [holder] = await holders_of(tunnels)
    [tunnel] = await tunnels.tunnels()
    assert tunnel.spec
    await tunnels.ensure(tunnel.spec, Holder("somebody"))
    async with asyncio.timeout(60):
        while "somebody" in await holders_of(tunnels):
            await node.volumes.reconcile()
    assert await holders_of(tunnels) == [holder]
    mounter.gate.set()
    await publishing


async def test_unreadable_mount_table_removes_no_holder(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path
) -> None:
    def unreadable() -> tuple[bytes, bool]:
        raise FileNotFoundError

    blind = SystemMounter(table=MountTable(read=unreadable))
    async with node_served(mounter, tunnels, place) as node:
        await node.publish()
        holders = await holders_of(tunnels)
    for _ in range(2):
        with pytest.raises(PlatformError):
            await NodeVolumes(blind, tunnels, NODE_INFO).reconcile()
        await asyncio.sleep(0.4)  # the agent's time until a holder that is missing is forgotten
    assert await holders_of(tunnels) == holders


async def test_mount_through_an_existing_tunnel_starts_only_the_mount_program(
    tunnels: TunnelClient, place: Path
) -> None:
    program = place / "mount"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    volumes = NodeVolumes(SystemMounter(program=str(program)), tunnels, NODE_INFO)
    started: list[str] = []
    is_counting = False

    def count(event: str, arguments: tuple[object, ...]) -> None:
        if is_counting and event in {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"}:
            started.append(f"{event} {arguments[0]}")

    sys.addaudithook(count)  # it cannot be removed
    for name in ("first", "second"):
        mount = NodeMount(volume_id=FS, target=place / "pods" / name)
        is_counting = name == "second"
        await volumes.publish(Publication(use=VolumeUse(mount=mount), plan=PLAN), timeout_seconds=20)
    is_counting = False

    # The agent, which runs in this process too, has had nothing to do either.
    assert started == [f"subprocess.Popen {program}"]


async def test_unpublishing_does_not_need_the_agent(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path, tmp_path: Path
) -> None:
    async with node_served(mounter, tunnels, place) as node:
        await node.publish()
    async with (
        connect_tunnels(tmp_path / "nobody.sock") as absent,
        node_served(mounter, absent, place) as node,
    ):
        await node.unpublish()
        assert not node.target().exists()
        code, text = await refused(node.publish())
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "check that kube-efs tunnel runs on this node" in text


async def test_read_write_once_pod_volume_is_mounted_at_one_target_only(node: Served) -> None:
    for volume, context in ((FS, HERE), (OTHER_FS, {**HERE, "encryptInTransit": "false"})):
        call = partial(node.publish, volume=volume, context=context, mode=Modes.SINGLE_NODE_SINGLE_WRITER)
        await call(node.target("first"))
        await call(node.target("first"))
        code, text = await refused(call(node.target("second")))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert f"has access mode ReadWriteOncePod and is mounted at '{node.target('first')}'" in text
        assert not node.target("second").exists()
        await node.unpublish(node.target("first"), volume)
        await call(node.target("second"))
        await node.unpublish(node.target("second"), volume)


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
async def test_one_of_concurrent_publishes_of_a_read_write_once_pod_volume_succeeds(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path, tls: bool
) -> None:
    context = HERE if tls else {**HERE, "encryptInTransit": "false"}
    names = [f"pod-{number}" for number in range(10)]

    async def race(node: Served) -> tuple[list[Path], set[tuple[str, bool]]]:
        """Publish to all targets concurrently; returns the mounted target and the errors of the others."""
        calls = (
            node.publish(node.target(name), mode=Modes.SINGLE_NODE_SINGLE_WRITER, context=context)
            for name in names
        )
        ends = await asyncio.gather(*calls, return_exceptions=True)
        refusals = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
        assert len(refusals) == len(names) - 1
        told = {
            (end.code().name, "has access mode ReadWriteOncePod" in (end.details() or "")) for end in refusals
        }
        return [node.target(name) for name in names if mounted(node.target(name))], told

    async with node_served(mounter, tunnels, place) as node:
        [target], told = await race(node)
        assert told == {("FAILED_PRECONDITION", True)}
    async with node_served(mounter, tunnels, place) as node:  # one that has mounted nothing itself
        assert await race(node) == ([target], told)
        assert len(await holders_of(tunnels)) == (1 if tls else 0)
        await node.unpublish(target)
        [second], told = await race(node)
        await node.unpublish(second)


async def test_usage_is_that_of_the_file_system(node: Served) -> None:
    await node.publish()
    answer = await node.statistics(node.target())

    found = os.statvfs(node.target())
    by_unit = {one.unit: one for one in answer.usage}
    assert by_unit[csi.VolumeUsage.BYTES].total == found.f_blocks * found.f_frsize
    assert by_unit[csi.VolumeUsage.INODES].total == found.f_files
    assert not answer.volume_condition.abnormal


async def test_usage_is_that_of_the_volume_if_files_are_counted(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path, eventually: Eventually
) -> None:
    async with (
        FileCounts(refresh_seconds=60, rate_limit=1) as counts,
        node_served(mounter, tunnels, place, file_counts=counts) as node,
    ):
        await node.publish()
        (node.target() / "hello").write_bytes(b"x" * 100_000)
        code, text = await refused(node.statistics(node.target()))
        assert code is grpc.StatusCode.ABORTED
        assert "has not been counted yet" in text

        async def counted() -> bool:
            try:
                answer = await node.statistics(node.target())
            except grpc.aio.AioRpcError:
                return False
            [usage] = [one for one in answer.usage if one.unit == csi.VolumeUsage.BYTES]
            entries = [node.target(), *node.target().rglob("*")]
            assert usage.used == sum(one.lstat().st_blocks * 512 for one in entries)
            return True

        await eventually(counted)


async def test_target_is_unmounted_although_its_files_are_counted(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path, eventually: Eventually
) -> None:
    # As du does, this program keeps the mount busy until it ends.
    slow = place / "slow"
    slow.write_text('#!/bin/sh\nfor path; do :; done\ncd "$path"\ntouch counting\nexec sleep 1000\n')
    slow.chmod(0o755)
    counting = partial(count_bytes, program=str(slow))
    async with (
        FileCounts(refresh_seconds=60, rate_limit=1, count=counting) as counts,
        node_served(mounter, tunnels, place, file_counts=counts) as node,
    ):
        await node.publish()
        await refused(node.statistics(node.target()))
        started = node.target() / "counting"
        await eventually(lambda: _is(started.exists()))
        await node.unpublish()
        assert not mounted(node.target())


async def test_path_without_a_mount_has_no_usage(node: Served) -> None:
    node.target("empty").mkdir()
    for name in ("empty", "missing"):
        code, text = await refused(node.statistics(node.target(name)))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "has no volume mounted on it" in text


async def test_node_reports_its_id_and_zone(
    mounter: FolderMounter, tunnels: TunnelClient, place: Path
) -> None:
    options = NodeOptions(attach_limit=7, has_statistics=True)
    async with node_served(mounter, tunnels, place, options) as node:
        info = await node.stub.NodeGetInfo(csi.NodeGetInfoRequest())
        answer = await node.stub.NodeGetCapabilities(csi.NodeGetCapabilitiesRequest())

    assert (info.node_id, info.max_volumes_per_node) == ("i-0a1b2c3d", 7)
    assert info.accessible_topology.segments == {"topology.kubernetes.io/zone": "us-east-1a"}
    kinds = csi.NodeServiceCapability.RPC
    assert {one.rpc.type for one in answer.capabilities} == {
        *(kinds.SINGLE_NODE_MULTI_WRITER, kinds.GET_VOLUME_STATS, kinds.VOLUME_CONDITION)
    }


async def test_statistics_are_announced_only_if_enabled(node: Served) -> None:
    answer = await node.stub.NodeGetCapabilities(csi.NodeGetCapabilitiesRequest())
    kinds = [one.rpc.type for one in answer.capabilities]
    assert kinds == [csi.NodeServiceCapability.RPC.SINGLE_NODE_MULTI_WRITER]


async def _is(truth: bool) -> bool:
    return truth
