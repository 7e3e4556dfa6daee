"""Creates and removes directories of file systems that are mounted in this pod.

An NFS server that does not answer can block a call indefinitely. So each file system has its own threads:
if they hang, the other file systems do not.

A thread that waits for the server cannot be ended. After the timeout its caller gets an error, but the thread
continues when the server answers again, perhaps long after the caller has tried again. Nothing that it does
then may be wrong: it checks that the mount is still the same, holds its directory against later attempts
(``_alone``), and moves a removed directory by a name that no other volume gets. Work that has not begun when
its caller gives up never begins. Only a removal that hangs in the middle of its steps is completed later, and
``settled`` waits for it.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import structlog

from kube_efs.model.copies import COPIES, Copied, CopyProgress, CopyTerms
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    InvalidValue,
    PlatformError,
    RemovalRefused,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.trash import TrashReport, together
from kube_efs.model.usage import MeasuredDirectory
from kube_efs.model.volumes import Location
from kube_efs.mounts.mountinfo import Export, MountEntry, export_of, find_exports, read_mountinfo
from kube_efs.provisioning.workers import file_system
from kube_efs.provisioning.workers.contract import UNPROTECTED, Confirm, Protection, nothing_to_confirm
from kube_efs.provisioning.workers.orders import EmptyingTerms, MeasuringTerms
from kube_efs.provisioning.workers.slots import Slots
from kube_efs.provisioning.workers.tree_size import measure_all

log = structlog.get_logger(__name__)

_THREADS = 4
_COPY_SECONDS = 24 * 3600.0
# A copy ends at its next file, if the server answers. Later, it finds that another attempt has taken over.
_COPY_END_SECONDS = 5.0
_INSIDE = frozenset({Relation.SAME, Relation.BELOW})
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A directory of a file system that is mounted in this pod, as first found.

    ``base`` is the mounted directory of the file system. The mount point had that ``source``, device and
    inode.
    """

    file_system_id: FileSystemId
    mount_point: Path
    base: Directory
    source: str
    device: int
    inode: int

    def local(self, location: Location) -> Directory | None:
        """The directory, relative to the mount point; None when it is not inside the mount."""
        directory = location.directory
        if location.file_system_id != self.file_system_id:
            return None
        if directory.relation_to(self.base) not in _INSIDE:
            return None
        return Directory(directory.parts[len(self.base.parts) :])


async def find_mounted(
    file_system_id: FileSystemId,
    *,
    server: str,
    mount_point: Path | None = None,
    base: Directory | None = None,
    timeout_seconds: float = 60,
) -> Mounted:
    """The mount of the file system: at the given mount point, or otherwise from that server.

    ``base`` is the mounted directory; with None it comes from the source of the mount. The source of a mount
    through an access point or a helper's tunnel does not contain it. At a given mount point, the source of a
    mount from the server's own name overrides ``base``. Of several mounts from the server, the first is used;
    with ``base``, the first of the mounts with the longest path that contain ``base``.

    Raises PlatformError when there is none, WorkerFailed when it does not answer.
    """
    threads = ThreadPoolExecutor(1)
    try:
        return await _in_time(
            threads,
            lambda: _find(file_system_id, server, mount_point, base),
            mount_point or server,
            timeout_seconds,
        )
    finally:
        # Without waiting: a mount that does not answer blocks its thread.
        threads.shutdown(wait=False)


class MountedDirectories(AbstractAsyncContextManager["MountedDirectories"]):
    """Creates and removes directories of mounted file systems; use as ``async with``."""

    def __init__(self, mounts: Iterable[Mounted], *, timeout_seconds: float = 60) -> None:
        self._mounts = [_MountWorker(mounted, timeout_seconds) for mounted in mounts]
        self._removed: Callable[[FileSystemId], None] = lambda _: None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(mount.close() for mount in self._mounts))

    def roots(self) -> frozenset[Location]:
        """The roots of the file systems that are mounted, completely or in part."""
        mounted = {mount.mounted.file_system_id for mount in self._mounts}
        return frozenset(Location(file_system_id=one, directory=Directory()) for one in mounted)

    def on_removed(self, call: Callable[[FileSystemId], None]) -> None:
        """Call that whenever a directory was moved into the trash of a file system."""
        self._removed = call

    async def make(self, location: Location, permissions: Permissions) -> None:
        """Make the directory unless it exists.

        Raises InvalidValue unless it is strictly inside a mount, WorkerFailed when it cannot be created.
        """
        mount, directory = self._place(location, InvalidValue)
        if directory.is_root:
            raise _outside(location, InvalidValue)
        await mount.make(directory, permissions)

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        """Move the directory into that tenant's trash, if it exists; ``empty`` removes its contents.

        Raises RemovalRefused unless it is strictly inside both ``base`` and a mount, WorkerRefused when
        a link or file is in its place, and WorkerFailed.
        """
        file_system.refuse_outside(location.directory, base)
        mount, directory = self._place(location, RemovalRefused)
        if directory.is_root:
            raise _outside(location, RemovalRefused)
        await mount.remove(directory, confirm, tenant)
        self._removed(location.file_system_id)

    async def empty(self, root: Location, terms: EmptyingTerms) -> TrashReport:
        """Empty the trash in every mount of that file system; the terms limit the time in each.

        No other work waits for it. It stops at its next step when this object is closed.
        Raises WorkerRefused and WorkerFailed.
        """
        return together(
            [
                await mount.empty(terms)
                for mount in self._mounts
                if mount.mounted.file_system_id == root.file_system_id
            ]
        )

    async def settled(self, location: Location) -> None:
        """Return when no removal that was given up can still change the directory; raises WorkerFailed."""
        for mount in self._mounts:
            if mount.mounted.local(location) is not None:
                await mount.settled()

    async def unused(self, file_system_id: FileSystemId) -> None:
        """Nothing to wait for: administrators mounted the file systems, and none was created for claims."""

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        """The directories in this one; none when it does not exist; raises InvalidValue and WorkerFailed."""
        mount, directory = self._place(location, InvalidValue)
        return await mount.children(directory)

    async def copy(
        self,
        target: Location,
        terms: CopyTerms,
        *,
        tenant: str = "",
        protection: Protection = UNPROTECTED,
    ) -> Copied:
        """Copy a directory of the mount to the target, or continue an interrupted copy.

        It stops at its next file when this object is closed, and continues with the next attempt. Raises
        InvalidValue unless both are inside one mount, the errors of ``protection.confirm``, WorkerRefused and
        WorkerFailed.
        """
        mount, directory = self._place(target, InvalidValue)
        source = Location(file_system_id=target.file_system_id, directory=terms.source)
        local = mount.mounted.local(source)
        if local is None:
            raise _outside(source, InvalidValue)
        async with protection.reserved():
            return await mount.copy(directory, replace(terms, source=local), tenant, protection.confirm)

    async def copy_ended(self, target: Location) -> None:
        """Nothing to wait for: only this process copies."""

    async def copy_progress(self, target: Location) -> CopyProgress | None:
        """How far the copy to the target is."""
        mount, directory = self._place(target, InvalidValue)
        return mount.copying.get(directory)

    async def stop_copy(self, target: Location) -> None:
        """Stop the copy to the target at its next file."""
        mount, directory = self._place(target, InvalidValue)
        mount.stop_copies(directory)

    async def discard_copy(self, target: Location, key: str) -> None:
        """Remove what was copied with that key; raises WorkerRefused and WorkerFailed."""
        await self.stop_copy(target)
        mount, _ = self._place(target, InvalidValue)
        await mount.remove(Directory((COPIES,)) / key, nothing_to_confirm, "")
        self._removed(target.file_system_id)

    def holds(self, location: Location) -> bool:
        """Whether the directory is inside a mount of this pod."""
        return any(mount.mounted.local(location) is not None for mount in self._mounts)

    async def measure(
        self, root: Location, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        """The size of each directory, as far as the terms allow; raises InvalidValue and WorkerFailed."""
        found = []
        for directory in directories:
            mount, local = self._place(replace(root, directory=directory), InvalidValue)
            found += [replace(one, directory=directory) for one in await mount.measure(local, terms)]
        return found

    def _place(self, location: Location, refusal: type[InvalidValue]) -> "tuple[_MountWorker, Directory]":
        """The worker of the mount, and the directory relative to the mount point; raises the refusal."""
        for mount in self._mounts:
            directory = mount.mounted.local(location)
            if directory is not None:
                return mount, directory
        raise _outside(location, refusal)


def _outside(location: Location, refusal: type[InvalidValue]) -> InvalidValue:
    return refusal(
        "is not strictly below the directory that is mounted in this pod",
        field="directory",
        value=str(location),
        remedy="check the path of its volume and the pod's mounts",
    )


class _MountWorker:
    """The threads that work on one file system."""

    def __init__(self, mounted: Mounted, timeout_seconds: float) -> None:
        self.mounted = mounted
        self._timeout_seconds = timeout_seconds
        # Each kind of work has its own threads: what takes long, or hangs, must not block the others.
        self._workers = ThreadPoolExecutor(_THREADS)
        self._remover = ThreadPoolExecutor(1)
        self._removing = asyncio.Lock()
        self._emptier = ThreadPoolExecutor(1)
        self._measurer = ThreadPoolExecutor(1)
        self._closed = threading.Event()
        self._making: set[Directory] = set()
        self._making_lock = threading.Lock()
        self._copier = ThreadPoolExecutor(1)
        self._copy_slots = Slots(1)
        # The attempts that wait or run, and how to stop each.
        self._attempts: set[tuple[Directory, threading.Event]] = set()
        self.copying: dict[Directory, CopyProgress] = {}

    async def close(self) -> None:
        """Start no more work, and end copies; other work in progress continues.

        A copy that waits for its turn does not begin.
        """
        self._closed.set()
        # The copier has one thread, so this is done when no copy is in progress.
        ended = asyncio.get_running_loop().run_in_executor(self._copier, lambda: None)
        for threads in (self._workers, self._remover, self._emptier, self._measurer):
            threads.shutdown(wait=False, cancel_futures=True)
        if (await asyncio.wait([ended], timeout=_COPY_END_SECONDS))[1]:
            log.warning("copy-not-ended", mount_point=str(self.mounted.mount_point))
        self._copier.shutdown(wait=False, cancel_futures=True)

    async def make(self, directory: Directory, permissions: Permissions) -> None:
        """Create the directory; raises WorkerFailed also while an earlier attempt has not ended."""
        await self._run(
            self._workers,
            lambda root: file_system.make_directory(root, directory, permissions),
            within=self._alone(directory),
        )

    async def children(self, directory: Directory) -> Sequence[FoundDirectory]:
        """The directories in this one."""
        return await self._run(self._workers, lambda root: file_system.list_children(root, directory))

    async def measure(self, directory: Directory, terms: MeasuringTerms) -> Sequence[MeasuredDirectory]:
        """The size of this one; one at a time, with a longer timeout than other work."""
        return await self._run(
            self._measurer,
            lambda root: list(measure_all(root, [directory], terms, self._closed.wait)),
            seconds=terms.directory_seconds + self._timeout_seconds,
        )

    async def remove(self, directory: Directory, confirm: Confirm, tenant: str) -> None:
        """Move the directory into the trash; one at a time.

        Raises the errors of ``confirm``, WorkerRefused and WorkerFailed. A removal that was given up before
        its first step never begins.
        """
        given_up = threading.Event()

        def moved(root: Path) -> None:
            # The server may have answered only now, and somebody may have protected the volume meanwhile.
            if given_up.is_set():
                remedy = "it is retried"
                raise WorkerFailed("was given up", field="removal", value=str(directory), remedy=remedy)
            file_system.move_to_trash(root, directory, base=Directory(), tenant=tenant)

        async with self._removing:
            # A removal that waits for another one is confirmed after the wait, not before.
            await self._await_remover()
            await confirm()
            try:
                with _refusals_of_workers():
                    await self._run(self._remover, moved)
            finally:
                given_up.set()

    async def settled(self) -> None:
        """Return when no removal is in progress, also none that was given up; raises WorkerFailed."""
        async with self._removing:
            await self._await_remover()

    async def _await_remover(self) -> None:
        """Return when the thread is free: a removal that was given up has it until its server answers."""
        await _in_time(self._remover, lambda: None, self.mounted.mount_point, self._timeout_seconds)

    async def empty(self, terms: EmptyingTerms) -> TrashReport:
        """Empty the trash; one at a time, with a longer timeout than other work."""

        def emptied(root: Path) -> TrashReport:
            deadline = time.monotonic() + terms.seconds
            return file_system.empty_trash(
                root, lambda: not self._closed.is_set() and time.monotonic() < deadline
            )

        with _refusals_of_workers():
            return await self._run(self._emptier, emptied, seconds=terms.seconds + self._timeout_seconds)

    async def copy(self, target: Directory, terms: CopyTerms, tenant: str, confirm_source: Confirm) -> Copied:
        """Copy the source of the terms, for as long as it takes; one at a time, tenants take turns.

        A copy that is given up ends at its next file: nothing reserves its source any more.
        """
        stopped = threading.Event()

        def check_goes_on() -> None:
            if self._closed.is_set() or stopped.is_set():
                remedy = "it continues with the next attempt"
                raise WorkerFailed("was stopped", field="copy", value=str(target), remedy=remedy)

        def report(progress: CopyProgress) -> None:
            check_goes_on()
            self.copying[target] = progress

        def copied(root: Path) -> Copied:
            # Again: the server may have answered only now.
            check_goes_on()
            return file_system.copy_directory(root, target, terms, report)

        self._attempts.add((target, stopped))
        try:
            async with self._copy_slots.taken(tenant, target):
                await confirm_source()
                check_goes_on()
                return await self._run(
                    self._copier,
                    copied,
                    within=self._alone(target),
                    seconds=_COPY_SECONDS,
                )
        finally:
            stopped.set()
            self._attempts.remove((target, stopped))
            self.copying.pop(target, None)

    def stop_copies(self, target: Directory) -> None:
        """Stop the attempts that copy to the target, at the next file, and those that wait."""
        for _, stopped in (one for one in self._attempts if one[0] == target):
            stopped.set()
        self._copy_slots.stop(target)

    @contextmanager
    def _alone(self, directory: Directory) -> Iterator[None]:
        """Hold the directory in a thread: an abandoned attempt could set its group after a later attempt."""
        with self._making_lock:
            if directory in self._making:
                raise WorkerFailed(
                    "is still being created by an earlier attempt that was abandoned",
                    field="directory",
                    value=str(directory),
                    remedy="check that the file system's mount targets are reachable",
                )
            self._making.add(directory)
        try:
            yield
        finally:
            with self._making_lock:
                self._making.remove(directory)

    async def _run(
        self,
        threads: ThreadPoolExecutor,
        action: Callable[[Path], _T],
        *,
        within: AbstractContextManager[None] | None = None,
        seconds: float | None = None,
    ) -> _T:
        root = self.mounted.mount_point

        def checked() -> _T:
            with within or nullcontext():
                # Here, not before: the mount may have changed while this work waited for its thread.
                _check(self.mounted)
                return action(root)

        return await _in_time(threads, checked, root, seconds or self._timeout_seconds)


@contextmanager
def _refusals_of_workers() -> Iterator[None]:
    """Make refusals retryable: no watch shows that the link or file was removed."""
    try:
        yield
    except RemovalRefused as error:
        raise WorkerRefused(
            error.problem, field=error.field, value=error.value, remedy=error.remedy
        ) from error


async def _in_time(
    threads: ThreadPoolExecutor, action: Callable[[], _T], subject: Path | str, seconds: float
) -> _T:
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(threads, action)
    except TimeoutError as error:
        raise WorkerFailed(
            f"did not answer within {seconds:g} s",
            field="mount",
            value=str(subject),
            remedy="check that its mount targets are reachable",
        ) from error


def _find(
    file_system_id: FileSystemId, server: str, mount_point: Path | None, base: Directory | None
) -> Mounted:
    entries = read_mountinfo()
    if mount_point is None:
        entry, exported = _mounted_from(server, base, entries)
    else:
        entry, exported = _mounted_at(mount_point, server, base, entries)
    device, inode = _identity(entry.mount_point)
    return Mounted(
        file_system_id=file_system_id,
        mount_point=entry.mount_point,
        base=exported,
        source=entry.source,
        device=device,
        inode=inode,
    )


def _mounted_at(
    mount_point: Path, server: str, base: Directory | None, entries: Sequence[MountEntry]
) -> tuple[MountEntry, Directory]:
    """The mount there, and the mounted directory of the file system."""
    entry = _topmost(mount_point, entries)
    if entry is None:
        problem, remedy = "is not a mount point in this pod", "mount the file system there"
    elif (directory := _directory_at(entry, server, base)) is not None:
        return entry, directory
    else:
        problem, remedy = (
            "is not a mount of an NFS server in this pod",
            "configure which directory is mounted there",
        )
    problem += f", which has {_seen(entries)}"
    raise PlatformError(problem, field="mount path", value=str(mount_point), remedy=remedy)


def _directory_at(entry: MountEntry, server: str, said: Directory | None) -> Directory | None:
    """The mounted directory: ``said``, unless the mount is from the server's own name."""
    export = export_of(entry)
    if export is None or (said is not None and export.server != server):
        return said
    if said not in {None, export.directory}:
        log.warning("mount-has-another-directory", source=entry.source, said=str(said))
    return export.directory


def _mounted_from(
    server: str, base: Directory | None, entries: Sequence[MountEntry]
) -> tuple[MountEntry, Directory]:
    """The mount from that server, and the mounted directory of the file system."""
    exports = _nearest(base, find_exports(entries, server))
    if not exports:
        wanted = "" if base is None else f" with its directory {base}"
        problem = f"is not mounted{wanted} in this pod, which has {_seen(entries)}"
        remedy = "mount it as an NFS volume of the pod, or set where it is mounted"
        raise PlatformError(problem, field="server", value=server, remedy=remedy)
    if len(exports) > 1:
        places = [str(export.mount_point) for export in exports]
        log.warning("mounted-more-than-once", server=server, taken=places[0], others=places[1:])
    entry = _topmost(exports[0].mount_point, entries)
    if entry is None or export_of(entry) != exports[0]:
        value, remedy = str(exports[0].mount_point), "unmount what covers it"
        raise PlatformError("is covered by another mount", field="mount", value=value, remedy=remedy)
    return entry, exports[0].directory


def _nearest(base: Directory | None, exports: Sequence[Export]) -> list[Export]:
    """The exports with the longest path that contain the base; all exports without a base."""
    if base is None:
        return list(exports)
    holding = [one for one in exports if base.relation_to(one.directory) in _INSIDE]
    deepest = max((len(one.directory.parts) for one in holding), default=0)
    return [one for one in holding if len(one.directory.parts) == deepest]


def _seen(entries: Sequence[MountEntry]) -> str:
    return ", ".join(f"{entry.source}:{entry.mount_point}" for entry in entries) or "no mounts"


def _topmost(mount_point: Path, entries: Sequence[MountEntry]) -> MountEntry | None:
    """The visible mount at the mount point: the last of several mounts there."""
    there = [entry for entry in entries if entry.mount_point == mount_point]
    return there[-1] if there else None


def _check(mounted: Mounted) -> None:
    """Raise WorkerFailed unless the mount is the one that was found: data must not go elsewhere."""
    entry = _topmost(mounted.mount_point, read_mountinfo())
    if entry is not None and entry.source == mounted.source:
        if _identity(mounted.mount_point) == (mounted.device, mounted.inode):
            return
        problem = f"is another mount of {mounted.source} than at the start"
    else:
        problem = f"has {entry.source if entry else 'nothing'} mounted instead of {mounted.source}"
    remedy = "restart the pod, so that its volumes are mounted again"
    raise WorkerFailed(problem, field="mount", value=str(mounted.mount_point), remedy=remedy)


def _identity(mount_point: Path) -> tuple[int, int]:
    try:
        found = os.stat(mount_point)  # noqa: PTH116 - os throughout
    except OSError as error:
        problem = f"does not answer ({error.strerror})"
        remedy = "restart the pod, so that its volumes are mounted again"
        raise WorkerFailed(problem, field="mount", value=str(mount_point), remedy=remedy) from error
    return found.st_dev, found.st_ino
