"""Worker pods, one by one: started, followed to their end, and cleared away.

A pod that did its work is deleted; one that failed is kept for people to look at, the newest few. Pods of
a former leader are seen too, and waited for.
"""

import asyncio
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod

from kube_efs.kube.building import WorkerPod, build_worker_pod
from kube_efs.kube.errors import translated
from kube_efs.kube.watching import Applied, Change, Deleted, Listed, follow
from kube_efs.model.directories import Directory, FoundDirectory
from kube_efs.model.errors import (
    KubeAlreadyExists,
    KubeError,
    KubeNotFound,
    KubeUnavailable,
    WorkerFailed,
)
from kube_efs.model.ids import FileSystemId
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID, root_name
from kube_efs.provisioning.work import Action, Item, Job, parse_children, parse_measured, render_arguments
from kube_efs.provisioning.worker import WorkerReport, parse_report
from kube_efs.telemetry.metrics import ControllerMetrics, Outcome

log = structlog.get_logger(__name__)

LABELS: Mapping[str, str] = MappingProxyType({"component": "efs-worker"})
MOUNT_PATH = "/efs"

_RETRY_SECONDS = 1.0
_LOG_SECONDS = 60.0
_LOG_LINES_MAX = 200_000
_FAILED_KEPT = 3
_NAME_MAX = 63
_ENDED = frozenset({"Succeeded", "Failed"})
_WORDS: Mapping[Action, str] = MappingProxyType(
    {Action.MAKE: "init", Action.REMOVE: "clean", Action.LIST: "list", Action.MEASURE: "usage"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How worker pods are run.

    A pod may take ``start_seconds`` to start and works for ``timeout_seconds``; ``batch_max`` is the most
    directories one pod is given.
    """

    namespace: str
    image: str
    service_account: str = "efs-worker"
    timeout_seconds: int = 300
    start_seconds: float = 60.0
    batch_max: int = 500

    @property
    def longest_seconds(self) -> float:
        """The most time from a pod's creation to its end."""
        return self.start_seconds + self.timeout_seconds


class WorkerPods:
    """The worker pods of this installation, as long as ``watch`` runs."""

    def __init__(self, client: AsyncClient, options: WorkerOptions, metrics: ControllerMetrics) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._pods: dict[str, Pod] = {}
        self._pods_listed = False
        self._pods_changed = asyncio.Condition()
        self._running: set[str] = set()

    async def watch(self) -> None:
        """Follow the pods until cancelled, and clear away what others left."""
        async for change in follow(self._client, Pod, namespace=self._options.namespace, labels=LABELS):
            async with self._pods_changed:
                self._note(change)
                self._pods_changed.notify_all()
            for name in self._left_over():
                await self._delete(name)

    async def run(self, file_system_id: FileSystemId, job: Job, items: Sequence[Item]) -> WorkerReport:
        """What became of the items; raises WorkerFailed or KubeError when that cannot be told."""
        pod = self._build(file_system_id, job, items)
        name = _name(pod)
        log.info("worker-started", pod=name, file_system=file_system_id, directories=len(items))
        self._running.add(name)
        try:
            await self._create(pod, name)
            ended = await self._ended(name)
            succeeded = _phase(ended) == "Succeeded"
            self._metrics.worker_pods.labels(Outcome.SUCCEEDED if succeeded else Outcome.FAILED).inc()
            if not succeeded:
                return await self._failed(ended, file_system_id)
            return await self._succeeded(name, job.action)
        finally:
            self._running.discard(name)

    async def _succeeded(self, name: str, action: Action) -> WorkerReport:
        try:
            if action is Action.LIST:
                return WorkerReport(children=await self._children(name))
            if action is Action.MEASURE:
                return WorkerReport(measured=parse_measured(await self._log(name)))
        finally:
            await self._delete(name)
        return WorkerReport()

    async def _log(self, name: str) -> Sequence[str]:
        """The lines of a pod's log; raises KubeError."""
        with translated(f"log of worker pod {name}"):
            async with asyncio.timeout(_LOG_SECONDS):
                lines = self._client.log(
                    name, namespace=self._options.namespace, tail_lines=_LOG_LINES_MAX, newlines=False
                )
                return [line async for line in lines]

    async def _children(self, name: str) -> tuple[FoundDirectory, ...]:
        """What a pod's log lists; raises WorkerFailed when it is not all there, and KubeError."""
        children = parse_children(await self._log(name))
        if children is None:
            problem = "has a log in which directories are missing"
            remedy = "let its node keep more of a container's log (containerLogMaxSize)"
            raise WorkerFailed(problem, field="worker pod", value=name, remedy=remedy)
        return children

    async def others_ended(self, file_system_id: FileSystemId) -> None:
        """Wait for pods that a former leader, or a former life of this one, has left running."""
        while True:
            try:
                async with asyncio.timeout(self._options.longest_seconds), self._pods_changed:
                    await self._pods_changed.wait_for(
                        lambda: self._pods_listed and not self._unfinished(file_system_id)
                    )
                    return
            except TimeoutError:
                for name in self._unfinished(file_system_id):
                    log.warning("worker-overdue", pod=name, file_system=file_system_id)
                    await self._delete(name)

    def _unfinished(self, file_system_id: FileSystemId) -> list[str]:
        """Pods of that file system that may still change it; those that measure it do not."""
        measuring = f"efs-{_WORDS[Action.MEASURE]}-"
        return [
            name
            for name, pod in self._pods.items()
            if _file_system_of(pod) == file_system_id
            and _phase(pod) not in _ENDED
            and not name.startswith(measuring)
        ]

    async def forget(self, root_claim: str) -> None:
        """Delete the pods that use this root claim, failed ones too: Kubernetes keeps it for them."""
        for name, pod in list(self._pods.items()):
            if root_name(FileSystemId(_file_system_of(pod))) == root_claim:
                await self._delete(name)

    async def _create(self, pod: Pod, name: str) -> None:
        try:
            with translated(f"worker pod {name}"):
                created = await self._client.create(pod)
        except (KubeUnavailable, KubeAlreadyExists) as error:
            # It may have been made all the same, also by a request that was then sent again. Until that
            # is clear, no other pod may start.
            log.warning("worker-perhaps-created", pod=name, reason=str(error))
            return
        # The watch may have shown a later state by now.
        self._pods.setdefault(name, created)

    async def _ended(self, name: str) -> Pod:
        """The pod in its last state; raises WorkerFailed when it is not there or never ends."""
        limit = self._options.longest_seconds
        try:
            async with asyncio.timeout(limit):
                while (pod := await self._ended_or_missing(name)) is None:
                    # A list may be older than the pod.
                    self._pods[name] = await self._read(name)
                return pod
        except TimeoutError as error:
            await self._delete(name)
            remedy = "see the pod's events: is the root claim bound, does its node run the tunnel agent?"
            problem = f"had not ended after {limit:.0f} s"
            raise WorkerFailed(problem, field="worker pod", value=name, remedy=remedy) from error

    async def _ended_or_missing(self, name: str) -> Pod | None:
        async with self._pods_changed:
            await self._pods_changed.wait_for(
                lambda: name not in self._pods or _phase(self._pods[name]) in _ENDED
            )
            return self._pods.get(name)

    async def _read(self, name: str) -> Pod:
        while True:
            try:
                with translated(f"worker pod {name}"):
                    return await self._client.get(Pod, name, namespace=self._options.namespace)
            except KubeNotFound as error:
                remedy = "leave worker pods to the controller"
                raise WorkerFailed(
                    "was deleted before it ended, or never made",
                    field="worker pod",
                    value=name,
                    remedy=remedy,
                ) from error
            except KubeError as error:
                log.warning("worker-not-read", pod=name, reason=str(error), retry_seconds=_RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _failed(self, pod: Pod, file_system_id: FileSystemId) -> WorkerReport:
        name, message = _name(pod), _message(pod)
        log.error("worker-failed", pod=name, file_system=file_system_id, message=message)
        await self._forget_old_failures(file_system_id)
        report = parse_report(message)
        if report is not None and report.failed:
            return report
        remedy = f"see kubectl logs -n {self._options.namespace} {name}"
        raise WorkerFailed(
            f"failed ({message or 'no message'})", field="worker pod", value=name, remedy=remedy
        )

    async def _forget_old_failures(self, file_system_id: FileSystemId) -> None:
        failed = [
            pod
            for pod in self._pods.values()
            if _file_system_of(pod) == file_system_id and _phase(pod) == "Failed" and pod.metadata
        ]
        failed.sort(key=lambda pod: str(pod.metadata.creationTimestamp) if pod.metadata else "")
        for pod in failed[:-_FAILED_KEPT]:
            if pod.metadata and pod.metadata.name:
                await self._delete(pod.metadata.name)

    async def _delete(self, name: str) -> None:
        try:
            with translated(f"worker pod {name}"):
                await self._client.delete(Pod, name, namespace=self._options.namespace)
        except KubeNotFound:
            self._pods.pop(name, None)
        except KubeError as error:
            log.warning("worker-not-deleted", pod=name, reason=str(error))

    def _build(self, file_system_id: FileSystemId, job: Job, items: Sequence[Item]) -> Pod:
        return build_worker_pod(
            WorkerPod(
                namespace=self._options.namespace,
                name=_pod_name(file_system_id, job.action, items[0].directory),
                labels=LABELS,
                annotations={FILE_SYSTEM_ID: file_system_id},
                image=self._options.image,
                arguments=_escaped(render_arguments(job, items, root=MOUNT_PATH)),
                service_account=self._options.service_account,
                root_claim=root_name(file_system_id),
                mount_path=MOUNT_PATH,
                timeout_seconds=self._options.timeout_seconds,
            )
        )

    def _note(self, change: Change[Pod]) -> None:
        match change:
            case Listed(objects):
                self._pods = {_name(pod): pod for pod in objects}
                self._pods_listed = True
            case Applied(pod):
                self._pods[_name(pod)] = pod
            case Deleted(pod):
                self._pods.pop(_name(pod), None)

    def _left_over(self) -> list[str]:
        """Pods that succeeded for a controller that is no more."""
        return [
            name
            for name, pod in self._pods.items()
            if _phase(pod) == "Succeeded" and name not in self._running and not _is_deleting(pod)
        ]


def _escaped(arguments: Sequence[str]) -> list[str]:
    """What Kubernetes makes these arguments of: it would take ``$(NAME)`` in them for a variable."""
    return [argument.replace("$", "$$") for argument in arguments]


def _pod_name(file_system_id: FileSystemId, action: Action, directory: Directory) -> str:
    """``efs-<init|clean|list>-<fs id>-<path>-<5 characters>``, the path cut to what a name has room for."""
    readable = "-".join(directory.parts).lower()
    path = "".join(letter if letter in string.ascii_lowercase + string.digits else "-" for letter in readable)
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    start = f"efs-{_WORDS[action]}-{file_system_id}-{path}"[: _NAME_MAX - len(suffix) - 1].rstrip("-")
    return f"{start}-{suffix}"


def _name(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.name) or ""


def _phase(pod: Pod) -> str:
    return (pod.status and pod.status.phase) or "Pending"


def _is_deleting(pod: Pod) -> bool:
    return bool(pod.metadata and pod.metadata.deletionTimestamp)


def _file_system_of(pod: Pod) -> str:
    annotations: Mapping[str, str] = (pod.metadata and pod.metadata.annotations) or {}
    return annotations.get(FILE_SYSTEM_ID, "")


def _message(pod: Pod) -> str:
    for status in (pod.status and pod.status.containerStatuses) or []:
        if status.state and status.state.terminated and status.state.terminated.message:
            return status.state.terminated.message
    return (pod.status and (pod.status.message or pod.status.reason)) or ""
