"""Ends what others have begun with file systems for claims and do not continue.

A claim can be deleted while its file system is being created, and the process that creates it can end. Then
no volume leads to the file system, and no later removal would find it, so it is removed here. A removal can
be given up after it has recorded that it begins, and the next claim for the file system may never come. Then
it is reopened here.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from kube_efs.kube.claims import ClaimStore
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.claims import is_volume_of
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, MadeFileSystem, Stage
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.model.volumes import DRIVER
from kube_efs.provisioning.backends.csi.file_systems import FileSystems
from kube_efs.provisioning.guards import Guards, Removal, RemovalOrder
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories
from kube_efs.telemetry.metrics import AwsMetrics

log = structlog.get_logger(__name__)

# A creation that was requested just before the claim was deleted has ended after this time.
_AGE_SECONDS: Final = 300.0


class UnfinishedFileSystems:
    """Looks for them regularly; ``clock`` is in Unix seconds, ``directories`` None without workers."""

    def __init__(
        self,
        file_systems: FileSystems,
        guards: Guards,
        claims: ClaimStore,
        index: VolumeIndex,
        metrics: AwsMetrics,
        *,
        directories: Directories | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file_systems = file_systems
        self._guards = guards
        self._claims = claims
        self._index = index
        self._metrics = metrics
        self._directories = directories
        self._clock = clock

    async def run(self) -> None:
        """Look for them at regular intervals, until cancelled."""
        while True:
            await asyncio.sleep(_AGE_SECONDS)
            try:
                await self.remove_all()
                await self.reopen_kept()
            except KubeEfsError as error:
                log.warning("unfinished-file-systems-not-read", reason=str(error))

    async def remove_all(self) -> None:
        """Remove those without a claim; raises AwsError, KubeError."""
        found = await self._file_systems.unfinished(older_than=self._clock() - _AGE_SECONDS)
        self._metrics.unfinished_file_systems.set(len(found))
        if not found:
            return
        # After the file systems: a claim that is missing now never comes back.
        pending = [one for one in await self._claims.list() if one.wants_volume and _may_be_ours(one)]
        sharing = {one.namespace for one in pending if _may_share(one, self._index.classes)}
        namespaces = await self._file_systems.namespace_uids(sharing)
        for one in found:
            # What is being removed is not used again. A claim that needs it gets another one.
            if one.stage is Stage.REMOVING or not is_needed(one.owner, pending, namespaces):
                await self._remove(one)

    async def reopen_kept(self) -> None:
        """Reopen those whose last volume stays, after two rounds; raises AwsError, KubeError."""
        await self._file_systems.reopen_kept(self._guards.is_leaving)

    async def _remove(self, found: MadeFileSystem) -> None:
        removal = Removal(file_system=found)
        order = RemovalOrder(lambda: self._guards.check_without_volume(removal))
        try:
            async with self._guards.reservations.removing(*removal.reserved):
                await self._file_systems.delete_unused_access_points(found, self._claim_uids)
                ending = await self._file_systems.begin_removal(found, order, self._check_contents)
                if ending is not None:
                    await self._file_systems.remove(ending, order, _nothing_to_delete)
        except KubeEfsError as error:
            log.warning("file-system-not-removed", file_system=found.file_system_id, reason=str(error))

    async def _check_contents(self, found: MadeFileSystem) -> None:
        """Raise NotYet or WorkerFailed while a worker uses it; an unused file system contains no data."""
        if self._directories is not None:
            await self._directories.unused(found.file_system_id)

    async def _claim_uids(self) -> Collection[ClaimUid]:
        return [one.uid for one in await self._claims.list()]


def _may_be_ours(claim: Claim) -> bool:
    """Whether the claim is not assigned to another provisioner."""
    return claim.storage_provisioner in {None, DRIVER}


def _may_share(claim: Claim, classes: Mapping[str, StorageClass]) -> bool:
    """Whether the claim may wait for the file system of its namespace."""
    if not claim.storage_class:
        return False  # Nobody can have begun one for it.
    known = classes.get(claim.storage_class)
    if known is None:
        # It may be new, or deleted after a creation for the claim has begun, such as to replace it. An empty
        # file system that stays costs almost nothing; to remove one that is being created delays the claim.
        return True
    if known.provisioner != DRIVER:
        return False
    try:
        template = parse_parameters(known.parameters).template
    except InvalidValue:
        return False  # Its claims are refused.
    return template is not None and template.scope is Scope.NAMESPACE


async def _nothing_to_delete() -> None:
    """It has no access point."""


def is_needed(owner: FileSystemOwner, pending: Collection[Claim], namespaces: Collection[str]) -> bool:
    """Whether one of these claims waits for the file system.

    ``namespaces`` are the uids of the namespaces with claims that may share a file system.
    """
    if owner.scope is Scope.NAMESPACE:
        return owner.name in namespaces
    return any(is_volume_of(owner.name, one.uid) for one in pending)
