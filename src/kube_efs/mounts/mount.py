"""Mounts and unmounts NFS with mount(8) and umount(8).

Both can wait indefinitely for a server that does not answer. The caller sets the limit
(``asyncio.timeout``): when a call is cancelled, the program is killed with all its children.

A new mount gets a longer read-ahead. Since Linux 5.4 the default for NFS is 128 KiB, with which one reader
gets a fraction of the throughput of EFS.
"""

import asyncio
import os
import random
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from kube_efs.model.errors import MountFailed, PlatformError
from kube_efs.mounts.mountinfo import MountEntry
from kube_efs.mounts.table import MountTable
from kube_efs.run_to_completion import run_to_completion

log = structlog.get_logger()

# Temporary errors: a reload of stunnel reset the connection, or an access point is too new for this mount
# target (efs-utils, 3.3).
_TEMPORARY: Final = ("reset by peer", "access denied by server")
_ATTEMPTS: Final = 3
_BDI_DEVICES: Final = Path("/sys/class/bdi")
_BLOCKS: Final = 15  # what Linux took before 5.4
_RSIZE: Final = re.compile(r"(?:^|,)rsize=([0-9]{1,9})(?:,|$)")
# A program that waits for a dead server can be killed, but may take some time to end.
_DYING_SECONDS: Final = 2.0
_MOST_OUTPUT: Final = 1000

_T = TypeVar("_T")


class Mounter(Protocol):
    """Changes the mounts of this machine, and reads them.

    A cancelled call ends the programs that it has started, as far as possible.
    """

    async def mount(self, source: str, target: Path, options: str) -> None:
        """Mount an export such as ``127.0.0.1:/data`` there; raises MountFailed."""

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        """Unmount the topmost mount of the target; raises MountFailed.

        ``force`` aborts requests to a server that does not answer. ``lazy`` also removes a mount in use; the
        kernel keeps it for the processes that use it.
        """

    @property
    def table(self) -> MountTable:
        """The mount table."""


class SystemMounter:
    """The kernel's NFS client, through the programs in ``PATH``."""

    def __init__(
        self,
        *,
        program: str = "mount",
        unmounting: str = "umount",
        pause: Callable[[int], float] | None = None,
        table: MountTable | None = None,
    ) -> None:
        self._program = program
        self._unmounting = unmounting
        self._pause = pause or _pause_seconds
        self._table = table or MountTable()

    @property
    def table(self) -> MountTable:
        """The mount table of this process's namespace."""
        return self._table

    async def mount(self, source: str, target: Path, options: str) -> None:
        """Mount the export; temporary errors are retried."""
        for attempt in range(1, _ATTEMPTS):
            try:
                await self._mount_once(source, target, options)
            except MountFailed as error:
                if not any(text in error.problem for text in _TEMPORARY):
                    raise
                log.info("mount-retried", target=str(target), source=source, reason=error.problem)
                await asyncio.sleep(self._pause(attempt))
            else:
                return
        await self._mount_once(source, target, options)

    async def _mount_once(self, source: str, target: Path, options: str) -> None:
        await _run(target, self._program, "-t", "nfs4", "-o", options, source)
        # From here on, an error does not fail the mount, which also works with a shorter read-ahead.
        kibibytes = wanted_read_ahead(options)
        if kibibytes is None:
            return
        try:
            mount = await self._table.mounted_at(target)
        except PlatformError as error:
            log.warning("read-ahead-not-set", target=str(target), reason=str(error))
            return
        if mount is not None:
            await asyncio.to_thread(set_read_ahead, mount, kibibytes)

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        """Unmount without access to the target and without a helper: both would wait for the server."""
        options = (*(["--force"] if force else []), *(["--lazy"] if lazy else []))
        await _run(target, self._unmounting, "--no-canonicalize", "--internal-only", *options)


def _pause_seconds(attempt: int) -> float:
    return 1.5**attempt + random.random()  # noqa: S311 - so that nodes do not retry together


async def _run(target: Path, program: str, *arguments: str) -> None:
    ended = await run(program, *arguments, str(target))
    if ended.status:
        problem = f"{program} ended with status {ended.status}: {ended.output or 'no output'}"
        raise MountFailed(problem, field="target", value=str(target))


def wanted_read_ahead(options: str) -> int | None:
    """The kibibytes that suit mount options with ``rsize``; None without it."""
    size = _RSIZE.search(options)
    return _BLOCKS * int(size[1]) // 1024 if size else None


def set_read_ahead(mount: MountEntry, kibibytes: int, *, devices: Path = _BDI_DEVICES) -> None:
    """Set the read-ahead of an NFS mount, if the kernel permits it."""
    # Anything else, such as a bind-mounted directory, shares its device with mounts that are not ours.
    if not mount.file_system_type.startswith("nfs"):
        return
    try:
        (devices / mount.device / "read_ahead_kb").write_text(f"{kibibytes}\n", encoding="ascii")
    except OSError as error:
        log.warning("read-ahead-not-set", target=str(mount.mount_point), reason=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """The exit status of a program, and all its output on one line."""

    status: int
    output: str


async def run(program: str, *arguments: str, stderr: int = STDOUT) -> ProgramResult:
    """Run it to its end; raises PlatformError when it cannot be run. ``stderr`` as for subprocess."""
    # When a start is cancelled, asyncio kills the program, but not the children that it has started by then.
    starting = asyncio.ensure_future(_start(program, *arguments, stderr=stderr))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await run_to_completion(_kill_started(program, starting))
        raise
    ending = asyncio.ensure_future(process.communicate())
    try:
        output, _ = await asyncio.shield(ending)
    except asyncio.CancelledError:
        await _kill(program, process, ending)
        raise
    text = " ".join(output.decode(errors="replace").split())
    return ProgramResult(status=process.returncode or 0, output=text[:_MOST_OUTPUT])


async def _start(program: str, *arguments: str, stderr: int) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=stderr,
            # In a process group of its own, so that ``_kill`` ends its helper too, such as mount.nfs(8).
            start_new_session=True,
            # ``_TEMPORARY`` recognizes errors by their English texts.
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        problem, remedy = f"cannot be run ({error.strerror})", f"install {program}"
        raise PlatformError(problem, field="program", value=program, remedy=remedy) from error


async def _kill_started(program: str, starting: "asyncio.Future[Process]") -> None:
    with suppress(PlatformError):
        process = await starting
        await _kill(program, process, asyncio.ensure_future(process.communicate()))


async def _kill(program: str, process: Process, ending: "asyncio.Future[tuple[bytes, bytes]]") -> None:
    """Kill the program and its children; one that does not end is left, because nothing else can end it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.wait([ending], timeout=_DYING_SECONDS)  # until all of them have ended
    if not ending.done():
        log.error("program-not-killed", program=program, pid=process.pid)
        ending.cancel()
