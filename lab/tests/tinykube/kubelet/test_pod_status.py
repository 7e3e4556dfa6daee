"""What a pod's status says of its containers."""

from typing import Any

import pytest
from lightkube import AsyncClient
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod as PodObject

from tinykube.kubelet.pod_status import ContainerState, PodStatus, StatusWriter, phase_of, waiting
from tinykube.kubelet.pods import Pod, read_pod

POD = Pod(namespace="n", name="p", uid="u", spec=PodSpec(containers=[]))
STARTED = "2026-01-02T03:04:05Z"


def new(**fields: Any) -> ContainerState:
    return ContainerState(name="main", **fields)


def running() -> ContainerState:
    return new(state={"running": {"startedAt": STARTED}}, ready=True)


def ended(code: int, *, final: bool = True) -> ContainerState:
    return new(state={"terminated": {"exitCode": code}}, exit_code=code if final else None)


CRASHING = new(state=waiting("CrashLoopBackOff"), last=ended(1).state, restarts=1)


@pytest.mark.parametrize(
    ("init", "main", "phase"),
    [
        pytest.param([], [new()], "Pending", id="nothing started"),
        pytest.param([], [new(), running()], "Running", id="one started"),
        pytest.param([running()], [new()], "Pending", id="initializing"),
        pytest.param([ended(0), ended(1)], [new()], "Failed", id="initialization failed"),
        pytest.param([ended(1, final=False)], [new()], "Pending", id="initialization is retried"),
        pytest.param([], [ended(0), running()], "Running", id="one ended"),
        pytest.param([], [ended(0), ended(0)], "Succeeded", id="all well"),
        pytest.param([], [ended(0), ended(3)], "Failed", id="one not well"),
        pytest.param([], [ended(1, final=False)], "Running", id="to be restarted"),
        pytest.param([], [CRASHING], "Running", id="crash loop"),
    ],
)
def test_phase(init: list[ContainerState], main: list[ContainerState], phase: str) -> None:
    assert phase_of(init, main) == phase


def test_a_failure_of_the_pod_counts_more_than_its_containers() -> None:
    status = PodStatus(POD)
    status.failure = "DeadlineExceeded"
    found = status.render([], [running()])
    assert (found["phase"], found["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_container_as_the_api_has_it() -> None:
    [found] = PodStatus(POD).render([], [CRASHING])["containerStatuses"]
    assert found == {
        "name": "main",
        "image": "",
        "imageID": "",
        "containerID": "process://u/main/1",
        "restartCount": 1,
        "ready": False,
        "started": False,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1}},
    }


def test_condition_says_who_is_not_ready_and_keeps_its_time() -> None:
    status = PodStatus(POD)
    _, ready = status.render([], [new()])["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "ContainersNotReady")
    assert ready["message"] == "containers with unready status: [main]"
    status._since["Ready"] = (False, STARTED)
    _, completed = status.render([], [ended(0)])["conditions"]
    assert (completed["reason"], completed["lastTransitionTime"]) == ("PodCompleted", STARTED)
    _, ready = status.render([], [running()])["conditions"]
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", None, None)
    assert ready["lastTransitionTime"] > STARTED


async def test_status_is_written_while_there_is_a_pod(kube: AsyncClient) -> None:
    spec = PodSpec(containers=[Container(name="main")], automountServiceAccountToken=False)
    mine = read_pod(
        await kube.create(PodObject(metadata=ObjectMeta(name="p", namespace="default"), spec=spec))
    )
    await StatusWriter(kube, mine, lambda: {"phase": "Running"}).flush()
    status = (await kube.get(PodObject, "p", namespace="default")).status
    assert status is not None
    assert status.phase == "Running"
    await kube.delete(PodObject, "p", namespace="default", grace_period=0)
    await StatusWriter(kube, mine, lambda: {"phase": "Failed"}).flush()  # which ends
