"""The conditions and generations of the driver's status, from what came of a pass. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kube_efs.operator.cluster_csi_driver import DriverResource, ManagementState
from kube_efs.operator.conditions import AS_EXPECTED, Component, Generation, OperatorCondition, generation_of
from kube_efs.operator.injection import CREDENTIALS_SECRET
from kube_efs.operator.installer import InstallResult
from kube_efs.operator.kinds import WORKLOADS, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.rollouts import is_available, progress
from kube_efs.operator.takeover import TakeoverProgress
from kube_efs.operator.uninstaller import UninstallProgress

DEPLOYING: Final = "Deploying"
_SYNC_ERROR: Final = "SyncError"
_NOT_PROVISIONED: Final = "CredentialsNotProvisionedYet"
_CREDENTIALS_SECRET: Final = "CredentialsSecretFound"  # noqa: S105 - the type of a condition
_PODS: Final = (Component.TUNNEL, Component.NODE, Component.CONTROLLER)


def management_condition(driver: DriverResource) -> OperatorCondition:
    """Whether the state that is asked for has a meaning, and that an empty one counts as Managed."""
    if driver.state is ManagementState.UNKNOWN:
        message = (
            f"managementState {driver.stated_state!r} is not supported; use Managed, Unmanaged or Removed"
        )
        return OperatorCondition(
            type="ManagementStateDegraded", status=True, reason="Unknown", message=message
        )
    message = "" if driver.stated_state else "managementState is not set, which counts as Managed"
    return OperatorCondition(type="ManagementStateDegraded", status=False, message=message)


def installed_conditions(
    report: InstallResult, takeover: TakeoverProgress, *, has_credentials: bool = False
) -> tuple[OperatorCondition, ...]:
    """The status of a managed installation; ``has_credentials``: whether their Secret exists."""
    parts = [condition for component in Component for condition in _of_part(component, report)]
    older = OperatorCondition(type="OlderDriverInUse", status=bool(takeover.waits), message=takeover.waits)
    return (*parts, older, _source_of_credentials(has_credentials), *_overall(parts, takeover.waits))


def blocked_conditions(obstacle: str) -> tuple[OperatorCondition, ...]:
    """What to say while another operator manages the driver, and nothing is touched."""
    return (
        OperatorCondition(
            type=f"{Component.STATIC}Degraded", status=True, reason="OlderOperatorRuns", message=obstacle
        ),
        OperatorCondition(type="Available", status=False, reason="OlderOperatorRuns", message=obstacle),
        OperatorCondition(type="Progressing", status=False),
        OperatorCondition(type="Degraded", status=True, reason="OlderOperatorRuns", message=obstacle),
    )


def uninstall_conditions(removal: UninstallProgress) -> tuple[OperatorCondition, ...]:
    """What to say of an installation that is being removed, or is."""
    in_use = "VolumesInUse"
    reason = in_use if removal.blocked else "Removing" if removal.waits else "Removed"
    message = removal.blocked or removal.waits
    return (
        OperatorCondition(
            type=in_use,
            status=bool(removal.blocked),
            reason=in_use if removal.blocked else AS_EXPECTED,
            message=removal.blocked,
        ),
        OperatorCondition(type="Available", status=bool(removal.blocked), reason=reason, message=message),
        OperatorCondition(type="Progressing", status=not removal.done, reason=reason, message=message),
        OperatorCondition(type="Degraded", status=False),
    )


def failed_conditions(error: str) -> tuple[OperatorCondition, ...]:
    """The status when the desired state is not known."""
    return (
        OperatorCondition(type="ConfigObservationDegraded", status=True, reason="Error", message=error),
        OperatorCondition(type="Degraded", status=True, reason="Error", message=error),
    )


def generations_of(report: InstallResult) -> tuple[Generation, ...]:
    """Of each workload, and of the request for credentials."""
    recorded = {*WORKLOADS, "CredentialsRequest"}
    return tuple(
        generation_of(reference_of(one), one["metadata"].get("generation") or 0)
        for objects in report.objects.values()
        for one in objects
        if one["kind"] in recorded
    )


def ready_replicas(report: InstallResult) -> int:
    """How many controllers work."""
    controller = report.workloads.get(Component.CONTROLLER) or {}
    return int((controller.get("status") or {}).get("readyReplicas") or 0)


def merge_conditions(
    new: Iterable[OperatorCondition], before: Iterable[OperatorCondition]
) -> tuple[OperatorCondition, ...]:
    """The new conditions, and those of before that belong to other writers."""
    stated = tuple(new)
    types = {one.type for one in stated}
    foreign = [one for one in before if one.type not in types and not _is_own(one.type)]
    return (*sorted(stated, key=lambda one: one.type), *foreign)


def _source_of_credentials(has_secret: bool) -> OperatorCondition:
    there = "there is a" if has_secret else "there is no"
    used = "its keys or role" if has_secret else "the role of its service account or instance"
    return OperatorCondition(
        type=_CREDENTIALS_SECRET,
        status=has_secret,
        message=f"{there} Secret {CREDENTIALS_SECRET}: the controller uses {used}",
    )


def _of_part(component: Component, report: InstallResult) -> Iterator[OperatorCondition]:
    errors = report.errors.get(component, [])
    if component is Component.CREDENTIALS and not (errors or report.objects.get(component)):
        return
    absent = component is Component.MONITOR and bool(report.missing_kinds)
    message = "; ".join(errors) or ("the cluster has no ServiceMonitors" if absent else "")
    yield OperatorCondition(
        type=f"{component}Degraded",
        status=bool(errors),
        reason=_SYNC_ERROR if errors else AS_EXPECTED,
        message=message,
    )
    if component in _PODS:
        yield from _of_pods(component, report)
    elif component is Component.CREDENTIALS:
        yield from _of_credentials(report)


def _of_pods(component: Component, report: InstallResult) -> Iterator[OperatorCondition]:
    workload = report.workloads.get(component)
    available = workload is not None and is_available(workload)
    coming = "; ".join(report.waits.get(component, ())) or (
        progress(workload) if workload else "not created yet"
    )
    yield OperatorCondition(
        type=f"{component}Available", status=available, reason=AS_EXPECTED if available else DEPLOYING
    )
    yield OperatorCondition(
        type=f"{component}Progressing",
        status=bool(coming),
        reason=DEPLOYING if coming else AS_EXPECTED,
        message=coming,
    )


def _of_credentials(report: InstallResult) -> Iterator[OperatorCondition]:
    requests: list[Manifest] = report.objects.get(Component.CREDENTIALS, [])
    provisioned = all(_provisioned(one) for one in requests)
    reason = AS_EXPECTED if provisioned else _NOT_PROVISIONED
    yield OperatorCondition(type=f"{Component.CREDENTIALS}Available", status=provisioned, reason=reason)
    yield OperatorCondition(type=f"{Component.CREDENTIALS}Progressing", status=not provisioned, reason=reason)


def _provisioned(request: Manifest) -> bool:
    status: Mapping[str, Any] = request.get("status") or {}
    return bool(status.get("provisioned"))


def _overall(parts: Iterable[OperatorCondition], waits: str) -> Iterator[OperatorCondition]:
    """The three that summarize; degraded or not, what works is available."""
    by_end = {
        end: [one for one in parts if one.type.endswith(end)]
        for end in ("Available", "Progressing", "Degraded")
    }
    missing = [one for one in by_end["Available"] if not one.status]
    yield OperatorCondition(
        type="Available",
        status=not missing,
        reason=missing[0].reason if missing else AS_EXPECTED,
        message="; ".join(f"{one.type} is false" for one in missing),
    )
    coming = [one.message for one in by_end["Progressing"] if one.status] + ([waits] if waits else [])
    yield OperatorCondition(
        type="Progressing",
        status=bool(coming),
        reason=DEPLOYING if coming else AS_EXPECTED,
        message="; ".join(filter(None, coming)),
    )
    bad = [one for one in by_end["Degraded"] if one.status]
    yield OperatorCondition(
        type="Degraded",
        status=bool(bad),
        reason=bad[0].reason if bad else AS_EXPECTED,
        message="; ".join(f"{one.type}: {one.message}" for one in bad),
    )


def _is_own(condition_type: str) -> bool:
    """Whether only this operator, or the one before it, writes such a condition."""
    own = {"Available", "Progressing", "Degraded", "VolumesInUse", "OlderDriverInUse", _CREDENTIALS_SECRET}
    return (
        condition_type in own
        or condition_type in {"ConfigObservationDegraded", "ManagementStateDegraded"}
        or condition_type.startswith(tuple(Component))
    )
