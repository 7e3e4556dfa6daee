"""What the operator reports: events, metrics, and its log level."""

import structlog
from lightkube import AsyncClient
from lightkube.resources.apps_v1 import Deployment

from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.errors import KubeError
from kube_efs.operator.cluster_csi_driver import DRIVER_NAME, DriverResource, LogLevel, read_log_level
from kube_efs.operator.kinds import DRIVER_KIND, ObjectReference
from kube_efs.settings import OperatorSettings
from kube_efs.telemetry.logging import configure
from kube_efs.telemetry.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

COMPONENT = "kube-efs-operator"


class OperatorEvents:
    """Writes events: to the own Deployment, as OpenShift's operators do, and to the driver's resource."""

    def __init__(self, recorder: EventRecorder, metrics: OperatorMetrics, settings: OperatorSettings) -> None:
        self.uid = ""
        self._recorder = recorder
        self._metrics = metrics
        self._settings = settings
        self._log_level = ""

    async def find_deployment(self, client: AsyncClient) -> None:
        """Learn the uid of the operator's Deployment; there may be none, as on a developer's machine."""
        name, namespace = self._settings.operator_name, self._settings.namespace
        try:
            with translated(f"Deployment {namespace}/{name}"):
                found = await client.get(Deployment, name, namespace=namespace)
        except KubeError as error:
            log.info("own-deployment-unknown", reason=str(error))
            return
        self.uid = (found.metadata and found.metadata.uid) or ""

    def changed(self, reference: ObjectReference, change: str) -> None:
        """An object was Created, Updated or Deleted."""
        self._metrics.changes.labels(kind=reference.kind, change=change.lower()).inc()
        log.info("object-changed", object=str(reference), change=change.lower())
        self.note(f"{reference.kind}{change}", f"{change} {reference}")

    def note(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Something about the installation as a whole."""
        subject = Subject(
            api_version="apps/v1",
            kind="Deployment",
            namespace=self._settings.namespace,
            name=self._settings.operator_name,
            uid=self.uid,
        )
        self._recorder.publish(subject, _type(warning), reason, message)

    def tell(self, driver: DriverResource, reason: str, message: str, *, warning: bool = False) -> None:
        """A message for the administrator of the driver's resource."""
        subject = Subject(
            api_version="operator.openshift.io/v1", kind=DRIVER_KIND, name=DRIVER_NAME, uid=driver.uid
        )
        self._recorder.publish(subject, _type(warning), reason, message)

    def follow_log_level(self, driver: DriverResource) -> None:
        """Log as much as the administrator wants from this process."""
        stated = driver.operator_log_level
        if stated == self._log_level:
            return
        level = read_log_level(stated)
        if level is None:
            message = f"operatorLogLevel {stated!r} is not valid; Normal is used"
            self.tell(driver, "OperatorLogLevelInvalid", message, warning=True)
        level = level or LogLevel.NORMAL
        is_first = not self._log_level
        self._log_level = stated
        configure(self._settings.logging_level if level is LogLevel.NORMAL else level.name_here)
        if not is_first or level is not LogLevel.NORMAL:
            self.tell(driver, "OperatorLogLevelChange", f"the operator logs at level {level}")


def _type(warning: bool) -> EventType:
    return EventType.WARNING if warning else EventType.NORMAL
