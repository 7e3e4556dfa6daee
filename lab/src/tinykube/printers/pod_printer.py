"""The columns of pods, above all the STATUS that kubectl's users know: the phase, or what is in its way."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tinykube.objects.json_types import Json, lookup
from tinykube.printers.tables import (
    NONE,
    Cell,
    Printer,
    age_of,
    columns,
    human_duration,
    name_of,
    parse_time,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """What the containers of a pod come to."""

    reason: str
    ready: int
    restarting: tuple[Json, ...]


def _pod(pod: Json, now: datetime) -> list[Cell]:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    summary = _summary(pod)
    total = len(spec.get("containers") or ()) + len(_sidecars(pod))
    addresses = status.get("podIPs") or [{"ip": status.get("podIP")}]
    return [
        name_of(pod),
        f"{summary.ready}/{total}",
        _final_reason(pod, summary.reason),
        _restarts(summary.restarting, now),
        age_of(pod, now),
        addresses[0].get("ip") or NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        _readiness_gates(pod),
    ]


def _summary(pod: Json) -> _Summary:
    """The first init container that has not done its part decides; otherwise the containers do."""
    statuses = lookup(pod, "status", "initContainerStatuses") or ()
    sidecars, ready = _sidecars(pod), 0
    for index, status in enumerate(statuses):
        if status.get("name") in sidecars and status.get("started"):
            ready += bool(status.get("ready"))
        elif lookup(status, "state", "terminated", "exitCode") != 0:
            if _is_true(pod, "Initialized"):
                break
            total = len(lookup(pod, "spec", "initContainers") or ())
            reason = f"Init:{_stopped(status, 'PodInitializing') or f'{index}/{total}'}"
            return _Summary(reason=reason, ready=ready, restarting=tuple(statuses[: index + 1]))
    restarting = tuple(status for status in statuses if status.get("name") in sidecars)
    return _of_containers(pod, ready, restarting)


def _of_containers(pod: Json, ready: int, restarting: tuple[Json, ...]) -> _Summary:
    statuses = lookup(pod, "status", "containerStatuses") or ()
    reasons = [reason for status in statuses if (reason := _stopped(status))]
    running = [
        status
        for status in statuses
        if not _stopped(status) and status.get("ready") and "running" in status.get("state", {})
    ]
    reason = reasons[0] if reasons else _phase(pod)
    if reason == "Completed" and running:
        reason = "Running" if _is_true(pod, "Ready") else "NotReady"
    return _Summary(reason=reason, ready=ready + len(running), restarting=(*restarting, *statuses))


def _stopped(container: Json, passed_over: str = "") -> str:
    """Why this container does not run; empty when it does, or waits for ``passed_over``."""
    state = container.get("state", {})
    terminated = state.get("terminated")
    if terminated is None:
        reason = lookup(state, "waiting", "reason") or ""
        return "" if reason == passed_over else str(reason)
    if terminated.get("reason"):
        return str(terminated["reason"])
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"


def _phase(pod: Json) -> str:
    for condition in lookup(pod, "status", "conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    return str(lookup(pod, "status", "reason") or lookup(pod, "status", "phase") or "")


def _final_reason(pod: Json, reason: str) -> str:
    """A pod that is being deleted is Terminating, unless it is over or its node is lost."""
    if not lookup(pod, "metadata", "deletionTimestamp"):
        return reason
    if lookup(pod, "status", "reason") == "NodeLost":
        return "Unknown"
    return reason if lookup(pod, "status", "phase") in {"Succeeded", "Failed"} else "Terminating"


def _restarts(statuses: tuple[Json, ...], now: datetime) -> str:
    count = sum(status.get("restartCount", 0) for status in statuses)
    ends = [parse_time(lookup(status, "lastState", "terminated", "finishedAt")) for status in statuses]
    last = max(filter(None, ends), default=None)
    return f"{count} ({human_duration(now - last)} ago)" if count and last else str(count)


def _sidecars(pod: Json) -> set[str]:
    """Names of the init containers that keep running."""
    containers = lookup(pod, "spec", "initContainers") or ()
    return {container["name"] for container in containers if container.get("restartPolicy") == "Always"}


def _is_true(pod: Json, condition_type: str) -> bool:
    conditions = lookup(pod, "status", "conditions") or ()
    return any(c.get("type") == condition_type and c.get("status") == "True" for c in conditions)


def _readiness_gates(pod: Json) -> str:
    gates = lookup(pod, "spec", "readinessGates") or ()
    passed = sum(_is_true(pod, gate["conditionType"]) for gate in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


POD: Final = Printer(
    columns=columns(
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
        wide=("IP", "Node", "Nominated Node", "Readiness Gates"),
    ),
    cells=_pod,
)
