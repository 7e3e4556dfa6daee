"""The conditions and generations of the driver's status, from what came of a pass. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kube_efs.operator.conditions import AS_EXPECTED, Condition, Generation, Part, generation_of
from kube_efs.operator.driver import Driver, ManagementState
from kube_efs.operator.injecting import CREDENTIALS_SECRET
from kube_efs.operator.installing import Report
from kube_efs.operator.kinds import WORKLOADS, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.rollouts import is_available, progress
from kube_efs.operator.takeover import Takeover
from kube_efs.operator.uninstalling import Removal

DEPLOYING: Final = "Deploying"
_SYNC_ERROR: Final = "SyncError"
_NOT_PROVISIONED: Final = "CredentialsNotProvisionedYet"
_CREDENTIALS_SECRET: Final = "CredentialsSecretFound"  # noqa: S105 - the type of a condition
_PODS: Final = (Part.TUNNEL, Part.NODE, Part.CONTROLLER)


def management_condition(driver: Driver) -> Condition:
    """Whether the state that is asked for has a meaning, and that an empty one counts as Managed."""
    if driver.state is ManagementState.UNKNOWN:
        message = (
            f"managementState {driver.stated_state!r} is not supported; use Managed, Unmanaged or Removed"
        )
        return Condition(type="ManagementStateDegraded", status=True, reason="Unknown", message=message)
    message = "" if driver.stated_state else "managementState is not set, which counts as Managed"
    return Condition(type="ManagementStateDegraded", status=False, message=message)


def installed_conditions(
    report: Report, takeover: Takeover, *, has_credentials: bool = False
) -> tuple[Condition, ...]:
    """The status of a managed installation; ``has_credentials``: whether their Secret exists."""
    parts = [condition for part in Part for condition in _of_part(part, report)]
    older = Condition(type="OlderDriverInUse", status=bool(takeover.waits), message=takeover.waits)
    return (*parts, older, _source_of_credentials(has_credentials), *_overall(parts, takeover.waits))


def obstructed_conditions(obstacle: str) -> tuple[Condition, ...]:
    """What to say while another operator manages the driver, and nothing is touched."""
    return (
        Condition(type=f"{Part.STATIC}Degraded", status=True, reason="OlderOperatorRuns", message=obstacle),
        Condition(type="Available", status=False, reason="OlderOperatorRuns", message=obstacle),
        Condition(type="Progressing", status=False),
        Condition(type="Degraded", status=True, reason="OlderOperatorRuns", message=obstacle),
    )


def removal_conditions(removal: Removal) -> tuple[Condition, ...]:
    """What to say of an installation that is being removed, or is."""
    in_use = "VolumesInUse"
    reason = in_use if removal.blocked else "Removing" if removal.waits else "Removed"
    message = removal.blocked or removal.waits
    return (
        Condition(
            type=in_use,
            status=bool(removal.blocked),
            reason=in_use if removal.blocked else AS_EXPECTED,
            message=removal.blocked,
        ),
        Condition(type="Available", status=bool(removal.blocked), reason=reason, message=message),
        Condition(type="Progressing", status=not removal.done, reason=reason, message=message),
        Condition(type="Degraded", status=False),
    )


def failed_conditions(error: str) -> tuple[Condition, ...]:
    """The status when the desired state is not known."""
    return (
        Condition(type="ConfigObservationDegraded", status=True, reason="Error", message=error),
        Condition(type="Degraded", status=True, reason="Error", message=error),
    )


def generations_of(report: Report) -> tuple[Generation, ...]:
    """Of each workload, and of the request for credentials."""
    recorded = {*WORKLOADS, "CredentialsRequest"}
    return tuple(
        generation_of(reference_of(one), one["metadata"].get("generation") or 0)
        for objects in report.objects.values()
        for one in objects
        if one["kind"] in recorded
    )


def ready_replicas(report: Report) -> int:
    """How many controllers work."""
    controller = report.workloads.get(Part.CONTROLLER) or {}
    return int((controller.get("status") or {}).get("readyReplicas") or 0)


def laid_over(new: Iterable[Condition], before: Iterable[Condition]) -> tuple[Condition, ...]:
    """The new conditions, and those of before that belong to other writers."""
    stated = tuple(new)
    types = {one.type for one in stated}
    foreign = [one for one in before if one.type not in types and not _is_own(one.type)]
    return (*sorted(stated, key=lambda one: one.type), *foreign)


def _source_of_credentials(has_secret: bool) -> Condition:
    there = "there is a" if has_secret else "there is no"
    used = "its keys or role" if has_secret else "the role of its service account or instance"
    return Condition(
        type=_CREDENTIALS_SECRET,
        status=has_secret,
        message=f"{there} Secret {CREDENTIALS_SECRET}: the controller uses {used}",
    )


def _of_part(part: Part, report: Report) -> Iterator[Condition]:
    errors = report.errors.get(part, [])
    if part is Part.CREDENTIALS and not (errors or report.objects.get(part)):
        return
    absent = part is Part.MONITOR and bool(report.missing_kinds)
    message = "; ".join(errors) or ("the cluster has no ServiceMonitors" if absent else "")
    yield Condition(
        type=f"{part}Degraded",
        status=bool(errors),
        reason=_SYNC_ERROR if errors else AS_EXPECTED,
        message=message,
    )
    if part in _PODS:
        yield from _of_pods(part, report)
    elif part is Part.CREDENTIALS:
        yield from _of_credentials(report)


def _of_pods(part: Part, report: Report) -> Iterator[Condition]:
    workload = report.workloads.get(part)
    available = workload is not None and is_available(workload)
    coming = "; ".join(report.waits.get(part, ())) or (progress(workload) if workload else "not created yet")
    yield Condition(type=f"{part}Available", status=available, reason=AS_EXPECTED if available else DEPLOYING)
    yield Condition(
        type=f"{part}Progressing",
        status=bool(coming),
        reason=DEPLOYING if coming else AS_EXPECTED,
        message=coming,
    )


def _of_credentials(report: Report) -> Iterator[Condition]:
    requests: list[Manifest] = report.objects.get(Part.CREDENTIALS, [])
    provisioned = all(_provisioned(one) for one in requests)
    reason = AS_EXPECTED if provisioned else _NOT_PROVISIONED
    yield Condition(type=f"{Part.CREDENTIALS}Available", status=provisioned, reason=reason)
    yield Condition(type=f"{Part.CREDENTIALS}Progressing", status=not provisioned, reason=reason)


def _provisioned(request: Manifest) -> bool:
    status: Mapping[str, Any] = request.get("status") or {}
    return bool(status.get("provisioned"))


def _overall(parts: Iterable[Condition], waits: str) -> Iterator[Condition]:
    """The three that summarize; degraded or not, what works is available."""
    by_end = {
        end: [one for one in parts if one.type.endswith(end)]
        for end in ("Available", "Progressing", "Degraded")
    }
    missing = [one for one in by_end["Available"] if not one.status]
    yield Condition(
        type="Available",
        status=not missing,
        reason=missing[0].reason if missing else AS_EXPECTED,
        message="; ".join(f"{one.type} is false" for one in missing),
    )
    coming = [one.message for one in by_end["Progressing"] if one.status] + ([waits] if waits else [])
    yield Condition(
        type="Progressing",
        status=bool(coming),
        reason=DEPLOYING if coming else AS_EXPECTED,
        message="; ".join(filter(None, coming)),
    )
    bad = [one for one in by_end["Degraded"] if one.status]
    yield Condition(
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
        or condition_type.startswith(tuple(Part))
    )
