"""The kubelet: runs the pods that are bound to its node."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod as PodObject

from tinykube.client.following import Applied, Deleted, Listed, follow
from tinykube.kubelet.container_runner import ContainerRunner, NotRunning
from tinykube.kubelet.containers import Image
from tinykube.kubelet.csi import CsiVolumes, Drivers, PluginCalls
from tinykube.kubelet.events import PodEvents
from tinykube.kubelet.logs import read_log
from tinykube.kubelet.nfs import NfsMounter, mount_points
from tinykube.kubelet.node import HostFolders, NodeDescription, keep_registered
from tinykube.kubelet.pod_runner import NodeResources, PodRunner
from tinykube.kubelet.pods import Pod, read_pod
from tinykube.kubelet.processes import RunningCommand
from tinykube.kubelet.syscalls import MountFlag, mount, unmount
from tinykube.kubelet.volumes import Volumes

log = structlog.get_logger(__name__)

_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounters:
    """Who mounts the volumes of NFS servers, and the calls to the CSI drivers."""

    nfs: NfsMounter
    csi: PluginCalls


class Kubelet:
    """Runs pods while ``run`` runs; none of their processes and mounts is left when it ends.

    ``root`` is a directory of its own; it must not be one that a pod gets as a volume. It is also the
    source of the logs of its pods. ``images`` has what stands for images. ``environment`` is what every
    container gets besides its own variables and those by which it finds the API server. ``host`` knows the
    directories of the node that are elsewhere here. Containers may pass mounts below the directory of
    pods to the node, for that directory is a mount itself. Pods of an earlier kubelet are not taken over.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        node: NodeDescription,
        root: Path,
        mounters: Mounters,
        images: Mapping[str, Image] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
        host: HostFolders | None = None,
    ) -> None:
        self._client = client
        self._description = node
        self._root = root.resolve()  # as the table of mounts has it
        self._pods_folder = self._root / "pods"
        self._images = images
        self._environment = environment
        host = host or HostFolders()
        self._drivers = Drivers(client, node.name, self._root / "plugins_registry", mounters.csi, host)
        csi = CsiVolumes(mounters.csi, self._drivers, host)
        self._volumes = Volumes(client, mounters.nfs, csi, host)
        self._pods: dict[str, tuple[PodRunner, asyncio.Task[None]]] = {}
        # A pod's last words may be seen after it was removed, and must not bring it back.
        self._finished: set[str] = set()

    async def run(self) -> None:
        """Register the node and run its pods until cancelled."""
        async with PodEvents(self._client, node=self._description.name) as events:
            node = NodeResources(
                client=self._client,
                root=self._root,
                volumes=self._volumes,
                events=events,
                images=self._images,
                environment={**self._environment, **_api_server(self._client.config.cluster.server)},
            )
            await asyncio.to_thread(_share, self._pods_folder)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(keep_registered(self._client, self._description))
                    tasks.create_task(self._drivers.run())
                    tasks.create_task(self._follow(node))
            finally:
                await self._stop_all()
                await asyncio.to_thread(unmount, str(self._pods_folder))

    async def read(
        self, namespace: str, name: str, container: str, *, follow: bool, tail_lines: int | None
    ) -> AsyncGenerator[bytes, None]:
        """What a container wrote, nothing for one that does not run here."""
        found = self._find(namespace, name, container)
        if found is not None:
            log, is_over = found.files.log, lambda: found.finished
            async with aclosing(read_log(log, is_over, follow=follow, tail_lines=tail_lines)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def run_command(
        self, namespace: str, name: str, container: str, argv: tuple[str, ...]
    ) -> AbstractAsyncContextManager[RunningCommand]:
        """A further command in a container, to be entered as a context; raises NotRunning."""
        found = self._find(namespace, name, container)
        if found is None:
            raise NotRunning(f'container "{container}" is not running')
        return found.run_command(argv)

    def _find(self, namespace: str, name: str, container: str) -> ContainerRunner | None:
        for runner, _ in self._pods.values():
            if (runner.pod.namespace, runner.pod.name) == (namespace, name):
                return next((one for one in runner.containers if one.container.name == container), None)
        return None

    async def _follow(self, node: NodeResources) -> None:
        fields = {"spec.nodeName": self._description.name}
        changes = follow(self._client, PodObject, namespace="*", fields=fields)
        async with aclosing(changes):
            async for change in changes:
                match change:
                    case Listed(objects):
                        self._replace([read_pod(found) for found in objects], node)
                    case Applied(found):
                        self._apply(read_pod(found), node)
                    case Deleted(found):
                        uid = read_pod(found).uid
                        self._finished.discard(uid)
                        self._forget(uid)

    def _replace(self, pods: list[Pod], node: NodeResources) -> None:
        present = {pod.uid for pod in pods}
        self._finished &= present
        for uid in self._pods.keys() - present:
            self._forget(uid)
        for pod in pods:
            self._apply(pod, node)

    def _apply(self, pod: Pod, node: NodeResources) -> None:
        if pod.uid in self._finished:
            return
        if pod.uid not in self._pods:
            runner = PodRunner(pod, node)
            task = asyncio.create_task(runner.run(), name=f"pod {pod.name}")
            task.add_done_callback(lambda task: self._ended(pod, task))
            self._pods[pod.uid] = runner, task
        if pod.deleting:
            self._pods[pod.uid][0].delete(pod.grace_seconds)

    def _forget(self, uid: str) -> None:
        """For a pod that is gone from the API: what is left of it is killed, and unmounted by drivers."""
        if uid in self._pods:
            self._pods[uid][0].delete(0)

    def _ended(self, pod: Pod, task: asyncio.Task[None]) -> None:
        self._pods.pop(pod.uid, None)
        self._finished.add(pod.uid)
        if not task.cancelled() and task.exception() is not None:
            log.error("pod-runner-failed", pod=pod.name, namespace=pod.namespace, exc_info=task.exception())

    async def _stop_all(self) -> None:
        tasks = [task for _, task in self._pods.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, waiting = await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
            for task in waiting:  # for a CSI driver that does not answer
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _share(folder: Path) -> None:
    """Let containers pass on what they mount there, as CSI drivers do."""
    folder.mkdir(0o750, parents=True, exist_ok=True)
    if str(folder) not in mount_points():  # as a kubelet leaves it that was killed
        mount(str(folder), str(folder), flags=MountFlag.BIND | MountFlag.REC)
    mount("none", str(folder), flags=MountFlag.SHARED)


def _api_server(url: str) -> dict[str, str]:
    """The variables by which a program in a pod finds the API server."""
    found = urlsplit(url)
    port = found.port or (443 if found.scheme == "https" else 80)
    return {"KUBERNETES_SERVICE_HOST": found.hostname or "", "KUBERNETES_SERVICE_PORT": str(port)}
