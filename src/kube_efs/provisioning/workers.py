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

from kube_efs.model.directories import Directory
from kube_efs.model.errors import KubeEfsError, WorkerFailed
from kube_efs.model.ids import FileSystemId
from kube_efs.model.volumes import Location
from kube_efs.provisioning.worker import Action, WorkerReport
from kube_efs.provisioning.worker_pods import WorkerOptions, WorkerPods
from kube_efs.telemetry.metrics import ControllerMetrics

# A burst of claims arrives over some hundred milliseconds; a pod that waited for its end serves all of it.
_QUIET_SECONDS = 0.2
_GATHERING_MAX_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _Task:
    action: Action
    directory: Directory
    done: asyncio.Future[None]


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

    async def make(self, location: Location) -> None:
        """Make the directory, mode 0777, unless it is there; raises WorkerFailed."""
        await self._do(Action.MAKE, location)

    async def remove(self, location: Location) -> None:
        """Remove the directory with all that is in it, if it is there; raises WorkerFailed."""
        await self._do(Action.REMOVE, location)

    async def forget(self, root_claim: str) -> None:
        """Delete the pods that use this root claim, failed ones too: Kubernetes keeps it for them."""
        await self._pods.forget(root_claim)

    async def _do(self, action: Action, location: Location) -> None:
        lane = self._lanes.get(location.file_system_id)
        if lane is None:
            lane = self._lanes[location.file_system_id] = _Lane()
            self._background.append(self._tasks.create_task(self._serve(location.file_system_id, lane)))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lane.waiting.append(_Task(action, location.directory, done))
        lane.arrived.set()
        await done

    async def _serve(self, file_system_id: FileSystemId, lane: _Lane) -> None:
        while True:
            await lane.arrived.wait()
            await self._gather(lane)
            await self._pods.others_ended(file_system_id)
            batch = self._take(lane)
            if not batch:
                continue
            try:
                directories = sorted({task.directory for task in batch})
                report = await self._pods.run(file_system_id, batch[0].action, directories)
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
        action = lane.waiting[0].action
        batch = [task for task in lane.waiting if task.action is action][: self._batch_max]
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
        path = str(task.directory)
        reason = report.failed.get(path)
        if reason is None and report.complete:
            task.done.set_result(None)
        else:
            problem = f"failed in its worker pod ({reason or 'no room for the reason'})"
            task.done.set_exception(WorkerFailed(problem, field="directory", value=path))


def _fail(batch: Sequence[_Task], error: KubeEfsError) -> None:
    for task in batch:
        if not task.done.done():
            task.done.set_exception(error)
