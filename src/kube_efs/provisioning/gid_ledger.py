"""Who holds which group id: volumes, directories that were found, and claims that are being served.

An id is free again when its volume is gone and its directory is known to be gone. Looks at the base
directories of this controller tell the latter. Of a directory anywhere else this controller never learns
that it is gone, so its id is free with its volume.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from kube_efs.model.errors import GidTaken, WorkerRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import Location, Volume
from kube_efs.provisioning.gids import GidIndex


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
        next look tells whether the id is free again. GidTaken and WorkerRefused say that it is not there.
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
        if location is not None and self._is_looked_at(location) and self.gids.of(name) is not None:
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
            # Somebody has given the directory another group than its volume tells. Without a volume, the
            # directory alone tells.
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

    def _is_looked_at(self, location: Location) -> bool:
        return any(location.is_child_of(base) for base in self._bases)
