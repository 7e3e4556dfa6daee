"""A proxy, for machines that reach nothing without one."""

import asyncio
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections import Counter
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_PORT = 3128
# Makes a network namespace with only loopback, and gives the test a socket that listens in it.
_LAUNCHER = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listening = socket.create_server(("127.0.0.1", int(sys.argv[2])))
with socket.socket(fileno=int(sys.argv[1])) as test:
    socket.send_fds(test, [b"x"], [listening.fileno()])
listening.close()
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Proxy:
    """Serves what runs below ``launcher``, in a network namespace that has no other way out."""

    url = f"http://127.0.0.1:{_PORT}"

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()  # by method
        self._ours, self._launchers = socket.socketpair()
        self.pass_fds = (self._launchers.fileno(),)
        self.launcher = (
            *("unshare", "--net", sys.executable, "-c", _LAUNCHER),
            *(str(self._launchers.fileno()), str(_PORT)),
        )
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._serving is not None
        self._serving.cancel()
        with suppress(asyncio.CancelledError):
            await self._serving
        self._ours.close()
        self._launchers.close()

    async def _serve(self) -> None:
        self._ours.setblocking(False)
        received: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._ours, received.set_result, None)
        try:
            await received
        finally:
            asyncio.get_running_loop().remove_reader(self._ours)
        _, [descriptor], _, _ = socket.recv_fds(self._ours, 1, 1)
        async with await asyncio.start_server(self._answer, sock=socket.socket(fileno=descriptor)) as server:
            await server.serve_forever()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            request, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
            method, target, version = request.split()
            self.requests[method] += 1
            url = urlsplit(f"//{target}" if method == "CONNECT" else target)
            assert url.hostname is not None
            there_reader, there = await asyncio.open_connection(url.hostname, url.port or 80)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                # One request a connection, because the next one may be for another server.
                kept = [field for field in fields if not field.lower().startswith(("connection:", "proxy-"))]
                lines = [f"{method} {url.path} {version}", *kept, "Connection: close", "", ""]
                there.write("\r\n".join(lines).encode())
            await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        writer.close()


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
