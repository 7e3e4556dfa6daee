"""One container as a process of this machine."""

import asyncio
import signal
import socket
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path

from tinykube.errors import TinykubeError
from tinykube.kubelet.launch import KILL_SIGNAL, Launch, render_launch

_LAUNCHER = "tinykube.kubelet.launcher"
PACKAGES = Path(__file__).parents[2]
_START_SECONDS = 60.0
_KILL_SECONDS = 5.0


class StartFailed(TinykubeError):
    """The container's command could not be started; the text is the launcher's."""


class ContainerProcess:
    """A container whose command is running, or has ended."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, launch: Launch, log: Path) -> "ContainerProcess":
        """Start it, with what it prints added to a log; returns when its command is running.

        Raises StartFailed.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    # Without site packages: the launcher needs none, and starts in half the time.
                    *(sys.executable, "-S", "-P", "-m", _LAUNCHER),
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    env={"PYTHONPATH": str(PACKAGES)},
                    start_new_session=True,  # a Ctrl-C for the kubelet is not one for the pod
                )
            started = cls(process)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    answer = await _converse(ours, render_launch(launch))
                if answer != "started":
                    raise StartFailed(answer.removeprefix("failed ") or "the launcher ended without a word")
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
