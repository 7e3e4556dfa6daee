"""What a node costs: publishing, processes started for it, readings of the mount table, and memory.

The driver mounts as always, except for the program ``mount``, which binds a directory. So each volume is
a line of the kernel's own mount table, that of a namespace of the driver's.
"""

import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc.aio
from bench.authorities import beside_those_of_aws
from bench.figures import Figure, Row, at_most, exactly, plain
from bench.processes import cpu_seconds, megabytes_in_parts, resident_megabytes
from tests.integration.node_programs import NodePrograms
from tests.integration.tunnel_node import eventually, stunnels_of

from fake_efs.process import ChildProcess
from fake_efs.service import EmbeddedEfs
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.status import TunnelState
from kube_efs_lab.aws import aws_options
from kube_efs_lab.program import Program
from tinykube.api import ApiServer

if TYPE_CHECKING:  # the generated module has this name for type checkers only
    from kube_efs.csi.protocol.csi_pb2_grpc import NodeAsyncStub

_POINTS: Final = 80
_FIRST: Final = 5  # which warm up what is made once, such as stunnel and the pool of connections
_SOME: Final = 10
_MANY: Final = 1000
_AT_ONCE: Final = 20
# As on a node with hundreds of pods: a line for each of their volumes, tokens and layers.
_LINES: Final = 6000
_SETTLING_SECONDS: Final = 10.0
_IDLE_SECONDS: Final = 30.0
_UP_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.05
_MILLISECONDS: Final = 1000.0
_Modes = csi.VolumeCapability.AccessMode
_CAPABILITY: Final = csi.VolumeCapability(
    mount=csi.VolumeCapability.MountVolume(), access_mode=_Modes(mode=_Modes.MULTI_NODE_MULTI_WRITER)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The driver and the agent while they run.

    ``started`` has a line for each process that they start, ``read`` for each time that the driver reads the
    mount table.
    """

    programs: NodePrograms
    driver: int
    agent: int
    started: Path
    read: Path

    def megabytes(self) -> Mapping[str, float]:
        """The memory of each; that of the stunnels, which run the same program, as proportional set size."""
        return {
            name: megabytes_in_parts(pids) if name == "stunnel" else resident_megabytes(pids)
            for name, pids in self._pids().items()
        }

    def megabytes_in_parts(self) -> float:
        """The memory of all, of what several processes share only a part each."""
        return megabytes_in_parts(chain(*self._pids().values()))

    def cpu_seconds(self) -> Mapping[str, float]:
        """What each has used of a core so far."""
        return {name: sum(map(cpu_seconds, pids)) for name, pids in self._pids().items()}

    def _pids(self) -> Mapping[str, Sequence[int]]:
        """The processes; all stunnels together, once there are any."""
        stunnels = stunnels_of(self.programs.stunnel_conf)
        return {
            "driver": [self.driver],
            "agent": [self.agent],
            **({"stunnel": stunnels} if stunnels else {}),
        }

    def starts(self) -> Sequence[str]:
        """What was started so far."""
        return self.started.read_text(encoding="utf-8").splitlines() if self.started.exists() else []

    def readings(self) -> int:
        """How often the driver has read the mount table so far."""
        return self.read.stat().st_size if self.read.exists() else 0


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """Publish volumes of as many access points, one after the other, then a second volume of each."""
    async with ApiServer() as api, EmbeddedEfs(folder / "efs") as efs:
        api.write_kubeconfig(folder / "kubeconfig")
        points = await _access_points(efs, FileSystemId(await efs.create_file_system("data")))
        async with (
            _node(folder / "node", efs, folder / "kubeconfig") as node,
            grpc.aio.insecure_channel(f"unix:{node.programs.csi_socket}") as channel,
            connect_tunnels(node.programs.tunnel_socket) as tunnels_of_node,
        ):
            publisher = _Publisher(channel, tunnels_of_node, folder / "pods")
            for name, seconds in node.cpu_seconds().items():
                yield at_most(f"CPU time of the {name} until the driver listens", seconds, 2, "s")
            yield _total("memory of node and agent with 0 volumes (no stunnel yet)", node.megabytes(), 130)
            in_parts = node.megabytes_in_parts()
            yield plain("the same as proportional set size (PSS)", in_parts, "MB")
            await publisher.publish(points[:_FIRST], until_up=True)
            yield _total(f"the same with stunnel and {_FIRST} volumes", some := node.megabytes())
            starts, readings, begun = len(node.starts()), node.readings(), node.cpu_seconds()
            new = await publisher.publish(points[_FIRST:], until_up=True)
            tunnels, amid = node.megabytes(), node.cpu_seconds()
            there = await publisher.publish(points)
            further, ended = node.megabytes(), node.cpu_seconds()
            yield _median("NodePublish with mount(8), new access-point tunnel", new, 60, begun, amid)
            yield _median("NodePublish with mount(8), existing tunnel", there, 10, amid, ended)
            published = len(new) + len(there)
            yield exactly("processes started by each of these", (len(node.starts()) - starts) / published, 1)
            name = "readings of the mount table by each of these"
            yield at_most(name, (node.readings() - readings) / published, 1)
            grown = _each(some, tunnels, len(new))
            yield _total("memory of each further volume with its own tunnel", grown, 0.3)
            grown = _each(tunnels, further, len(there))
            yield _total("memory of each further volume with an existing tunnel", grown, 0.3)
            yield await _at_many_mounts(publisher, points, statistics.median(there))
            async for figure in _at_many_lines(node, publisher, points, statistics.median(there)):
                yield figure
            async for figure in _idle(node, publisher.published):
                yield figure


async def _at_many_mounts(publisher: "_Publisher", points: Sequence[str], before: float) -> Figure:
    """What a publish takes on a full node, against the median of before in milliseconds."""
    while publisher.published < _MANY:
        await publisher.publish(points[: _MANY - publisher.published])
    found = statistics.median(await publisher.publish(points))
    name = f"time of NodePublish, existing tunnel, at {_MANY:,} mounts ÷ before"
    return plain(name, found / before, detail=f"{found:.1f} ms")


async def _at_many_lines(
    node: Node, publisher: "_Publisher", points: Sequence[str], before: float
) -> AsyncIterator[Figure]:
    """What publishing takes, against before, with thousands of lines while another mount comes and goes."""
    async with _changing_table(node, _LINES):
        alone = statistics.median(await publisher.publish(points[:_AT_ONCE]))
        readings, begun = node.readings(), time.perf_counter()
        await publisher.publish_at_once(points[:_AT_ONCE])
        took = (time.perf_counter() - begun) * _MILLISECONDS
        readings = node.readings() - readings
    where = f"at {_LINES:,} lines, while another mount comes and goes"
    name = f"time of NodePublish, existing tunnel, {where} ÷ before"
    yield plain(name, alone / before, detail=f"{alone:.1f} ms")
    name = f"time of {_AT_ONCE} NodePublish at once {where} ÷ {_AT_ONCE} one after the other"
    yield at_most(name, took / (_AT_ONCE * alone), 1, detail=f"{took:.0f} ms in all")
    yield at_most("readings of the mount table by these", readings, _AT_ONCE)


@asynccontextmanager
async def _changing_table(node: Node, lines: int) -> AsyncIterator[None]:
    """While the context is open, the driver's mount table has that many lines, and another comes and goes."""
    changing = await asyncio.create_subprocess_exec(
        *("nsenter", f"--target={node.driver}", "--mount", "--root"),
        *(sys.executable, str(Path(__file__).with_name("mounting.py"))),
        *(str(node.programs.folder / "foreign"), str(lines)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_UP_SECONDS):
            if changing.stdout is None or not await changing.stdout.readline():
                raise RuntimeError("the mount table cannot be filled")
        yield
    finally:
        if changing.returncode is None:
            changing.kill()
        await changing.wait()


async def _idle(node: Node, mounts: int) -> AsyncIterator[Figure]:
    """What each process uses while nobody wants anything, with so many volumes mounted."""
    await asyncio.sleep(_SETTLING_SECONDS)
    before = node.cpu_seconds()
    await asyncio.sleep(_IDLE_SECONDS)
    for who, used in node.cpu_seconds().items():
        share = (used - before[who]) / _IDLE_SECONDS * 100
        detail = f"over {_POINTS} tunnels, in {_IDLE_SECONDS:.0f} s"
        yield at_most(f"CPU of {who} idle with {mounts:,} volumes mounted", share, 1, "% of a core", detail)


def _each(before: Mapping[str, float], after: Mapping[str, float], volumes: int) -> Mapping[str, float]:
    return {name: (after[name] - before[name]) / volumes for name in after}


def _total(name: str, megabytes: Mapping[str, float], limit: float | None = None) -> Figure:
    total = sum(megabytes.values())
    detail = ", ".join(f"{who} {used:.3g} MB" for who, used in megabytes.items())
    return plain(name, total, "MB", detail) if limit is None else at_most(name, total, limit, "MB", detail)


def _median(
    name: str, times: Sequence[float], limit: float, before: Mapping[str, float], after: Mapping[str, float]
) -> Figure:
    first, last = statistics.median(times[:_SOME]), statistics.median(times[-_SOME:])
    costs = (f"{who} {(after[who] - before[who]) / len(times) * _MILLISECONDS:.0f} ms" for who in after)
    detail = (
        f"{len(times)} one after the other: median of the first {_SOME} {first:.0f} ms, of the last {_SOME} "
        f"{last:.0f} ms, least {min(times):.0f} ms; CPU of each: {', '.join(costs)}"
    )
    return at_most(name, statistics.median(times), limit, "ms median", detail)


class _Publisher:
    """Calls the driver as the kubelet does."""

    def __init__(self, channel: grpc.aio.Channel, tunnels: TunnelClient, pods: Path) -> None:
        self._stub: NodeAsyncStub = NodeStub(channel)
        self._tunnels = tunnels
        self._pods = pods
        self.published = 0

    async def publish(self, volumes: Collection[str], *, until_up: bool = False) -> list[float]:
        """Publish each volume at a new path; milliseconds of each call.

        The stand-in of EFS starts an NFS server for each access point that is first connected to, which the
        agent does when it probes a new tunnel. ``until_up`` has that counted against no other call.
        """
        took = []
        for volume in volumes:
            took.append(await self._publish(volume))
            if until_up:
                await self._until_up()
        return took

    async def publish_at_once(self, volumes: Collection[str]) -> None:
        """Publish each volume at a new path, all at the same time."""
        await asyncio.gather(*map(self._publish, volumes))

    async def _publish(self, volume: str) -> float:
        handle, _, address = volume.partition("@")
        self.published += 1
        request = csi.NodePublishVolumeRequest(
            volume_id=handle,
            target_path=str(self._pods / str(self.published)),
            volume_capability=_CAPABILITY,
            volume_context={"mounttargetip": address},
        )
        begun = time.perf_counter()
        await self._stub.NodePublishVolume(request, timeout=100)
        return (time.perf_counter() - begun) * _MILLISECONDS

    async def _until_up(self) -> None:
        async with asyncio.timeout(_UP_SECONDS):
            while not all(one.state is TunnelState.UP for one in await self._tunnels.tunnels()):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)


async def _access_points(efs: EmbeddedEfs, system: FileSystemId) -> list[str]:
    """New access points, as HANDLE@ADDRESS."""
    [target, *_] = await efs.mount_targets(system)
    options = aws_options(efs.endpoint_url)
    async with AwsConnection(options) as aws:
        made = [
            await aws.call(Service.EFS, "CreateAccessPoint", ClientToken=str(number), FileSystemId=system)
            for number in range(_POINTS)
        ]
    return [f"{system}::{one['AccessPointId']}@{target.address}" for one in made]


@asynccontextmanager
async def _node(folder: Path, efs: EmbeddedEfs, kubeconfig: Path) -> AsyncIterator[Node]:
    await asyncio.to_thread(folder.mkdir)
    programs, started, read = NodePrograms(folder=folder), folder / "started", folder / "read"
    mount = await asyncio.to_thread(_mount_program, folder)
    ordinary = programs.environment(efs, kubeconfig)
    path = f"{Path(__file__).parent / 'audit'}:{ordinary['PYTHONPATH']}"
    environment = {
        **ordinary,
        "KUBE_EFS_CA_FILE": str(await asyncio.to_thread(beside_those_of_aws, efs.ca_file, folder)),
        "PYTHONPATH": path,
        "BENCH_STARTED": str(started),
        "BENCH_READINGS": str(read),
        "BENCH_MOUNT": str(mount),
    }
    agent, driver = Program("tunnel", environment, folder / "tunnel.log"), None
    try:
        await agent.start()
        driver = await ChildProcess.start(
            *("unshare", "--mount", sys.executable, "-m", "bench.node_runner"),
            log_file=folder / "node.log",
            environment=environment,
        )
        await eventually(programs.csi_socket.is_socket, "the driver's socket")
        yield Node(programs=programs, driver=driver.pid, agent=agent.pid, started=started, read=read)
    finally:
        if driver:
            await driver.stop(timeout_seconds=5)
        await agent.stop()
        for pid in stunnels_of(programs.stunnel_conf):
            os.kill(pid, signal.SIGKILL)


def _mount_program(folder: Path) -> Path:
    """A program ``mount`` that binds a directory to the target, its last argument."""
    (folder / "export").mkdir()
    program = folder / "mount"
    program.write_text(f'#!/bin/sh\nfor target; do :; done\nexec mount --bind "{folder}/export" "$target"\n')
    program.chmod(0o755)
    return program


ROW: Final = Row(name="node", measure=measure)
