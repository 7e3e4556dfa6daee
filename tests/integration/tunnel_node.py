"""A node with a tunnel agent, a real stunnel, and NFS clients; for the tests of tunnels."""

import asyncio
import json
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.integration.nfs_backend import read_record

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.notifications import Notification
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.probe import null_call
from kube_efs.tunnels.status import TunnelState, TunnelStatus
from kube_efs.tunnels.stunnel.assignment import shard_files, shard_number

NEAR = "subnet-a"
FS = FileSystemId("fs-0123456789abcdef0")
DEADLINE_SECONDS = 60.0


def host_of(file_system: str) -> str:
    return f"{file_system}.efs.us-east-1.amazonaws.com"


def target(file_system: str, port: int, **address_by_subnet: str) -> dict[str, object]:
    subnets = {f"subnet-{name}": address for name, address in address_by_subnet.items()}
    return {file_system: {"stunnel_port": port, "mount_target_ip_by_subnet": subnets}}


def document(*targets: dict[str, object]) -> TargetDocuments:
    entries = {key: entry for one in targets for key, entry in one.items()}
    return TargetDocuments(targets=json.dumps({"efs_stunnel_targets": entries}))


async def eventually(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - other processes tell no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within {DEADLINE_SECONDS:g} s: {what}")


@dataclass(slots=True)
class Node:
    """An agent in this process, with helpers for tests."""

    agent: TunnelAgent
    options: TunnelOptions
    registry: CollectorRegistry
    notifications: list[Notification]
    queue: asyncio.Queue[TargetDocuments] = field(default_factory=asyncio.Queue)

    async def documents(self) -> AsyncIterator[TargetDocuments]:
        while True:
            yield await self.queue.get()

    def push(self, *targets: dict[str, object]) -> None:
        self.queue.put_nowait(document(*targets))

    def tunnel(self, file_system: str) -> TunnelStatus:
        return next(one for one in self.agent.status().tunnels if one.file_system_id == file_system)

    def has(self, file_system: str, state: TunnelState, **expected: object) -> bool:
        found = [one for one in self.agent.status().tunnels if one.file_system_id == file_system]
        return any(
            one.state == state and all(getattr(one, name) == value for name, value in expected.items())
            for one in found
        )

    async def until(self, file_system: str, state: TunnelState, **expected: object) -> None:
        await eventually(
            lambda: self.has(file_system, state, **expected), f"{file_system} {state} {expected}"
        )

    @property
    def pid(self) -> int:
        pid = self.agent.status().stunnel_pid
        assert pid is not None
        return pid


@asynccontextmanager
async def running(options: TunnelOptions) -> AsyncIterator[Node]:
    registry = CollectorRegistry()
    notifications: list[Notification] = []
    agent = TunnelAgent(options, TunnelMetrics(registry), notify=notifications.append)
    node = Node(agent=agent, options=options, registry=registry, notifications=notifications)
    task = asyncio.create_task(node.agent.run(node.documents()))
    try:
        yield node
        assert not task.done(), task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert stunnels_of(options.conf_path) == []


def stunnels_of(conf: Path) -> list[int]:
    """The pids of all shards, that of the first configuration first."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0")[:-1] if process.name.isdigit() else []
            number = shard_number(conf, Path(os.fsdecode(command[-1]))) if command[1:] else None
            if number is not None:
                found.append((number, int(process.name)))
    return [pid for _, pid in sorted(found)]


def shards_of(conf: Path) -> dict[int, list[str]]:
    """The names of the services in the configuration file of each shard."""
    return {
        number: re.findall(r"^\[(.+)\]$", path.read_text(), re.MULTILINE)
        for number, path in shard_files(conf).items()
    }


@dataclass(slots=True)
class Client:
    """An NFS client that makes NULL calls on one open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    calls: int = 0

    async def call(self) -> None:
        self.calls += 1
        self.writer.write(null_call(self.calls))
        async with asyncio.timeout(DEADLINE_SECONDS):
            reply = await read_record(self.reader)
        assert struct.unpack(">I", reply[:4]) == (self.calls,)

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def call_until(self, stop: asyncio.Event, *, pause_seconds: float = 0.0) -> None:
        while not stop.is_set():
            await self.call()
            await asyncio.sleep(pause_seconds)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        client = None
        while client is None:
            # As the kernel does: what was not yet accepted when stunnel loads its configuration is reset.
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                client = await connect(port)
    try:
        yield client
    finally:
        await client.close()


async def connect(port: int) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = Client(reader, writer)
    try:
        await client.call()
    except BaseException:
        await client.close()
        raise
    return client


async def end(process: asyncio.subprocess.Process, number: signal.Signals) -> int:
    process.send_signal(number)
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await process.wait()


async def listening(port: int) -> None:
    def accepts() -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", port)) == 0

    await eventually(accepts, f"a listener on {port}")


@asynccontextmanager
async def agent_process(
    options: TunnelOptions, *documents: TargetDocuments, stops_stunnel: bool = True
) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent in its own process, which serves its socket if it has one.

    Its remaining stunnel is ended here, unless another agent adopts it.
    """
    runner = Path(__file__).with_name("tunnel_runner.py")
    socket_path = options.on_demand and options.on_demand.socket_path
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "DATA_PLANE": options.data_plane.name,
        **({"SOCKET": str(socket_path)} if socket_path else {}),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        runner,
        options.conf_path,
        options.authorities(options.region),
        *(one.targets for one in documents),
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        if socket_path:
            await eventually(socket_path.exists, "the socket")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for pid in stunnels_of(options.conf_path) if stops_stunnel else ():
            os.kill(pid, signal.SIGKILL)
