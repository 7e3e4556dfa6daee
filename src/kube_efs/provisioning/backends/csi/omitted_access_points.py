"""The access points of a file system that volumes name, or that are known here, and the lists of AWS omit.

A list may be older than a new access point, so each of them is read by its ID. Volumes with the policy Retain
can name deleted ones without end. So all callers that wait share the calls, a few calls run at a time, and an
access point that is certainly deleted needs none: AWS uses no ID twice.

If AWS permits only lists, an access point that they omit may exist. Then there is no answer for a minute.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final

from kube_efs.model.csi.access_points import NEW_SECONDS, AccessPoint
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.errors import AwsNotListed
from kube_efs.single_flight import SingleFlight

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

    async def read(
        self, named: Collection[AccessPointId], known: Collection[AccessPointId] = ()
    ) -> Sequence[AccessPoint]:
        """Those that exist, as AWS answers to calls that begin after this one; raises AwsError.

        They may come with those of other callers. Volumes name those in ``named``; some callers name none.
        """
        if named:
            # What no volume names any more needs no memory.
            self._gone.intersection_update(named)
            self._missing = {one: since for one, since in self._missing.items() if one in named}
        unclear = frozenset((*named, *known)) - self._gone
        if not unclear:
            return ()
        self._wanted |= unclear
        return await self._next()

    async def _read_wanted(self) -> Sequence[AccessPoint]:
        wanted, self._wanted = sorted(self._wanted), set()
        found: list[AccessPoint] = []
        unclear: list[AwsNotListed] = []
        rest = iter(wanted)
        calls = [asyncio.create_task(self._read_each(rest, found, unclear)) for _ in wanted[:_MOST_CALLS]]
        try:
            await asyncio.gather(*calls)
        finally:
            # After an error, the others would only repeat it.
            for call in calls:
                call.cancel()
        if unclear:
            raise unclear[0]
        return found

    async def _read_each(
        self, rest: Iterator[AccessPointId], found: list[AccessPoint], unclear: list[AwsNotListed]
    ) -> None:
        for one in rest:
            began = self._clock()
            try:
                answer = await self._read(one)
            except AwsNotListed as error:
                # All are read, so that one minute is enough for all of them.
                unclear.append(error)
                continue
            if answer is not None:
                self._missing.pop(one, None)
                found.append(answer)
            elif began - self._missing.setdefault(one, self._clock()) >= NEW_SECONDS:
                # One that was missing for so long does not exist.
                self._gone.add(one)
                del self._missing[one]
