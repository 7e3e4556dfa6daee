"""Events, log lines and metrics of SharedVolumes."""

import structlog

from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.shared_volumes.plan import Found, Step, is_lost
from kube_efs.model.shared_volumes.shared_volume import (
    GROUP,
    KIND,
    VERSION,
    Owner,
    SharedVolume,
    SharedVolumePhase,
    SharedVolumeSource,
    Status,
)
from kube_efs.telemetry.metrics import SharedVolumeMetrics

log = structlog.get_logger(__name__)


class SharedVolumeEvents:
    """Writes events and log lines, and counts."""

    def __init__(self, recorder: EventRecorder, metrics: SharedVolumeMetrics) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._phases: dict[Owner, SharedVolumePhase] = {}
        for phase in SharedVolumePhase:
            metrics.phases.labels(phase)

    def taken(self, step: Step, before: Found) -> None:
        """A step was run."""
        shared = before.shared
        log.info(
            "shared-volume-step", shared_volume=str(shared.owner), step=step.name.lower().replace("_", "-")
        )
        match step:
            case Step.RESTORE if before.volume and before.volume.source:
                self._restored(shared, before.volume.source)
            case Step.MAKE_VOLUME:
                self._made(shared, "PersistentVolume", shared.owner.volume_name)
            case Step.MAKE_CLAIM:
                self._made(shared, "PersistentVolumeClaim", shared.owner.claim_name)
            case Step.TIE_VOLUME if is_lost(before):
                message = (
                    f"Claim {shared.owner.claim_name} was Lost. Volume {shared.owner.volume_name} refers to "
                    "it again, and Kubernetes binds it with the same data"
                )
                self._publish(shared, EventType.WARNING, "LostClaimRepaired", message)

    def settled(self, shared: SharedVolume, status: Status) -> None:
        """The status is final for now; an event is published only for a change."""
        self._count(shared.owner, status.phase)
        before = shared.status
        if (status.phase, status.message) == (before.phase, before.message):
            return
        log.info(
            "shared-volume-settled",
            shared_volume=str(shared.owner),
            phase=str(status.phase),
            reason=status.message,
        )
        match status.phase:
            case SharedVolumePhase.READY:
                message = f"Claim {shared.owner.claim_name} uses {shared.source}"
                self._publish(shared, EventType.NORMAL, "Ready", message)
            case SharedVolumePhase.FAILED:
                self._publish(shared, EventType.WARNING, "Failed", status.message)
            case _ if status.message:
                self._publish(shared, EventType.NORMAL, "Waiting", status.message)

    def gone(self, owner: Owner) -> None:
        """The SharedVolume was deleted."""
        self._count(owner, None)

    def _restored(self, shared: SharedVolume, kept: SharedVolumeSource) -> None:
        tried = shared.source
        fields = (
            ("spec.fileSystemID", tried.file_system_id, kept.file_system_id),
            ("spec.accessPointID", tried.access_point_id, kept.access_point_id),
        )
        changes = "; ".join(
            f"{name}: {new!r} was reset to {old!r}" for name, new, old in fields if new != old
        )
        remedy = "create another SharedVolume for another access point"
        self._publish(shared, EventType.WARNING, "EditUndone", f"{changes}; {remedy}")
        self._metrics.edits_undone.inc()

    def _made(self, shared: SharedVolume, kind: str, name: str) -> None:
        self._metrics.objects_made.labels(kind).inc()
        self._publish(shared, EventType.NORMAL, "Created", f"Created {kind} {name}")

    def _count(self, owner: Owner, phase: SharedVolumePhase | None) -> None:
        before = self._phases.pop(owner, None)
        if before is not None:
            self._metrics.phases.labels(before).dec()
            self._metrics.info.remove(owner.namespace, owner.name)
        if phase is not None:
            self._phases[owner] = phase
            self._metrics.phases.labels(phase).inc()
            self._metrics.info.labels(owner.namespace, owner.name).set(1)

    def _publish(self, shared: SharedVolume, kind: EventType, reason: str, message: str) -> None:
        subject = Subject(
            api_version=f"{GROUP}/{VERSION}",
            kind=KIND,
            namespace=shared.owner.namespace,
            name=shared.owner.name,
            uid=shared.uid,
            resource_version=shared.resource_version,
        )
        self._recorder.publish(subject, kind, reason, message)
