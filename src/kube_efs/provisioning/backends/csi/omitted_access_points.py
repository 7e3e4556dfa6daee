"""The access points of a file system that volumes name and the lists of AWS omit.

A list may be older than a new access point, so each of them is read by its ID. Volumes with the policy Retain
can name deleted ones without end. So all callers that wait share the calls, a few calls run at a time, and an
access point that is certainly deleted needs none: AWS uses no ID twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final

from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.single_flight import SingleFlight

# AWS knows a new access point everywhere after seconds. One that was missing for longer does not exist.
_GONE_SECONDS: Final = 60.0
# With 0.1 s for a call, the check of a removal reads 2,000 of them in time (``RemovalOrder.confirm``). More
# calls at a time would exceed the rate limit of AWS.
_MOST_CALLS: Final = 8


class OmittedAccessPoints:
    """Reads access points with ``read``, which gives None for one that AWS does not know."""

    def __init__(
        self,
        read: Callable[[AccessPointId], Awaitable[AccessPoint | None]],
        clock: Callable[[], float],
    ) -> None:
        self._read = read
        self._clock = clock
        # When each was missing for the first time.
        self._missing: dict[AccessPointId, float] = {}
        self._gone: set[AccessPointId] = set()
        self._wanted: set[AccessPointId] = set()
        self._next = SingleFlight(self._read_wanted)

    async def read(self, wanted: Collection[AccessPointId]) -> Sequence[AccessPoint]:
        """Those that exist, as AWS answers to calls that begin after this one; raises AwsError.

        They may come with those of other callers.
        """
        if wanted:  # Some callers need only the list.
            # What no volume names any more needs no memory.
            self._gone.intersection_update(wanted)
            self._missing = {one: since for one, since in self._missing.items() if one in wanted}
        unclear = frozenset(wanted) - self._gone
        if not unclear:
            return ()
        self._wanted |= unclear
        return await self._next()

    async def _read_wanted(self) -> Sequence[AccessPoint]:
        wanted, self._wanted = sorted(self._wanted), set()
        found: list[AccessPoint] = []
        rest = iter(wanted)
        calls = [asyncio.create_task(self._read_each(rest, found)) for _ in wanted[:_MOST_CALLS]]
        try:
            await asyncio.gather(*calls)
        finally:
            # After an error, the others would only repeat it.
            for call in calls:
                call.cancel()
        return found

    async def _read_each(self, rest: Iterator[AccessPointId], found: list[AccessPoint]) -> None:
        for one in rest:
            began = self._clock()
            answer = await self._read(one)
            if answer is not None:
                self._missing.pop(one, None)
                found.append(answer)
            elif began - self._missing.setdefault(one, self._clock()) >= _GONE_SECONDS:
                self._gone.add(one)
                del self._missing[one]
