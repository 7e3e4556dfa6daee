"""A process of the data plane: starts it, takes over a running one, signals it, ends it.

Such a process must survive the agent: if it ended, its mounts would wait. It therefore runs in a session of
its own and has no pipe to the agent. The next agent finds it by its command line, which, unlike a pid file,
cannot be stale. A pidfd reports its end, also of a process that is not a child of this agent, and a signal
through a pidfd never reaches another process that has got the same pid.
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

log = structlog.get_logger()

_PROC: Final = Path("/proc")
# stunnel accepts about half as many connections, and the limit in containers is often 1024.
_MOST_FILES: Final = 65536
# Each connection has its threads. With a heap for each thread, no thread could use freed memory of another.
# A reload needs all services twice for a moment. glibc would keep up to 128 KiB more than is needed at the
# end of the heap, and as much of what is freed there, and a few freed blocks of each size for each thread:
# with a process for sixteen tunnels, a tenth of all. Measured, neither reloads nor data are slower.
_ENVIRONMENT: Final = {
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TOP_PAD_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(64 * 1024),
}


class DetachedProcess:
    """A running process. ``ended`` is set as soon as it ends, even if another agent started it."""

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
    def spawn(cls, command: Sequence[str], log_path: Path, on_end: Callable[[], None]) -> Self:
        """Start the command with its standard error at the end of the log; raises OSError."""
        _allow_files(_MOST_FILES)
        # Not subprocess: its objects end a child, or warn about one, that is still running when they are
        # deleted.
        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            command[0],
            list(command),
            _ENVIRONMENT | os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(log_path), write, 0o600),
            ],
            setsid=True,
        )
        return cls(pid, on_end)

    @classmethod
    def watch(
        cls, pid: int, on_end: Callable[[], None], is_expected: Callable[[Sequence[str]], bool]
    ) -> Self | None:
        """The process that an earlier agent started with the expected command; None if it has ended."""
        with suppress(ProcessLookupError):
            process = cls(pid, on_end)
            # Now the pid cannot change its owner any more; before, another process could have got it.
            if is_expected(command_of(pid)):
                return process
            process._forget()
        return None

    @property
    def age_seconds(self) -> float:
        """Time since it was started or taken over."""
        return self._loop.time() - self._started

    def has_files(self) -> bool:
        """Whether it has open files: one that ends loses them before the kernel reports its end."""
        with suppress(OSError):
            return not self.ended.is_set() and any((_PROC / str(self.pid) / "fd").iterdir())
        return False

    async def stop(self, *, timeout_seconds: float) -> None:
        """End it, with SIGKILL after the timeout; returns when it has ended."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.ended.wait()
        except TimeoutError:
            log.warning("process-killed", pid=self.pid)
            self.send(signal.SIGKILL)
            await self.ended.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        # After the end, the pid may belong to another process, but never the pidfd.
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _forget(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)

    def _on_end(self) -> None:
        self._forget()
        with suppress(ChildProcessError):  # one that was taken over is not our child
            os.waitpid(self.pid, os.WNOHANG)
        self.ended.set()
        self._notify()


def running_commands() -> Iterator[tuple[int, Sequence[str]]]:
    """The pid and the command of each running process of this user."""
    for process in _PROC.iterdir():
        if process.name.isdigit() and (command := command_of(int(process.name))):
            yield int(process.name), command


def command_of(pid: int) -> Sequence[str]:
    """The command of a process of this user; empty for others, and after its end."""
    with suppress(OSError):
        process = _PROC / str(pid)
        if process.stat().st_uid == os.geteuid():
            return [os.fsdecode(part) for part in (process / "cmdline").read_bytes().split(b"\0")[:-1]]
    return ()


def _allow_files(most: int) -> None:
    """Raise the limit of open files for programs that this process starts, as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
