"""What has become of each container, and what a pod's status says about it all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tinykube.kubelet.pods import Phase, Pod, RestartPolicy

_CREATING = "ContainerCreating"
_INITIALIZING = "PodInitializing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not running, and going to be."""

    reason: str = _CREATING
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Running since, and ready if it says so, or nobody asks."""

    since: datetime
    ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """Ended; ``final`` when it is not going to be started again."""

    exit_code: int
    reason: str
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    final: bool = False


State = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One container's present and last state."""

    name: str
    image: str = ""
    restarts: int = 0
    state: State = Waiting()
    last: Terminated | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One of ``status.conditions``."""

    type: str
    status: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """Everything a pod's status is made of. ``failure`` ends the pod whatever its containers did."""

    init: tuple[ContainerState, ...] = ()
    containers: tuple[ContainerState, ...] = ()
    failure: str = ""
    failure_message: str = ""


def restarts(policy: RestartPolicy, exit_code: int) -> bool:
    """Whether a container that ended with this code is started again."""
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and exit_code != 0)


def phase_of(state: PodState) -> Phase:
    """The phase that follows from the states of the containers."""
    if state.failure or any(_ended(item) not in {None, 0} for item in state.init):
        return Phase.FAILED
    if any(_ended(item) is None for item in state.init):
        return Phase.PENDING
    codes = [_ended(item) for item in state.containers]
    if all(code is not None for code in codes):
        return Phase.SUCCEEDED if not any(codes) else Phase.FAILED
    started = any(item.last or not isinstance(item.state, Waiting) for item in state.containers)
    return Phase.RUNNING if started else Phase.PENDING


def conditions_of(state: PodState) -> tuple[Condition, ...]:
    """The conditions that people and programs wait for."""
    phase = phase_of(state)
    unready = [item.name for item in state.containers if not _is_ready(item)]
    reason, message = "", ""
    if phase is Phase.SUCCEEDED:
        reason = "PodCompleted"
    elif unready:
        reason, message = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return (
        Condition(type="PodScheduled", status=True),
        Condition(type="Ready", status=not unready, reason=reason, message=message),
    )


class Clock:
    """When each condition last changed."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[bool, datetime]] = {}

    def since(self, condition: Condition) -> datetime:
        """The moment from which the condition has had its status."""
        status, moment = self._since.get(condition.type, (None, None))
        if status is not condition.status or moment is None:
            moment = datetime.now(UTC)
            self._since[condition.type] = (condition.status, moment)
        return moment


def render_status(
    pod: Pod, state: PodState, clock: Clock, *, address: str, started_at: datetime
) -> dict[str, Any]:
    """``status`` as the API has it, for a strategic merge patch."""
    status: dict[str, Any] = {
        "phase": phase_of(state),
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _time(started_at),
        "conditions": [_render_condition(item, clock) for item in conditions_of(state)],
        "containerStatuses": _render_containers(pod, state.containers),
        "reason": state.failure or None,
        "message": state.failure_message or None,
    }
    if state.init:
        status["initContainerStatuses"] = _render_containers(pod, state.init)
    return status


def _ended(container: ContainerState) -> int | None:
    state = container.state
    return state.exit_code if isinstance(state, Terminated) and state.final else None


def _is_ready(container: ContainerState) -> bool:
    return isinstance(container.state, Running) and container.state.ready


def _render_condition(condition: Condition, clock: Clock) -> dict[str, Any]:
    return {
        "type": condition.type,
        "status": "True" if condition.status else "False",
        "reason": condition.reason or None,
        "message": condition.message or None,
        "lastTransitionTime": _time(clock.since(condition)),
    }


def _render_containers(pod: Pod, containers: Iterable[ContainerState]) -> list[Mapping[str, Any]]:
    return [
        {
            "name": item.name,
            "image": item.image,
            "imageID": "",
            "containerID": f"process://{pod.uid}/{item.name}/{item.restarts}",
            "restartCount": item.restarts,
            "ready": _is_ready(item),
            "started": isinstance(item.state, Running),
            "state": _render_state(item.state),
            "lastState": _render_state(item.last) if item.last else {},
        }
        for item in containers
    ]


def _render_state(state: State) -> dict[str, Any]:
    match state:
        case Waiting():
            return {"waiting": _without_empty({"reason": state.reason, "message": state.message})}
        case Running():
            return {"running": {"startedAt": _time(state.since)}}
        case Terminated():
            times = {"startedAt": _time(state.started_at), "finishedAt": _time(state.finished_at)}
            words = {"reason": state.reason, "message": state.message}
            return {"terminated": {"exitCode": state.exit_code, **_without_empty({**words, **times})}}


def _without_empty(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value}


def _time(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""
