"""The hands of the controller inside the file systems: what is to be done there, in few worker pods.

At most one worker pod runs for a file system at any moment, and each does everything that waits: a burst
of a hundred claims costs a few pods.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from lightkube import AsyncClient

from kube_efs.model.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.errors import KubeEfsError, WorkerFailed, WorkerRefused
from kube_efs.model.ids import FileSystemId
from kube_efs.model.usage import MeasuredDirectory
from kube_efs.model.volumes import Location
from kube_efs.provisioning.file_system import refuse_outside
from kube_efs.provisioning.work import Action, Item, Job, MeasuringTerms
from kube_efs.provisioning.worker import WorkerReport
from kube_efs.provisioning.worker_pods import WorkerOptions, WorkerPods
from kube_efs.telemetry.metrics import ControllerMetrics

# A burst of claims arrives over some hundred milliseconds; a pod that waited for its end serves all of it.
_QUIET_SECONDS = 0.2
_GATHERING_MAX_SECONDS = 2.0

# What a task gives: the children for a list, nothing otherwise.
_Found = tuple[FoundDirectory, ...]


@dataclass(slots=True, eq=False)
class _Task:
    job: Job
    item: Item
    done: asyncio.Future[_Found]

    def fits(self, other: "_Task") -> bool:
        """Whether one pod can do both: a pod lists one directory only."""
        return self.job == other.job and (self.job.action is not Action.LIST or self.item == other.item)


@dataclass(slots=True, eq=False)
class _Lane:
    """The work that waits for one file system."""

    waiting: list[_Task] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerPool(AbstractAsyncContextManager["WorkerPool"]):
    """Makes and removes directories by worker pods; use as ``async with``."""

    def __init__(self, client: AsyncClient, options: WorkerOptions, metrics: ControllerMetrics) -> None:
        self._batch_max = options.batch_max
        self._pods = WorkerPods(client, options, metrics)
        self._lanes: dict[FileSystemId, _Lane] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._background = [self._tasks.create_task(self._pods.watch())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._background:
            task.cancel()
        for lane in self._lanes.values():
            for waiting in lane.waiting:
                waiting.done.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def make(self, location: Location, permissions: Permissions) -> None:
        """Make the directory unless it is there; raises WorkerFailed and KubeError."""
        job = Job(action=Action.MAKE, mode=permissions.mode, enforced=permissions.enforced)
        item = Item(directory=location.directory, uid=permissions.uid, gid=permissions.gid)
        await self._do(location.file_system_id, job, item)

    async def remove(self, location: Location, base: Directory) -> None:
        """Remove the directory with all that is in it, if it is there.

        Raises RemovalRefused unless it is strictly inside ``base``, WorkerFailed and KubeError.
        """
        refuse_outside(location.directory, base)
        job = Job(action=Action.REMOVE, base=base)
        await self._do(location.file_system_id, job, Item(directory=location.directory))

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        """The directories in this one; none when it is not there; raises WorkerFailed and KubeError."""
        job = Job(action=Action.LIST)
        return await self._do(location.file_system_id, job, Item(directory=location.directory))

    async def measure(
        self, file_system_id: FileSystemId, directories: Sequence[Directory], terms: MeasuringTerms
    ) -> Sequence[MeasuredDirectory]:
        """How much is in each, as far as the terms allow; raises WorkerFailed and KubeError.

        It has a pod of its own, so that no claim waits for it.
        """
        job = Job(action=Action.MEASURE, terms=terms)
        items = [Item(directory=directory) for directory in directories]
        return (await self._pods.run(file_system_id, job, items)).measured

    async def forget(self, root_claim: str) -> None:
        """Delete the pods that use this root claim, failed ones too: Kubernetes keeps it for them."""
        await self._pods.forget(root_claim)

    async def _do(self, file_system_id: FileSystemId, job: Job, item: Item) -> _Found:
        lane = self._lanes.get(file_system_id)
        if lane is None:
            lane = self._lanes[file_system_id] = _Lane()
            self._background.append(self._tasks.create_task(self._serve(file_system_id, lane)))
        done: asyncio.Future[_Found] = asyncio.get_running_loop().create_future()
        lane.waiting.append(_Task(job, item, done))
        lane.arrived.set()
        return await done

    async def _serve(self, file_system_id: FileSystemId, lane: _Lane) -> None:
        while True:
            await lane.arrived.wait()
            await self._gather(lane)
            await self._pods.others_ended(file_system_id)
            batch = self._take(lane)
            if not batch:
                continue
            try:
                items = sorted({task.item for task in batch}, key=lambda item: (item.directory, str(item)))
                report = await self._pods.run(file_system_id, batch[0].job, items)
            except KubeEfsError as error:
                _fail(batch, error)
            except BaseException:
                for task in batch:
                    task.done.cancel()
                raise
            else:
                _settle(batch, report)

    async def _gather(self, lane: _Lane) -> None:
        """Return when nothing has arrived for a moment, or enough has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GATHERING_MAX_SECONDS
        while loop.time() < deadline and len(lane.waiting) < self._batch_max:
            lane.arrived.clear()
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    await lane.arrived.wait()
            except TimeoutError:
                return

    def _take(self, lane: _Lane) -> list[_Task]:
        """The oldest task and all others of its kind, up to the most a pod is given."""
        lane.waiting = [task for task in lane.waiting if not task.done.done()]
        if not lane.waiting:
            lane.arrived.clear()
            return []
        oldest = lane.waiting[0]
        batch = [task for task in lane.waiting if task.fits(oldest)][: self._batch_max]
        taken = set(map(id, batch))
        lane.waiting = [task for task in lane.waiting if id(task) not in taken]
        if lane.waiting:
            lane.arrived.set()
        else:
            lane.arrived.clear()
        return batch


def _settle(batch: Sequence[_Task], report: WorkerReport) -> None:
    for task in batch:
        if task.done.done():
            continue
        path = str(task.item.directory)
        reason = report.failed.get(path)
        if reason is None and report.complete:
            task.done.set_result(report.children)
        else:
            problem = f"failed in its worker pod ({reason or 'no room for the reason'})"
            kind = WorkerRefused if path in report.refused else WorkerFailed
            task.done.set_exception(kind(problem, field="directory", value=path))


def _fail(batch: Sequence[_Task], error: KubeEfsError) -> None:
    for task in batch:
        if not task.done.done():
            task.done.set_exception(error)
