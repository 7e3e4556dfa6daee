"""The directories that tasks of this process create, copy or remove at this moment.

A tenant decides how many removals wait: a copy holds its source, also while it waits for its turn for a day,
and the source can be deleted. So a reservation costs as many steps as its path has names, however many others
there are. The end of a reservation concerns only those who wait for that very directory.

A request that must wait is noted at one reserved directory that is near, and is tried again when nobody holds
that one any more. Until then, nothing else can bring its turn. If other directories are near, too, it is then
noted at the next one.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from kube_efs.model.errors import NotYet
from kube_efs.model.volumes import Location

# For how long a removal for csi-provisioner or csi-snapshotter waits. It is shorter than their calls, whose
# callers otherwise get no reason: a copy can take hours.
CALLER_PATIENCE_SECONDS: Final = 8.0


class DirectoryReservations:
    """The directories that tasks of this process create or remove at this moment.

    Several claims may create one directory concurrently, because they share it. A removal is exclusive: no
    claim may begin to use the directory, and no other removal may count the same volumes. Those whose turn
    comes at the same moment get it in the order in which they came. Nobody waits for others who wait: the
    creation of a volume holds its directory while it waits for the source of its copy, so both could wait
    for each other.
    """

    def __init__(self) -> None:
        self._making = _Reserved()
        self._removing = _Reserved()
        # By the directory that they wait for, then by their number.
        self._waiting: dict[Location, dict[int, _Request]] = {}
        self._numbers = count()

    @asynccontextmanager
    async def making(self, *locations: Location) -> AsyncIterator[bool]:
        """Reserve the directories for a new volume; waits for removals of the same or related directories.

        Gives whether it has waited: earlier decisions may be outdated.
        """
        has_waited = await self._reserve(self._making, locations)
        try:
            yield has_waited
        finally:
            self._release(self._making, locations)

    @asynccontextmanager
    async def removing(
        self, *locations: Location, patience_seconds: float | None = None
    ) -> AsyncIterator[None]:
        """Reserve the directories exclusively; waits for all tasks with the same or related directories.

        Raises NotYet when that takes longer than ``patience_seconds``, if it is not None.
        """
        try:
            async with asyncio.timeout(patience_seconds):
                await self._reserve(self._removing, locations)
        except TimeoutError:
            raise NotYet(
                "is being copied, or changed for another volume",
                field="directory",
                value=", ".join(map(str, locations)),
                remedy="the removal waits for the end of that",
            ) from None
        try:
            yield
        finally:
            self._release(self._removing, locations)

    async def _reserve(self, kind: "_Reserved", locations: tuple[Location, ...]) -> bool:
        """Reserve the directories for one of the two kinds of work; returns whether this has waited."""
        turn = asyncio.get_running_loop().create_future()
        request = _Request(number=next(self._numbers), kind=kind, locations=locations, turn=turn)
        if self._grant(request):
            return False
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                # The task was cancelled after it had got the directories, and before it knew.
                self._release(kind, locations)
            else:
                self._forget(request)
            raise
        return True

    def _grant(self, request: "_Request") -> bool:
        """Reserve what is requested, at once with the check; else note what the request waits for."""
        for kind in (self._removing,) if request.kind is self._making else (self._removing, self._making):
            for location in request.locations:
                if (near := kind.near(location)) is not None:
                    request.waits_for = near
                    self._waiting.setdefault(near, {})[request.number] = request
                    return False
        for location in request.locations:
            request.kind.add(location)
        return True

    def _release(self, kind: "_Reserved", locations: tuple[Location, ...]) -> None:
        ended = [location for location in locations if kind.discard(location)]
        waiting = [one for location in ended for one in self._waiting.get(location, {}).values()]
        for request in sorted(waiting, key=lambda one: one.number):
            if request.waits_for in self._removing:
                continue  # An earlier request has got it for a removal, for which this one waits now.
            self._forget(request)
            if not request.turn.done() and self._grant(request):
                request.turn.set_result(None)

    def _forget(self, request: "_Request") -> None:
        waiting = self._waiting.get(request.waits_for, {})
        waiting.pop(request.number, None)
        if not waiting:
            self._waiting.pop(request.waits_for, None)


@dataclass(slots=True, kw_only=True)
class _Request:
    """Directories for one kind of work, and the reserved one that they wait for; ``turn`` ends the wait."""

    number: int
    kind: "_Reserved"
    locations: tuple[Location, ...]
    turn: asyncio.Future[None]
    waits_for: Location = field(init=False)


@dataclass(slots=True)
class _Node:
    """A directory that is reserved, or contains reserved ones."""

    reserved: Location | None = None
    children: "dict[str, _Node]" = field(default_factory=dict)


class _Reserved:
    """Reserved directories as a tree of their names; each may be reserved several times."""

    def __init__(self) -> None:
        self._times: Counter[Location] = Counter()
        self._top = _Node()

    def __contains__(self, location: Location) -> bool:
        return location in self._times

    def add(self, location: Location) -> None:
        """Reserve the directory once more."""
        self._times[location] += 1
        node = self._top
        for name in _names(location):
            node = node.children.setdefault(name, _Node())
        node.reserved = location

    def discard(self, location: Location) -> bool:
        """Take back one reservation; returns whether it was the last one of the directory."""
        self._times[location] -= 1
        if self._times[location]:
            return False
        del self._times[location]
        names = _names(location)
        nodes = [self._top]
        for name in names:
            nodes.append(nodes[-1].children[name])
        nodes[-1].reserved = None
        for name in reversed(names):
            node = nodes.pop()
            if node.children or node.reserved:
                break
            del nodes[-1].children[name]
        return True

    def near(self, location: Location) -> Location | None:
        """A reserved directory that is the same, contains it or is inside it; None if there is none."""
        node = self._top
        for name in _names(location):
            if node.reserved or name not in node.children:
                return node.reserved
            node = node.children[name]
        while node.reserved is None and node.children:
            node = next(iter(node.children.values()))
        return node.reserved


def _names(location: Location) -> tuple[str, ...]:
    return (location.file_system_id, *location.directory.parts)
