"""Who is making or removing which directory right now, inside this process.

Many claims may make one directory at a time, since they share it. A removal shares with nobody: not with
a claim that is about to use the directory, nor with another removal that counts the same volumes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
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
    async def making(self, *locations: Location) -> AsyncIterator[bool]:
        """Hold the directories for a volume to come; waits while one of them or near it is being removed.

        Gives whether it has waited: what was known before may be no longer so.
        """
        has_waited = False
        while _near(locations, self._removing):
            has_waited = True
            await self._let_go.wait()
        self._making.update(locations)
        try:
            yield has_waited
        finally:
            self._making.subtract(locations)
            for location in locations:
                if not self._making[location]:
                    del self._making[location]
            self._tell()

    @asynccontextmanager
    async def removing(self, *locations: Location) -> AsyncIterator[None]:
        """Hold the directories alone; waits while anybody else holds one of them or near it."""
        while _near(locations, self._removing) or _near(locations, self._making):
            await self._let_go.wait()
        self._removing.update(locations)
        try:
            yield
        finally:
            self._removing.difference_update(locations)
            self._tell()

    def _tell(self) -> None:
        self._let_go.set()
        self._let_go = asyncio.Event()


def _near(locations: Iterable[Location], others: Collection[Location]) -> bool:
    return any(
        location.file_system_id == other.file_system_id
        and location.directory.relation_to(other.directory) is not Relation.APART
        for location in locations
        for other in others
    )
