"""The subresources ``log`` and ``exec`` of pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from aiohttp import WSMsgType, web

from tinykube.api.requests import Parameters
from tinykube.errors import TinykubeError
from tinykube.objects.statuses import bad_request, internal_error
from tinykube.objects.storage import Stored, encode
from tinykube.objects.values import Json, lookup

_OF_TIMES = {"timestamps": "--timestamps", "sinceSeconds": "--since", "sinceTime": "--since-time"}


class PodLogs(Protocol):
    """The source of container logs."""

    def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncIterator[bytes]:
        """What the container wrote so far, and with ``follow`` what it writes until it ends."""


class NoPodLogs:
    """The source where nobody runs pods: every log is empty."""

    async def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncIterator[bytes]:
        """One empty chunk."""
        yield b""


async def stream_log(request: web.Request, pod: Stored, logs: PodLogs) -> web.StreamResponse:
    """The answer to a request for a container's log; raises 400 when the container is not clear."""
    parameters = Parameters(request.query)
    container = choose_container(pod, parameters.text("container"))
    check_log_options(pod, container, parameters)
    chunks = logs.read(
        pod.key.namespace,
        pod.key.name,
        container,
        follow=parameters.flag("follow"),
        tail_lines=parameters.number("tailLines"),
    )
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    left = parameters.number("limitBytes")
    async for chunk in chunks:
        await response.write(chunk if left is None else chunk[:left])
        if left is not None and (left := left - len(chunk)) <= 0:
            break
    await response.write_eof()
    return response


def check_log_options(pod: Stored, container: str, parameters: Parameters) -> None:
    """Raises 400 for what a log cannot be asked for.

    Logs are what containers wrote, through all restarts, so lines have no times, and what a container wrote
    before it was restarted is in its log still.
    """
    for name, option in _OF_TIMES.items():
        if parameters.flag(name):
            raise bad_request(f"lines of logs have no times in the embedded cluster: leave out {option}")
    if parameters.flag("previous") and not _restarts(pod, container):
        raise bad_request(f'previous terminated container "{container}" in pod "{pod.key.name}" not found')


def _restarts(pod: Stored, container: str) -> int:
    status = pod.json.get("status") or {}
    listed = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((one.get("restartCount") or 0 for one in listed if one.get("name") == container), 0)


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


_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CHUNK_BYTES = 32 * 1024
# What a command has left behind may keep its outputs open for ever.
_DRAIN_SECONDS = 5.0
_NO_WEBSOCKET = (
    "commands in containers are served over WebSockets only: use kubectl 1.31 or newer, "
    "or set KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true for kubectl 1.29 and 1.30"
)


class Channel(IntEnum):
    """What a message is about; ``CLOSE`` is followed by the number of the channel that is closed."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    CLOSE = 255


class Command(Protocol):
    """A command that runs; its outputs are the standard one and that for errors."""

    @property
    def input(self) -> asyncio.StreamWriter | None:
        """Its standard input, if it has one."""

    @property
    def outputs(self) -> tuple[asyncio.StreamReader, ...]:
        """What it prints."""

    async def wait(self) -> int:
        """The exit code, once it has ended."""


class PodCommands(Protocol):
    """Runs commands in containers."""

    def run_command(
        self, namespace: str, name: str, container: str, argv: tuple[str, ...], *, reads: bool
    ) -> AbstractAsyncContextManager[Command]:
        """The command, which ends with its context at the latest; raises TinykubeError or OSError."""


class NoPodCommands:
    """Where nobody runs pods."""

    def run_command(
        self, namespace: str, name: str, container: str, argv: tuple[str, ...], *, reads: bool
    ) -> AbstractAsyncContextManager[Command]:
        """Always refused."""
        raise bad_request(f"nobody runs pod {name} here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run."""

    container: str
    argv: tuple[str, ...]
    reads: bool


def parse_order(pod: Stored, parameters: Parameters, argv: tuple[str, ...]) -> Order:
    """The order in a request; raises 400 for what cannot be run in this pod now."""
    container = choose_container(pod, parameters.text("container"))
    if not argv:
        raise bad_request("you must specify at least one command for the container")
    if parameters.flag("tty"):
        raise bad_request("commands have no terminal in the embedded cluster: leave out --tty")
    if not lookup(pod.json, "spec", "nodeName"):
        raise bad_request(f"pod {pod.key.name} does not have a host assigned")
    state = _state(pod.json, container)
    if state != "running":
        raise bad_request(f"container {container} of pod {pod.key.name} is not running: it is {state}")
    return Order(
        container=container,
        argv=argv,
        reads=parameters.flag("stdin"),
    )


async def run_command(request: web.Request, pod: Stored, commands: PodCommands) -> web.StreamResponse:
    """Run what the request asks for, with the client at the other end; raises 400."""
    order = parse_order(pod, Parameters(request.query), tuple(request.query.getall("command", ())))
    socket = web.WebSocketResponse(protocols=_PROTOCOLS)
    if not socket.can_prepare(request):
        raise bad_request(_NO_WEBSOCKET)
    offered = {one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",")}
    if not offered & {*_PROTOCOLS}:
        raise bad_request(f"offer one of the protocols {', '.join(_PROTOCOLS)} in Sec-WebSocket-Protocol")
    await socket.prepare(request)
    await _send(socket, Channel.ERROR, encode(await _run(socket, pod, order, commands)))
    await socket.close()
    return socket


async def _run(socket: web.WebSocketResponse, pod: Stored, order: Order, commands: PodCommands) -> Json:
    """The Status that the command comes to."""
    key = pod.key
    try:
        async with commands.run_command(
            key.namespace, key.name, order.container, order.argv, reads=order.reads
        ) as command:
            return ended(await _serve(socket, command))
    except (TinykubeError, OSError) as error:
        return internal_error(f"error executing command in container: {error}").status


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
    """Carry everything to and fro until the command has ended, or the client has gone; the exit code."""
    feeding = asyncio.create_task(_feed(socket, command))
    waiting = asyncio.create_task(command.wait())
    channels = zip((Channel.STDOUT, Channel.STDERR), command.outputs, strict=False)
    showing = [asyncio.create_task(_show(socket, *one)) for one in channels]
    try:
        await asyncio.wait({feeding, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ConnectionResetError("the client has gone")
        await asyncio.wait(showing, timeout=_DRAIN_SECONDS)
        return waiting.result()
    finally:
        for task in (feeding, waiting, *showing):
            task.cancel()
        await asyncio.gather(feeding, waiting, *showing, return_exceptions=True)


async def _feed(socket: web.WebSocketResponse, command: Command) -> None:
    """Do what the client's messages say, until it goes."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, content = message.data[0], message.data[1:]
        if channel == Channel.STDIN and command.input is not None and not command.input.is_closing():
            command.input.write(content)
            await _drained(command.input)
        elif channel == Channel.CLOSE and content == bytes([Channel.STDIN]) and command.input is not None:
            command.input.close()


async def _drained(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.drain()
    except ConnectionError:
        writer.close()  # the command reads no more, which is its own affair


async def _show(socket: web.WebSocketResponse, channel: Channel, output: asyncio.StreamReader) -> None:
    while chunk := await output.read(_CHUNK_BYTES):
        await _send(socket, channel, chunk)


async def _send(socket: web.WebSocketResponse, channel: Channel, content: bytes) -> None:
    if not socket.closed:
        await socket.send_bytes(bytes([channel]) + content)


def _state(pod: Json, container: str) -> str:
    """Such as ``running``, or ``waiting (CrashLoopBackOff)``."""
    status = pod.get("status") or {}
    listed = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    found: Json = next((one.get("state") or {} for one in listed if one.get("name") == container), {})
    for name, state in found.items():
        reason = (state or {}).get("reason")
        return f"{name} ({reason})" if reason else str(name)
    return "waiting"
