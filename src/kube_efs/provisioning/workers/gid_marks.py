"""The group IDs of directories, as marks on the file system that every controller reads.

Two controllers that share a file system, in one cluster or in two, do not see each other's volumes in time.
So a worker claims a group ID on the file system before it assigns the ID to a directory. The mark of a
directory for group G is an entry of the directory ``.kube-efs-gids/G``. The worker creates the directory,
then the mark, and then lists the marks. The directory gets G only if no other mark belongs to an existing
directory.

Of two workers that want G, the later one lists the marks after both marks exist. So at least one of them sees
the other mark. A worker that sees the mark of another existing directory gives up G. Both may do so; then
each tries another ID.

A mark without a directory is from a removed volume. The next worker that wants the ID removes the mark. If
the directory is created again at that moment, its worker lists the marks later. It then finds the mark of
the other worker, or misses its own mark, and gives up G.

Marks are in two places: at the top of the mount, and next to the directory. Controllers that have one of the
two places in common never assign one ID twice. The cost is a few small calls, independent of the number of
volumes.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from kube_efs.model.errors import GidTaken
from kube_efs.provisioning.workers.opening import opened_or_made

MARKS = ".kube-efs-gids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory: the descriptor of an open parent directory, and the path from there."""

    folder: int
    path: str


def claim(gid: int, places: Sequence[Place], *, has_group: bool) -> None:
    """Mark the group ID in each place as that of the directory, which must exist.

    ``has_group`` means that the directory has this group. If its marks exist, too, it has claimed the ID
    before. Raises GidTaken when another directory has the ID, and removes the marks then; and OSError.
    """
    with ExitStack() as stack:
        marks = [_Marks(stack.enter_context(_opened_marks(one.folder, gid)), one) for one in places]
        was_marked = [one.add() for one in marks]
        if has_group and all(was_marked):
            return
        others = [other for one in marks if (other := one.other()) is not None]
        if others:
            for one in marks:
                one.withdraw()
            remedy = "another ID is tried"
            raise GidTaken(f"belongs to {others[0]}", field="group ID", value=gid, remedy=remedy)


class _Marks:
    """The marks for one group ID in one place."""

    def __init__(self, marks: int, place: Place) -> None:
        self._marks = marks
        self._place = place
        # A path can be longer than a name.
        self._own = hashlib.sha256(os.fsencode(place.path)).hexdigest()[:32]

    def add(self) -> bool:
        """Create the mark of the directory; gives whether it existed before."""
        try:
            os.symlink(self._place.path, self._own, dir_fd=self._marks)
        except FileExistsError:
            return True
        return False

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._own, dir_fd=self._marks)

    def other(self) -> str | None:
        """Another directory with the ID; removes the marks of directories that do not exist."""
        names = os.listdir(self._marks)  # noqa: PTH208 - of a descriptor
        if self._own not in names:
            return "a directory that was created at the same time"
        for name in names:
            if name == self._own:
                continue
            with suppress(FileNotFoundError):  # Its worker has withdrawn it.
                path = os.readlink(name, dir_fd=self._marks)
                if self._exists(path):
                    return path
                os.unlink(name, dir_fd=self._marks)
        return None

    def _exists(self, path: str) -> bool:
        try:
            os.stat(path, dir_fd=self._place.folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


@contextmanager
def _opened_marks(folder: int, gid: int) -> Iterator[int]:
    with opened_or_made(folder, MARKS) as marks, opened_or_made(marks, str(gid)) as of_gid:
        yield of_gid
