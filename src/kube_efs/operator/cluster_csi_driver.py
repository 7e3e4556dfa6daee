"""The resource ``ClusterCSIDriver`` as a value (openshift/api, operator/v1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kube_efs.operator.manifests import Manifest

DRIVER_NAME: Final = "efs.csi.aws.com"
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
FORCE_UNINSTALL: Final = "efs.csi.aws.com/uninstall-while-mounted"
FORCE_TAKEOVER: Final = "efs.csi.aws.com/take-over-while-mounted"


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

    ``stated_state`` is the text of ``managementState``; empty counts as Managed.
    """

    uid: str
    version: str
    generation: int = 0
    stated_state: str = ""
    state: ManagementState = ManagementState.MANAGED
    log_level: LogLevel = LogLevel.NORMAL
    operator_log_level: str = ""
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    forces_uninstall: bool = False
    forces_takeover: bool = False
    status: Manifest = field(default_factory=lambda: MappingProxyType({}))

    @property
    def own_finalizers(self) -> frozenset[str]:
        """The finalizers that only this operator removes."""
        return frozenset(self.finalizers) & {FINALIZER, *OLDER_FINALIZERS}


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
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        forces_uninstall=_is_true(annotations, FORCE_UNINSTALL),
        forces_takeover=_is_true(annotations, FORCE_TAKEOVER),
        status=status,
    )


def read_log_level(text: str) -> LogLevel | None:
    """A level; empty is Normal, and None stands for an invalid level."""
    try:
        return LogLevel(text or LogLevel.NORMAL)
    except ValueError:
        return None


def _is_true(annotations: Mapping[str, str], name: str) -> bool:
    return annotations.get(name, "").lower() == "true"
