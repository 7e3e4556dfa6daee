"""The stunnel process: finding the program, starting it, taking over a running one, ending it.

stunnel gets a session of its own and no pipe to the agent, so it lives on when the agent is killed; the
next agent recognises it by its command line. It is watched through a pidfd, child or not.
"""

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import structlog

from kube_efs.model.errors import StunnelMissing

log = structlog.get_logger()

USUAL_PATHS = (Path("/usr/local/bin/stunnel"), Path("/usr/bin/stunnel"))
_PROC = Path("/proc")
# stunnel takes about half as many connections, and containers often begin with 1024.
_MOST_FILES: Final = 65536
# It has a thread for each connection. With heaps of their own, what these free is of no use to the others.
_ENVIRONMENT: Final = {"MALLOC_ARENA_MAX": "1"}


def find_stunnel(configured: Path | None, usual: Sequence[Path] = USUAL_PATHS) -> Path:
    """The program: ``configured``, or the first of the usual ones; raises StunnelMissing."""
    for path in (configured,) if configured else usual:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    tried = configured or ", ".join(map(str, usual))
    raise StunnelMissing(
        "is not an executable program",
        field="STUNNEL_PATH",
        value=str(tried),
        remedy="install stunnel, or set STUNNEL_PATH to its path",
    )


class StunnelProcess:
    """A running stunnel. ``ended`` is set as soon as it is gone, even if another agent started it."""

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        """Watch the process; raises ProcessLookupError when it is gone already."""
        self.pid = pid
        self.ended = asyncio.Event()
        self._tell = on_end
        self._pidfd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._loop.add_reader(self._pidfd, self._on_end)

    @classmethod
    def start(cls, program: Path, configuration: Path, log_path: Path, on_end: Callable[[], None]) -> Self:
        """Start it with its standard error at the end of the log; raises OSError."""
        _allow_files(_MOST_FILES)
        # Not subprocess: its objects end or complain about the child that is meant to outlive them.
        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            program,
            (str(program), str(configuration)),
            _ENVIRONMENT | os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(log_path), write, 0o600),
            ],
            setsid=True,
        )
        log.info("stunnel-started", pid=pid, program=str(program))
        return cls(pid, on_end)

    @classmethod
    def adopt(cls, program: Path, configuration: Path, on_end: Callable[[], None]) -> Self | None:
        """The stunnel that an earlier agent left running with this configuration; None without one.

        Only a process of our own user that was started for this configuration is taken.
        """
        for pid in _find_running(program, configuration):
            with suppress(ProcessLookupError):
                process = cls(pid, on_end)
                log.info("stunnel-adopted", pid=pid)
                return process
        return None

    @property
    def age_seconds(self) -> float:
        """Time since it was started or adopted."""
        return self._loop.time() - self._started

    def reload(self) -> None:
        """Make it read its configuration again; open connections live on."""
        self._send(signal.SIGHUP)

    async def stop(self, *, timeout_seconds: float) -> None:
        """End it, by force when the time is over; returns when it is gone."""
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.ended.wait()
        except TimeoutError:
            log.warning("stunnel-killed", pid=self.pid)
            self._send(signal.SIGKILL)
            await self.ended.wait()

    def _send(self, number: signal.Signals) -> None:
        # The pid may belong to another process after the end; a pidfd never does.
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):  # an adopted one is not our child
            os.waitpid(self.pid, os.WNOHANG)
        self.ended.set()
        self._tell()


def _allow_files(most: int) -> None:
    """Let programs that are started from now on have so many files open, or as many as are permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _find_running(program: Path, configuration: Path) -> Iterator[int]:
    for process in _PROC.iterdir():
        with suppress(OSError):
            if process.name.isdigit() and process.stat().st_uid == os.geteuid():
                command = (process / "cmdline").read_bytes().split(b"\0")
                # The directory may differ: an upgrade can move the program, not its open connections.
                if command[1:] == [os.fsencode(configuration), b""] and (
                    Path(os.fsdecode(command[0])).name == program.name
                ):
                    yield int(process.name)
