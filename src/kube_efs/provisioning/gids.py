"""Which group ids are in use, by whom, and which is the lowest free one.

A group id belongs to a holder: the name of a volume, whether it is there already or about to be made, or
a directory that nobody accounts for. Taking one costs the same however many are in use.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable

from kube_efs.model.gids import GidRange


class GidIndex:
    """The group ids of a cluster's volumes; calls ``on_free`` when one is free again."""

    def __init__(self) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self._holders: defaultdict[int, set[str]] = defaultdict(set)
        self._gids: dict[str, int] = {}
        # For each range's minimum: every id from there up to the first never looked at is in use or freed.
        self._next: dict[int, int] = {}
        self._freed: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def of(self, holder: str) -> int | None:
        """The group id of that holder."""
        return self._gids.get(holder)

    def holders(self, gid: int) -> frozenset[str]:
        """Everybody who holds that group id; more than one where somebody else has given them out."""
        return frozenset(self._holders.get(gid, ()))

    def hold(self, gid: int, holder: str) -> None:
        """Note that the holder has this group id, and no other."""
        if self._gids.get(holder) != gid:
            self.release(holder)
            self._gids[holder] = gid
            self._holders[gid].add(holder)

    def take(self, within: GidRange, holder: str) -> int | None:
        """The holder's group id if it lies in the range and nobody else's, else the lowest free one.

        None if all are used.
        """
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
        if self._holders[gid]:
            return
        del self._holders[gid]
        for minimum, following in self._next.items():
            if minimum <= gid < following:
                heapq.heappush(self._freed[minimum], gid)
        self.on_free()

    def _lowest_free(self, within: GidRange) -> int | None:
        freed = self._freed.setdefault(within.minimum, [])
        while freed and freed[0] in self._holders:
            heapq.heappop(freed)
        following = self._next.get(within.minimum, within.minimum)
        while following in self._holders:
            following += 1
        self._next[within.minimum] = following
        lowest = freed[0] if freed else following
        return lowest if lowest in within else None
