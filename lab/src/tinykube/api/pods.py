"""The subresources ``log`` and ``exec`` of pods. The kubelet does the work.

A command in a container is served over a WebSocket (RFC 6455). Each binary message begins with the number of
a channel; the last message of the server, on the channel for errors, is a ``Status`` with the command's exit
code (k8s.io/apimachinery, package ``util/remotecommand``). Commands get no input.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from enum import IntEnum
from typing import Protocol

from aiohttp import web

from tinykube.api.requests import Parameters
from tinykube.errors import TinykubeError
from tinykube.objects.statuses import bad_request, internal_error
from tinykube.objects.storage import Stored, encode
from tinykube.objects.values import Json, lookup

_OF_TIMES = {"timestamps": "--timestamps", "sinceSeconds": "--since", "sinceTime": "--since-time"}
_PROTOCOL = "v5.channel.k8s.io"
# What the client asks for and commands do not get, with the option of kubectl.
_MISSING = {"tty": ("terminal", "--tty"), "stdin": ("input", "--stdin")}
_CHUNK_BYTES = 32 * 1024
# What a command has left behind may keep its outputs open indefinitely.
_DRAIN_SECONDS = 5.0
_NO_WEBSOCKET = (
    "commands in containers are served over WebSockets only: use kubectl 1.31 or newer, "
    "or set KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true for kubectl 1.29 and 1.30"
)


class PodLogs(Protocol):
    """The source of container logs."""

    def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncGenerator[bytes, None]:
        """What the container wrote so far, and with ``follow`` what it writes until it ends."""


async def stream_log(request: web.Request, pod: Stored, logs: PodLogs | None) -> web.StreamResponse:
    """The answer to a request for a container's log; raises 400 when the container is not clear."""
    parameters = Parameters(request.query)
    container = choose_container(pod, parameters.text("container"))
    for name, option in _OF_TIMES.items():
        if parameters.flag(name):
            raise bad_request(f"lines of logs have no times in the embedded cluster: leave out {option}")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    if logs is not None:
        follow, tail_lines = parameters.flag("follow"), parameters.number("tailLines")
        chunks = logs.read(*pod.key, container, follow=follow, tail_lines=tail_lines)
        # Clients go away at any moment; the file must not stay open until the generator is collected.
        async with aclosing(chunks):
            async for chunk in chunks:
                await response.write(chunk)
    await response.write_eof()
    return response


def choose_container(pod: Stored, wanted: str) -> str:
    """The container of that name, the only one for an empty name; raises 400 when it is not clear."""
    names = [one.get("name", "") for one in lookup(pod.json, "spec", "containers") or []]
    init_names = [one.get("name", "") for one in lookup(pod.json, "spec", "initContainers") or []]
    if wanted in {*names, *init_names}:
        return wanted
    if wanted:
        raise bad_request(f"container {wanted} is not valid for pod {pod.key.name}")
    if len(names) != 1:
        choices = " ".join(names)
        raise bad_request(
            f"a container name must be specified for pod {pod.key.name}, choose one of: [{choices}]"
        )
    return str(names[0])


class Channel(IntEnum):
    """What a message of the server is about."""

    STDOUT = 1
    STDERR = 2
    ERROR = 3


class Command(Protocol):
    """A command that runs; its outputs are the standard one and that for errors."""

    @property
    def outputs(self) -> tuple[asyncio.StreamReader, ...]:
        """What it prints."""

    async def wait(self) -> int:
        """The exit code, once it has ended."""


class PodCommands(Protocol):
    """Runs commands in containers."""

    def run_command(
        self, namespace: str, name: str, container: str, argv: tuple[str, ...]
    ) -> AbstractAsyncContextManager[Command]:
        """The command, which ends with its context at the latest; raises TinykubeError or OSError."""


async def run_command(request: web.Request, pod: Stored, commands: PodCommands | None) -> web.StreamResponse:
    """Run what the request asks for, with the client at the other end; raises 400."""
    parameters, argv = Parameters(request.query), tuple(request.query.getall("command", ()))
    container = container_for_command(pod, parameters, argv)
    if commands is None:
        raise bad_request(f"nobody runs pod {pod.key.name} here")
    socket = web.WebSocketResponse(protocols=(_PROTOCOL,))
    if not socket.can_prepare(request):
        raise bad_request(_NO_WEBSOCKET)
    offered = {one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",")}
    if _PROTOCOL not in offered:
        raise bad_request(f"offer the protocol {_PROTOCOL} in Sec-WebSocket-Protocol")
    await socket.prepare(request)
    try:
        async with commands.run_command(*pod.key, container, argv) as command:
            status = ended(await _serve(socket, command))
    except (TinykubeError, OSError) as error:
        status = internal_error(f"error executing command in container: {error}").status
    await _send(socket, Channel.ERROR, encode(status))
    await socket.close()
    return socket


def container_for_command(pod: Stored, parameters: Parameters, argv: tuple[str, ...]) -> str:
    """The container to run the command in; raises 400 for what is not supported."""
    container = choose_container(pod, parameters.text("container"))
    if not argv:
        raise bad_request("you must specify at least one command for the container")
    for name, (what, option) in _MISSING.items():
        if parameters.flag(name):
            raise bad_request(f"commands have no {what} in the embedded cluster: leave out {option}")
    return container


def ended(code: int) -> Json:
    """The Status of a command with this exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def _serve(socket: web.WebSocketResponse, command: Command) -> int:
    """Send what the command prints until it has ended, or the client has gone; the exit code."""
    listening = asyncio.create_task(_listen(socket))
    waiting = asyncio.create_task(command.wait())
    channels = zip((Channel.STDOUT, Channel.STDERR), command.outputs, strict=False)
    showing = [asyncio.create_task(_show(socket, *one)) for one in channels]
    try:
        await asyncio.wait({listening, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ConnectionResetError("the client has gone")
        await asyncio.wait(showing, timeout=_DRAIN_SECONDS)
        return waiting.result()
    finally:
        for task in (listening, waiting, *showing):
            task.cancel()
        await asyncio.gather(listening, waiting, *showing, return_exceptions=True)


async def _listen(socket: web.WebSocketResponse) -> None:
    """Return when the client has gone; what it sends before means nothing here."""
    async for _ in socket:
        pass


async def _show(socket: web.WebSocketResponse, channel: Channel, output: asyncio.StreamReader) -> None:
    while chunk := await output.read(_CHUNK_BYTES):
        await _send(socket, channel, chunk)


async def _send(socket: web.WebSocketResponse, channel: Channel, content: bytes) -> None:
    if not socket.closed:
        await socket.send_bytes(bytes([channel]) + content)
