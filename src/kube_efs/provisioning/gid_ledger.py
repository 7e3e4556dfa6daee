"""The group IDs in use, their holders, and the lowest free ID.

If two directories had one group ID, the users of one volume could read the data of the other. So this process
assigns an ID only if it has no known holder, and removes a holder only when its data no longer exists:

* ``GidIndex`` has a holder for each ID in use: the name of a volume that exists or is about to be created, or
  a directory without a volume. The cost of assigning an ID does not depend on the number of IDs in use.
* ``GidLedger`` decides how long a holder stays. An ID is free when its volume and its directory no longer
  exist. Scans of the base directories of this controller show whether a directory exists. This controller
  cannot see the removal of a directory elsewhere, so the ID of such a directory is free with its volume.

Other controllers assign IDs too, without the knowledge of this one; see ``workers/gid_marks.py``.
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

# Far more than the number of classes; a discarded cursor can be computed again.
_MOST_CURSORS: Final = 256


@dataclass(slots=True)
class _Cursor:
    """The IDs from the minimum of a range on.

    Every ID below ``following`` is in use or in ``freed``, a heap without duplicates.
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
    """The group IDs of a cluster's volumes.

    Calls ``on_free`` when an ID becomes free, and ``on_shared`` when an ID in use gets another holder.
    """

    def __init__(self) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self.on_shared: Callable[[int], None] = lambda _: None
        self._holders: defaultdict[int, set[str]] = defaultdict(set)
        self._gids: dict[str, int] = {}
        # The directories of holders whose name does not tell it.
        self._places: dict[str, Location] = {}
        self._unknown: set[str] = set()
        self._shared: set[int] = set()
        # By the minimum of the range; the most recently used is the last.
        self._cursors: dict[int, _Cursor] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def count(self, within: GidRange) -> int:
        """How many IDs of the range are held; it reads each ID that is held."""
        return sum(gid in within for gid in self._holders)

    def directories(self) -> Iterator[tuple[Location, int]]:
        """The directories that hold an ID themselves, and not by a volume's name; it reads each place."""
        for holder, place in self._places.items():
            if holder == str(place):
                yield place, self._gids[holder]

    def of(self, holder: str) -> int | None:
        """The group ID of that holder."""
        return self._gids.get(holder)

    def holders(self, gid: int) -> frozenset[str]:
        """The holders of that group ID; more than one if another program has assigned it."""
        return frozenset(self._holders.get(gid, ()))

    @property
    def shared(self) -> frozenset[int]:
        """The group IDs with more than one known holder."""
        return frozenset(self._shared)

    def known_holders(self, gid: int) -> frozenset[str]:
        """The holders of the group ID except placeholders."""
        return self.holders(gid) - self._unknown

    def place_of(self, holder: str) -> Location | None:
        """The directory with the data of the holder, if it was noted."""
        return self._places.get(holder)

    def hold(self, gid: int, holder: str, *, at: Location | None = None, is_known: bool = True) -> None:
        """Assign only this group ID to the holder, whose data is in the directory ``at``.

        A holder that is not known is a placeholder.
        """
        if self._gids.get(holder) != gid:
            self._assign(gid, holder, is_known=is_known)
        if at is not None:
            self._places[holder] = at

    def _assign(self, gid: int, holder: str, *, is_known: bool) -> None:
        self.release(holder)
        self._gids[holder] = gid
        self._holders[gid].add(holder)
        if not is_known:
            self._unknown.add(holder)
        elif len(self.known_holders(gid)) > 1:
            self._shared.add(gid)
            self.on_shared(gid)

    def take(self, within: GidRange, holder: str, *, start: int | None = None) -> int | None:
        """The holder's group ID if it is in the range and has no other holder, otherwise the lowest free one.

        With ``start``, IDs from there on come first. None if all IDs are in use.
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
        """The ID that ``take`` would give, without assigning it."""
        own = self._gids.get(holder)
        is_kept = own is not None and own in within and self._holders[own] == {holder}
        return own if is_kept else self._lowest_free(within)

    def release(self, holder: str) -> None:
        """Remove the holder; its group ID is free unless it has other holders."""
        gid = self._gids.pop(holder, None)
        if gid is None:
            return
        self._holders[gid].discard(holder)
        self._places.pop(holder, None)
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
        """The cursor of the range, now the most recently used one."""
        cursor = self._cursors.pop(minimum, None) or _Cursor(following=minimum)
        self._cursors[minimum] = cursor
        if len(self._cursors) > _MOST_CURSORS:
            del self._cursors[next(iter(self._cursors))]
        return cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lingering:
    """A directory with its own group ID and no volume; ``since`` is the number of the last scan before."""

    location: Location
    since: int


class GidLedger:
    """The group IDs of volumes, directories and claims that this process knows.

    ``volumes`` are the known volumes by name.
    """

    def __init__(self, volumes: Mapping[str, Volume]) -> None:
        self.gids = GidIndex()
        self._volumes = volumes
        self._bases: set[Location] = set()
        # By the holder: usually the name that the volume of the directory would have.
        self._lingering: dict[str, _Lingering] = {}
        self._taking: set[str] = set()
        self._scans = 0

    def add_base(self, base: Location) -> None:
        """Note a base directory that this process scans regularly."""
        self._bases.add(base)

    def hold(self, name: str, gid: int | None) -> None:
        """Note a volume with its group ID, if it has one."""
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
        """A group ID for the directory of a new volume, None when the range is full.

        It is the lowest free ID, or the lowest from ``start`` on. With ``is_kept`` it is the ID that the
        volume already has, even if the ID has other holders. When the block fails, the directory may exist
        nevertheless, and the next scan shows whether the ID is free. After GidTaken and WorkerRefused the
        directory does not exist.
        """
        # A scan may miss a directory that is being created, so it must not free the group ID.
        before = self._lingering.pop(name, None)
        self._taking.add(name)
        try:
            kept = self.gids.of(name) if is_kept else None
            yield self.gids.take(within, name, start=start) if kept is None else kept
        except BaseException as error:
            is_missing = isinstance(error, (GidTaken, WorkerRefused))
            if before is not None and is_missing:
                self._lingering[name] = before
            elif before is not None:
                # A scan that began before this attempt does not show a directory that it created.
                self._linger(name, location)
            elif name not in self._volumes:
                self.vanished(name, None if is_missing else location)
            raise
        finally:
            self._taking.discard(name)
        if name not in self._volumes:
            self._linger(name, location)

    def taken_by_another(self, gid: int, location: Location) -> None:
        """Note that an unknown directory has the ID that was chosen for ``location``.

        The ID is held until the next scan, which finds that directory.
        """
        holder = f"another directory with group id {gid} beside {location}"
        self.gids.hold(gid, holder, is_known=False)
        self._linger(holder, location)

    def vanished(self, name: str, location: Location | None) -> None:
        """Note that a volume was deleted; its group ID stays in use while its directory may exist."""
        is_scanned = location is not None and any(location.is_child_of(base) for base in self._bases)
        if location is not None and is_scanned and self.gids.of(name) is not None:
            self._linger(name, location)
        elif name not in self._lingering:
            self.gids.release(name)

    def removed(self, name: str) -> None:
        """Note that the volume and its directory were removed."""
        self._lingering.pop(name, None)
        self.gids.release(name)

    def begin_scan(self) -> int:
        """The number of a scan that starts now."""
        self._scans += 1
        return self._scans

    def found(self, scan: int, base: Location, found: Mapping[str, tuple[Location, int]]) -> None:
        """Note the directories below ``base`` with their group IDs, by the names of their volumes.

        The scan frees the group IDs of directories that existed before it and no longer exist.
        """
        holders = {*found, *self._taking}
        for name, (location, gid) in found.items():
            if self.gids.of(name) == gid:
                continue
            # Somebody changed the group of the directory. If it has a volume, both IDs are in use.
            is_known = name in self._volumes or name in self._taking
            holder = str(location) if is_known else name
            holders.add(holder)
            self.gids.hold(gid, holder, at=location)
            self._linger(holder, location)
        for name, one in list(self._lingering.items()):
            if one.since < scan and name not in holders and one.location.is_child_of(base):
                self.removed(name)

    def _linger(self, name: str, location: Location) -> None:
        self._lingering[name] = _Lingering(location=location, since=self._scans)
