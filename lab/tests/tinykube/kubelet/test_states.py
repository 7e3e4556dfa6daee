from datetime import UTC, datetime
from typing import Any

import pytest

from tinykube.kubelet.pods import Phase, Pod, RestartPolicy
from tinykube.kubelet.states import (
    Clock,
    Condition,
    ContainerState,
    PodState,
    Running,
    State,
    Terminated,
    Waiting,
    conditions_of,
    phase_of,
    render_status,
    restarts,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUNNING = Running(since=NOW)


def ended(code: int, *, final: bool = True) -> Terminated:
    return Terminated(exit_code=code, reason="Error" if code else "Completed", final=final)


def containers(*states: State, **fields: Any) -> tuple[ContainerState, ...]:
    return tuple(ContainerState(name=f"c{n}", state=state, **fields) for n, state in enumerate(states))


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        (RestartPolicy.ALWAYS, 0, True),
        (RestartPolicy.ALWAYS, 1, True),
        (RestartPolicy.ON_FAILURE, 0, False),
        (RestartPolicy.ON_FAILURE, 1, True),
        (RestartPolicy.NEVER, 0, False),
        (RestartPolicy.NEVER, 1, False),
    ],
)
def test_restarts(policy: RestartPolicy, code: int, again: bool) -> None:
    assert restarts(policy, code) is again


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        pytest.param(PodState(containers=containers(Waiting())), Phase.PENDING, id="nothing started"),
        pytest.param(PodState(containers=containers(Waiting(), RUNNING)), Phase.RUNNING, id="one started"),
        pytest.param(
            PodState(init=containers(RUNNING), containers=containers(Waiting())),
            Phase.PENDING,
            id="initializing",
        ),
        pytest.param(
            PodState(init=containers(ended(0), ended(1)), containers=containers(Waiting())),
            Phase.FAILED,
            id="initialization failed",
        ),
        pytest.param(
            PodState(init=containers(ended(1, final=False)), containers=containers(Waiting())),
            Phase.PENDING,
            id="initialization is retried",
        ),
        pytest.param(PodState(containers=containers(ended(0), RUNNING)), Phase.RUNNING, id="one ended"),
        pytest.param(PodState(containers=containers(ended(0), ended(0))), Phase.SUCCEEDED, id="all well"),
        pytest.param(PodState(containers=containers(ended(0), ended(3))), Phase.FAILED, id="one not well"),
        pytest.param(
            PodState(containers=containers(ended(1, final=False))), Phase.RUNNING, id="to be restarted"
        ),
        pytest.param(
            PodState(containers=containers(Waiting(reason="CrashLoopBackOff"), last=ended(1, final=False))),
            Phase.RUNNING,
            id="crash loop",
        ),
        pytest.param(
            PodState(containers=containers(RUNNING), failure="DeadlineExceeded"), Phase.FAILED, id="deadline"
        ),
    ],
)
def test_phase(state: PodState, phase: Phase) -> None:
    assert phase_of(state) is phase


def test_conditions_name_what_is_not_ready() -> None:
    state = PodState(init=containers(Waiting()), containers=containers(Waiting()))
    found = {item.type: item for item in conditions_of(state)}
    assert list(found) == ["PodScheduled", "Ready"]
    assert found["Ready"].message == "containers with unready status: [c0]"
    assert found["Ready"].reason == "ContainersNotReady"


def test_completed_pod_is_not_ready_because_it_completed() -> None:
    ready = conditions_of(PodState(containers=containers(ended(0))))[1]
    assert (ready.type, ready.status, ready.reason) == ("Ready", False, "PodCompleted")


def test_status_as_the_api_has_it() -> None:
    last = Terminated(exit_code=2, reason="Error", message="why", started_at=NOW, finished_at=NOW)
    main = ContainerState(
        name="main", image="i", restarts=1, state=Waiting(reason="CrashLoopBackOff", message="m"), last=last
    )
    pod = Pod(namespace="n", name="p", uid="u")
    status = render_status(pod, PodState(containers=(main,)), Clock(), address="10.0.0.1", started_at=NOW)
    assert status["phase"] == "Running"
    assert status["podIP"] == "10.0.0.1"
    assert status["startTime"] == "2026-01-02T03:04:05Z"
    assert status["containerStatuses"] == [
        {
            "name": "main",
            "image": "i",
            "imageID": "",
            "containerID": "process://u/main/1",
            "restartCount": 1,
            "ready": False,
            "started": False,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
            "lastState": {
                "terminated": {
                    "exitCode": 2,
                    "reason": "Error",
                    "message": "why",
                    "startedAt": "2026-01-02T03:04:05Z",
                    "finishedAt": "2026-01-02T03:04:05Z",
                }
            },
        }
    ]


def test_condition_keeps_its_time_while_it_keeps_its_status() -> None:
    clock = Clock()
    first = clock.since(Condition(type="Ready", status=False))
    assert clock.since(Condition(type="Ready", status=False, reason="other")) == first
    assert clock.since(Condition(type="Ready", status=True)) > first
