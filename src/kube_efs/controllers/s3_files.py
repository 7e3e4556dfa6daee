"""Finds the mount targets of the file systems of S3 Files that volumes use.

DNS knows a mount target of S3 Files only by the ID of the zone of the node, and knows none for a zone
without a mount target. With the addresses in the ConfigMap, a node can use the mount target of another zone,
and needs neither DNS nor the ID of its zone. The calls are optional: the managed policy of the AWS driver
does not allow ListMountTargets. Without volumes of S3 Files, there are no calls.

If an answer has no usable mount target of a file system, the known ones are kept until the next answer
confirms it, as in ``aws/catalogue.py``.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType

import structlog

from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import S3FilesTargets
from kube_efs.model.errors import (
    AwsNoCredentialsYet,
    AwsNotFound,
    AwsNotPermitted,
    InvalidValue,
    KubeEfsError,
)
from kube_efs.model.volumes import DRIVER
from kube_efs.provisioning.volume_index import VolumeIndex

log = structlog.get_logger(__name__)


class S3FilesDiscovery:
    """Reads the mount targets regularly, and when a volume names a new file system."""

    def __init__(
        self,
        gateway: AwsGateway,
        index: VolumeIndex,
        found: Callable[[S3FilesTargets], None],
        *,
        interval_seconds: float,
    ) -> None:
        self._gateway = gateway
        self._index = index
        self._found = found
        self._interval_seconds = interval_seconds
        self._due = asyncio.Event()
        self._denied = ""
        # The file systems whose known mount targets were missing in the last answer.
        self._doubtful: frozenset[FileSystemId] = frozenset()
        index.on_s3_file_system = self._due.set

    async def run(self) -> None:
        """Read them until cancelled."""
        while True:
            self._due.clear()
            found = await self._read(self._index.targets.s3_files)
            if found != self._index.targets.s3_files:
                log.info("s3-files-mount-targets", file_systems=sorted(found.addresses))
                self._found(found)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds):
                    await self._due.wait()

    async def _read(self, known: S3FilesTargets) -> S3FilesTargets:
        file_system_ids = self._index.s3_file_systems | frozenset(_of_classes(self._index))
        if not file_system_ids:
            return S3FilesTargets()
        addresses, doubtful = {}, set()
        for file_system_id in sorted(file_system_ids):
            last = known.addresses.get(file_system_id)
            found = await self._addresses(file_system_id, last)
            if found is not None and not found and last and file_system_id not in self._doubtful:
                log.warning("s3-files-in-doubt", file_system=file_system_id, kept=sorted(last.values()))
                doubtful.add(file_system_id)
                found = last
            if found:
                addresses[file_system_id] = found
        self._doubtful = frozenset(doubtful)
        zone_ids = known.zone_ids or await self._zone_ids()
        return S3FilesTargets(addresses=MappingProxyType(addresses), zone_ids=zone_ids)

    async def _addresses(
        self, file_system_id: FileSystemId, known: Mapping[ZoneName, str] | None
    ) -> Mapping[ZoneName, str] | None:
        try:
            return await self._gateway.s3_files.addresses(file_system_id)
        except AwsNotFound:
            return None
        except KubeEfsError as error:
            if isinstance(error, AwsNotPermitted) and not isinstance(error, AwsNoCredentialsYet):
                self._note_denial(error)
                return None
            log.warning("s3-files-not-read", file_system=file_system_id, reason=str(error))
            # With DNS alone, nodes would lose the mount targets of other zones.
            return known

    async def _zone_ids(self) -> Mapping[ZoneName, ZoneName]:
        try:
            return await self._gateway.network.zone_ids()
        except KubeEfsError as error:
            self._note_denial(error)
            return MappingProxyType({})

    def _note_denial(self, error: KubeEfsError) -> None:
        """Log it once: nodes find mount targets with DNS, too."""
        if error.field != self._denied:
            self._denied = error.field
            log.info("s3-files-by-dns", reason=str(error))


def _of_classes(index: VolumeIndex) -> Iterator[FileSystemId]:
    """The file systems of S3 Files that classes name themselves."""
    for one in index.classes.values():
        if one.provisioner != DRIVER:
            continue
        # Its claims are refused with the reason.
        with suppress(InvalidValue):
            parameters = parse_parameters(one.parameters)
            if parameters.provisioning.kind is FileSystemKind.S3_FILES and isinstance(
                parameters.file_systems, tuple
            ):
                yield from parameters.file_systems
