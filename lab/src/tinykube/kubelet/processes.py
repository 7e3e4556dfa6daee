"""The processes of containers: their own, and further commands in them."""

import asyncio
import os
import pickle
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinykube.errors import TinykubeError
from tinykube.kubelet.launch import KILL_SIGNAL, Launch

# Without site packages: the launcher needs none, and starts in half the time.
_LAUNCHER = (sys.executable, "-S", "-P", "-m", "tinykube.kubelet.launcher")
_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}
_START_SECONDS = 60.0
_KILL_SECONDS = 5.0


class StartFailed(TinykubeError):
    """The container's command could not be started; the text is the launcher's."""


class ContainerProcess:
    """A container whose command is running, or has ended."""

    def __init__(self, process: Process, launch: Launch) -> None:
        self._process = process
        self.launch = launch

    @classmethod
    async def start(cls, launch: Launch, log: Path) -> "ContainerProcess":
        """Start it, with what it prints added to a log; returns when its command is running.

        Raises StartFailed.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *(*_LAUNCHER, "start"),
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    env=_ENVIRONMENT,
                    start_new_session=True,  # a Ctrl-C for the kubelet is not one for the pod
                )
            started = cls(process, launch)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    answer = await _converse(ours, pickle.dumps(launch))
                if answer != "started":
                    raise StartFailed(answer or "the launcher ended without a word")
            except BaseException as error:
                await started.kill()
                if isinstance(error, TimeoutError):
                    raise StartFailed(f"no start within {_START_SECONDS:.0f} seconds") from error
                raise
        return started

    @property
    def launcher(self) -> int:
        """The pid of the launcher that has started it."""
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, once the container and everything it started has ended."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Ask the container's main process to end."""
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """End every process of the container at once, and wait for it."""
        self._signal(KILL_SIGNAL)
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCommand:
    """A command that runs; ``outputs`` are the standard one and that for errors."""

    outputs: tuple[asyncio.StreamReader, ...]
    process: Process

    async def wait(self) -> int:
        """The exit code, once it has ended; 137 when it was killed."""
        code = await self.process.wait()
        return code if code >= 0 else 128 - code


@asynccontextmanager
async def run_in(launcher: int, launch: Launch) -> AsyncIterator[RunningCommand]:
    """Run a command in the container that this launcher has started; it is gone when the context is left.

    ``launch`` has the command, in the surroundings of the container's own. Raises OSError.
    """
    async with AsyncExitStack() as stack:
        (output, their_output), (errors, their_errors) = os.pipe(), os.pipe()
        theirs = their_output, their_errors
        try:
            readers = await _reader(output, stack), await _reader(errors, stack)
            process = await _start_command(launcher, launch, theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        try:
            yield RunningCommand(outputs=readers, process=process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _converse(launcher: socket.socket, request: bytes) -> str:
    """Send the request and give the one line of the answer."""
    reader, writer = await asyncio.open_unix_connection(sock=launcher)
    try:
        writer.write(request)
        writer.write_eof()
        return (await reader.readline()).decode(errors="replace").strip()
    except ConnectionError:
        return ""
    finally:
        writer.close()


async def _reader(descriptor: int, stack: AsyncExitStack) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    file: Any = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    stack.callback(transport.close)
    return reader


async def _start_command(launcher: int, launch: Launch, outputs: tuple[int, int]) -> Process:
    file = os.memfd_create("launch")
    try:
        os.write(file, pickle.dumps(launch))
        os.lseek(file, 0, os.SEEK_SET)
        return await asyncio.create_subprocess_exec(
            *(*_LAUNCHER, "enter", str(launcher), str(file)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=outputs[0],
            stderr=outputs[1],
            pass_fds=(file,),
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    finally:
        os.close(file)
