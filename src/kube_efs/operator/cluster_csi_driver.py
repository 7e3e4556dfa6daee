"""The resource ``ClusterCSIDriver`` as a value (openshift/api, operator/v1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kube_efs.operator.manifests import Manifest

FINALIZER: Final = "kube-efs-operator.operator.openshift.io/uninstall"
# Of the operator that kube-efs replaces: no other program would ever remove them.
OLDER_FINALIZERS: Final = frozenset(
    f"aws-efs-csi-driver-operator.operator.openshift.io/{name}"
    for name in (
        "AWSEFSDriverNodeServiceController",
        "AWSEFSDriverControllerServiceController",
        "CSIStaticResourceController",
    )
)
# The greatest values that `kube-efs node` accepts.
_COUNT_MAX_SECONDS: Final = 7 * 86400
_COUNT_MAX_VOLUMES: Final = 1000
FORCE_UNINSTALL: Final = "efs.csi.aws.com/uninstall-while-mounted"
FORCE_TAKEOVER: Final = "efs.csi.aws.com/take-over-while-mounted"
# The namespace of the operator that manages the driver, while the driver is installed and after that.
OPERATOR_NAMESPACE: Final = "efs.csi.aws.com/operator-namespace"


class ManagementState(StrEnum):
    """``managementState``; UNKNOWN is any value that the operator does not support."""

    MANAGED = "Managed"
    UNMANAGED = "Unmanaged"
    REMOVED = "Removed"
    UNKNOWN = "Unknown"


class LogLevel(StrEnum):
    """``logLevel`` and ``operatorLogLevel``."""

    NORMAL = "Normal"
    DEBUG = "Debug"
    TRACE = "Trace"
    TRACE_ALL = "TraceAll"

    @property
    def logging_level(self) -> str:
        """The nearest value of LOGGING_LEVEL."""
        return "INFO" if self is LogLevel.NORMAL else "DEBUG"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverResource:
    """The specification that an administrator wrote, and the status that was written last.

    ``stated_state`` is the text of ``managementState``; empty counts as Managed. ``volume_metrics`` are the
    variables of the nodes for ``driverConfig.aws.efsVolumeMetrics``. ``operator_namespace`` is that of the
    operator that has installed the driver, empty before that.
    """

    uid: str
    version: str
    generation: int = 0
    stated_state: str = ""
    state: ManagementState = ManagementState.MANAGED
    log_level: LogLevel = LogLevel.NORMAL
    operator_log_level: str = ""
    volume_metrics: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    forces_uninstall: bool = False
    forces_takeover: bool = False
    operator_namespace: str = ""
    status: Manifest = field(default_factory=lambda: MappingProxyType({}))

    @property
    def own_finalizers(self) -> frozenset[str]:
        """The finalizers that only this operator removes."""
        return frozenset(self.finalizers) & {FINALIZER, *OLDER_FINALIZERS}

    @property
    def has_older_finalizers(self) -> bool:
        """Whether an older operator manages the driver, or did before this one."""
        return not OLDER_FINALIZERS.isdisjoint(self.finalizers)


def read_driver_resource(found: Manifest) -> DriverResource:
    """The resource as the API has it; values that are not valid count as absent."""
    metadata, spec, status = (found.get(name) or {} for name in ("metadata", "spec", "status"))
    stated = str(spec.get("managementState") or "")
    states = {state.value: state for state in ManagementState if state is not ManagementState.UNKNOWN}
    annotations = metadata.get("annotations") or {}
    return DriverResource(
        uid=metadata.get("uid") or "",
        version=metadata.get("resourceVersion") or "",
        generation=metadata.get("generation") or 0,
        stated_state=stated,
        state=states.get(stated or ManagementState.MANAGED, ManagementState.UNKNOWN),
        log_level=read_log_level(str(spec.get("logLevel") or "")) or LogLevel.NORMAL,
        operator_log_level=str(spec.get("operatorLogLevel") or ""),
        volume_metrics=read_volume_metrics(spec.get("driverConfig")),
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        forces_uninstall=_is_true(annotations, FORCE_UNINSTALL),
        forces_takeover=_is_true(annotations, FORCE_TAKEOVER),
        operator_namespace=annotations.get(OPERATOR_NAMESPACE) or "",
        status=status,
    )


def read_log_level(text: str) -> LogLevel | None:
    """A level; empty is Normal, and None stands for an invalid level."""
    try:
        return LogLevel(text or LogLevel.NORMAL)
    except ValueError:
        return None


def read_volume_metrics(driver_config: object) -> Mapping[str, str]:
    """The variables of the nodes for ``driverConfig.aws.efsVolumeMetrics``; none unless it is enabled.

    OpenShift limits the numbers. In other clusters, numbers that are not valid count as absent. The period is
    at most that of the setting.
    """
    metrics = _mapping(_mapping(_mapping(driver_config).get("aws")).get("efsVolumeMetrics"))
    if metrics.get("state") != "RecursiveWalk":
        return MappingProxyType({})
    walk = _mapping(metrics.get("recursiveWalk"))
    minutes, volumes = _positive(walk.get("refreshPeriodMinutes")), _positive(walk.get("fsRateLimit"))
    variables = {"KUBE_EFS_VOLUME_METRICS": "true", "KUBE_EFS_VOLUME_METRICS_COUNT_FILES": "true"}
    if minutes:
        seconds = min(minutes * 60, _COUNT_MAX_SECONDS)
        variables["KUBE_EFS_VOLUME_METRICS_COUNT_REFRESH_SECONDS"] = str(seconds)
    if volumes:
        limit = min(volumes, _COUNT_MAX_VOLUMES)
        variables["KUBE_EFS_VOLUME_METRICS_COUNT_RATE_LIMIT"] = str(limit)
    return MappingProxyType(variables)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _is_true(annotations: Mapping[str, str], name: str) -> bool:
    return annotations.get(name, "").lower() == "true"
