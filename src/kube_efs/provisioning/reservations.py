"""Who is making or removing which directory right now, inside this process.

Many claims may make one directory at a time, since they share it. A removal shares with nobody: not with
a claim that is about to use the directory, nor with another removal that counts the same volumes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kube_efs.model.directories import Relation
from kube_efs.model.errors import NotYet
from kube_efs.model.volumes import Location


class Reservations:
    """Directories in the hands of a running operation."""

    def __init__(self) -> None:
        self._making: Counter[Location] = Counter()
        self._removing: dict[Location, asyncio.Event] = {}

    @asynccontextmanager
    async def making(self, location: Location) -> AsyncIterator[None]:
        """Hold the directory for a volume that will use it; waits while it is being removed."""
        while (ended := self._removal_near(location)) is not None:
            await ended.wait()
        self._making[location] += 1
        try:
            yield
        finally:
            self._making[location] -= 1
            self._making += Counter()  # drops what is at zero

    @asynccontextmanager
    async def removing(self, location: Location) -> AsyncIterator[None]:
        """Hold the directory alone; raises NotYet while somebody else holds it or one near it."""
        if self._removal_near(location) or any(_touch(location, other) for other in self._making):
            raise NotYet(
                "is in use by another claim or volume at this moment", field="directory", value=str(location)
            )
        ended = self._removing[location] = asyncio.Event()
        try:
            yield
        finally:
            del self._removing[location]
            ended.set()

    def _removal_near(self, location: Location) -> asyncio.Event | None:
        return next((ended for other, ended in self._removing.items() if _touch(location, other)), None)


def _touch(one: Location, other: Location) -> bool:
    return (
        one.file_system_id == other.file_system_id
        and one.directory.relation_to(other.directory) is not Relation.APART
    )
