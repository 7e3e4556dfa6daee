"""One pod from its first volume to its last process."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from lightkube.models.core_v1 import ObjectReference

from tinykube.client.calls import ERRORS
from tinykube.client.events import EventRecorder
from tinykube.kubelet.cluster import Cluster
from tinykube.kubelet.container_runner import ContainerRunner, Start
from tinykube.kubelet.environment import (
    placeholder,
    resolve_command,
    resolve_environment,
    wanted_stores,
)
from tinykube.kubelet.images import Image, find_image
from tinykube.kubelet.planning import ContainerPaths, NodePaths, plan_launch
from tinykube.kubelet.pods import Container, Pod, RestartPolicy, Volume
from tinykube.kubelet.probes import check_of
from tinykube.kubelet.states import Clock, PodState, render_status
from tinykube.kubelet.status_writer import StatusWriter
from tinykube.kubelet.volume_makers import Mounted
from tinykube.kubelet.volumes import Volumes, remove_tree
from tinykube.ports import free_port

log = structlog.get_logger(__name__)

_FIRST_BACK_OFF_SECONDS = 0.2
_LAST_BACK_OFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What all pods of the node share.

    ``images`` has what stands for images, ``shares_mounts`` tells whether containers may hand mounts to the
    node, ``environment`` the variables of every container.
    """

    name: str
    address: str
    root: Path
    cluster: Cluster
    volumes: Volumes
    events: EventRecorder
    images: Mapping[str, Image]
    shares_mounts: bool
    environment: Mapping[str, str]


class PodRunner:
    """Runs one pod; ``run`` ends when the pod is gone from the API, or when cancelled."""

    def __init__(self, pod: Pod, node: Node) -> None:
        self.pod = pod
        self._node = node
        self._directory = node.root / "pods" / pod.uid
        self._started_at = datetime.now(UTC)
        self._clock = Clock()
        self._failure = ("", "")
        self._mounted: dict[str, Mounted] = {}
        self._deleted = asyncio.Event()
        self._grace_seconds = pod.grace_seconds
        self._status = StatusWriter(node.cluster, pod, self._render)
        init_policy = pod.restart_policy
        if init_policy is RestartPolicy.ALWAYS:
            init_policy = RestartPolicy.ON_FAILURE
        self._init = [self._runner(item, init_policy) for item in pod.init_containers]
        self._main = [self._runner(item, pod.restart_policy) for item in pod.containers]

    @property
    def containers(self) -> Sequence[ContainerRunner]:
        """All containers."""
        return (*self._init, *self._main)

    def delete(self, grace_seconds: float) -> None:
        """End the pod; a shorter grace than before counts."""
        self._grace_seconds = min(self._grace_seconds, grace_seconds)
        self._deleted.set()

    async def run(self) -> None:
        """Live, end, and wait to be deleted."""
        writing = asyncio.create_task(self._status.run())
        try:
            if not (self.pod.phase.ended or self.pod.deleting):
                await self._live()
                await self._status.flush()
            await self._deleted.wait()
            await asyncio.to_thread(remove_tree, self._directory)
            await self._remove()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await asyncio.to_thread(remove_tree, self._directory)

    async def _live(self) -> None:
        """Until every container has ended for good, by itself, by deletion or by its deadline."""
        self._status.changed()
        running = asyncio.create_task(self._run_containers())
        deleted = asyncio.create_task(self._deleted.wait())
        try:
            done, _ = await asyncio.wait(
                {running, deleted}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                message = "Pod was active on the node longer than the specified deadline"
                self._failure = ("DeadlineExceeded", message)
                self._report("DeadlineExceeded", message)
            if running.done():
                running.result()
            else:
                await self._stop_containers()
        finally:
            deleted.cancel()
            running.cancel()
            await asyncio.gather(running, deleted, return_exceptions=True)
            await self._tear_down()
        self._status.changed()

    async def _tear_down(self) -> None:
        await self._node.volumes.tear_down(self.pod, self._directory / "volumes")

    async def _run_containers(self) -> None:
        await self._set_up_volumes()
        for runner in self._init:
            if await runner.run(partial(self._prepare, runner)):
                return
        async with asyncio.TaskGroup() as tasks:
            for runner in self._main:
                tasks.create_task(runner.run(partial(self._prepare, runner)))

    async def _stop_containers(self) -> None:
        """Within the grace; whatever is left then is killed by cancelling it."""
        for runner in self.containers:
            if runner.running:
                self._report("Killing", f"Stopping container {runner.container.name}", warning=False)
            runner.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                await asyncio.gather(*(runner.stopped() for runner in self.containers))

    async def _remove(self) -> None:
        """Let the API forget the pod, however long that takes."""
        pause = _FIRST_BACK_OFF_SECONDS
        while True:
            try:
                await self._node.cluster.remove(self.pod)
            except ERRORS as error:
                log.warning("pod-not-removed", pod=self.pod.name, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_BACK_OFF_SECONDS)
            else:
                return

    async def _set_up_volumes(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for volume in self.pod.volumes:
                tasks.create_task(self._set_up(volume))

    async def _set_up(self, volume: Volume) -> None:
        """Try until it works: what is missing may appear."""
        pause = _FIRST_BACK_OFF_SECONDS
        directory = self._directory / "volumes"
        while True:
            try:
                self._mounted[volume.name] = await self._node.volumes.set_up(self.pod, volume, directory)
            except ERRORS as error:
                problem = f'MountVolume.SetUp failed for volume "{volume.name}" : {error}'
                self._report("FailedMount", problem)
                log.info("volume-not-ready", pod=self.pod.name, volume=volume.name, reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LAST_BACK_OFF_SECONDS)
            else:
                return

    async def _prepare(self, runner: ContainerRunner) -> Start:
        container = runner.container
        image = find_image(self._node.images, container.image)
        environment = await self._environment(container, image)
        argv = resolve_command(container, environment, self._node.images)
        runs = argv is not None
        if argv is None:
            argv, message = placeholder(container.image)
            self._report("ImageNotPulled", f"container {container.name}: {message}")
        launch = plan_launch(
            self.pod,
            container,
            argv=argv,
            environment=environment,
            mounted=self._mounted,
            paths=runner.paths,
            node=NodePaths(
                hidden=self._node.root,
                image=image.files if image else (),
                shares_mounts=self._node.shares_mounts,
            ),
        )
        moved = environment.get(image.port_variable) if image else None
        readiness = None
        if container.readiness and runs:
            port = int(moved) if moved else None
            readiness = check_of(container.readiness, container, address=self._node.address, port=port)
        return Start(launch=launch, readiness=readiness)

    async def _environment(self, container: Container, image: Image | None) -> dict[str, str]:
        stores = {
            (store, name): await self._node.cluster.contents(self.pod.namespace, store, name)
            for store, name in wanted_stores(container)
        }
        brought = dict(image.environment) if image else {}
        if image and image.port_variable:
            brought[image.port_variable] = str(free_port())
        return resolve_environment(
            container,
            self.pod,
            stores,
            everywhere={**self._node.environment, **brought},
        )

    def _runner(self, container: Container, policy: RestartPolicy) -> ContainerRunner:
        own = self._directory / "containers" / container.name
        paths = ContainerPaths(scratch=own / "scratch", message=own / "termination-message", log=own / "log")
        return ContainerRunner(
            self.pod,
            container,
            policy,
            paths,
            changed=self._status.changed,
            report=self._report,
        )

    def _seconds_left(self) -> float | None:
        if self.pod.active_seconds is None:
            return None
        age = (datetime.now(UTC) - self._started_at).total_seconds()
        return max(0.0, self.pod.active_seconds - age)

    def _render(self) -> Mapping[str, Any]:
        reason, message = self._failure
        state = PodState(
            init=tuple(runner.state for runner in self._init),
            containers=tuple(runner.state for runner in self._main),
            failure=reason,
            failure_message=message,
        )
        return render_status(
            self.pod, state, self._clock, address=self._node.address, started_at=self._started_at
        )

    def _report(self, reason: str, message: str, *, warning: bool = True) -> None:
        pod = self.pod
        about = ObjectReference(
            apiVersion="v1",
            kind="Pod",
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            resourceVersion=pod.version,
        )
        self._node.events.publish(about, reason, message, warning=warning)
