"""Steps for all scenarios: create objects, wait for conditions, read the state."""

import asyncio
import itertools
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import aiohttp
import msgspec
import pytest
from lightkube import ApiError, AsyncClient
from lightkube.models.core_v1 import (
    NFSVolumeSource,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    VolumeResourceRequirements,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.core_v1 import (
    ConfigMap,
    Event,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
)
from lightkube.resources.storage_v1 import StorageClass
from lightkube.types import PatchType

from fake_efs.service import EmbeddedEfs
from kube_efs.kube.reading import read_volume
from kube_efs.kube.watching import Applied, Change, Deleted, Listed, follow
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, TunnelTargets, parse_targets
from kube_efs.model.names import Names
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import PROVISIONED_BY, Volume
from kube_efs.provisioning.workers.orders import Action, parse_order
from kube_efs.provisioning.workers.trash import TRASH
from kube_efs.tunnels.status import TunnelsStatus, TunnelState, TunnelStatus
from kube_efs_lab.program import Program

PROVISIONER = "gnuthought.com/efs-stunnel"
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.05, 0.2
DEADLINE_SECONDS = 60.0

T = TypeVar("T")

_numbers = itertools.count(1)


class Cluster(Protocol):
    """A cluster with kube-efs on it: the embedded one, or a real control plane."""

    client: AsyncClient
    efs: EmbeddedEfs
    controller: Program
    tunnel: Program
    node: Program
    names: Names
    namespace: str
    folder: Path
    file_system_ids: tuple[FileSystemId, ...]

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        ...

    @property
    def tunnel_socket(self) -> Path:
        """The socket of the tunnel agent of the node."""
        ...


class WithTunnel(Protocol):
    """A node with a tunnel agent."""

    @property
    def tunnel(self) -> Program:
        """The agent."""
        ...


async def eventually(
    look: Callable[[], Awaitable[T | None]],
    *,
    what: str,
    seconds: float = DEADLINE_SECONDS,
    pause_seconds: float | None = None,
    explain: Callable[[], Awaitable[str]] | None = None,
) -> T:
    """The first true answer; fails with ``what``, the last answer and an explanation after ``seconds``.

    Without ``pause_seconds``, the pauses between the calls grow, because each call is work for the cluster.
    """
    answer: T | None = None
    pause = pause_seconds or _FIRST_PAUSE_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while True:
                answer = await look()
                if answer:
                    return answer
                await asyncio.sleep(pause)
                if pause_seconds is None:
                    pause = min(pause * 1.3, _LAST_PAUSE_SECONDS)
    except TimeoutError:
        failure = AssertionError(f"{what}: not so after {seconds:.0f} s; last answer: {answer!r}")
        if explain is not None:
            failure.add_note(await explain())
        raise failure from None


async def new_namespace(client: AsyncClient) -> str:
    """A new namespace."""
    name = f"team-{next(_numbers)}"
    await client.create(Namespace(metadata=ObjectMeta(name=name)))
    return name


async def new_class(client: AsyncClient, *, reclaim_policy: str = "Delete", **parameters: str) -> str:
    """A new StorageClass of the tunnel provisioner."""
    name = f"efs-{next(_numbers)}"
    await client.create(
        StorageClass(
            metadata=ObjectMeta(name=name),
            provisioner=PROVISIONER,
            parameters=parameters,
            reclaimPolicy=reclaim_policy,
        )
    )
    return name


def claim(
    namespace: str, name: str, storage_class: str, labels: Mapping[str, str] | None
) -> PersistentVolumeClaim:
    """A claim with these labels in its selector, or without a selector."""
    return PersistentVolumeClaim(
        metadata=ObjectMeta(namespace=namespace, name=name),
        spec=PersistentVolumeClaimSpec(
            accessModes=["ReadWriteMany"],
            resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
            selector=LabelSelector(matchLabels=dict(labels)) if labels is not None else None,
            storageClassName=storage_class,
        ),
    )


@contextmanager
def immutable(path: Path, link: Path) -> Iterator[None]:
    """Make the file immutable while the context is open, also after a rename."""
    link.hardlink_to(path)
    try:
        if subprocess.run(["chattr", "+i", str(link)], check=False, capture_output=True).returncode:
            pytest.skip("the file system of the embedded EFS knows no immutable files")
        yield
    finally:
        subprocess.run(["chattr", "-i", str(link)], check=False, capture_output=True)
        link.unlink()


async def delete_waiting_claims(client: AsyncClient) -> None:
    """Delete the claims of all namespaces that have no volume."""
    waiting = [
        claim.metadata
        async for claim in client.list(PersistentVolumeClaim, namespace="*")
        if claim.metadata and claim.spec and not claim.spec.volumeName
    ]
    for claim in waiting:
        await client.delete(PersistentVolumeClaim, claim.name or "", namespace=claim.namespace or "")


async def bound_volume(client: AsyncClient, namespace: str, name: str) -> Volume:
    """Wait until a claim is Bound; returns its volume."""

    async def look() -> str | None:
        try:
            found = await client.get(PersistentVolumeClaim, name, namespace=namespace)
        except ApiError as error:
            if error.status.code == 404:  # the controller makes root claims when it can
                return None
            raise
        is_bound = found.status is not None and found.status.phase == "Bound"
        return found.spec.volumeName if is_bound and found.spec else None

    volume = await eventually(look, what=f"claim {namespace}/{name} is Bound")
    return read_volume((await client.get(PersistentVolume, volume)).to_dict())


async def volumes_of(client: AsyncClient, namespace: str) -> list[Volume]:
    """Every volume of a claim of the namespace."""
    volumes = [read_volume(item.to_dict()) async for item in client.list(PersistentVolume)]
    return [volume for volume in volumes if volume.claim and volume.claim.namespace == namespace]


async def messages(client: AsyncClient, namespace: str, name: str, reason: str) -> list[str]:
    """The texts of kube-efs's events with that reason about an object."""
    found = client.list(Event, namespace=namespace, fields={"involvedObject.name": name, "reason": reason})
    # Kubernetes' volume controller uses the same reasons.
    return [
        event.message or ""
        async for event in found
        if event.source and event.source.component == "kube-efs-controller"
    ]


async def warning(client: AsyncClient, namespace: str, name: str) -> str:
    """Wait for a ProvisioningFailed event of a claim; returns its text."""

    async def look() -> list[str]:
        return await messages(client, namespace, name, "ProvisioningFailed")

    return (await eventually(look, what=f"claim {namespace}/{name} has a ProvisioningFailed event"))[0]


async def annotations(client: AsyncClient, namespace: str, name: str) -> dict[str, str]:
    """The annotations of a claim."""
    found = await client.get(PersistentVolumeClaim, name, namespace=namespace)
    return dict((found.metadata and found.metadata.annotations) or {})


async def allow_expansion(client: AsyncClient, storage_class: str) -> None:
    """Let claims of the class request more; kube-apiserver refuses it otherwise."""
    allowed = {"allowVolumeExpansion": True}
    await client.patch(StorageClass, storage_class, allowed, patch_type=PatchType.MERGE)


async def expand(client: AsyncClient, namespace: str, name: str, size: str) -> None:
    """Request more for a claim, and wait until it has that."""
    more = {"spec": {"resources": {"requests": {"storage": size}}}}
    await client.patch(PersistentVolumeClaim, name, more, namespace=namespace, patch_type=PatchType.MERGE)

    async def is_expanded() -> bool:
        status = (await client.get(PersistentVolumeClaim, name, namespace=namespace)).to_dict()["status"]
        return status["capacity"] == {"storage": size} and not status.get("conditions")

    await eventually(is_expanded, what=f"the claim {name} has {size}")


async def gone(client: AsyncClient, volume: str) -> None:
    """Wait until the volume is deleted."""

    async def look() -> bool:
        try:
            await client.get(PersistentVolume, volume)
        except ApiError as error:
            return error.status.code == 404
        return False

    await eventually(look, what=f"volume {volume} is gone")


async def foreign_volume(
    cluster: Cluster, name: str, path: str, *, provisioner: str = PROVISIONER, policy: str = "Delete"
) -> PersistentVolume:
    """A foreign volume on the first file system."""
    system = min(cluster.file_system_ids)
    annotations = {PROVISIONED_BY: provisioner, FILE_SYSTEM_ID: system}
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations=annotations),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            persistentVolumeReclaimPolicy=policy,
            storageClassName="by-hand",
            mountOptions=[f"port={await port_of(cluster, system)}"],
            nfs=NFSVolumeSource(server="127.0.0.1", path=path),
        ),
    )


async def refusal(cluster: Cluster, volume: str) -> str:
    """Wait for a VolumeFailedDelete event of a volume; returns its text."""

    async def look() -> list[str]:
        return await messages(cluster.client, "default", volume, "VolumeFailedDelete")

    return (await eventually(look, what=f"volume {volume} has a VolumeFailedDelete event"))[0]


async def published_targets(cluster: Cluster) -> TunnelTargets:
    """The current targets in the ConfigMap."""
    found = await cluster.client.get(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
    targets, rejections = parse_targets((found.data or {})[CONFIG_MAP_KEY])
    assert not rejections
    return targets


async def port_of(cluster: Cluster, file_system_id: FileSystemId) -> int:
    """Wait until the file system has a port."""

    async def look() -> int | None:
        with suppress(ApiError):
            return (await published_targets(cluster)).port_of(file_system_id)
        return None

    return await eventually(look, what=f"{file_system_id} has a port")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """A worker pod that may run, with its action and directories; None if they are unknown."""

    file_system_id: str
    action: Action | None
    directories: tuple[Directory, ...] | None

    @property
    def changes(self) -> bool:
        """Whether it changes directories."""
        return self.action not in {Action.LIST, Action.MEASURE}

    def is_near(self, other: "RunningWorker") -> bool:
        """Whether both change directories that are equal or nested."""
        if self.file_system_id != other.file_system_id or not self.changes or not other.changes:
            return False
        if self.directories is None or other.directories is None:
            return True
        return any(
            one.relation_to(another) is not Relation.APART
            for one, another in itertools.product(self.directories, other.directories)
        )


class WorkerPods:
    """The observed worker pods: their ``names``, and the maximum that ran concurrently for a file system.

    ``conflicts`` are the pairs of pods that could change nested directories at the same time. Pods with a
    scheduling gate do not run. Pods that empty the trash are ignored, because they may run with any other
    pod. ``claims`` are those that the pods, also these, have mounted.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.claims: set[str] = set()
        self.most_at_once: Counter[str] = Counter()
        self.conflicts: set[tuple[str, str]] = set()
        self._running: dict[str, RunningWorker] = {}

    def note(self, change: Change[Pod]) -> None:
        """Record that a pod was created, changed or deleted."""
        match change:
            case Listed(pods):
                self._running = {}
                for pod in pods:
                    self._see(pod)
            case Applied(pod):
                self._see(pod)
            case Deleted(pod):
                self._running.pop((pod.metadata and pod.metadata.name) or "", None)
        self.most_at_once |= Counter(worker.file_system_id for worker in self._running.values())
        self.conflicts |= {
            (name, other)
            for (name, worker), (other, another) in itertools.combinations(self._running.items(), 2)
            if worker.is_near(another)
        }

    def _see(self, pod: Pod) -> None:
        assert pod.metadata
        assert pod.metadata.name
        assert pod.spec
        sources = [one.persistentVolumeClaim for one in pod.spec.volumes or ()]
        self.claims |= {one.claimName for one in sources if one}
        if pod.metadata.name.startswith("efs-empty-"):
            return
        self.names.add(pod.metadata.name)
        has_ended = pod.status is not None and pod.status.phase in {"Succeeded", "Failed"}
        if has_ended or pod.spec.schedulingGates:
            self._running.pop(pod.metadata.name, None)
        else:
            order = parse_order(pod.spec.containers[0].args or [])
            self._running[pod.metadata.name] = RunningWorker(
                file_system_id=(pod.metadata.annotations or {})[FILE_SYSTEM_ID],
                action=order.action,
                directories=order.directories,
            )


@asynccontextmanager
async def worker_pods(cluster: Cluster) -> AsyncGenerator[WorkerPods, None]:
    """Observe worker pods while the context is open."""
    pods = WorkerPods()

    async def watch() -> None:
        labels = {"component": "efs-worker"}
        async for change in follow(cluster.client, Pod, namespace=cluster.namespace, labels=labels):
            pods.note(change)
            ready.set()

    ready = asyncio.Event()
    watching = asyncio.create_task(watch())
    await ready.wait()
    try:
        yield pods
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def trash_is_empty(root: Path) -> None:
    """Wait until the trash of that file system is empty."""

    async def empty() -> bool:
        return not list((root / TRASH).iterdir())

    await eventually(empty, what="the trash is empty")


async def tunnels(node: WithTunnel) -> TunnelsStatus:
    """The current tunnels of the node's agent; none while it does not answer."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{node.tunnel.health_url}/tunnels") as answer,
        ):
            return msgspec.convert(await answer.json(), TunnelsStatus)
    except aiohttp.ClientError:
        return TunnelsStatus()


async def tunnel_status(node: WithTunnel, file_system_id: FileSystemId) -> TunnelStatus | None:
    """The state of one tunnel on the node."""
    status = await tunnels(node)
    return next((one for one in status.tunnels if one.file_system_id == file_system_id), None)


async def tunnel_up(node: WithTunnel, file_system_id: FileSystemId) -> TunnelStatus:
    """Wait until the tunnel of a file system is up."""

    async def look() -> TunnelStatus | None:
        tunnel = await tunnel_status(node, file_system_id)
        return tunnel if tunnel is not None and tunnel.state is TunnelState.UP else None

    return await eventually(look, what=f"the tunnel of {file_system_id} is up")


async def metric(program: Program, start: str) -> float:
    """The sum of all samples of a process's metrics whose line begins so."""
    return sum(float(line.rpartition(" ")[2]) for line in await samples(program, start))


async def samples(program: Program, start: str) -> list[str]:
    """The lines of a process's metrics that begin so."""
    async with aiohttp.ClientSession() as session, session.get(f"{program.health_url}/metrics") as answer:
        return [line for line in (await answer.text()).splitlines() if line.startswith(start)]
