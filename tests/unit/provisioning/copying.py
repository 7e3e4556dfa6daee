"""Copies in unit tests: sources that a test gives, and directories that record what was copied."""

from collections.abc import Callable
from dataclasses import replace

from kube_efs.model.claims import Claim
from kube_efs.model.copies import Copied, CopyProgress, CopySource, CopyTerms
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.errors import VolumeMissing
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.errors import KubeEfsError, WorkerFailed
from kube_efs.model.volumes import Location
from kube_efs.provisioning.copies import Copies, IsGone
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.reservations import DirectoryReservations
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import UNPROTECTED, Protection


class GivenSources(DataSources):
    """The sources that a test gives, by the uid of the claim or by the handle."""

    def __init__(self) -> None:
        self.by_claim: dict[ClaimUid, CopySource] = {}
        self.by_handle: dict[str, CopySource] = {}
        self.fault: KubeEfsError | None = None
        self._index = VolumeIndex()

    async def of_claim(self, claim: Claim) -> CopySource | None:
        if self.fault:
            raise self.fault
        return self.by_claim.get(claim.uid)

    async def of_handle(self, handle: VolumeHandle, role: CrossAccountRole | None) -> CopySource:
        if str(handle) not in self.by_handle:
            raise VolumeMissing("does not exist", field="data source", value=str(handle))
        return replace(self.by_handle[str(handle)], handle=handle, role=role)

    def tenant_of(self, handle: VolumeHandle) -> str:
        return f"tenant of {handle}"


class CopiedFolders:
    """The part of a worker that copies: records each copy, without data."""

    def __init__(self) -> None:
        self.copies: list[tuple[Location, CopyTerms]] = []
        self.tenants: list[str] = []
        self.protections: list[Protection] = []
        self.stopped: list[Location] = []
        self.discarded: list[tuple[Location, str]] = []
        self.copy_fault: WorkerFailed | None = None
        self.user: KubeEfsError | None = None

    async def copy(
        self,
        target: Location,
        terms: CopyTerms,
        *,
        tenant: str = "",
        protection: Protection = UNPROTECTED,
    ) -> Copied:
        if self.copy_fault:
            raise self.copy_fault
        self.tenants.append(tenant)
        self.copies.append((target, terms))
        self.protections.append(protection)
        return Copied(progress=CopyProgress(entries=3, copied_bytes=2048), finished=1_700_000_000.5)

    async def unused(self, file_system_id: FileSystemId) -> None:
        """Raise the error of the test, if it has set one."""
        if self.user:
            raise self.user

    async def copy_ended(self, target: Location) -> None:
        """No other process copies."""

    async def copy_progress(self, target: Location) -> CopyProgress | None:
        return CopyProgress(entries=1, copied_bytes=1024)

    async def stop_copy(self, target: Location) -> None:
        self.stopped.append(target)

    async def discard_copy(self, target: Location, key: str) -> None:
        self.discarded.append((target, key))


async def _is_there(_: Claim) -> bool:
    return False


def given_copies(
    reservations: DirectoryReservations | None = None,
    notice: Callable[[Claim, str], None] = lambda _claim, _text: None,
    is_gone: IsGone = _is_there,
    *,
    accepts_earlier_source: bool = True,
) -> tuple[Copies, GivenSources]:
    """Copies from the sources that a test gives."""
    sources = GivenSources()
    copies = Copies(
        sources=sources,
        reservations=reservations or DirectoryReservations(),
        is_gone=is_gone,
        notice=notice,
        accepts_earlier_source=accepts_earlier_source,
    )
    return copies, sources
