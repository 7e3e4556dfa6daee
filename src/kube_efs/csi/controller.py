"""The Controller service: messages of the protocol to values, and volumes back to messages.

CSI specification 1.12, "Controller Service RPC". What the driver does not do, such as publishing, is answered
with UNIMPLEMENTED by the generated base class.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import structlog

from kube_efs.csi.capabilities import read_capability
from kube_efs.csi.protocol import csi_pb2, csi_pb2_grpc
from kube_efs.csi.server import Service
from kube_efs.model.claims import Claim
from kube_efs.model.copies import CopySource
from kube_efs.model.csi.access_points import VolumeRequest, volume_request
from kube_efs.model.csi.capabilities import check_capabilities
from kube_efs.model.csi.claims import check_new_volume, is_volume_of, volume_warnings
from kube_efs.model.csi.cross_account import parse_provisioner_secret
from kube_efs.model.csi.errors import InvalidArgument, VolumeMissing, VolumePending
from kube_efs.model.csi.parameters import VolumeParameters, parse_origin, parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin, uses_claim
from kube_efs.model.csi.snapshots import parse_snapshot_id
from kube_efs.model.csi.volume_attributes import render_attributes
from kube_efs.model.csi.volume_handles import VolumeHandle, parse_volume_handle
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeDenied, KubeEfsError, public_text
from kube_efs.model.volumes import ZONE_LABEL
from kube_efs.provisioning.backends.csi.volumes import CsiVolume, CsiVolumes
from kube_efs.provisioning.data_sources import DataSources
from kube_efs.provisioning.snapshots import Snapshots

__all__ = ["ControllerService", "controller_service"]

log = structlog.get_logger(__name__)

_Rpc = csi_pb2.ControllerServiceCapability.RPC

# csi-provisioner names volumes by the uid of the claim, which one of its options shortens.
_ENDS_WITH_UID: Final = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

# The claim in a namespace with a name; None if it does not exist. Raises KubeError.
ReadClaim: TypeAlias = Callable[[str, str], Awaitable[Claim | None]]


class ControllerService(csi_pb2_grpc.ControllerServicer):
    """Answers csi-provisioner and csi-snapshotter.

    ``read_claim`` reads claims, because csi-provisioner reports only their names.
    ``sources`` finds the data of volumes that are copied. ``snapshots`` is None without worker pods.
    ``has_driver_tags``: whether access points get the driver's own tags.
    """

    def __init__(
        self,
        volumes: CsiVolumes,
        read_claim: ReadClaim,
        sources: DataSources,
        snapshots: Snapshots | None,
        *,
        has_driver_tags: bool = False,
    ) -> None:
        self._volumes = volumes
        self._sources = sources
        self._snapshots = snapshots
        self._read_claim = read_claim
        self._has_driver_tags = has_driver_tags
        self._busy: set[str] = set()
        # By the names of volumes that may exist: their claims as they were last seen.
        self._claims: dict[str, Claim] = {}

    async def ControllerGetCapabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest, context: object
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        """Without SINGLE_NODE_MULTI_WRITER, Kubernetes sends no ReadWriteOncePod."""
        kinds = [_Rpc.CREATE_DELETE_VOLUME, _Rpc.EXPAND_VOLUME, _Rpc.SINGLE_NODE_MULTI_WRITER]
        if self._snapshots is not None:
            kinds += [_Rpc.CLONE_VOLUME, _Rpc.CREATE_DELETE_SNAPSHOT]
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[csi_pb2.ControllerServiceCapability(rpc=_Rpc(type=kind)) for kind in kinds]
        )

    async def CreateVolume(
        self, request: csi_pb2.CreateVolumeRequest, context: object
    ) -> csi_pb2.CreateVolumeResponse:
        """The volume of that name, the same one for every repetition of the request."""
        try:
            with self._unfinished(request.name):
                async with self._exclusive(request.name):
                    return await self._create_volume(request)
        finally:
            self._claims = {name: one for name, one in self._claims.items() if self._may_exist(name)}

    async def _create_volume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        wanted, claim = await self._wanted(request)
        role = parse_provisioner_secret(request.secrets)
        mount_flags = [flag for one in request.volume_capabilities for flag in one.mount.mount_flags]
        for warning in volume_warnings(wanted.parameters, mount_flags, has_role=role is not None):
            log.warning("storage-class-warning", volume=request.name, reason=warning)
        created = await self._volumes.promise(wanted, role, claim=claim)
        volume = _volume(created, wanted.required_bytes)
        if request.HasField("volume_content_source"):
            volume.content_source.CopyFrom(request.volume_content_source)
        return csi_pb2.CreateVolumeResponse(volume=volume)

    async def DeleteVolume(
        self, request: csi_pb2.DeleteVolumeRequest, context: object
    ) -> csi_pb2.DeleteVolumeResponse:
        """Delete the volume; a handle that is not ours is ignored, without an error."""
        role = parse_provisioner_secret(request.secrets)
        if not request.volume_id:
            raise InvalidArgument("is missing", field="volume_id", remedy="give the volume's handle")
        try:
            handle = parse_volume_handle(request.volume_id)
        except InvalidArgument as error:
            log.warning("volume-not-ours", volume=request.volume_id, reason=str(error))
            return csi_pb2.DeleteVolumeResponse()
        async with self._exclusive(request.volume_id):
            await self._volumes.delete(handle, role)
        return csi_pb2.DeleteVolumeResponse()

    async def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, context: object
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Whether the volume exists and has these capabilities; otherwise the message is the reason."""
        if not request.volume_id:
            raise InvalidArgument("is missing", field="volume_id", remedy="give the volume's handle")
        if not request.volume_capabilities:
            raise InvalidArgument("are missing", field="volume capabilities", remedy="give at least one")
        role = parse_provisioner_secret(request.secrets)
        handle = _existing_handle(request.volume_id)
        if not await self._volumes.exists(handle, role):
            raise VolumeMissing("no longer has an access point", field="volume_id", value=request.volume_id)
        try:
            check_capabilities([read_capability(one) for one in request.volume_capabilities], handle.kind)
        except InvalidArgument as error:
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=str(error))
        confirmed = csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return csi_pb2.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest, context: object
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        """The requested capacity, which csi-resizer writes to the volume and the claim; no data is touched.

        AWS is not asked whether the volume exists. That would need the Secret of another account, which
        csi-resizer gives only for classes with a parameter of its own.
        """
        if not request.volume_id:
            raise InvalidArgument("is missing", field="volume_id", remedy="give the volume's handle")
        if request.capacity_range.required_bytes <= 0:
            remedy = "give the new size in bytes"
            raise InvalidArgument("is missing", field="capacity_range.required_bytes", remedy=remedy)
        _existing_handle(request.volume_id)
        return csi_pb2.ControllerExpandVolumeResponse(
            capacity_bytes=request.capacity_range.required_bytes, node_expansion_required=False
        )

    async def CreateSnapshot(
        self, request: csi_pb2.CreateSnapshotRequest, context: object
    ) -> csi_pb2.CreateSnapshotResponse:
        """The snapshot of that name, when it is complete.

        A call that ends before has begun or continued the copy, which continues without it. csi-snapshotter
        repeats the call. An answer that is not ready would allow applications to write again.
        """
        if self._snapshots is None:
            raise NotImplementedError  # without worker pods, snapshots are not announced
        if not request.name:
            raise InvalidArgument("is missing", field="name", remedy="give the snapshot a name")
        if not request.source_volume_id:
            remedy = "give the volume's handle"
            raise InvalidArgument("is missing", field="source_volume_id", remedy=remedy)
        role = parse_provisioner_secret(request.secrets)
        handle = _existing_handle(request.source_volume_id)
        async with self._exclusive(request.name):
            created = await self._snapshots.create(request.name, handle, role)
        snapshot = csi_pb2.Snapshot(
            snapshot_id=created.snapshot_id, source_volume_id=request.source_volume_id, ready_to_use=True
        )
        snapshot.creation_time.FromNanoseconds(int(created.created * 1e9))
        return csi_pb2.CreateSnapshotResponse(snapshot=snapshot)

    async def DeleteSnapshot(
        self, request: csi_pb2.DeleteSnapshotRequest, context: object
    ) -> csi_pb2.DeleteSnapshotResponse:
        """Delete the snapshot; an ID that is not ours is ignored, without an error."""
        if self._snapshots is None:
            raise NotImplementedError  # as above
        if not request.snapshot_id:
            raise InvalidArgument("is missing", field="snapshot_id", remedy="give the snapshot's ID")
        async with self._exclusive(request.snapshot_id):
            try:
                await self._snapshots.delete(request.snapshot_id)
            except VolumeMissing as error:
                log.warning("snapshot-not-ours", snapshot=request.snapshot_id, reason=str(error))
        return csi_pb2.DeleteSnapshotResponse()

    async def ListVolumes(
        self, request: csi_pb2.ListVolumesRequest, context: object
    ) -> csi_pb2.ListVolumesResponse:
        """Not offered: an account can have tens of thousands of volumes, and Kubernetes does not need it.

        CSI requires UNIMPLEMENTED for calls of a capability that is not announced. The method exists because
        all calls are abstract in the types of the protocol.
        """
        raise NotImplementedError

    async def ControllerGetVolume(
        self, request: csi_pb2.ControllerGetVolumeRequest, context: object
    ) -> csi_pb2.ControllerGetVolumeResponse:
        """Not offered, like the list."""
        raise NotImplementedError

    async def _wanted(self, request: csi_pb2.CreateVolumeRequest) -> tuple[VolumeRequest, Claim | None]:
        """The request as a value, and its claim; all of it is checked before the first request to AWS."""
        parameters = parse_parameters(request.parameters, has_driver_tags=self._has_driver_tags)
        if not request.name:
            raise InvalidArgument("is missing", field="name", remedy="give the volume a name")
        capabilities = [read_capability(one) for one in request.volume_capabilities]
        check_new_volume(capabilities, parameters)
        origin = parse_origin(request.parameters)
        claim = await self._claim(origin, parameters)
        if claim is not None:
            known = self._last_known(request.name, claim)
            origin = replace(origin, labels=known.labels, annotations=known.annotations)
        wanted = volume_request(
            request.name, parameters, origin, required_bytes=request.capacity_range.required_bytes
        )
        if claim is not None and claim.uid and not is_volume_of(request.name, claim.uid):
            # A later one of that name. A volume with another complete uid belongs to a deleted claim.
            claim = _deleted_claim(origin) if _ENDS_WITH_UID.search(request.name) else None
        if not request.HasField("volume_content_source"):
            return wanted, claim
        try:
            source = await self._source(request)
        except KubeEfsError:
            is_deleted = claim is not None and not claim.uid
            if not (is_deleted and self._volumes.may_have(request.name)):
                raise
            # A deleted claim needs no copy: what exists for it is removed with its volume.
            return wanted, claim
        return replace(wanted, source=source), claim

    async def _source(self, request: csi_pb2.CreateVolumeRequest) -> CopySource:
        """The data that the volume is a copy of; raises VolumeMissing, InvalidArgument, AwsError."""
        source = request.volume_content_source
        match source.WhichOneof("type"):
            case "volume":
                role = parse_provisioner_secret(request.secrets)
                return await self._sources.of_handle(_existing_handle(source.volume.volume_id), role)
            case "snapshot":
                return parse_snapshot_id(source.snapshot.snapshot_id)
        remedy = "give a volume or a snapshot"
        raise InvalidArgument("is empty", field="volume_content_source", remedy=remedy)

    async def _claim(self, origin: VolumeOrigin, parameters: VolumeParameters) -> Claim | None:
        """The claim with the name that csi-provisioner reports; None without a name.

        It is read for each class: an annotation that the class does not allow must not be ignored. Without
        the permission, only classes that need it are refused. csi-provisioner requests the volume of a
        deleted claim until the end: such a claim has no uid here, so its copy ends. Raises KubeError.
        """
        if not origin.is_known:
            return None
        try:
            found = await self._read_claim(origin.claim_namespace, origin.claim_name)
        except KubeDenied as error:
            if parameters.allowed or uses_claim(parameters.pattern):
                raise
            log.warning("claim-not-read", claim=origin.claim_name, reason=str(error))
            return None
        return found or _deleted_claim(origin)

    def _last_known(self, volume: str, claim: Claim) -> Claim:
        """The claim, or that of an earlier call for the volume, if it was deleted or replaced since.

        Its labels and annotations decide which volume is completed, and then removed.
        """
        earlier = self._claims.get(volume)
        if earlier is not None and earlier.uid != claim.uid:
            return earlier
        if claim.uid:
            self._claims[volume] = claim
        return claim

    def _may_exist(self, volume: str) -> bool:
        """Whether something may exist for a volume of that name, also by a call that still runs."""
        return volume in self._busy or self._volumes.may_have(volume)

    @contextmanager
    def _unfinished(self, volume: str) -> Iterator[None]:
        """Mark every error inside with ``has_begun`` if something may exist for the volume then.

        So its code is not final. After a final one, csi-provisioner forgets the volume when its claim is
        deleted, and nothing removes what exists.
        """
        try:
            yield
        except KubeEfsError as error:
            error.has_begun = error.has_begun or self._may_exist(volume)
            raise
        except Exception as error:
            if not self._may_exist(volume):
                raise
            log.exception("call-failed", volume=volume)
            unfinished = KubeEfsError(public_text(error))
            unfinished.has_begun = True
            raise unfinished from error

    @asynccontextmanager
    async def _exclusive(self, volume: str) -> AsyncIterator[None]:
        """Refuse a second call for a volume while the first one runs."""
        if volume in self._busy:
            raise VolumePending("is in use by an earlier call", field="volume", value=volume)
        self._busy.add(volume)
        try:
            yield
        finally:
            self._busy.discard(volume)


def controller_service(controller: ControllerService) -> Service:
    """The service, to be served."""
    return partial(csi_pb2_grpc.add_ControllerServicer_to_server, controller)


def _existing_handle(text: str) -> VolumeHandle:
    """The handle; raises VolumeMissing if no volume of this driver can have it."""
    try:
        return parse_volume_handle(text)
    except InvalidArgument as error:
        raise VolumeMissing(error.problem, field=error.field, value=error.value) from error


def _deleted_claim(origin: VolumeOrigin) -> Claim:
    """A claim with that name that does not exist: no claim has its uid."""
    return Claim(namespace=origin.claim_namespace, name=origin.claim_name, uid=ClaimUid(""))


def _volume(created: CsiVolume, required_bytes: int) -> csi_pb2.Volume:
    topology = [csi_pb2.Topology(segments={ZONE_LABEL: created.zone})] if created.zone else []
    return csi_pb2.Volume(
        capacity_bytes=required_bytes,
        volume_id=str(created.handle),
        volume_context=render_attributes(created.attributes),
        accessible_topology=topology,
    )
