"""Limits copies, which may take a day, in turns of the tenants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import WorkerFailed
from kube_efs.provisioning.workers.turns import Turns


def copy_stopped(target: Directory) -> WorkerFailed:
    """The error of a copy that was stopped before it began."""
    remedy = "it begins with the next attempt"
    return WorkerFailed("was stopped", field="copy", value=str(target), remedy=remedy)


class Slots:
    """At most ``count`` copies to directories of a file system run at the same time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._turns: Turns[asyncio.Future[None]] = Turns()
        self._waiting: set[tuple[Directory, asyncio.Future[None]]] = set()

    @asynccontextmanager
    async def taken(self, tenant: str, target: Directory) -> AsyncIterator[None]:
        """Hold a slot, after the others that wait for one; raises WorkerFailed if this copy is stopped."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.add((target, turn))
            self._turns.add(tenant, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and turn.exception() is None:
                    self._pass_on()
                raise
            finally:
                self._waiting.remove((target, turn))
        try:
            yield
        finally:
            self._pass_on()

    def stop(self, target: Directory) -> None:
        """Let the copy to the directory wait no more."""
        error = copy_stopped(target)
        for waits_for, turn in self._waiting:
            if waits_for == target and not turn.done():
                turn.set_exception(error)

    def _pass_on(self) -> None:
        """Give the slot to the next one that still waits."""
        while self._turns:
            _, turn = self._turns.take()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
