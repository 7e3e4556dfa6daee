"""Which group ids are in use, by whom, and which is the lowest free one.

A group id belongs to a holder: the name of a volume, whether it is there already or about to be made, or
a directory that nobody accounts for. Taking one costs the same however many are in use.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kube_efs.model.gids import GidRange

# Far more than there are classes; what is forgotten is found again by looking.
_MOST_CURSORS: Final = 256


@dataclass(slots=True)
class _Cursor:
    """What is known of the ids from a range's minimum on.

    Every id up to ``following``, and without it, is in use or among ``freed``, a heap in which each is once.
    """

    following: int
    freed: list[int] = field(default_factory=list)
    is_freed: set[int] = field(default_factory=set)

    def free(self, gid: int) -> None:
        if gid < self.following and gid not in self.is_freed:
            heapq.heappush(self.freed, gid)
            self.is_freed.add(gid)

    def drop(self) -> None:
        self.is_freed.discard(heapq.heappop(self.freed))


class GidIndex:
    """The group ids of a cluster's volumes.

    Calls ``on_free`` when one is free again, and ``on_shared`` when one that is held gets a further holder.
    """

    def __init__(self) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.on_shared: Callable[[int], None] = lambda _: None
        self._holders: defaultdict[int, set[str]] = defaultdict(set)
        self._gids: dict[str, int] = {}
        self._unknown: set[str] = set()
        self._shared: set[int] = set()
        # By the minimum of a range, the one that was used last at the end.
        self._cursors: dict[int, _Cursor] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def count(self, within: GidRange) -> int:
        """How many ids of the range are held; it costs a look at each that is."""
        return sum(gid in within for gid in self._holders)

    def holders_within(self, within: GidRange) -> set[str]:
        """Everybody who holds an id of the range; it costs a look at each id that is held."""
        return {holder for gid, holders in self._holders.items() if gid in within for holder in holders}

    def of(self, holder: str) -> int | None:
        """The group id of that holder."""
        return self._gids.get(holder)

    def holders(self, gid: int) -> frozenset[str]:
        """Everybody who holds that group id; more than one where somebody else has given them out."""
        return frozenset(self._holders.get(gid, ()))

    @property
    def shared(self) -> frozenset[int]:
        """The group ids that have more than one known holder."""
        return frozenset(self._shared)

    def known_holders(self, gid: int) -> frozenset[str]:
        """The holders of the group id that are no mere placeholders."""
        return self.holders(gid) - self._unknown

    def hold(self, gid: int, holder: str, *, is_known: bool = True) -> None:
        """Note that the holder has this group id, and no other; one that is not known is a placeholder."""
        if self._gids.get(holder) == gid:
            return
        self.release(holder)
        self._gids[holder] = gid
        self._holders[gid].add(holder)
        if not is_known:
            self._unknown.add(holder)
        elif len(self.known_holders(gid)) > 1:
            self._shared.add(gid)
            self.on_shared(gid)

    def take(self, within: GidRange, holder: str, *, start: int | None = None) -> int | None:
        """The holder's group id if it lies in the range and nobody else's, else the lowest free one.

        The lowest from ``start`` on, if one is given and there is one. None if all are used.
        """
        gid = None
        if start is not None:
            gid = self.lowest_free(GidRange(minimum=start, maximum=within.maximum), holder)
        if gid is None:
            gid = self.lowest_free(within, holder)
        if gid is not None:
            self.hold(gid, holder)
        return gid

    def lowest_free(self, within: GidRange, holder: str) -> int | None:
        """What ``take`` would give, without taking it."""
        own = self._gids.get(holder)
        is_kept = own is not None and own in within and self._holders[own] == {holder}
        return own if is_kept else self._lowest_free(within)

    def release(self, holder: str) -> None:
        """Note that the holder is gone; its group id is free unless others hold it too."""
        gid = self._gids.pop(holder, None)
        if gid is None:
            return
        self._holders[gid].discard(holder)
        self._unknown.discard(holder)
        if len(self.known_holders(gid)) <= 1:
            self._shared.discard(gid)
        if self._holders[gid]:
            return
        del self._holders[gid]
        for minimum, cursor in self._cursors.items():
            if minimum <= gid:
                cursor.free(gid)
        self.on_free()

    def _lowest_free(self, within: GidRange) -> int | None:
        cursor = self._cursor(within.minimum)
        while cursor.freed and cursor.freed[0] in self._holders:
            cursor.drop()
        while cursor.following in self._holders:
            cursor.following += 1
        lowest = cursor.freed[0] if cursor.freed else cursor.following
        return lowest if lowest in within else None

    def _cursor(self, minimum: int) -> _Cursor:
        """That of the range, which is then the last to be forgotten."""
        cursor = self._cursors.pop(minimum, None) or _Cursor(following=minimum)
        self._cursors[minimum] = cursor
        if len(self._cursors) > _MOST_CURSORS:
            del self._cursors[next(iter(self._cursors))]
        return cursor
