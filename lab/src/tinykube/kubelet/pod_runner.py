"""One pod from its first volume to its last process."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog
from lightkube import AsyncClient
from lightkube.models import core_v1 as models
from lightkube.resources import core_v1

from tinykube.client.calls import ERRORS, unless_missing
from tinykube.kubelet.container_runner import ContainerRunner, Start, readiness_url
from tinykube.kubelet.containers import (
    ContainerFiles,
    Image,
    find_image,
    placeholder,
    plan_launch,
    resolve_command,
    resolve_environment,
)
from tinykube.kubelet.events import PodEvents
from tinykube.kubelet.pod_status import PodStatus, StatusWriter
from tinykube.kubelet.pods import Pod
from tinykube.kubelet.volumes import Mounted, Volumes, remove_tree
from tinykube.ports import free_port

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 0.5
# A kubelet takes a minute or more.
_AGAIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """What all pods of the node share.

    ``images`` has what stands for images, ``environment`` the variables of every container.
    """

    client: AsyncClient
    root: Path
    volumes: Volumes
    events: PodEvents
    images: Mapping[str, Image]
    environment: Mapping[str, str]


class PodRunner:
    """Runs one pod; ``run`` ends when the pod is gone from the API, or when cancelled."""

    def __init__(self, pod: Pod, node: NodeResources) -> None:
        self.pod = pod
        self._node = node
        self._directory = node.root / "pods" / pod.uid
        self._mounted: dict[str, Mounted] = {}
        self._deleted = asyncio.Event()
        self._grace_seconds = pod.grace_seconds
        self._status = PodStatus(pod)
        self._writer = StatusWriter(
            node.client,
            pod,
            lambda: self._status.render([one.state for one in self._init], [one.state for one in self._main]),
        )
        policy = pod.spec.restartPolicy or "Always"
        init_policy = "OnFailure" if policy == "Always" else policy
        self._init = [self._runner(one, init_policy) for one in pod.spec.initContainers or ()]
        self._main = [self._runner(one, policy) for one in pod.spec.containers]

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
        writing = asyncio.create_task(self._writer.run())
        try:
            if not (self.pod.ended or self.pod.deleting):
                await self._live()
                await self._writer.flush()
            await self._deleted.wait()
            await asyncio.to_thread(remove_tree, self._directory)
            await self._remove()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await asyncio.to_thread(remove_tree, self._directory)

    async def _live(self) -> None:
        """Until every container has ended for good, by itself, by deletion or by its deadline."""
        self._writer.changed()
        running = asyncio.create_task(self._run_containers())
        deleted = asyncio.create_task(self._deleted.wait())
        try:
            done, _ = await asyncio.wait(
                {running, deleted}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._status.failure = "DeadlineExceeded"
            if running.done():
                running.result()
            else:
                await self._stop_containers()
        finally:
            deleted.cancel()
            running.cancel()
            await asyncio.gather(running, deleted, return_exceptions=True)
            await self._node.volumes.tear_down(self.pod, self._directory / "volumes")
        self._writer.changed()

    async def _run_containers(self) -> None:
        for volume in self.pod.spec.volumes or ():
            await self._set_up(volume)
        publishing = asyncio.create_task(self._publish_again())
        try:
            for runner in self._init:
                if await runner.run():
                    return
            async with asyncio.TaskGroup() as tasks:
                for runner in self._main:
                    tasks.create_task(runner.run())
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    async def _publish_again(self) -> None:
        """Until cancelled; a failure is an event, and the containers run on."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                await self._node.volumes.publish_again(self._directory / "volumes")
            except ERRORS as error:
                self._report("FailedMount", f"MountVolume.SetUp failed for a volume : {error}")

    async def _stop_containers(self) -> None:
        """Within the grace; whatever is left then is killed by cancelling it."""
        for runner in self.containers:
            runner.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace_seconds):
                await asyncio.gather(*(runner.stopped() for runner in self.containers))

    async def _set_up(self, volume: models.Volume) -> None:
        """Try until it works: what is missing may appear."""
        directory = self._directory / "volumes"
        while True:
            try:
                self._mounted[volume.name] = await self._node.volumes.set_up(self.pod, volume, directory)
            except ERRORS as error:
                self._report("FailedMount", f'MountVolume.SetUp failed for volume "{volume.name}" : {error}')
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _remove(self) -> None:
        """Let the API forget the pod, unless it is another one by now; however long that takes."""
        client, name, namespace = self._node.client, self.pod.name, self.pod.namespace
        while True:
            try:
                found = await unless_missing(client.get(core_v1.Pod, name, namespace=namespace))
                if found and found.metadata and found.metadata.uid == self.pod.uid:
                    deletion = client.delete(core_v1.Pod, name, namespace=namespace, grace_period=0)
                    await unless_missing(deletion)
            except ERRORS as error:
                log.warning("pod-not-removed", pod=name, reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def _prepare(self, runner: ContainerRunner) -> Start:
        container = runner.container
        image = find_image(self._node.images, container.image or "")
        brought = dict(image.environment) if image else {}
        if image and image.port_variable:
            brought[image.port_variable] = str(free_port())
        environment = await resolve_environment(
            self._node.client, self.pod, container, {**self._node.environment, **brought}
        )
        argv = resolve_command(container, environment, image)
        moved = environment.get(image.port_variable) if image else None
        url = readiness_url(container, moved)
        if not argv:
            argv, message = placeholder(container.image or "")
            url = ""
            self._report("ImageNotPulled", f"container {container.name}: {message}")
        launch = plan_launch(
            self.pod,
            container,
            runner.files,
            argv=argv,
            environment=environment,
            mounted=self._mounted,
            image=image,
        )
        return Start(launch, url)

    def _runner(self, container: models.Container, policy: str) -> ContainerRunner:
        return ContainerRunner(
            container,
            ContainerFiles(self._node.root, self._directory / "containers" / container.name),
            policy,
            prepare=self._prepare,
            changed=self._writer.changed,
            report=self._report,
        )

    def _seconds_left(self) -> float | None:
        most = self.pod.spec.activeDeadlineSeconds
        age = (datetime.now(UTC) - self._status.started_at).total_seconds()
        return None if most is None else max(0.0, most - age)

    def _report(self, reason: str, message: str) -> None:
        self._node.events.warn(self.pod, reason, message)
