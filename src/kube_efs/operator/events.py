"""Events of the operator: on its own Deployment, as OpenShift's operators do, and on the ClusterCSIDriver."""

from typing import Final

import structlog

from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_csi_driver import DriverResource
from kube_efs.operator.kinds import DRIVER_KIND, ObjectReference
from kube_efs.settings.operator import OperatorSettings
from kube_efs.telemetry.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

COMPONENT: Final = "kube-efs-operator"


class OperatorEvents:
    """Publishes events; ``deployment_uid`` is empty if the operator does not run as a Deployment."""

    def __init__(
        self,
        recorder: EventRecorder,
        metrics: OperatorMetrics,
        settings: OperatorSettings,
        deployment_uid: str,
    ) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._deployment = Subject(
            api_version="apps/v1",
            kind="Deployment",
            namespace=settings.namespace,
            name=settings.operator_name,
            uid=deployment_uid,
        )

    def object_changed(self, reference: ObjectReference, change: str) -> None:
        """An object was ``Created``, ``Updated`` or ``Deleted``; also counted and logged."""
        self._metrics.changes.labels(kind=reference.kind, change=change.lower()).inc()
        log.info("object-changed", object=str(reference), change=change.lower())
        self.on_deployment(f"{reference.kind}{change}", f"{change} {reference}")

    def on_deployment(self, reason: str, message: str) -> None:
        """An event on the Deployment of the operator."""
        self._recorder.publish(self._deployment, EventType.NORMAL, reason, message)

    def on_driver(self, driver: DriverResource, kind: EventType, reason: str, message: str) -> None:
        """An event on the ClusterCSIDriver, for its administrator."""
        subject = Subject(
            api_version="operator.openshift.io/v1", kind=DRIVER_KIND, name=DRIVER, uid=driver.uid
        )
        self._recorder.publish(subject, kind, reason, message)
