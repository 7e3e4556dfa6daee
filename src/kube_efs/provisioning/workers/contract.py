"""The contract of the workers that create, remove, list and measure directories."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from kube_efs.model.copies import Copied, CopyProgress, CopyTerms
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.usage import MeasuredDirectory
from kube_efs.model.volumes import Location
from kube_efs.provisioning.guards import Removal, RemovalOrder
from kube_efs.provisioning.workers.orders import MeasuringTerms

Confirm: TypeAlias = Callable[[], Awaitable[None]]


async def nothing_to_confirm() -> None:
    """The confirmation of an order to remove an unfinished copy: it belongs to no volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """Protects the source of a copy, which may wait for its turn for hours after its caller has gone.

    No task of this process removes the source while ``reserved`` is entered. ``confirm`` is called directly
    before the copy begins, and raises KubeEfsError if another process has removed it meanwhile.
    """

    reserved: Callable[[], AbstractAsyncContextManager[object]]
    confirm: Confirm


# For a source that nothing removes.
UNPROTECTED: Final = Protection(reserved=nullcontext, confirm=nothing_to_confirm)


class Directories(Protocol):
    """A worker that creates and removes directories of file systems."""

    async def make(self, location: Location, permissions: Permissions) -> None:
        """Make the directory unless it exists; raises GidTaken and KubeEfsError."""

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        """Remove the directory with its contents, if it exists.

        ``confirm`` is called directly before the visible step, after every queue and wait. If it raises,
        nothing is removed. The contents are deleted later, in turns of the tenants. Raises RemovalRefused
        unless the directory is strictly inside ``base``, the errors of ``confirm``, and KubeEfsError.
        """

    async def settled(self, location: Location) -> None:
        """Return when no earlier order without a reservation can still change the directory.

        Such an order is of another process, or of a caller that has gone. Raises WorkerFailed while one can,
        and KubeError.
        """

    async def unused(self, file_system_id: FileSystemId) -> None:
        """Return when no worker uses the file system, also none that starts later.

        The caller has recorded before that the file system is being removed. Workers that list directories do
        not count. Raises NotYet while one uses it, WorkerFailed while one may use it for long, and KubeError.
        """

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        """The directories in this one, without links and the trash; none when it does not exist.

        Raises KubeEfsError.
        """

    async def copy(
        self,
        target: Location,
        terms: CopyTerms,
        *,
        tenant: str = "",
        protection: Protection = UNPROTECTED,
    ) -> Copied:
        """Copy a directory of the file system to the target, or continue an interrupted copy.

        Only some copies run at the same time, and tenants take turns. A finished copy is not repeated.
        ``protection`` is that of the source, from now until the end of the copy, also when the caller goes
        earlier. Raises WorkerRefused when the target has contents or the source cannot be used, VolumePending
        while the file system is being removed, the errors of ``protection.confirm``, WorkerFailed, AwsError
        and KubeError.
        """

    async def copy_ended(self, target: Location) -> None:
        """Return when no worker copies to the target, also none of an earlier leader.

        A copy that waits for its turn is not waited for: a repeated ``copy`` joins it.
        """

    async def copy_progress(self, target: Location) -> CopyProgress | None:
        """How far the copy to the target is; None when that is not known. Raises KubeError."""

    async def stop_copy(self, target: Location) -> None:
        """Stop the copy to the target, also one that has not begun.

        What it has copied stays for another attempt.
        """

    async def discard_copy(self, target: Location, key: str) -> None:
        """Remove what was copied with that key and has not become the target; raises KubeEfsError.

        It belongs to no volume yet, so no guard is needed. A copy to the target that has not begun never
        begins.
        """


class Meter(Protocol):
    """A worker that measures directories of file systems."""

    async def measure(
        self, root: Location, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        """The size of each directory of that file system, as far as the terms allow; raises KubeEfsError."""


async def remove_directory(directories: Directories, removal: Removal, order: RemovalOrder) -> None:
    """Remove the directory of a removal, if it has one and the order is confirmed."""
    if removal.directory:
        location, base = removal.directory.location, removal.directory.base
        await directories.remove(location, base, order.confirm_directory, tenant=removal.tenant)
