"""Events of claims and volumes, and the contract's annotations of refused claims."""

import structlog

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.claims import Claim
from kube_efs.model.copies import COPYING
from kube_efs.model.csi.made_file_systems import CREATING_FILE_SYSTEM
from kube_efs.model.errors import KubeEfsError, LeftAlone, public_text
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.engine import Plan, Reclaimed

log = structlog.get_logger(__name__)


class ProvisioningEvents:
    """Publishes events of claims and volumes, and marks refused claims."""

    def __init__(self, claims: ClaimStore, recorder: EventRecorder) -> None:
        self._claims = claims
        self._recorder = recorder

    async def refused(self, claim: Claim, reason: str, *, marked: bool) -> None:
        """The claim is not retried until something changes; ``marked`` annotates it. Raises KubeError."""
        log.warning("claim-refused", claim=claim.key, reason=reason)
        self._recorder.publish(_claim(claim), EventType.WARNING, "ProvisioningFailed", reason)
        if marked:
            await self._claims.mark_refused(claim, reason)

    async def accepted(self, claim: Claim) -> None:
        """The claim is no longer refused. Raises KubeError."""
        log.info("claim-accepted", claim=claim.key)
        await self._claims.mark_accepted(claim)

    def left_alone(self, claim: Claim, reason: LeftAlone) -> None:
        """The claim is not served, although its administrator may expect it; published once."""
        log.warning("claim-left-alone", claim=claim.key, reason=str(reason))
        self._recorder.publish_once(_claim(claim), EventType.WARNING, "NotServed", str(reason))

    def volume_left_alone(self, volume: Volume, reason: LeftAlone) -> None:
        """The volume is not removed, although its administrator may expect it; published once."""
        log.warning("volume-left-alone", volume=volume.name, reason=str(reason))
        self._recorder.publish_once(_volume(volume), EventType.WARNING, "NotRemoved", str(reason))

    def provisioning(self, plan: Plan) -> None:
        """An attempt begins."""
        message = f"Creating {plan.place} for claim {plan.claim.key}"
        self._recorder.publish(_claim(plan.claim), EventType.NORMAL, "Provisioning", message)
        for warning in plan.warnings:
            self._recorder.publish(_claim(plan.claim), EventType.WARNING, "ParameterIgnored", warning)

    def not_reused(self, claim: Claim, reason: str) -> None:
        """The claim gets a new access point although its class reuses them."""
        self._recorder.publish(_claim(claim), EventType.NORMAL, "AccessPointNotReused", reason)

    def copying(self, claim: Claim, progress: str) -> None:
        """The data of the claim's volume is being copied."""
        self._recorder.publish(_claim(claim), EventType.NORMAL, COPYING, progress)

    def creating_file_system(self, claim: Claim, progress: str) -> None:
        """A file system is being created for the claim."""
        self._recorder.publish(_claim(claim), EventType.NORMAL, CREATING_FILE_SYSTEM, progress)

    def provisioned(self, plan: Plan, volume: Volume) -> None:
        """The claim has its volume."""
        place = plan.place_of(volume)
        log.info("volume-provisioned", claim=plan.claim.key, volume=volume.name, location=place)
        message = f"Volume {volume.name} is ready at {place}"
        self._recorder.publish(
            _claim(plan.claim), EventType.NORMAL, "ProvisioningSucceeded", message, ends="Provisioning"
        )

    def failed(self, claim: Claim, error: Exception, *, retry_seconds: float) -> None:
        """An attempt has failed and will be repeated."""
        log.warning(
            "provisioning-failed", claim=claim.key, reason=public_text(error), retry_seconds=retry_seconds
        )
        self._recorder.publish(_claim(claim), EventType.WARNING, "ProvisioningFailed", public_text(error))

    def expanded(self, claim: Claim, volume: Volume) -> None:
        """The claim has the requested capacity; the reason is that of csi-resizer."""
        log.info("volume-expanded", claim=claim.key, volume=volume.name, capacity=volume.capacity)
        message = f"Volume {volume.name} has the capacity {volume.capacity}; EFS does not limit its size"
        self._recorder.publish(_claim(claim), EventType.NORMAL, "VolumeResizeSuccessful", message)

    def not_expanded(self, claim: Claim, error: KubeEfsError) -> None:
        """An expansion has failed and will be repeated; the reason is that of csi-resizer."""
        log.warning("volume-not-expanded", claim=claim.key, reason=str(error))
        self._recorder.publish(_claim(claim), EventType.WARNING, "VolumeResizeFailed", str(error))

    def reclaimed(self, done: Reclaimed) -> None:
        """A released volume was deleted."""
        log.info(
            "volume-deleted",
            volume=done.volume.name,
            location=str(done.location),
            data=str(done.data),
            reason=done.reason,
        )
        if done.reason:
            message = f"Kept the data of volume {done.volume.name}: {done.reason}"
            self._recorder.publish(_volume(done.volume), EventType.NORMAL, "DirectoryKept", message)
        elif done.above:
            inside = ", ".join(done.above)
            message = f"Removed {done.location}, which is inside the directory of volume {inside}"
            self._recorder.publish(_volume(done.volume), EventType.NORMAL, "DirectoryRemoved", message)

    def not_reclaimed(self, volume: Volume, error: Exception) -> None:
        """A released volume could not be deleted."""
        log.warning("volume-not-deleted", volume=volume.name, reason=public_text(error))
        self._recorder.publish(_volume(volume), EventType.WARNING, "VolumeFailedDelete", public_text(error))

    def port_unknown(self, volume: Volume) -> None:
        """The file system of the volume's port is unknown, or not the annotated one."""
        ports = ", ".join(str(port) for port in sorted(volume.loopback_ports))
        named = volume.annotated
        if named is None:
            reason = "UnknownFileSystem"
            message = (
                f"No file system is known for port {ports} of this volume, so the port is not assigned again "
                f"and the volume cannot be mounted; annotate it with {FILE_SYSTEM_ID}=<id of its file system>"
            )
        else:
            reason = "OtherFileSystem"
            message = (
                f"Port {ports} of this volume belongs to another file system than {named}, which the "
                f"annotation {FILE_SYSTEM_ID} names, so pods see the data of the other one; create the "
                f"volume again with the port of {named}"
            )
        log.warning("port-misleads", volume=volume.name, ports=sorted(volume.loopback_ports), reason=reason)
        self._recorder.publish(_volume(volume), EventType.WARNING, reason, message)


def _claim(claim: Claim) -> Subject:
    return Subject(
        api_version="v1",
        kind="PersistentVolumeClaim",
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        resource_version=claim.resource_version,
    )


def _volume(volume: Volume) -> Subject:
    return Subject(api_version="v1", kind="PersistentVolume", name=volume.name, uid=volume.uid)
