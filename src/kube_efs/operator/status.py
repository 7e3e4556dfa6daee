"""The status of the ClusterCSIDriver: its conditions, in the form of OpenShift's operators. No I/O.

OpenShift reads the condition types by their names: ``Available``, ``Progressing`` and ``Degraded`` with a
prefix for each part. A condition keeps its time of transition while its status stays, so that a status is
written only when something has changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final

from kube_efs.operator.cluster_csi_driver import DriverResource, ManagementState
from kube_efs.operator.cluster_facts import CREDENTIALS_SECRET
from kube_efs.operator.desired_objects import Component
from kube_efs.operator.installer import InstallResult
from kube_efs.operator.kinds import WORKLOADS
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.progress import Progress, is_available, is_stable, rollout_progress

AS_EXPECTED: Final = "AsExpected"
DEPLOYING: Final = "Deploying"
OLDER_OPERATOR_RUNS: Final = "OlderOperatorRuns"
OTHER_OPERATOR: Final = "AnotherInstallation"
VOLUMES_IN_USE: Final = "VolumesInUse"
_CREDENTIALS_SECRET: Final = "CredentialsSecretFound"  # noqa: S105 - the type of a condition
_HAVE_PODS: Final = (Component.TUNNEL, Component.NODE, Component.CONTROLLER)
_SYNC_ERROR: Final = "SyncError"
_REMOVED: Final = "Removed"
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_MESSAGE_MAX_CHARACTERS: Final = 4096
_OWN_TYPES: Final = frozenset(
    {
        "Available",
        "Progressing",
        "Degraded",
        "ConfigObservationDegraded",
        "ManagementStateDegraded",
        "OlderDriverInUse",
        VOLUMES_IN_USE,
        _CREDENTIALS_SECRET,
    }
)
# The controllers of OpenShift's operator have these names, also those that kube-efs does not have.
_OWN_PREFIXES: Final = ("AWSEFS", Component.STATIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCondition:
    """One of ``status.conditions``; ``since`` is the time of its last transition, None for now."""

    type: str
    status: bool
    reason: str = AS_EXPECTED
    message: str = ""
    since: str | None = field(default=None, compare=False)


def render_status(
    driver: DriverResource,
    conditions: Iterable[OperatorCondition],
    result: InstallResult | None,
    now: datetime,
) -> dict[str, Any]:
    """The fields of the status that this operator writes.

    ``result`` is what is installed now. It is None if the pass did not find that out, for example after an
    error: everything that the conditions do not say then stays as it was last seen.
    """
    before = read_conditions(driver.status.get("conditions") or ())
    merged = merge_conditions(
        (management_condition(driver), *conditions), before, complete=result is not None
    )
    if result is None:
        generations = list(driver.status.get("generations") or ())
        is_removed = any(
            one.type == f"{Component.CONTROLLER}Available" and one.reason == _REMOVED for one in merged
        )
        ready = 0 if is_removed else int(driver.status.get("readyReplicas") or 0)
    else:
        generations = render_generations(result)
        controller = result.workloads.get(Component.CONTROLLER) or {}
        ready = int((controller.get("status") or {}).get("readyReplicas") or 0)
    return {
        "conditions": render_conditions(merged, before, now),
        "generations": generations,
        "observedGeneration": driver.generation,
        "readyReplicas": ready,
        "version": version("kube-efs"),
    }


def read_conditions(found: Iterable[Mapping[str, Any]]) -> tuple[OperatorCondition, ...]:
    """The conditions of a resource."""
    return tuple(
        OperatorCondition(
            type=one.get("type") or "",
            status=one.get("status") == "True",
            reason=one.get("reason") or "",
            message=one.get("message") or "",
            since=one.get("lastTransitionTime"),
        )
        for one in found
    )


def merge_conditions(
    new: Iterable[OperatorCondition], before: Iterable[OperatorCondition], *, complete: bool
) -> tuple[OperatorCondition, ...]:
    """The new conditions, the earlier ones of other writers, and those of ours that are not new.

    ``complete``: the new ones are all of ours. Others of our types are then removed. An older operator wrote
    them, or they no longer apply.
    """
    own = tuple(new)
    types = {one.type for one in own}
    kept = [one for one in before if one.type not in types and not (complete and _is_own(one.type))]
    return tuple(sorted((*own, *kept), key=lambda one: (not _is_own(one.type), one.type)))


def _is_own(condition_type: str) -> bool:
    """Whether only this operator, or an older one that it replaces, writes conditions of this type."""
    return condition_type in _OWN_TYPES or condition_type.startswith(_OWN_PREFIXES)


def render_conditions(
    conditions: Iterable[OperatorCondition], before: Iterable[OperatorCondition], now: datetime
) -> list[dict[str, str]]:
    """As the API has them; the time of a condition changes only with its status."""
    since = {(one.type, one.status): one.since for one in before}
    moment = now.astimezone(UTC).strftime(_TIME_FORMAT)
    return [
        {
            "type": one.type,
            "status": str(one.status),
            "reason": one.reason,
            "message": one.message[:_MESSAGE_MAX_CHARACTERS],
            "lastTransitionTime": since.get((one.type, one.status)) or moment,
        }
        for one in conditions
    ]


def render_generations(result: InstallResult) -> list[dict[str, Any]]:
    """The generations of the workloads and of the CredentialsRequest, as the API has them."""
    groups = {**dict.fromkeys(WORKLOADS, "apps"), "CredentialsRequest": "cloudcredential.openshift.io"}
    return [
        {
            "group": groups[one["kind"]],
            "resource": f"{one['kind'].lower()}s",
            "namespace": one["metadata"].get("namespace") or "",
            "name": one["metadata"]["name"],
            "lastGeneration": one["metadata"].get("generation") or 0,
            "hash": "",
        }
        for objects in result.objects.values()
        for one in objects
        if one["kind"] in groups
    ]


def management_condition(driver: DriverResource) -> OperatorCondition:
    """Whether ``managementState`` is supported."""
    if driver.state is ManagementState.UNKNOWN:
        message = (
            f"managementState {driver.stated_state!r} is not supported; use Managed, Unmanaged or Removed"
        )
        return OperatorCondition(
            type="ManagementStateDegraded", status=True, reason="Unknown", message=message
        )
    message = "" if driver.stated_state else "managementState is not set, which counts as Managed"
    return OperatorCondition(type="ManagementStateDegraded", status=False, message=message)


def failed_conditions(error: str) -> tuple[OperatorCondition, ...]:
    """The operator could not determine the desired objects."""
    return (
        _observation_condition(error),
        OperatorCondition(type="Degraded", status=True, reason="Error", message=error),
    )


def unmanaged_conditions(before: Iterable[OperatorCondition]) -> tuple[OperatorCondition, ...]:
    """The operator changes nothing, so nothing fails. As in library-go, the others stay as last seen."""
    degraded = {
        one.type for one in before if _is_own(one.type) and one.type.endswith("Degraded") and one.status
    }
    return tuple(
        OperatorCondition(type=name, status=False) for name in sorted(degraded - {"ManagementStateDegraded"})
    )


def blocked_conditions(reason: str, message: str) -> tuple[OperatorCondition, ...]:
    """Another operator manages the driver, so this one changes nothing.

    That operator writes the conditions of the components, so this one does not.
    """
    blocked = {"reason": reason, "message": message}
    return (
        OperatorCondition(type="Available", status=False, **blocked),
        OperatorCondition(type="Progressing", status=False),
        OperatorCondition(type="Degraded", status=True, **blocked),
        _observation_condition(""),
    )


def announced_conditions(causes: Mapping[Component, str]) -> tuple[OperatorCondition, ...]:
    """The operator is about to replace the pods of these components, for these reasons."""
    reasons = "; ".join(dict.fromkeys(causes.values()))
    return (
        *(
            OperatorCondition(type=f"{component}Progressing", status=True, reason=DEPLOYING, message=cause)
            for component, cause in causes.items()
        ),
        OperatorCondition(type="Progressing", status=True, reason=DEPLOYING, message=reasons),
    )


def uninstall_conditions(progress: Progress) -> tuple[OperatorCondition, ...]:
    """The installation is being removed, or is removed."""
    reason = VOLUMES_IN_USE if progress.blocked else _REMOVED if progress.done else "Removing"
    message = progress.blocked or progress.waiting
    errors = "; ".join(progress.errors)
    return (
        *(
            condition
            for one in _HAVE_PODS
            if progress.done or one in progress.removed
            for condition in (
                OperatorCondition(type=f"{one}Available", status=False, reason=_REMOVED),
                OperatorCondition(type=f"{one}Progressing", status=False, reason=_REMOVED),
                _degraded(one, ""),
            )
        ),
        *(
            OperatorCondition(type=name, status=False)
            for name in (f"{Component.MONITOR}Degraded", "OlderDriverInUse")
            if progress.done
        ),
        _degraded(Component.STATIC, errors),
        _observation_condition(""),
        OperatorCondition(
            type=VOLUMES_IN_USE,
            status=bool(progress.blocked),
            reason=VOLUMES_IN_USE if progress.blocked else AS_EXPECTED,
            message=progress.blocked,
        ),
        OperatorCondition(
            type="Available",
            status=not progress.done and Component.CONTROLLER not in progress.removed,
            reason=reason,
            message=message,
        ),
        OperatorCondition(type="Progressing", status=not progress.done, reason=reason, message=message),
        OperatorCondition(
            type="Degraded",
            status=bool(errors),
            reason=_SYNC_ERROR if errors else AS_EXPECTED,
            message=errors,
        ),
    )


def installed_conditions(
    result: InstallResult,
    takeover: Progress,
    *,
    has_credentials: bool = False,
    observation_error: str = "",
    causes: Mapping[Component, str] = MappingProxyType({}),
) -> tuple[OperatorCondition, ...]:
    """The driver is managed.

    ``has_credentials``: whether the Secret with credentials exists. ``observation_error``: which settings of
    the cluster are not used, such as those that could not be read, and why. ``causes``: why pods are being
    replaced.
    """
    components = [
        condition for component in Component for condition in _of_component(component, result, causes)
    ]
    observation = _observation_condition(observation_error)
    there = "there is a" if has_credentials else "there is no"
    used = "its keys or role" if has_credentials else "the role of its service account or instance"
    return (
        *components,
        observation,
        OperatorCondition(type="OlderDriverInUse", status=bool(takeover.waiting), message=takeover.waiting),
        OperatorCondition(type=VOLUMES_IN_USE, status=False),
        OperatorCondition(
            type=_CREDENTIALS_SECRET,
            status=has_credentials,
            message=f"{there} Secret {CREDENTIALS_SECRET}: the controller uses {used}",
        ),
        *_summary([*components, observation], takeover.waiting),
    )


def _observation_condition(error: str) -> OperatorCondition:
    reason = "Error" if error else AS_EXPECTED
    return OperatorCondition(
        type="ConfigObservationDegraded", status=bool(error), reason=reason, message=error
    )


def _degraded(component: Component, errors: str, message: str = "") -> OperatorCondition:
    return OperatorCondition(
        type=f"{component}Degraded",
        status=bool(errors),
        reason=_SYNC_ERROR if errors else AS_EXPECTED,
        message=errors or message,
    )


def _of_component(
    component: Component, result: InstallResult, causes: Mapping[Component, str]
) -> Iterator[OperatorCondition]:
    errors = result.errors.get(component, [])
    if component is Component.CREDENTIALS and not (errors or result.objects.get(component)):
        return
    has_no_monitors = component is Component.MONITOR and bool(result.missing_kinds)
    message = "the cluster has no ServiceMonitors" if has_no_monitors else ""
    if component in _HAVE_PODS:
        yield _degraded(component, "; ".join(errors), message)
        yield from _of_pods(component, result, causes.get(component, ""))
        return
    yield _degraded(component, "; ".join(errors), "; ".join(result.waiting.get(component, ())) or message)
    if component is Component.CREDENTIALS:
        yield from _of_credentials(result.objects.get(component, []))


def _of_pods(component: Component, result: InstallResult, cause: str) -> Iterator[OperatorCondition]:
    workload = result.workloads.get(component)
    available = workload is not None and is_available(workload)
    waiting = "; ".join(result.waiting.get(component, ()))
    pending = waiting or (rollout_progress(workload) if workload else "not created yet")
    progressing = bool(pending) and not (workload and is_stable(workload) and not waiting)
    yield OperatorCondition(
        type=f"{component}Available", status=available, reason=AS_EXPECTED if available else DEPLOYING
    )
    yield OperatorCondition(
        type=f"{component}Progressing",
        status=progressing,
        reason=DEPLOYING if progressing else AS_EXPECTED,
        message=f"{cause}: {pending}" if progressing and cause else pending,
    )


def _of_credentials(requests: Iterable[Manifest]) -> Iterator[OperatorCondition]:
    provisioned = all(bool((one.get("status") or {}).get("provisioned")) for one in requests)
    reason = AS_EXPECTED if provisioned else "CredentialsNotProvisionedYet"
    yield OperatorCondition(type=f"{Component.CREDENTIALS}Available", status=provisioned, reason=reason)
    yield OperatorCondition(type=f"{Component.CREDENTIALS}Progressing", status=not provisioned, reason=reason)


def _summary(components: Iterable[OperatorCondition], takeover_waiting: str) -> Iterator[OperatorCondition]:
    """Available, Progressing and Degraded of the whole. A degraded installation may be available."""
    by_suffix = {
        suffix: [one for one in components if one.type.endswith(suffix)]
        for suffix in ("Available", "Progressing", "Degraded")
    }
    missing = [one for one in by_suffix["Available"] if not one.status]
    yield OperatorCondition(
        type="Available",
        status=not missing,
        reason=missing[0].reason if missing else AS_EXPECTED,
        message="; ".join(f"{one.type} is false" for one in missing),
    )
    pending = [one.message for one in by_suffix["Progressing"] if one.status]
    if takeover_waiting:
        pending.append(takeover_waiting)
    yield OperatorCondition(
        type="Progressing",
        status=bool(pending),
        reason=DEPLOYING if pending else AS_EXPECTED,
        message="; ".join(filter(None, pending)),
    )
    degraded = [one for one in by_suffix["Degraded"] if one.status]
    yield OperatorCondition(
        type="Degraded",
        status=bool(degraded),
        reason=degraded[0].reason if degraded else AS_EXPECTED,
        message="; ".join(f"{one.type}: {one.message}" for one in degraded),
    )
