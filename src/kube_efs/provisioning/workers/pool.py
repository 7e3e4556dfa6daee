"""Creates and removes directories with worker pods; one pod does the work of many claims.

At most one worker pod of a pool changes a file system at any moment, and it does all waiting work: a burst of
a hundred claims needs only a few pods. An overdue pod delays only work on its directories and on related
ones.

A pod that is killed leaves no report: it had too many directories for its timeout, or one of them hangs. The
next pod would fail with the same directories, so it gets half as many. After each report, the number doubles.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

import structlog
from lightkube import AsyncClient

from kube_efs.model.copies import COPIES, Copied, CopyProgress, CopyTerms
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsNotFound,
    AwsNotPermitted,
    CopyDiffers,
    GidTaken,
    KubeEfsError,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.trash import TrashReport
from kube_efs.model.usage import MeasuredDirectory
from kube_efs.model.volumes import Location
from kube_efs.provisioning.workers.contract import UNPROTECTED, Confirm, Protection, nothing_to_confirm
from kube_efs.provisioning.workers.file_system import refuse_outside
from kube_efs.provisioning.workers.orders import (
    Action,
    EmptyingTerms,
    Item,
    Job,
    MeasuringTerms,
    PodOrder,
    WorkerReport,
)
from kube_efs.provisioning.workers.pod_objects import WorkerOptions
from kube_efs.provisioning.workers.pods import Busy, ReportMissing, WorkerPods
from kube_efs.provisioning.workers.slots import Slots, copy_stopped
from kube_efs.telemetry.metrics import ControllerMetrics, Outcome
from kube_efs.telemetry.traces import span

log = structlog.get_logger(__name__)

# A burst of claims arrives within some hundred milliseconds; a pod that starts after it serves all of them.
_QUIET_SECONDS = 0.2
_GATHERING_MAX_SECONDS = 2.0
# How often work that waits for another pod checks that pod.
_LOOK_AGAIN_SECONDS = 1.0
# A stopped copy ends within this time, unless the API server does not answer while its pod starts.
_STOPPED_SECONDS = 60.0

# A lane remembers how many directories the next pod gets. So it stays longer than any usual pause before they
# are tried again.
_IDLE_SECONDS = 3600.0

# Users can create any number of claims, and each copy can use the throughput of its file system alone.
_COPIES_AT_ONCE = 4

# The result of a task: the children for a list, otherwise nothing.
_Found = tuple[FoundDirectory, ...]


@dataclass(slots=True, eq=False)
class _Task:
    job: Job
    item: Item
    done: asyncio.Future[_Found]
    since: float
    confirm: Confirm | None = None

    def fits(self, other: "_Task") -> bool:
        """Whether one pod can do both; a pod lists only one directory."""
        return self.job == other.job and (self.job.action is not Action.LIST or self.item == other.item)


@dataclass(slots=True, eq=False)
class _Lane:
    """The waiting work of one file system; the next pod gets at most ``batch_max`` items."""

    batch_max: int
    waiting: list[_Task] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Copying:
    """A copy that this pool makes, also while it has no pod yet; a stopped one gets none any more."""

    done: asyncio.Future[Copied]
    is_stopped: bool = False

    def check_goes_on(self, target: Location) -> None:
        """Raise WorkerFailed if it was stopped."""
        if self.is_stopped:
            raise copy_stopped(target.directory)


class _SomeWithdrawn(Exception):
    """An order of the batch was withdrawn; its task has the reason."""


class WorkerPool(AbstractAsyncContextManager["WorkerPool"]):
    """Creates and removes directories with worker pods; use as ``async with``.

    ``check_stays`` raises VolumePending while a file system is being removed, and AwsNotFound afterwards.
    Pods that measure, copy or empty a trash do not start then.
    """

    def __init__(
        self,
        client: AsyncClient,
        options: WorkerOptions,
        metrics: ControllerMetrics,
        *,
        check_stays: Callable[[FileSystemId], Awaitable[None]] | None,
    ) -> None:
        self._options = options
        self._check_stays = check_stays
        self._metrics = metrics
        self._pods = WorkerPods(client, options, metrics)
        # EFS and S3 Files give IDs of the same form.
        self._lanes: dict[tuple[FileSystemKind, FileSystemId], _Lane] = {}
        self._tasks = asyncio.TaskGroup()
        self._copy_slots: WeakValueDictionary[FileSystemId, Slots] = WeakValueDictionary()
        self._copy_tasks: set[asyncio.Task[None]] = set()
        self._copies: dict[tuple[Location, CopyTerms], _Copying] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._background = {self._tasks.create_task(self._pods.watch())}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*self._background, *self._copy_tasks):
            task.cancel()
        for lane in self._lanes.values():
            for waiting in lane.waiting:
                waiting.done.cancel()
        # Without the error, which the task group would otherwise raise inside an ExceptionGroup.
        await self._tasks.__aexit__(None, None, None)

    async def make(self, location: Location, permissions: Permissions) -> None:
        """Make the directory unless it exists; raises GidTaken, WorkerFailed and KubeError."""
        job = Job(
            action=Action.MAKE,
            mode=permissions.mode,
            enforced=permissions.enforced,
            exact=permissions.exact,
            own_group=permissions.own_group,
        )
        item = Item(directory=location.directory, uid=permissions.uid, gid=permissions.gid)
        await self._do(location, job, item)

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        """Move the directory into that tenant's trash, if it exists.

        ``confirm`` is called immediately before a pod starts. A copy to the directory that has not begun then
        never begins. Raises RemovalRefused unless it is strictly inside ``base``, what ``confirm`` raises,
        WorkerFailed and KubeError.
        """
        refuse_outside(location.directory, base)
        job = Job(action=Action.REMOVE, base=base)
        item = Item(directory=location.directory, tenant=tenant)

        async def confirmed() -> None:
            await confirm()
            # Perhaps nobody waits any more for a copy that has not begun. It must not fill it again.
            self._stop_own(location)

        await self._do(location, job, item, confirmed)

    async def settled(self, location: Location) -> None:
        """Return when no pod without a reservation can change it; raises WorkerFailed and KubeError."""
        await self._pods.settled(location.file_system_id, (location.directory,))

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        """The directories in this one; none when it does not exist; raises WorkerFailed and KubeError."""
        job = Job(action=Action.LIST)
        return await self._do(location, job, Item(directory=location.directory))

    async def measure(
        self, root: Location, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        """The size of each directory, as far as the terms allow; raises WorkerFailed, AwsError, KubeError.

        It uses a separate pod, so that no claim waits for it. Raises VolumePending while the file system is
        being removed.
        """
        job = Job(action=Action.MEASURE, terms=terms)
        items = [Item(directory=directory) for directory in directories]
        return (await self._pods.run(root, job, items, partial(self._confirm_stay, root))).measured

    async def empty(self, root: Location, terms: EmptyingTerms) -> TrashReport:
        """Empty the trash at that root as far as the terms allow; raises WorkerFailed, AwsError, KubeError.

        It uses a separate pod, so that no claim and no removal of a directory waits for it. Raises
        VolumePending while the file system is being removed, and AwsNotFound afterwards.
        """
        job, items = Job(action=Action.EMPTY, emptying=terms), [Item(directory=root.directory)]
        confirm = partial(self._confirm_stay, root, is_own=True)
        report = (await self._pods.run(root, job, items, confirm)).trash
        if report is None:
            raise WorkerFailed(
                "did not report what is left",
                field="trash",
                value=root.file_system_id,
                remedy="it is retried",
            )
        return report

    async def copy(
        self,
        target: Location,
        terms: CopyTerms,
        *,
        tenant: str = "",
        protection: Protection = UNPROTECTED,
    ) -> Copied:
        """Copy a directory of the file system to the target, or continue an interrupted copy.

        It uses a separate pod, which may work for a day, also when the caller is cancelled. A repeated call
        joins it. Tenants take turns. ``protection`` is that of the source until the end of the copy. Raises
        WorkerRefused, WorkerFailed, the errors of ``protection.confirm``, AwsError and KubeError, and
        VolumePending while the file system is being removed.
        """
        copying = self._copies.get((target, terms))
        if copying is None:
            copying = self._copies[target, terms] = _Copying(asyncio.get_running_loop().create_future())
            task = self._tasks.create_task(self._run_copy(target, terms, tenant, protection, copying))
            self._copy_tasks.add(task)
            task.add_done_callback(self._copy_tasks.discard)
        # Callers of the CSI socket have a deadline, and repeat the call; the copy continues meanwhile.
        return await asyncio.shield(copying.done)

    async def _run_copy(
        self, target: Location, terms: CopyTerms, tenant: str, protection: Protection, copying: _Copying
    ) -> None:
        try:
            # The caller has the same reservation now, but may go before the copy has begun.
            async with protection.reserved():
                copied = await self._copy(target, terms, tenant, protection.confirm, copying)
            self._metrics.copies.labels(Outcome.SUCCEEDED).inc()
            self._metrics.copied_bytes.inc(copied.progress.copied_bytes)
            copying.done.set_result(copied)
        except Exception as error:  # noqa: BLE001 - for the caller; here it would end all other work
            self._metrics.copies.labels(Outcome.FAILED).inc()
            copying.done.set_exception(error)
            copying.done.exception()  # Perhaps no caller is left to receive it.
        finally:
            copying.done.cancel()
            del self._copies[target, terms]

    async def _copy(
        self, target: Location, terms: CopyTerms, tenant: str, confirm_source: Confirm, copying: _Copying
    ) -> Copied:
        # The next pod finds what the one of an earlier leader has finished.
        await self.copy_ended(target)
        file_system_id, directory = target.file_system_id, target.directory
        item, job = Item(directory=directory), Job(action=Action.COPY, copying=terms)
        order = PodOrder(action=Action.COPY, directories=(directory,), source=terms.source)
        if busy := self._pods.in_the_way(file_system_id, order):
            raise busy
        slots = self._copy_slots.setdefault(file_system_id, Slots(_COPIES_AT_ONCE))

        async def confirm() -> None:
            await self._confirm_stay(target.root)
            await confirm_source()
            # Last: a later stop finds its pod.
            copying.check_goes_on(target)

        copying.check_goes_on(target)
        async with slots.taken(tenant, directory):
            report = await self._pods.run(target.root, job, [item], confirm)
        if reason := report.failed.get(str(directory)):
            kind = WorkerRefused if str(directory) in report.refused else WorkerFailed
            if str(directory) in report.taken:
                kind = CopyDiffers
            raise kind(f"was not copied ({reason})", field="directory", value=str(terms.source))
        if report.copied is None:
            remedy = "it is retried"
            raise WorkerFailed("did not report its end", field="copy", value=str(target), remedy=remedy)
        return report.copied

    async def copy_ended(self, target: Location) -> None:
        """Return when no pod copies to the target, also none of an earlier leader.

        A copy that waits for its turn has none, and a repeated ``copy`` joins it.
        """
        await self._pods.listed()
        await self._pods.copy_ended(target.file_system_id, target.directory)

    async def copy_progress(self, target: Location) -> CopyProgress | None:
        """How far the copy to the target is, as far as is known; raises KubeError."""
        return await self._pods.progress(target.file_system_id, target.directory)

    async def stop_copy(self, target: Location) -> None:
        """Stop the copy to the target, also one of an earlier leader, or one that has no pod yet."""
        self._stop_own(target)
        await self._pods.stop_copy(target.file_system_id, target.directory)

    def _stop_own(self, target: Location) -> set[asyncio.Future[Copied]]:
        """Let no copy of this pool to the target start any more; returns those that have not ended yet."""
        stopped = [copying for (place, _), copying in self._copies.items() if place == target]
        for copying in stopped:
            copying.is_stopped = True
        if slots := self._copy_slots.get(target.file_system_id):
            slots.stop(target.directory)
        return {copying.done for copying in stopped}

    async def discard_copy(self, target: Location, key: str) -> None:
        """Remove what was copied with that key; raises WorkerFailed, KubeError.

        A copy to the target that has no pod yet gets none: its callers may have gone, and it would begin
        again, perhaps hours after the volume was removed.
        """
        unfinished = self._stop_own(target)
        await self.copy_ended(target)
        order = PodOrder(action=Action.COPY, directories=(target.directory,))
        loop = asyncio.get_running_loop()
        until = loop.time() + _STOPPED_SECONDS
        # A pod whose gate is being removed does not block yet, so the end of its copy is awaited.
        while not (busy := self._pods.in_the_way(target.file_system_id, order)) and unfinished:
            if loop.time() >= until:
                remedy = "what it has copied is removed with the next attempt"
                raise WorkerFailed("has not ended", field="copy", value=str(target), remedy=remedy)
            unfinished = (await asyncio.wait(unfinished, timeout=_LOOK_AGAIN_SECONDS))[1]
        if busy:
            raise busy
        base = Directory((COPIES,))
        copied = Location(file_system_id=target.file_system_id, directory=base / key)
        await self.remove(copied, base, nothing_to_confirm)

    async def unused(self, file_system_id: FileSystemId) -> None:
        """Return when no pod uses the file system, also none that starts later.

        The caller has recorded before that the file system is being removed. Pods that list directories do
        not count. Raises NotYet while one uses it, WorkerFailed while one may use it for long, and KubeError.
        """
        await self._pods.unused(file_system_id)

    async def _confirm_stay(self, root: Location, *, is_own: bool = False) -> None:
        """Raise VolumePending while the file system is being removed.

        If it is in our own account, raise AwsNotFound afterwards; users have volumes of other accounts, too.
        """
        if self._check_stays is None or root.kind is not FileSystemKind.EFS:
            return
        try:
            await self._check_stays(root.file_system_id)
        except AwsNotFound:
            if is_own:
                raise
        except AwsNotPermitted as error:
            # Volumes of existing directories need no AWS. Without this permission, no file system is removed.
            log.warning("removal-not-excluded", file_system=root.file_system_id, reason=str(error))

    def on_removed(self, call: Callable[[FileSystemId], None]) -> None:
        """Call that whenever a pod that removes directories has ended, also a pod of another process."""
        self._pods.on_removed = call

    async def forget(self, root_claim: str) -> None:
        """Delete the pods that use this root claim, also failed ones: Kubernetes keeps the claim for them."""
        await self._pods.forget(root_claim)

    async def _do(self, location: Location, job: Job, item: Item, confirm: Confirm | None = None) -> _Found:
        root = location.root
        key = (root.kind, root.file_system_id)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self._options.batch_max)
            serving = self._tasks.create_task(self._serve(root, lane))
            self._background.add(serving)
            serving.add_done_callback(self._background.discard)
        loop = asyncio.get_running_loop()
        task = _Task(job, item, loop.create_future(), since=loop.time(), confirm=confirm)
        lane.waiting.append(task)
        lane.arrived.set()
        # The pod works for others too, so the span is about this directory and not about the pod.
        with span(
            "worker.directory",
            action=job.action,
            file_system=root.file_system_id,
            directory=str(item.directory),
        ):
            # Not shielded: if its caller goes before the pod starts, the order is withdrawn.
            return await task.done

    async def _serve(self, root: Location, lane: _Lane) -> None:
        await self._pods.listed()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await lane.arrived.wait()
            if not lane.arrived.is_set():
                # Without an await since the check: the next work gets a new lane.
                del self._lanes[root.kind, root.file_system_id]
                return
            await self._gather(lane)
            batch = self._take(root.file_system_id, lane)
            if batch:
                await self._carry_out(root, lane, batch)
            elif lane.waiting:
                await self._pods.changed(within_seconds=_LOOK_AGAIN_SECONDS)

    async def _carry_out(self, root: Location, lane: _Lane, batch: Sequence[_Task]) -> None:
        try:
            items = sorted({task.item for task in batch}, key=lambda item: (item.directory, str(item)))
            report = await self._pods.run(root, batch[0].job, items, lambda: _confirm(batch))
        except (_SomeWithdrawn, Busy) as reason:
            # The next pod gets the others of the batch.
            lane.waiting[:0] = [task for task in batch if not task.done.done()]
            lane.arrived.set()
            if isinstance(reason, Busy):
                await self._pods.changed(within_seconds=_LOOK_AGAIN_SECONDS)
        except KubeEfsError as error:
            if isinstance(error, ReportMissing):
                lane.batch_max = max(1, len(batch) // 2)
            for task in batch:
                if not task.done.done():
                    task.done.set_exception(error)
        except BaseException:
            # The pool ends. The tasks have left the lane, so nothing else would wake their callers.
            for task in batch:
                task.done.cancel()
            raise
        else:
            lane.batch_max = min(2 * lane.batch_max, self._options.batch_max)
            _settle(batch, report)

    async def _gather(self, lane: _Lane) -> None:
        """Return when no work has arrived for a moment, or the batch is full."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GATHERING_MAX_SECONDS
        while loop.time() < deadline and len(lane.waiting) < lane.batch_max:
            lane.arrived.clear()
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    await lane.arrived.wait()
            except TimeoutError:
                return

    def _take(self, file_system_id: FileSystemId, lane: _Lane) -> list[_Task]:
        """The oldest unblocked task and others of its kind, up to the maximum of a pod."""
        lane.waiting = [task for task in lane.waiting if not task.done.done()]
        free = [task for task in lane.waiting if not self._is_blocked(file_system_id, task)]
        batch = [task for task in free if task.fits(free[0])][: lane.batch_max]
        taken = set(map(id, batch))
        lane.waiting = [task for task in lane.waiting if id(task) not in taken and not task.done.done()]
        if lane.waiting:
            lane.arrived.set()
        else:
            lane.arrived.clear()
        return batch

    def _is_blocked(self, file_system_id: FileSystemId, task: _Task) -> bool:
        """Whether an unfinished pod blocks the task; a task that has waited too long fails."""
        order = PodOrder(action=task.job.action, directories=(task.item.directory,))
        busy = self._pods.in_the_way(file_system_id, order)
        # Long enough for an overdue pod to be deleted and to end.
        patience_seconds = 2 * self._options.longest_seconds
        if busy and asyncio.get_running_loop().time() > task.since + patience_seconds:
            task.done.set_exception(busy)
        return busy is not None


async def _confirm(batch: Sequence[_Task]) -> None:
    """Raise _SomeWithdrawn unless every order of the batch is valid; the others get the reason.

    A pod carries out all of its arguments, so one order that was refused, or whose caller has gone, keeps the
    whole pod from starting. The other orders get another pod.
    """
    asked = [task for task in batch if task.confirm and not task.done.done()]
    answers = await asyncio.gather(
        *(task.confirm() for task in asked if task.confirm), return_exceptions=True
    )
    for task, answer in zip(asked, answers, strict=True):
        if isinstance(answer, BaseException) and not task.done.done():
            task.done.set_exception(answer)
    if any(task.done.done() for task in batch):
        raise _SomeWithdrawn


def _settle(batch: Sequence[_Task], report: WorkerReport) -> None:
    for task in batch:
        if task.done.done():
            continue
        path = str(task.item.directory)
        reason = report.failed.get(path)
        if reason is None and report.complete:
            task.done.set_result(report.children)
        else:
            problem = f"failed in its worker pod ({reason or 'no reason reported'})"
            kind = WorkerRefused if path in report.refused else WorkerFailed
            if path in report.taken:
                kind = GidTaken
            task.done.set_exception(kind(problem, field="directory", value=path))
