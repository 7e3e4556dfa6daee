"""The stunnel process: finds the program, starts it, takes over a running one, ends it.

stunnel must survive its agent: if it ended, every mount of the node would wait. It therefore runs in a
session of its own and has no pipe to the agent. The next agent finds it by its command line, which, unlike a
pid file, cannot be stale. A pidfd reports its end, also of a stunnel that is not a child of this agent, and
a signal through a pidfd never reaches another process that has got the same pid.
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
# stunnel accepts about half as many connections, and the limit in containers is often 1024.
_MOST_FILES: Final = 65536
_RELOADABLE_SECONDS = 2.0
_POLL_SECONDS: Final = 0.005
# stunnel has a thread for each connection. With a heap for each thread, no thread could use freed memory of
# another.
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
    """A running stunnel. ``ended`` is set as soon as it ends, even if another agent started it."""

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        """Watch the process; raises ProcessLookupError when it has ended already."""
        self.pid = pid
        self.ended = asyncio.Event()
        self._notify = on_end
        self._pidfd = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._loop.add_reader(self._pidfd, self._on_end)

    @classmethod
    def start(cls, program: Path, configuration: Path, log_path: Path, on_end: Callable[[], None]) -> Self:
        """Start it with its standard error at the end of the log; raises OSError."""
        _allow_files(_MOST_FILES)
        # Not subprocess: its objects end a child, or warn about one, that is still running when they are
        # deleted.
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
        """The stunnel that an earlier agent started with this configuration; None without one.

        The process must belong to the user of this process.
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

    async def wait_until_reloadable(self) -> None:
        """Wait until it handles SIGHUP, which ends it before; for some seconds at most, or until it ends.

        stunnel 5.68 handles the signal only some milliseconds after it has begun to listen.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELOADABLE_SECONDS):
                # The kernel reports no event for this.
                while not (self.ended.is_set() or _handles(self.pid, signal.SIGHUP)):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)

    def reload(self) -> None:
        """Make it read its configuration again; open connections stay."""
        self._send(signal.SIGHUP)

    async def stop(self, *, timeout_seconds: float) -> None:
        """End it, with SIGKILL after the timeout; returns when it has ended."""
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.ended.wait()
        except TimeoutError:
            log.warning("stunnel-killed", pid=self.pid)
            self._send(signal.SIGKILL)
            await self.ended.wait()

    def _send(self, number: signal.Signals) -> None:
        # After the end, the pid may belong to another process, but never the pidfd.
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ChildProcessError):  # an adopted one is not our child
            os.waitpid(self.pid, os.WNOHANG)
        self.ended.set()
        self._notify()


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal (proc(5), ``SigCgt``)."""
    with suppress(OSError, ValueError):
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def _allow_files(most: int) -> None:
    """Raise the limit of open files for programs that this process starts, as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _find_running(program: Path, configuration: Path) -> Iterator[int]:
    for process in _PROC.iterdir():
        with suppress(OSError):
            if process.name.isdigit() and process.stat().st_uid == os.geteuid():
                command = (process / "cmdline").read_bytes().split(b"\0")
                # The directory of the program may differ: an upgrade can move it, but must not cut
                # connections.
                if command[1:] == [os.fsencode(configuration), b""] and (
                    Path(os.fsdecode(command[0])).name == program.name
                ):
                    yield int(process.name)
