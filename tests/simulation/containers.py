"""Containers of pods: each is a process, and its successors after restarts."""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tests.simulation.apiserver import ApiServer
from tests.simulation.efs import Efs
from tests.simulation.history import History
from tests.simulation.invariants import Invariants
from tests.simulation.request_faults import RequestFaults
from tests.simulation.virtual import Process, State, VirtualLoop

from kube_efs.model.errors import KubeUnavailable

_GRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The dependencies of every container."""

    loop: VirtualLoop
    server: ApiServer
    efs: Efs
    request_faults: RequestFaults
    history: History
    invariants: Invariants


class Container(ABC):
    """A container whose processes are candidates for a Lease; the kubelet restarts it after its end."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.lives = 0
        self._world = world
        self.process = Process(name)
        self.process.state = State.DEAD
        self._asked_to_end: Process | None = None

    @abstractmethod
    async def _main(self, process: Process) -> None:
        """The main function of the process."""

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self.process.state is not State.DEAD:
            return
        self.lives += 1
        self.process = Process(f"{self.name}.{self.lives}")
        self._world.history.note("{} starts", self.process.name)
        process = self.process
        self._task = process.start(self._world.loop, self._main(process))
        self._task.add_done_callback(
            lambda done: self._ended(process, done), context=self._world.loop.outside
        )

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        process = self.process
        if process is self._asked_to_end:
            return
        self._asked_to_end = process
        self._world.history.note("{} gets SIGTERM", process.name)
        self._task.cancel()
        self._world.loop.after(_GRACE_SECONDS, self._give_up_on, process)

    def _give_up_on(self, process: Process) -> None:
        if process is self.process and process.state is not State.DEAD:
            self.kill()
            self._world.loop.after(1.0, self.start)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._world.history.note("{} is killed", self.process.name)
        self._end()

    def _end(self) -> None:
        self.process.kill()

    def _ended(self, process: Process, task: "asyncio.Task[None]") -> None:
        """The process has ended, for example after it lost the Lease."""
        error = None if task.cancelled() else task.exception()
        self._world.history.note("{} ends: {!r}", process.name, error or "in order")
        if not task.cancelled() and not _is_lost_lead(error):
            self._world.invariants.fail(f"{process.name} ends: {error!r}")
        if process is self.process:
            self._end()
            self._world.loop.after(1.0, self.start)


def _is_lost_lead(error: BaseException | None) -> bool:
    """Whether the process has ended because it lost the Lease."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_lost_lead, error.exceptions))
    return isinstance(error, KubeUnavailable) and error.field == "leadership"
