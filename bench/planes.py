"""The programs that ``data_planes`` compares, each with tunnels to one mount target.

Whatever listens on a tunnel's port, a client sees the same. So a plane is only what starts programs, gives
them tunnels, and knows their processes.
"""

import asyncio
import math
import os
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self

from bench import record_server
from bench.authorities import beside_those_of_aws
from tests.integration.nfs_backend import Authority, free_address
from tests.integration.tunnel_node import eventually, host_of

from fake_efs.process import ChildProcess
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.relay.control import RelayControl
from kube_efs.tunnels.sockets.ports import find_taken
from kube_efs.tunnels.stunnel.assignment import SHARD_SIZE
from kube_efs.tunnels.stunnel.configuration import render_configuration

STUNNEL: Final = "stunnel of the agent"
RELAY: Final = "relay"
BARE: Final = "bare stunnel"
EFS_PROXY: Final = "efs-proxy"
# The variable that names the program of efs-proxy.
EFS_PROXY_PROGRAM: Final = "EFS_PROXY"

_FILE_SYSTEM: Final = FileSystemId("fs-0123456789abcdef0")
# There is one while the module of the kernel is loaded.
_KERNEL_TLS: Final = Path("/proc/net/tls_stat")
_CONNECT_TIMEOUT_SECONDS: Final = 5.0
_START_SECONDS: Final = 60.0
# Below the ports that the kernel chooses for connections.
_PORTS: Final = range(10_000, 32_768)

_BARE: Final = """\
foreground = yes
pid =
[efs]
client = yes
accept = 127.0.0.1:{port}
connect = {address}:2049
"""
# As efs-utils writes it.
_PROXY: Final = """\
fips = no
foreground = quiet
socket = l:SO_REUSEADDR=yes
pid = {pid_file}
[efs]
client = yes
accept = 127.0.0.1:{port}
connect = {address}:2049
sslVersion = TLSv1.2
renegotiation = no
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTidle = 70
delay = no
verify = 2
CAfile = {ca_file}
cert = {certificate}
key = {key}
checkHost = {check_host}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """A mount target, and what a client needs to reach it."""

    address: str
    host: str
    ca_file: Path
    server_certificate: Path
    certificate: CertificateFile
    certificate_alone: Path
    key: Path

    @classmethod
    def create(cls, folder: Path) -> Self:
        """One on a loopback address, whose authority and client certificate are made here."""
        authority, host = Authority(folder, "ca"), host_of(_FILE_SYSTEM)
        authority.server_context(host)
        key, alone, client = (folder / name for name in ("client.key", "client-alone.pem", "client.pem"))
        # As the agent makes them: 3072 bits of RSA, signed by itself.
        command = ("openssl", "req", "-x509", "-newkey", "rsa:3072", "-noenc", "-subj", "/CN=client")
        files = ("-keyout", key, "-out", alone)
        subprocess.run((*command, *files), check=True, capture_output=True, timeout=60)
        client.write_bytes(alone.read_bytes() + key.read_bytes())
        not_after = datetime.now(UTC) + timedelta(days=1)
        return cls(
            address=free_address(),
            host=host,
            ca_file=beside_those_of_aws(authority.file, folder),
            server_certificate=folder / f"ca-{host}.pem",
            certificate=CertificateFile(path=client, serial=1, not_after=not_after),
            certificate_alone=alone,
            key=key,
        )

    def tunnels(self) -> Iterator[TunnelService]:
        """Different tunnels to it, as access points would have."""
        for number, port in enumerate(_free_ports()):
            yield TunnelService(
                name=f"fs-{number:017x}",
                file_system_id=_FILE_SYSTEM,
                port=port,
                addresses=(self.address,),
                check_host=self.host,
                ca_file=self.ca_file,
                certificate=self.certificate,
            )


class Plane(Protocol):
    """A data plane while it runs."""

    name: str
    is_shared: bool
    """Whether several tunnels share a process, so that their number can matter."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes of all tunnels."""

    async def add(self, tunnels: Sequence[TunnelService]) -> None:
        """Begin to serve these, too; their ports accept soon after that."""


class StunnelShards:
    """stunnel with the configuration and the shards of the agent."""

    name = STUNNEL
    is_shared = True

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._tunnels: list[TunnelService] = []
        self._processes: list[ChildProcess] = []

    @property
    def pids(self) -> Sequence[int]:
        """One for each shard."""
        return [process.pid for process in self._processes]

    async def add(self, tunnels: Sequence[TunnelService]) -> None:
        """Fill the last shard, then start others."""
        full = len(self._tunnels) // SHARD_SIZE
        self._tunnels += tunnels
        for number in range(full, math.ceil(len(self._tunnels) / SHARD_SIZE)):
            await self._load(number)

    async def _load(self, number: int) -> None:
        first = number * SHARD_SIZE
        shard = self._tunnels[first : first + SHARD_SIZE]
        conf = self._folder / f"stunnel-{number}.conf"
        text = render_configuration(shard, connect_timeout_seconds=_CONNECT_TIMEOUT_SECONDS)
        await asyncio.to_thread(conf.write_text, text)
        if number < len(self._processes):
            os.kill(self._processes[number].pid, signal.SIGHUP)
        else:
            self._processes.append(await _start(self._stack, "stunnel", str(conf), log=conf))


class KernelRelay:
    """The agent's relay, whose connections the kernel encrypts."""

    name = RELAY
    is_shared = True

    def __init__(self, process: ChildProcess, control: RelayControl) -> None:
        self._process = process
        self._control = control

    @classmethod
    async def start(cls, folder: Path, stack: AsyncExitStack) -> Self:
        """Start its process, as the agent does."""
        path = folder / "relay.sock"
        program = (sys.executable, "-I", "-m", "kube_efs.tunnels.relay.process", str(path))
        process = await _start(stack, *program, log=path, MALLOC_ARENA_MAX="1")
        await eventually(path.is_socket, "the socket of the relay")
        return cls(process, RelayControl(path))

    @property
    def pids(self) -> Sequence[int]:
        """One for all tunnels."""
        return [self._process.pid]

    async def add(self, tunnels: Sequence[TunnelService]) -> None:
        """Ask the process for each."""
        for tunnel in tunnels:
            await self._control.add(tunnel)


class OneProcessEach:
    """A process for each tunnel, with a file that ``render`` gives."""

    is_shared = False

    def __init__(
        self,
        name: str,
        folder: Path,
        stack: AsyncExitStack,
        render: Callable[[TunnelService], str],
        command: Sequence[str],
    ) -> None:
        self.name = name
        self._folder = folder
        self._stack = stack
        self._render = render
        self._command = command
        self._processes: list[ChildProcess] = []

    @property
    def pids(self) -> Sequence[int]:
        """One for each tunnel."""
        return [process.pid for process in self._processes]

    async def add(self, tunnels: Sequence[TunnelService]) -> None:
        """Start a process for each."""
        for tunnel in tunnels:
            conf = self._folder / f"{self.name.replace(' ', '-')}-{tunnel.port}.conf"
            await asyncio.to_thread(conf.write_text, self._render(tunnel))
            program, *options = self._command
            self._processes.append(await _start(self._stack, program, str(conf), *options, log=conf))


@asynccontextmanager
async def planes(folder: Path, target: MountTarget) -> AsyncIterator[Sequence[Plane]]:
    """Those that can run here, without tunnels: the agent's stunnel is always the first."""
    async with AsyncExitStack() as stack:
        found: list[Plane] = [
            StunnelShards(folder, stack),
            OneProcessEach(BARE, folder, stack, _bare, ("stunnel",)),
        ]
        if _KERNEL_TLS.exists():
            found.append(await KernelRelay.start(folder, stack))
        if program := os.environ.get(EFS_PROXY_PROGRAM):
            render, command = partial(_efs_proxy, target), (program, "--tls", "--no-direct-s3-read")
            found.append(OneProcessEach(EFS_PROXY, folder, stack, render, command))
        yield found


def _bare(tunnel: TunnelService) -> str:
    return _BARE.format(port=tunnel.port, address=tunnel.addresses[0])


def _efs_proxy(target: MountTarget, tunnel: TunnelService) -> str:
    return _PROXY.format(
        pid_file=target.key.with_name(f"{tunnel.port}.pid"),
        port=tunnel.port,
        address=target.address,
        ca_file=target.ca_file,
        # Its library refuses a file that contains the key, too.
        certificate=target.certificate_alone,
        key=target.key,
        check_host=target.host,
    )


async def _start(
    stack: AsyncExitStack, program: str, *arguments: str, log: Path, **environment: str
) -> ChildProcess:
    """Start it without the programs that ``ChildProcess.start`` runs first: their time would count, too."""
    log_file = log.with_suffix(".log")
    with log_file.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    child = ChildProcess(process, Path(program).name, log_file)
    stack.push_async_callback(child.stop)
    return child


def _free_ports() -> Iterator[int]:
    return (port for port in _PORTS if not find_taken([port]))


async def start_server(stack: AsyncExitStack, folder: Path, target: MountTarget) -> ChildProcess:
    """The process of the mount target, after it listens."""
    arguments = (target.address, str(target.server_certificate), str(target.certificate.path))
    log = folder / "server.log"
    server = await _start(stack, sys.executable, "-m", record_server.__name__, *arguments, log=log)
    await server.listening_port(timeout_seconds=_START_SECONDS)
    return server
