"""A stunnel process: finds the program, starts it, takes over a running one, makes it reload."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import structlog

from kube_efs.model.errors import StunnelMissing
from kube_efs.tunnels.detached_process import DetachedProcess, running_commands

log = structlog.get_logger()

USUAL_PATHS = (Path("/usr/local/bin/stunnel"), Path("/usr/bin/stunnel"))
_RELOADABLE_SECONDS = 30.0
_POLL_SECONDS: Final = 0.005


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The CPU time of a process in clock ticks, and whether it runs or waits for a processor or a disk.

    Only of the main thread: it reads the configuration, and the other threads serve connections.
    """

    ticks: int
    runs: bool

    def has_worked_since(self, earlier: Self) -> bool:
        """Whether it is slow and not hanging: it got CPU time, or would use it now."""
        return self.runs or self.ticks > earlier.ticks


class StunnelProcess(DetachedProcess):
    """A running stunnel."""

    @classmethod
    def start(cls, program: Path, configuration: Path, log_path: Path, on_end: Callable[[], None]) -> Self:
        """Start it with its standard error at the end of the log; raises OSError."""
        process = cls.spawn((str(program), str(configuration)), log_path, on_end)
        log.info("stunnel-started", pid=process.pid, program=str(program))
        return process

    @classmethod
    def adopt(cls, pid: int, program: Path, configuration: Path, on_end: Callable[[], None]) -> Self | None:
        """The stunnel that an earlier agent started with this configuration; None if it has ended."""
        process = cls.watch(pid, on_end, lambda command: _configuration(command, program) == configuration)
        if process:
            log.info("stunnel-adopted", pid=pid, configuration=configuration.name)
        return process

    async def wait_until_reloadable(self) -> None:
        """Wait until it handles SIGHUP, which ends it before; for half a minute at most, or until it ends.

        stunnel 5.68 handles the signal only some milliseconds after it has begun to listen.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_RELOADABLE_SECONDS):
                # The kernel reports no event for this.
                while not (self.ended.is_set() or _handles(self.pid, signal.SIGHUP)):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)

    def activity(self) -> Activity:
        """What the process has done until now (proc(5), ``stat`` of a thread); nothing after its end."""
        with suppress(OSError):
            text = Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text(errors="replace")
            # The name of the program, in brackets, may contain spaces and brackets.
            fields = text.rpartition(")")[2].split()
            return Activity(ticks=int(fields[11]) + int(fields[12]), runs=fields[0] in "RD")
        return Activity(ticks=0, runs=False)

    def reload(self) -> None:
        """Make it read its configuration again; open connections stay."""
        self.send(signal.SIGHUP)


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal (proc(5), ``SigCgt``)."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def find_running(program: Path) -> Iterator[tuple[int, Path]]:
    """The pid and the configuration file of each running stunnel of this user."""
    for pid, command in running_commands():
        configuration = _configuration(command, program)
        if configuration is not None:
            yield pid, configuration


def _configuration(command: Sequence[str], program: Path) -> Path | None:
    # The directory of the program may differ: an upgrade can move it, but must not cut connections.
    if len(command) == 2 and Path(command[0]).name == program.name:
        return Path(command[1])
    return None
