"""The ``ClusterCSIDriver`` as a value (openshift/api, operator/v1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kube_efs.operator.conditions import Generation, OperatorCondition, read_conditions, read_generations
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
    """Who manages the driver; UNKNOWN is any value that has no meaning here."""

    MANAGED = "Managed"
    UNMANAGED = "Unmanaged"
    REMOVED = "Removed"
    UNKNOWN = "Unknown"


class LogLevel(StrEnum):
    """How much is logged."""

    NORMAL = "Normal"
    DEBUG = "Debug"
    TRACE = "Trace"
    TRACE_ALL = "TraceAll"

    @property
    def name_here(self) -> str:
        """The level of LOGGING_LEVEL that comes nearest."""
        return "INFO" if self is LogLevel.NORMAL else "DEBUG"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverResource:
    """What an administrator wants, and what was said of it last.

    ``stated_state`` is the text that ``state`` was read from; empty counts as Managed.
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
    conditions: tuple[OperatorCondition, ...] = ()
    generations: tuple[Generation, ...] = ()
    status: Manifest | None = None

    @property
    def own_finalizers(self) -> frozenset[str]:
        """Those that only this operator removes."""
        return frozenset(self.finalizers) & {FINALIZER, *OLDER_FINALIZERS}


def read_driver_resource(found: Manifest) -> DriverResource:
    """The resource as the API has it; what cannot be understood is left out."""
    metadata, spec, status = (found.get(part) or {} for part in ("metadata", "spec", "status"))
    stated = str(spec.get("managementState") or "")
    annotations = metadata.get("annotations") or {}
    return DriverResource(
        uid=metadata.get("uid") or "",
        version=metadata.get("resourceVersion") or "",
        generation=metadata.get("generation") or 0,
        stated_state=stated,
        state=_state(stated),
        log_level=read_log_level(str(spec.get("logLevel") or "")) or LogLevel.NORMAL,
        operator_log_level=str(spec.get("operatorLogLevel") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        forces_uninstall=_is_true(annotations, FORCE_UNINSTALL),
        forces_takeover=_is_true(annotations, FORCE_TAKEOVER),
        conditions=read_conditions(status.get("conditions") or ()),
        generations=read_generations(status.get("generations") or ()),
        status=status,
    )


def read_log_level(text: str) -> LogLevel | None:
    """A level; empty is Normal, and None stands for an invalid level."""
    try:
        return LogLevel(text or LogLevel.NORMAL)
    except ValueError:
        return None


def _state(stated: str) -> ManagementState:
    known = {state.value: state for state in ManagementState if state is not ManagementState.UNKNOWN}
    return known.get(stated or ManagementState.MANAGED, ManagementState.UNKNOWN)


def _is_true(annotations: Mapping[str, str], name: str) -> bool:
    return annotations.get(name, "").lower() == "true"
