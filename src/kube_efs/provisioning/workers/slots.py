"""Limits work that takes long, in turns of the tenants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kube_efs.provisioning.workers.turns import Turns


class Slots:
    """At most ``count`` of them are taken at the same time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._turns: Turns[asyncio.Future[None]] = Turns()

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot, after the others that wait for one, in turns of the tenants."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._turns.add(tenant, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """Give the slot to the next one that still waits."""
        while self._turns:
            _, turn = self._turns.take()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
