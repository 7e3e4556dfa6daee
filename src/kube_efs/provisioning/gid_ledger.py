"""Which group ids are in use, by whom, and which is the lowest free one.

No two directories may get one group id, or the users of one volume can read the data of another. So an id is
given out only when no known holder has it, and a holder is forgotten only when its data is known to be gone:

* ``GidIndex`` has a holder for each id that is in use: the name of a volume, whether it exists already or
  about to be made, or a directory that no volume accounts for. Taking an id costs the same however many are
  in use.
* ``GidLedger`` decides how long a holder stays. An id is free again when its volume is gone and its directory
  is known to be gone. Looks at the base directories of this controller tell the latter. Of a directory
  anywhere else this controller never learns that it is gone, so its id is free with its volume.

Other controllers give out ids too and are not seen here: ``workers/gid_marks.py`` keeps them apart.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from kube_efs.model.errors import GidTaken, WorkerRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import Location, Volume

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
        """The holders of the IDs of the range; it reads each ID that is held."""
        return {holder for gid, holders in self._holders.items() if gid in within for holder in holders}

    def of(self, holder: str) -> int | None:
        """The group id of that holder."""
        return self._gids.get(holder)

    def holders(self, gid: int) -> frozenset[str]:
        """The holders of that group ID; more than one if another program has assigned it."""
        return frozenset(self._holders.get(gid, ()))

    @property
    def shared(self) -> frozenset[int]:
        """The group ids that have more than one known holder."""
        return frozenset(self._shared)

    def known_holders(self, gid: int) -> frozenset[str]:
        """The holders of the group id that are not only placeholders."""
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
        """The holder's group id if it lies in the range and no other holder has it, else the lowest free one.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lingering:
    """A directory with a group id of its own and no volume; ``since`` counts the looks begun before."""

    location: Location
    since: int


class GidLedger:
    """The group ids of volumes, directories and claims, as far as this process knows.

    ``volumes`` are those that are known, by name.
    """

    def __init__(self, volumes: Mapping[str, Volume]) -> None:
        self.gids = GidIndex()
        self._volumes = volumes
        self._bases: set[Location] = set()
        # By the name that the volume would have, or by whatever else holds the id.
        self._lingering: dict[str, _Lingering] = {}
        self._taking: set[str] = set()
        self._looks = 0

    def add_base(self, base: Location) -> None:
        """Note that this process looks at the directories in there again and again."""
        self._bases.add(base)

    def hold(self, name: str, gid: int | None) -> None:
        """Note a volume, and its group id if it has one."""
        self._lingering.pop(name, None)
        if gid is not None:
            self.gids.hold(gid, name)

    @contextmanager
    def taking(
        self,
        within: GidRange,
        name: str,
        location: Location,
        *,
        start: int | None = None,
        is_kept: bool = False,
    ) -> Iterator[int | None]:
        """A group id for the directory of a volume to come, None when the range is full.

        It is the lowest free one, or the lowest from ``start`` on; with ``is_kept`` the one that the volume
        has, even when another has it too. When the block fails, the directory may be there all the same: the
        next check shows whether the id is free again. GidTaken and WorkerRefused say that it is not there.
        """
        # A look sees nothing of a directory that is being made, so its group is not to be freed by one.
        before = self._lingering.pop(name, None)
        self._taking.add(name)
        try:
            kept = self.gids.of(name) if is_kept else None
            yield self.gids.take(within, name, start=start) if kept is None else kept
        except BaseException as error:
            if before is not None:
                self._lingering[name] = before
            elif name not in self._volumes:
                is_missing = isinstance(error, (GidTaken, WorkerRefused))
                self.vanished(name, None if is_missing else location)
            raise
        finally:
            self._taking.discard(name)
        if name not in self._volumes:
            self._linger(name, location)

    def taken_by_another(self, gid: int, location: Location) -> None:
        """Note that a directory which is not known yet has the id that the one at ``location`` was to get.

        The next look finds that directory; until then the id is held.
        """
        holder = f"another directory with group id {gid} beside {location}"
        self.gids.hold(gid, holder, is_known=False)
        self._linger(holder, location)

    def vanished(self, name: str, location: Location | None) -> None:
        """Note that a volume is gone; its group stays in use while its directory may be there."""
        is_looked_at = location is not None and any(location.is_child_of(base) for base in self._bases)
        if location is not None and is_looked_at and self.gids.of(name) is not None:
            self._linger(name, location)
        elif name not in self._lingering:
            self.gids.release(name)

    def removed(self, name: str) -> None:
        """Note that the volume and its directory are gone."""
        self._lingering.pop(name, None)
        self.gids.release(name)

    def begin_look(self) -> int:
        """The number of a look whose findings are read from now on."""
        self._looks += 1
        return self._looks

    def found(self, look: int, base: Location, found: Mapping[str, tuple[Location, int]]) -> None:
        """Note which directories are below ``base``, with their groups, by the names of their volumes.

        Groups of directories that were there before the look and are gone are free again.
        """
        holders = {*found, *self._taking}
        for name, (location, gid) in found.items():
            if self.gids.of(name) == gid:
                continue
            # The directory was given another group than that of its volume. Without a volume, the
            # directory alone decides.
            is_known = name in self._volumes or name in self._taking
            holder = str(location) if is_known else name
            holders.add(holder)
            self.gids.hold(gid, holder)
            self._linger(holder, location)
        for name, one in list(self._lingering.items()):
            if one.since < look and name not in holders and one.location.is_child_of(base):
                self.removed(name)

    def _linger(self, name: str, location: Location) -> None:
        self._lingering[name] = _Lingering(location=location, since=self._looks)
