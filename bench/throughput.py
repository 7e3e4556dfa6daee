"""What goes through a tunnel in a second, beside two stunnels with the least configuration that there is."""

import asyncio
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.figures import Figure, Row, at_least, plain
from tests.integration.nfs_backend import Authority, free_address
from tests.integration.tunnel_node import document, host_of, listening, running, target

from fake_efs.process import ChildProcess
from kube_efs.model.efs.ids import Region
from kube_efs.tunnels.options import TunnelOptions
from tinykube.ports import free_port

_BLOCK: Final = bytes(1 << 20)
_BLOCKS: Final = 512
_ROUNDS: Final = 9
_LOOPBACK: Final = "127.0.0.1"
_MEBIBYTE_A_SECOND: Final = "MiB/s"

_SERVER: Final = """\
foreground = yes
pid =
[server]
accept = {address}:2049
connect = 127.0.0.1:{sink}
cert = {certificate}
"""
_CLIENT: Final = """\
foreground = yes
pid =
[client]
client = yes
accept = 127.0.0.1:{port}
connect = {address}:2049
"""


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """Send the same through both in turn; each pair of rounds has a ratio, of which the median counts."""
    authority, host, address = Authority(folder, "ca"), host_of("fs-1"), free_address()
    authority.server_context(host)
    options = TunnelOptions(
        region=Region("us-east-1"), conf_path=folder / "stunnel.conf", ca_file=authority.file
    )
    ours, bare = free_port(), free_port()
    certificate = folder / f"ca-{host}.pem"
    with _sink() as sink:
        server = _SERVER.format(address=address, sink=sink, certificate=certificate)
        async with (
            _stunnel(folder, "server", server),
            _stunnel(folder, "client", _CLIENT.format(port=bare, address=address)),
            running(options) as node,
        ):
            node.queue.put_nowait(document(target("fs-1", ours, a=address)))
            await listening(ours)
            await listening(bare)
            pairs = [(await _speed(ours), await _speed(bare)) for _ in range(_ROUNDS)]
    ratios = [one / other for one, other in pairs]
    detail = f"{_ROUNDS} pairs of {_BLOCKS} MiB in turn, ratios {min(ratios):.2f} to {max(ratios):.2f}"
    yield at_least(
        "throughput through the tunnel ÷ two bare stunnels", statistics.median(ratios), 0.97, "", detail
    )
    yield plain("through the tunnel", statistics.median(one for one, _ in pairs), _MEBIBYTE_A_SECOND)
    yield plain("through two bare stunnels", statistics.median(one for _, one in pairs), _MEBIBYTE_A_SECOND)


async def _speed(port: int) -> float:
    return await asyncio.to_thread(_send, port)


def _send(port: int) -> float:
    """The speed at which all blocks reach the sink, which then answers."""
    with socket.create_connection((_LOOPBACK, port), timeout=60) as connection:
        begun = time.perf_counter()
        for _ in range(_BLOCKS):
            connection.sendall(_BLOCK)
        connection.recv(1)
        return _BLOCKS / (time.perf_counter() - begun)


@contextmanager
def _sink() -> Iterator[int]:
    """A port where everything is read, and a byte is sent after as much as a round sends."""
    with socket.create_server((_LOOPBACK, 0)) as server:
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_read, args=(connection,), daemon=True).start()


def _read(connection: socket.socket) -> None:
    buffer, left = bytearray(len(_BLOCK)), _BLOCKS * len(_BLOCK)
    with connection, suppress(OSError):
        while left > 0 and (got := connection.recv_into(buffer)):
            left -= got
        if left <= 0:
            connection.sendall(b"x")


@asynccontextmanager
async def _stunnel(folder: Path, name: str, text: str) -> AsyncIterator[None]:
    conf = folder / f"bare-{name}.conf"
    await asyncio.to_thread(conf.write_text, text)
    process = await ChildProcess.start("stunnel", str(conf), log_file=folder / f"bare-{name}.log")
    try:
        await process.listening_port(timeout_seconds=10)
        yield
    finally:
        await process.stop()


ROW: Final = Row(name="throughput", measure=measure)
