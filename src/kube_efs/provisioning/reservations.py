"""Who is making or removing which directory right now, inside this process.

Many claims may make one directory at a time, since they share it. A removal shares with nobody: not with
a claim that is about to use the directory, nor with another removal that counts the same volumes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from kube_efs.model.directories import Relation
from kube_efs.model.volumes import Location


class Reservations:
    """Directories in the hands of a running operation."""

    def __init__(self) -> None:
        self._making: Counter[Location] = Counter()
        self._removing: set[Location] = set()
        self._let_go = asyncio.Event()

    @asynccontextmanager
    async def making(self, location: Location) -> AsyncIterator[None]:
        """Hold the directory for a volume to come; waits while it or one near it is being removed."""
        while _near(location, self._removing):
            await self._let_go.wait()
        self._making[location] += 1
        try:
            yield
        finally:
            self._making[location] -= 1
            if not self._making[location]:
                del self._making[location]
            self._tell()

    @asynccontextmanager
    async def removing(self, location: Location) -> AsyncIterator[None]:
        """Hold the directory alone; waits while anybody else holds it or one near it."""
        while _near(location, self._removing) or _near(location, self._making):
            await self._let_go.wait()
        self._removing.add(location)
        try:
            yield
        finally:
            self._removing.remove(location)
            self._tell()

    def _tell(self) -> None:
        self._let_go.set()
        self._let_go = asyncio.Event()


def _near(location: Location, others: Iterable[Location]) -> bool:
    return any(
        location.file_system_id == other.file_system_id
        and location.directory.relation_to(other.directory) is not Relation.APART
        for other in others
    )
