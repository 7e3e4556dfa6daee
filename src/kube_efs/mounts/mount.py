"""Mounting and unmounting NFS, by mount(8) and umount(8).

Both can wait for ever for a server that is gone. The limit is the caller's (``asyncio.timeout``).
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from kube_efs.model.errors import MountFailed, PlatformError
from kube_efs.mounts.programs import run
from kube_efs.mounts.read_ahead import set_read_ahead, wanted_read_ahead
from kube_efs.mounts.table import MountTable

log = structlog.get_logger()

# A tunnel that has just come up, and an access point that EFS does not know everywhere yet (efs-utils, 3.3).
_PASSING: Final = ("reset by peer", "access denied by server")
_ATTEMPTS: Final = 3


class Mounter(Protocol):
    """What changes the mounts of this machine, and knows them.

    A call that is cancelled has ended what it began, as far as that can be done.
    """

    async def mount(self, source: str, target: Path, options: str) -> None:
        """Mount an export such as ``127.0.0.1:/data`` there; raises MountFailed."""

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        """Take the topmost mount away from there; raises MountFailed.

        ``force`` gives up what is under way to a server that does not answer. ``lazy`` takes away also what
        is in use; the kernel keeps it for those who use it.
        """

    @property
    def table(self) -> MountTable:
        """What is mounted."""


class SystemMounter:
    """The kernel's NFS client, by the programs in ``PATH``."""

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
        """Mount it, trying again after what passes by itself."""
        for attempt in range(1, _ATTEMPTS):
            try:
                await self._mount_once(source, target, options)
            except MountFailed as error:
                if not any(text in error.problem for text in _PASSING):
                    raise
                log.info("mount-tried-again", target=str(target), source=source, reason=error.problem)
                await asyncio.sleep(self._pause(attempt))
            else:
                return
        await self._mount_once(source, target, options)

    async def _mount_once(self, source: str, target: Path, options: str) -> None:
        await _run(target, self._program, "-t", "nfs4", "-o", options, source)
        await self._read_ahead(target, options)

    async def _read_ahead(self, target: Path, options: str) -> None:
        """Tune the new mount; it serves its volume without, too."""
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
        """Unmount without a look at the target or a helper, either of which would wait for the server."""
        options = (*(["--force"] if force else []), *(["--lazy"] if lazy else []))
        await _run(target, self._unmounting, "--no-canonicalize", "--internal-only", *options)


def _pause_seconds(attempt: int) -> float:
    return 1.5**attempt + random.random()  # noqa: S311 - so that nodes do not ask together


async def _run(target: Path, program: str, *arguments: str) -> None:
    ended = await run(program, *arguments, str(target))
    if ended.status:
        problem = f"{program} ended with status {ended.status}: {ended.output or 'no output'}"
        raise MountFailed(problem, field="target", value=str(target))
