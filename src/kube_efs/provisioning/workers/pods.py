"""Worker pods: starts them, waits for their end, and deletes them.

Why no pod ever changes a directory that now has another owner: a pod that creates or removes directories is
created with a scheduling gate, and a gated pod does not run. The pod is the lock on its directories:

1. Its creator creates the pod, which publishes the planned work.
2. Then the creator lists the worker pods in the API server. It continues only if no other unfinished pod has
   a directory equal to, above or below one of its own. Two creators both publish before they list, so at
   least one of them sees the other pod. The creator deletes a gated pod on the condition that it has not
   changed, first the one with the higher name. It waits for a running pod.
3. Then the orders are confirmed: the guards of removal check them again.
4. Then the creator removes the gate, with a patch that contains the pod's uid.

So a late request to create a pod, also one of an earlier leader, creates a pod whose gate nobody removes. A
late request to remove the gate finds no pod, or a pod with the same valid order, because the creator waits
until the pod has ended. This is true for any number of leaders, and for several pools of workers in one
namespace. Each pod names the pool that created it: no pool deletes a pod that another pool has not read yet.

A file system that was created for claims is removed in the same manner. A removal first records that it has
begun, and then waits until no pod uses the file system (``unused``). A pod that measures, copies or empties
the trash starts after its creator has seen no such record. So no mount loses its server.

No pod creates access points. Their creator checks for pods after the creation (``settled``), and the
orders of pods check for access points when they are confirmed. Again, each publishes before it checks.

An overdue pod stays a lock on its directories, and its file system is not removed: its node may be
disconnected while its program still runs. All other work continues. It has ended when the kubelet reports it
or the object is deleted. Kubernetes deletes the object when its Node is deleted or tainted with
``node.kubernetes.io/out-of-service``.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Event, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from kube_efs.kube.building import WORKER
from kube_efs.kube.deleting import delete_exactly
from kube_efs.kube.errors import translated
from kube_efs.kube.watching import Applied, Change, Deleted, Listed, follow
from kube_efs.model.copies import CopyProgress
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    KubeAlreadyExists,
    KubeConflict,
    KubeError,
    KubeNotFound,
    KubeUnavailable,
    NotYet,
    PlatformError,
    WorkerDenied,
    WorkerFailed,
)
from kube_efs.model.names import WORKER_LABELS
from kube_efs.model.volumes import Location
from kube_efs.provisioning.workers.denials import Denials
from kube_efs.provisioning.workers.orders import (
    Action,
    Item,
    Job,
    PodOrder,
    WorkerReport,
    parse_children,
    parse_copied,
    parse_measured,
    parse_progress,
    parse_report,
    parse_trash,
)
from kube_efs.provisioning.workers.placement import WorkerPlacement
from kube_efs.provisioning.workers.pod_objects import (
    ObservedPod,
    WorkerOptions,
    observe_pod,
    pod_for,
)
from kube_efs.provisioning.workers.roots import root_objects
from kube_efs.single_flight import SingleFlight
from kube_efs.telemetry.metrics import ControllerMetrics, Outcome

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0
_SWEEP_SECONDS = 1.0
# An empty trash takes a moment. csi-provisioner waits 15 s for an answer.
_UNUSED_SECONDS = 8.0
_LIFTS_TRIED = 3
# The creator of an older gated pod has most likely abandoned it.
_YOUNG_SECONDS = 30.0
_LOG_SECONDS = 60.0
_LOG_LINES_MAX = 200_000
_COPY_LOOK_SECONDS = 60.0
# The last ones of a copy contain its progress.
_PROGRESS_LINES = 20
_FAILED_KEPT = 3
# What mount.nfs(8) reports in the kubelet's events if a file system policy denies the mount.
_MOUNT_DENIED = "access denied by server"


class Busy(WorkerFailed):
    """Another unfinished worker pod has the same or a related directory."""


class ReportMissing(WorkerFailed):
    """A pod left no report, so the cause can be any of its directories, or their number."""


class WorkerPods:
    """The worker pods of one pool, and those of others in the namespace, while ``watch`` runs."""

    def __init__(self, client: AsyncClient, options: WorkerOptions, metrics: ControllerMetrics) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._placement = WorkerPlacement(
            client,
            options.namespace,
            tunnels=options.tunnels,
            own_pod=options.own_pod,
            with_driver=options.with_driver,
        )
        self._pods: dict[str, ObservedPod] = {}
        self._pods_listed = False
        self._pods_changed = asyncio.Condition()
        # The pods of calls in progress, and those among them whose start cannot be withdrawn any more.
        self._running: set[str] = set()
        self._started: set[str] = set()
        self._denials: dict[FileSystemId, Denials] = {}
        self._all_now = SingleFlight(self._list)
        metrics.worker_pods_overdue.read = lambda: [
            ([file_system_id], count)
            for file_system_id, count in Counter(one.file_system_id for one in self._overdue()).items()
        ]
        self.on_removed: Callable[[FileSystemId], None] = lambda _: None

    async def watch(self) -> None:
        """Watch the pods until cancelled, and delete abandoned ones."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep())
            tasks.create_task(self._placement.watch())
            async for change in follow(
                self._client, Pod, namespace=self._options.namespace, labels=WORKER_LABELS
            ):
                async with self._pods_changed:
                    self._note(change)
                    self._pods_changed.notify_all()

    async def listed(self) -> None:
        """Return when all worker pods are known."""
        async with self._pods_changed:
            await self._pods_changed.wait_for(lambda: self._pods_listed)

    async def changed(self, *, within_seconds: float) -> None:
        """Return when a pod has changed, or after that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds), self._pods_changed:
                await self._pods_changed.wait()

    def in_the_way(self, file_system_id: FileSystemId, order: PodOrder) -> Busy | None:
        """The unfinished pod that blocks the order, as an error; None if there is none.

        It is only what the watch has shown. For an order that gets a pod, ``_be_alone`` makes the real check;
        this one avoids pods that it would refuse. A gated pod does not count, because the real check may
        delete it.
        """
        for pod in self._pods.values():
            if pod.blocks(file_system_id, order) and not pod.is_gated:
                return self._busy(pod)
        return None

    async def copy_ended(self, file_system_id: FileSystemId, target: Directory) -> None:
        """Return when no pod copies to the directory, also none of an earlier leader.

        A pod that was deleted or is overdue is not waited for: its node may never report its end.
        """
        while any(
            not (pod.is_gated or pod.is_deleting or self._is_late(pod))
            for pod in self._copying(file_system_id, target)
        ):
            await self.changed(within_seconds=_COPY_LOOK_SECONDS)

    async def progress(self, file_system_id: FileSystemId, target: Directory) -> CopyProgress | None:
        """How far the pod is that copies to the directory, also a pod of an earlier leader.

        None without such a pod, or without a report. Raises KubeError.
        """
        for pod in self._copying(file_system_id, target):
            if not pod.is_pending:
                return parse_progress(await self._log(pod.name, lines=_PROGRESS_LINES))
        return None

    async def stop_copy(self, file_system_id: FileSystemId, target: Directory) -> None:
        """Delete the pods that copy to the directory; they may still run for a moment."""
        for pod in self._copying(file_system_id, target):
            await self._delete(pod.name)

    def _copying(self, file_system_id: FileSystemId, target: Directory) -> list[ObservedPod]:
        return [
            pod
            for pod in self._pods.values()
            if pod.order.action is Action.COPY
            and not pod.has_ended
            and (pod.file_system_id, pod.order.directories) == (file_system_id, (target,))
        ]

    async def run(
        self,
        root: Location,
        job: Job,
        items: Sequence[Item],
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> WorkerReport:
        """Run a pod for the items; raises ReportMissing, WorkerFailed or KubeError without a result.

        Raises PlatformError if pods of these options cannot mount the file system of ``root``.

        ``confirm`` is called immediately before the pod starts; if it raises, the pod is deleted instead.
        After WorkerDenied, the next pods avoid the node. If EFS denies other nodes, too, no pod runs on the
        file system for some minutes, and the error is raised again.
        """
        file_system_id = root.file_system_id
        if not (root.kind.has_ports or self._options.with_driver):
            raise PlatformError(
                "has no port, through which worker pods could mount it",
                field="file system",
                value=file_system_id,
                remedy="install the CSI driver, and set KUBE_EFS_WORKER_MOUNTS=csi for the controller",
            )
        now = asyncio.get_running_loop().time()
        denials = self._denials.get(file_system_id, Denials())
        if now < denials.paused_until:
            raise self._denied_error(file_system_id, denials.reason)
        avoided = denials.nodes(now=now)
        placement = (await self._placement.current()).avoiding(avoided)
        pod = self._observed(pod_for(file_system_id, job, items, self._options, placement))
        name = pod.name
        log.info("worker-started", pod=name, file_system=file_system_id, directories=len(items))
        # Before its creation: ``_sweep`` deletes gated pods of this pool that no call runs.
        self._running.add(name)
        try:
            created = await self._create(pod)
            if self._options.with_driver:
                await self._create_root(created, root.kind)
            if pod.is_gated:
                await self._start(created, confirm)
            ended = await self._ended(created, avoided)
            if file_system_id in self._denials:
                self._denials[file_system_id] = self._denials[file_system_id].after_success()
            outcome = Outcome.SUCCEEDED if ended.has_succeeded else Outcome.FAILED
            self._metrics.worker_pods.labels(outcome).inc()
            if not ended.has_succeeded:
                return self._failed(ended)
            return await self._succeeded(ended, job.action)
        finally:
            self._running.discard(name)
            self._started.discard(name)

    async def _start(self, pod: ObservedPod, confirm: Callable[[], Awaitable[None]] | None) -> None:
        """Remove the gate of a pod of ours when no other blocks it and its orders are confirmed.

        Returns when the pod runs, or may run: the caller then waits for its end. A failed check raises only
        if the pod will never run. Before the first patch, that is certain: nobody else removes the gate, and
        ``_sweep`` deletes the pod. After a patch without an answer, only its deletion makes it certain, on
        the condition that the pod still is as it was read, with its gate. Each new attempt makes both checks
        again, because time has passed.
        """
        for attempt in range(_LIFTS_TRIED):
            try:
                await self._be_alone(pod)
                if confirm:
                    await confirm()
            except Exception:
                # If it cannot be deleted now and was never started, ``_sweep`` deletes it later.
                if await self._delete_unchanged(pod) or not attempt:
                    raise
                # An earlier attempt to start it can still take effect, so its end is awaited.
                return None
            self._started.add(pod.name)
            try:
                return await self._lift(pod)
            except KubeUnavailable as error:
                log.warning("worker-perhaps-started", pod=pod.name, reason=str(error))
                pod = await self._read(pod.name)
                if not pod.is_gated:
                    return None
        if await self._delete_unchanged(pod):
            raise WorkerFailed(
                "could not be started", field="worker pod", value=pod.name, remedy="it is retried"
            )
        # It may have been started, so its end is awaited.
        return None

    async def _be_alone(self, pod: ObservedPod) -> None:
        """Return when no other pod can change the directories before this one has; raises Busy."""
        # A list that begins after this pod was created. What the watch has shown may be older than the pod,
        # and another creator may have published its own since.
        for other in await self._all_now():
            if other.name == pod.name or not other.blocks(pod.file_system_id, pod.order):
                continue
            if not (self._may_withdraw(other, by=pod.name) and await self._delete_unchanged(other)):
                raise self._busy(other)
            log.info("worker-withdrawn", pod=other.name, by=pod.name)

    async def settled(self, file_system_id: FileSystemId, directories: Sequence[Directory]) -> None:
        """Return when no other order can still create or remove the directories; raises Busy, KubeError.

        This deletes gated pods of others. A copy never removes anything, so it is not waited for. Calls of
        this process in progress have reserved their directories, and what they create may be shared. But a
        removal that was started continues without its caller, and then nothing is reserved for it.
        """
        for other in await self._all_now():
            is_removal = other.order.action is Action.REMOVE and other.name in self._started
            is_reserved = other.name in self._running and not is_removal
            is_copy = other.order.action is Action.COPY
            if is_reserved or is_copy or not other.is_near(file_system_id, directories):
                continue
            if not (other.is_gated and await self._delete_unchanged(other)):
                raise self._busy(other)

    async def unused(self, file_system_id: FileSystemId) -> None:
        """Return when no pod uses the file system, also none that starts later.

        Pods that list directories do not count. Raises NotYet while a pod uses it, Busy while a pod copies or
        may never end, and KubeError.
        """
        until = asyncio.get_running_loop().time() + _UNUSED_SECONDS
        while user := next((one for one in await self._all_now() if one.uses(file_system_id)), None):
            if asyncio.get_running_loop().time() > until:
                busy = self._busy(user, "its file system")
                if user.order.action is Action.COPY or user.is_deleting or self._is_late(user):
                    raise busy
                raise NotYet(busy.problem, field=busy.field, value=busy.value, remedy=busy.remedy)
            await self.changed(within_seconds=_RETRY_SECONDS)

    def _may_withdraw(self, other: ObservedPod, *, by: str) -> bool:
        """Whether this other gated pod may be deleted; of two young ones, the lower name stays."""
        if not other.is_gated:
            return False
        is_forgotten = self._is_own(other) and other.name not in self._running
        age_seconds = asyncio.get_running_loop().time() - other.since
        return is_forgotten or by < other.name or age_seconds > _YOUNG_SECONDS

    async def _lift(self, pod: ObservedPod) -> None:
        """Remove the gate; raises KubeUnavailable when the outcome is unknown."""
        name = pod.name
        # The uid makes the patch fail, instead of starting another pod of that name.
        patch = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": None}}
        try:
            with translated(f"worker pod {name}"):
                await self._client.patch(
                    Pod, name, patch, namespace=self._options.namespace, patch_type=PatchType.MERGE
                )
        except (KubeNotFound, KubeConflict) as error:
            raise WorkerFailed(
                "was deleted before it started", field="worker pod", value=name, remedy="it is retried"
            ) from error

    async def _succeeded(self, pod: ObservedPod, action: Action) -> WorkerReport:
        """The result of a pod; raises WorkerFailed when its log is incomplete, and KubeError."""
        name = pod.name
        try:
            if action is Action.LIST:
                children = parse_children(await self._log(name))
                if children is None:
                    problem = "has an incomplete log: directories are missing in it"
                    remedy = "let its node keep more of a container's log (containerLogMaxSize)"
                    raise WorkerFailed(problem, field="worker pod", value=name, remedy=remedy)
                return WorkerReport(children=children)
            if action is Action.MEASURE:
                return WorkerReport(measured=parse_measured(await self._log(name)))
            if action is Action.EMPTY:
                return WorkerReport(trash=parse_trash(await self._log(name)))
            if action is Action.COPY:
                return WorkerReport(copied=parse_copied(pod.message))
        finally:
            # Also if its log cannot be read or used: the work is repeated with another pod, and only failed
            # pods are kept for diagnosis.
            await self._delete(name)
        return WorkerReport()

    async def _log(self, name: str, *, lines: int = _LOG_LINES_MAX) -> Sequence[str]:
        """The last lines of a pod's log; raises KubeError."""
        with translated(f"log of worker pod {name}"):
            async with asyncio.timeout(_LOG_SECONDS):
                # A webhook may have added other containers.
                found = self._client.log(
                    name,
                    namespace=self._options.namespace,
                    container=WORKER,
                    tail_lines=lines,
                    newlines=False,
                )
                return [line async for line in found]

    async def forget(self, root_claim: str) -> None:
        """Delete the pods that use this root claim, also failed ones: Kubernetes keeps the claim for them."""
        for pod in list(self._pods.values()):
            if pod.root_claim == root_claim:
                await self._delete(pod.name)

    async def _create(self, pod: ObservedPod) -> ObservedPod:
        name = pod.name
        try:
            with translated(f"worker pod {name}"):
                created = self._observed(await self._client.create(pod.pod))
        except (KubeUnavailable, KubeAlreadyExists) as error:
            # The pod may exist nevertheless, also because the request was sent twice. If it is created later,
            # it stays gated and ``_sweep`` deletes it.
            log.warning("worker-perhaps-created", pod=name, reason=str(error))
            created = await self._read(name)
        # The watch may have shown a later state already.
        self._pods.setdefault(name, created)
        return created

    async def _create_root(self, pod: ObservedPod, kind: FileSystemKind) -> None:
        """Create the claim and the volume that the pod mounts; raises KubeError without the pod."""
        try:
            for one in root_objects(pod, kind, self._options.namespace):
                # After a lost answer the request is repeated, and nothing else has the name of the pod.
                with suppress(KubeAlreadyExists), translated(f"root volume of worker pod {pod.name}"):
                    await self._client.create(one)
        except KubeError:
            await self._delete(pod.name)
            raise

    async def _ended(self, pod: ObservedPod, avoided: Collection[str]) -> ObservedPod:
        """The pod in its last state; raises ReportMissing after the timeout, WorkerFailed without a pod."""
        name, limit = pod.name, self._longest_seconds(pod)
        try:
            async with asyncio.timeout(limit):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._options.start_seconds):
                        return await self._end_of(name)
                await self._check_root(name)
                await self._check_mount(name, avoided)
                return await self._end_of(name)
        except TimeoutError as error:
            # Until it has ended, it blocks work on its directories and related ones.
            await self._delete(name)
            agent = "the tunnel agent and the CSI driver" if self._options.with_driver else "the tunnel agent"
            remedy = f"see the pod's events: is its claim bound, does its node run {agent}?"
            # Such as that no node has room, or that the volume cannot be mounted.
            warnings = [one.message or "" for one in await self._events(pod) if one.type == "Warning"]
            reason = f" ({warnings[-1]})" if warnings else ""
            problem = f"did not end after {limit:.0f} s{reason}"
            raise ReportMissing(problem, field="worker pod", value=name, remedy=remedy) from error

    async def _end_of(self, name: str) -> ObservedPod:
        while (pod := await self._ended_or_missing(name)) is None:
            # A list may be older than the pod.
            self._pods[name] = await self._read(name)
        return pod

    async def _check_root(self, name: str) -> None:
        """Raise WorkerFailed without the pod, if the claim that it waits for does not exist."""
        pod = self._pods.get(name)
        if pod is None or not pod.is_pending or pod.root_claim is None:
            return
        try:
            with translated(f"root claim of worker pod {name}"):
                await self._client.get(
                    PersistentVolumeClaim, pod.root_claim, namespace=self._options.namespace
                )
        except KubeNotFound as error:
            await self._delete(name)
            raise WorkerFailed(
                "is not known to this controller, so no worker pod can mount it",
                field="file system",
                value=pod.file_system_id,
                remedy="check its ID, the region and the account; if it was deleted, delete the volume and "
                "remove its finalizer",
            ) from error
        except KubeError as error:
            log.warning("worker-root-claim-not-read", pod=name, reason=str(error))

    async def _check_mount(self, name: str, avoided: Collection[str]) -> None:
        """Raise WorkerDenied without the pod, if it waits because EFS denies the mount of its volume."""
        pod = self._pods.get(name)
        if pod is None or not pod.is_pending:
            return
        messages = [one.message or "" for one in await self._events(pod)]
        denied = next((one for one in messages if _MOUNT_DENIED in one), None)
        if denied is None:
            return
        await self._delete(name)
        log.warning("worker-denied", pod=name, file_system=pod.file_system_id, reason=denied)
        before, now = self._denials.get(pod.file_system_id, Denials()), asyncio.get_running_loop().time()
        node = pod.node
        # Without the CSI driver, no node is known: all of them connect without an identity.
        has_others = node is not None and self._placement.has_nodes_except({node, *before.nodes(now=now)})
        after = before.after_denial(node, denied, avoided=avoided, now=now, has_others=has_others)
        self._denials[pod.file_system_id] = after
        raise self._denied_error(pod.file_system_id, after.reason)

    async def _events(self, pod: ObservedPod) -> Sequence[Event]:
        """The events of the pod, the last one last; none, with a line in the log, if they cannot be read."""
        try:
            with translated(f"events of worker pod {pod.name}"):
                found = self._client.list(
                    Event, namespace=self._options.namespace, fields={"involvedObject.uid": pod.uid}
                )
                return sorted([one async for one in found], key=_time_of)
        except KubeError as error:
            log.warning("worker-events-not-read", pod=pod.name, reason=str(error))
            return ()

    def _denied_error(self, file_system_id: FileSystemId, reason: str) -> WorkerDenied:
        allowed = (
            "the identity of the tunnel agent, or to all clients"
            if self._options.with_driver
            else "all clients, or install the CSI driver, which mounts with the identity of the tunnel agent"
        )
        return WorkerDenied(
            f"cannot be mounted by worker pods ({reason})",
            field="file system",
            value=file_system_id,
            remedy=f"let its policy allow ClientMount, ClientWrite and ClientRootAccess to {allowed}",
        )

    async def _ended_or_missing(self, name: str) -> ObservedPod | None:
        async with self._pods_changed:
            await self._pods_changed.wait_for(lambda: name not in self._pods or self._pods[name].has_ended)
            return self._pods.get(name)

    async def _read(self, name: str) -> ObservedPod:
        while True:
            try:
                with translated(f"worker pod {name}"):
                    pod = await self._client.get(Pod, name, namespace=self._options.namespace)
                return self._observed(pod)
            except KubeNotFound as error:
                remedy = "leave worker pods to the controller"
                raise WorkerFailed(
                    "was deleted before it ended, or was never created",
                    field="worker pod",
                    value=name,
                    remedy=remedy,
                ) from error
            except KubeError as error:
                log.warning("worker-not-read", pod=name, reason=str(error), retry_seconds=_RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)

    def _failed(self, pod: ObservedPod) -> WorkerReport:
        name, message = pod.name, pod.message
        log.error("worker-failed", pod=name, file_system=pod.file_system_id, message=message)
        report = parse_report(message)
        if report is not None and report.failed:
            return report
        remedy = f"see kubectl logs -n {self._options.namespace} {name}"
        raise ReportMissing(
            f"failed ({message or 'no message'})", field="worker pod", value=name, remedy=remedy
        )

    def _old_failures(self) -> list[ObservedPod]:
        """Pods that failed, except the newest few of each file system, which are kept for diagnosis."""
        failed: defaultdict[FileSystemId, list[ObservedPod]] = defaultdict(list)
        for pod in self._pods.values():
            if pod.has_failed and pod.name not in self._running and not pod.is_deleting:
                failed[pod.file_system_id].append(pod)
        return [
            old
            for some in failed.values()
            for old in sorted(some, key=lambda one: one.created)[:-_FAILED_KEPT]
        ]

    async def _delete(self, name: str) -> None:
        # Without the uid: the name contains random characters, so a late request finds no other pod.
        try:
            with translated(f"worker pod {name}"):
                await self._client.delete(Pod, name, namespace=self._options.namespace)
        except KubeNotFound:
            self._pods.pop(name, None)
        except KubeError as error:
            log.warning("worker-not-deleted", pod=name, reason=str(error))

    async def _delete_unchanged(self, pod: ObservedPod) -> bool:
        """Delete a pod if it is unchanged; returns whether it is deleted, so that it cannot be started."""
        try:
            with translated(f"worker pod {pod.name}"):
                await delete_exactly(
                    self._client,
                    Pod,
                    pod.name,
                    pod.uid,
                    namespace=self._options.namespace,
                    resource_version=pod.resource_version,
                )
        except KubeNotFound:
            return True
        except KubeError as error:
            log.warning("worker-not-deleted", pod=pod.name, reason=str(error))
            return False
        # A gated pod has no node, so it waits for no kubelet and is deleted immediately.
        return True

    async def _list(self) -> Sequence[ObservedPod]:
        """All worker pods, as the API server has them now."""
        with translated("list worker pods"):
            found = self._client.list(Pod, namespace=self._options.namespace, labels=dict(WORKER_LABELS))
            return [self._observed(pod) async for pod in found]

    def _busy(self, pod: ObservedPod, what: str = "this directory") -> Busy:
        remedy = (
            "it is retried; if that machine is permanently off, delete its Node, or taint it with "
            "node.kubernetes.io/out-of-service"
        )
        problem = f"works on {what} on {pod.node or 'no node yet'}"
        return Busy(problem, field="worker pod", value=pod.name, remedy=remedy)

    def _observed(self, pod: Pod) -> ObservedPod:
        observed = observe_pod(pod, since=asyncio.get_running_loop().time())
        before = self._pods.get(observed.name)
        return replace(observed, since=before.since) if before else observed

    def _note(self, change: Change[Pod]) -> None:
        match change:
            case Listed(objects):
                before = self._pods
                self._pods = {pod.name: pod for pod in map(self._observed, objects)}
                self._pods_listed = True
                for pod in self._pods.values():
                    self._note_removal(before.get(pod.name), pod)
            case Applied(found):
                pod = self._observed(found)
                self._note_removal(self._pods.get(pod.name), pod)
                self._pods[pod.name] = pod
            case Deleted(found):
                self._pods.pop(self._observed(found).name, None)

    def _note_removal(self, before: ObservedPod | None, pod: ObservedPod) -> None:
        if pod.order.action is Action.REMOVE and pod.has_ended and not (before and before.has_ended):
            self.on_removed(pod.file_system_id)

    def _overdue(self) -> list[ObservedPod]:
        """Pods that should have ended."""
        return [pod for pod in self._pods.values() if not pod.has_ended and self._is_late(pod)]

    def _is_late(self, pod: ObservedPod) -> bool:
        age_seconds = asyncio.get_running_loop().time() - pod.since
        return age_seconds > self._longest_seconds(pod)

    def _longest_seconds(self, pod: ObservedPod) -> float:
        """The maximum time from the pod's creation to its end."""
        return self._options.start_seconds + (pod.working_seconds or self._options.timeout_seconds)

    async def _sweep(self) -> None:
        """Periodically remove abandoned pods."""
        while True:
            await self.changed(within_seconds=_SWEEP_SECONDS)
            for pod in (*self._left_over(), *self._old_failures()):
                if not pod.has_ended:
                    log.warning("worker-overdue", pod=pod.name, file_system=pod.file_system_id)
                await self._delete(pod.name)
            for pod in self._withdrawn():
                await self._delete_unchanged(pod)

    def _left_over(self) -> list[ObservedPod]:
        """Pods that succeeded and are no longer read, and pods that exceeded their timeout long ago.

        Another pool reads its own pods, so they are kept until their timeout.
        """
        return [
            pod
            for pod in self._pods.values()
            if pod.name not in self._running
            and not pod.is_deleting
            and not pod.has_failed
            and ((pod.has_ended and self._is_own(pod)) or self._is_late(pod))
        ]

    def _withdrawn(self) -> list[ObservedPod]:
        """Gated pods of this pool that will not be started, because their requests were abandoned."""
        return [
            pod
            for pod in self._pods.values()
            if pod.name not in self._running and pod.is_gated and self._is_own(pod)
        ]

    def _is_own(self, pod: ObservedPod) -> bool:
        # An earlier version names no pool, and does not run at the same time as this one.
        return pod.pool in (None, self._options.pool)


def _time_of(event: Event) -> datetime:
    """When it was written last. The scheduler writes the time of its events into a newer field."""
    return event.lastTimestamp or event.eventTime or datetime.min.replace(tzinfo=UTC)
