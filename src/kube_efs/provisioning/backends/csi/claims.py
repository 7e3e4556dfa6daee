"""Claims of classes of ``efs.csi.aws.com``, served without sidecars."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import structlog

from kube_efs.kube.quantities import parse_quantity
from kube_efs.kube.references import References
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.access_points import VolumeRequest
from kube_efs.model.csi.claims import CsiRequest, parse_claim, volume_for
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.volume_attributes import render_attributes
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import (
    AwsDenied,
    InvalidValue,
    KubeAlreadyExists,
    KubeDenied,
    NotYet,
    RemovalRefused,
)
from kube_efs.model.volumes import DRIVER, CsiSource, Location, Volume
from kube_efs.provisioning.backends.csi.volumes import CsiVolume, CsiVolumes
from kube_efs.provisioning.copies import Copies
from kube_efs.provisioning.guards import RemovableAccessPoint, Removal, RemovalOrder, tenant_of

log = structlog.get_logger(__name__)

# Receives a claim and a text for its user.
ClaimNotice: TypeAlias = Callable[[Claim, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiMade:
    """The access point or the directory of the claim's volume."""

    request: CsiRequest
    made: CsiVolume

    def volume(self, attempt: int) -> Volume:
        """The volume, always with the same name: it contains the uid of the claim."""
        attributes = render_attributes(self.made.attributes)
        source = CsiSource(driver=DRIVER, handle=str(self.made.handle), attributes=attributes)
        volume = volume_for(self.request, source, self.made.zone)
        return replace(volume, directory_id=self.made.directory_id)

    async def adopt(self, found: Volume) -> None:
        """Check that the claim's volume has the handle of this plan; raises KubeAlreadyExists."""
        if _handle(found) != _handle(self.volume(0)):
            remedy = "check its handle; it differs from what this driver creates for the claim"
            raise KubeAlreadyExists(
                "leads to another location", field="volume", value=found.name, remedy=remedy
            )


class CsiPlan:
    """An access point or a directory for the claim."""

    def __init__(
        self,
        request: CsiRequest,
        volumes: CsiVolumes,
        copies: Copies,
        references: References,
        notice: ClaimNotice | None,
    ) -> None:
        self._request = request
        self._volumes = volumes
        self._copies = copies
        self._references = references
        self._notice = notice

    @property
    def claim(self) -> Claim:
        """The claim that is served."""
        return self._request.claim

    async def locations(self) -> tuple[Location, ...]:
        """Its directory on each possible file system; raises InvalidArgument, NotYet, KubeError."""
        role = await self._references.role(self._request.secret)
        return await self._volumes.places(await self._volume(), role)

    async def _volume(self) -> VolumeRequest:
        source = await self._copies.source_for(self.claim)
        return replace(self._request.volume, source=source)

    @property
    def place(self) -> str:
        """The kind of volume; its access point is not known yet."""
        return f"a volume ({self._request.volume.parameters.provisioning})"

    def place_of(self, volume: Volume) -> str:
        """The handle of the volume."""
        return volume.csi.handle if volume.csi else self.place

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings of the claim or its class that have no effect."""
        return self._request.warnings

    async def prepare(self) -> None:
        """Nothing."""

    async def make(self) -> CsiMade:
        """Make the access point or the directory; raises KubeEfsError."""
        role = await self._references.role(self._request.secret)
        notice = partial(self._notice, self.claim) if self._notice else None
        made = await self._volumes.create(await self._volume(), role, notice, claim=self.claim)
        return CsiMade(request=self._request, made=made)


class CsiBackend:
    """Serves the classes of the CSI driver; ``has_driver_tags`` as for the driver's own service.

    ``notice`` receives the claims that get a new access point although their class reuses them.
    """

    def __init__(
        self,
        *,
        volumes: CsiVolumes,
        copies: Copies,
        references: References,
        notice: ClaimNotice | None = None,
        has_driver_tags: bool = False,
    ) -> None:
        self._volumes = volumes
        self._copies = copies
        self._references = references
        self._notice = notice
        self._has_driver_tags = has_driver_tags
        self._warned: set[tuple[str, str]] = set()

    @property
    def provisioner(self) -> str:
        """The provisioner of its classes."""
        return DRIVER

    @property
    def marks_refused_claims(self) -> bool:
        """No: the driver has never annotated claims."""
        return False

    @property
    def shares_directories(self) -> bool:
        """Yes: a class may set the directory, or reuse an access point."""
        return True

    def owns(self, volume: Volume) -> bool:
        """Whether the volume has the name of the driver."""
        return volume.csi is not None and volume.csi.driver == DRIVER

    def plan(self, claim: Claim, storage_class: StorageClass) -> CsiPlan:
        """A volume for the claim; raises ClaimRefused."""
        size = parse_quantity(claim.requested_storage)
        request = parse_claim(
            claim,
            storage_class,
            required_bytes=math.ceil(size) if size is not None else 0,
            has_driver_tags=self._has_driver_tags,
        )
        for warning in request.warnings:
            if (storage_class.name, warning) not in self._warned:
                self._warned.add((storage_class.name, warning))
                log.warning("storage-class-warning", storage_class=storage_class.name, reason=warning)
        return CsiPlan(request, self._volumes, self._copies, self._references, self._notice)

    async def removal(self, volume: Volume) -> Removal:
        """The access point or the directory of the volume."""
        try:
            role = await self._references.role(volume.deletion_secret)
        except NotYet as error:
            error.remedy = f"{error.remedy}, or set the reclaim policy of the volume to Retain"
            raise
        return await self._volumes.removal(_handle(volume), role, tenant=tenant_of(volume))

    async def settled(self, volume: Volume) -> None:
        """Return when no earlier order can remove them any more."""
        with suppress(RemovalRefused):  # No order was ever given for such a volume.
            await self._volumes.settled(await self._ordered(volume))

    async def _ordered(self, volume: Volume) -> Removal:
        """What an earlier order can remove; raises RemovalRefused, KubeError, AwsError.

        A volume that stays needs no Secret: that, its role and the permissions may be gone for good.
        """
        handle = _handle(volume)
        if handle.access_point_id is None or not handle.kind.has_roles:
            return await self._volumes.removal(handle)
        try:
            role = await self._references.role(volume.deletion_secret)
            return await self._volumes.removal(handle, role)
        except (NotYet, InvalidArgument, KubeDenied, AwsDenied) as error:
            log.info("access-point-not-read", volume=volume.name, reason=str(error))
        # The directory is not known now, but an earlier order knew it: that of any volume may be this one.
        everywhere = Location(file_system_id=handle.file_system_id, directory=Directory())
        return Removal(access_point=RemovableAccessPoint(handle=handle, root=everywhere))

    async def remove(self, removal: Removal, order: RemovalOrder) -> None:
        """Remove them."""
        await self._volumes.remove(removal, order)


def _handle(volume: Volume) -> VolumeHandle:
    try:
        return parse_volume_handle(volume.csi.handle if volume.csi else "")
    except InvalidValue as error:
        field, remedy = "spec.csi.volumeHandle", "remove the volume manually"
        raise RemovalRefused(error.problem, field=field, value=error.value, remedy=remedy) from error
