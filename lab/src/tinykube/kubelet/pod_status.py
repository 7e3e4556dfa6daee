"""The status of a pod: what follows from its containers, and writing it to the API."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.resources import core_v1
from lightkube.types import PatchType

from tinykube.client.calls import CALL_ERRORS, unless_missing
from tinykube.kubelet.node import ADDRESS
from tinykube.kubelet.pods import Pod

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """One container; ``state`` and ``last`` are as in the API.

    ``exit_code`` is that of its last end, None while it runs or is going to be started again.
    """

    name: str
    image: str = ""
    restarts: int = 0
    state: Mapping[str, Any] = field(default_factory=lambda: waiting("ContainerCreating"))
    last: Mapping[str, Any] = field(default_factory=dict)
    ready: bool = False
    exit_code: int | None = None


def waiting(reason: str, message: str = "") -> Mapping[str, Any]:
    """The state of a container that does not run, and is going to."""
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def phase_of(init: Sequence[ContainerState], containers: Sequence[ContainerState]) -> str:
    """The phase that follows from the states of the containers."""
    if any(one.exit_code for one in init):
        return "Failed"
    codes = [one.exit_code for one in containers]
    if None not in codes:
        return "Failed" if any(codes) else "Succeeded"
    started = any(one.last or "waiting" not in one.state for one in containers)
    return "Running" if started else "Pending"


class PodStatus:
    """The status of one pod, and since when each of its conditions has been what it is."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._since: dict[str, tuple[bool, str]] = {}
        self.started_at = datetime.now(UTC)
        self.failure = ""
        """The reason for which the pod has failed, whatever its containers did."""

    def render(
        self, init: Sequence[ContainerState], containers: Sequence[ContainerState]
    ) -> Mapping[str, Any]:
        """``status`` as the API has it, for a strategic merge patch."""
        phase = "Failed" if self.failure else phase_of(init, containers)
        unready = [one.name for one in containers if not one.ready]
        reason = "ContainersNotReady" if unready else None
        return {
            "phase": phase,
            "hostIP": ADDRESS,
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "startTime": render_time(self.started_at),
            "conditions": [
                self._condition("PodScheduled", holds=True),
                {
                    **self._condition("Ready", holds=not unready),
                    "reason": "PodCompleted" if phase == "Succeeded" else reason,
                    "message": f"containers with unready status: [{' '.join(unready)}]" if unready else None,
                },
            ],
            "reason": self.failure or None,
            "containerStatuses": [self._container(one) for one in containers],
            **({"initContainerStatuses": [self._container(one) for one in init]} if init else {}),
        }

    def _condition(self, kind: str, *, holds: bool) -> dict[str, Any]:
        if self._since.get(kind, ("", ""))[0] is not holds:
            self._since[kind] = (holds, render_time(datetime.now(UTC)))
        return {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": None,
            "message": None,
            "lastTransitionTime": self._since[kind][1],
        }

    def _container(self, one: ContainerState) -> Mapping[str, Any]:
        return {
            "name": one.name,
            "image": one.image,
            "imageID": "",
            "containerID": f"process://{self._pod.uid}/{one.name}/{one.restarts}",
            "restartCount": one.restarts,
            "ready": one.ready,
            "started": "running" in one.state,
            "state": one.state,
            "lastState": one.last,
        }


def render_time(moment: datetime) -> str:
    """As the API has it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class StatusWriter:
    """Writes the newest status whenever it has changed; states that pass quickly may be skipped."""

    def __init__(self, client: AsyncClient, pod: Pod, render: Callable[[], Mapping[str, Any]]) -> None:
        self._client = client
        self._pod = pod
        self._render = render
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()  # else an older status could come after a newer one
        self._written: Mapping[str, Any] = {}
        self._gone = False

    def changed(self) -> None:
        """Have the status written soon."""
        self._dirty.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write the newest status, however long that takes, unless the pod is gone."""
        async with self._writing:
            while not self._gone and (status := self._render()) != self._written:
                await self._write(status)

    async def _write(self, status: Mapping[str, Any]) -> None:
        pod = self._pod
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        call = self._client.patch(
            core_v1.Pod.Status, pod.name, patch, namespace=pod.namespace, patch_type=PatchType.STRATEGIC
        )
        try:
            self._gone = await unless_missing(call) is None
            self._written = status
        except CALL_ERRORS as error:
            log.warning("status-not-written", pod=pod.name, reason=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
