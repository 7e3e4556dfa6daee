"""Which directory has which group id, written on the file system, where every controller reads it.

Two controllers that share a file system, in one cluster or in two, do not see each other's volumes in time.
So a group id is claimed on the file system before it is given to a directory. The mark of a directory for
group G is an entry of the directory ``.kube-efs-gids/G``. Its maker makes the directory, then the mark, then
lists that directory. It has G only if every other mark in there is of a directory that does not exist.

Of two makers that want G, the one that made its mark later lists the directory of marks after both marks are
there. So at least one of them sees the other, and a maker that sees another mark gives G up. Both may do so;
each then tries another id.

A mark of a directory that does not exist is left from a volume that was removed. The next maker that wants
the id removes it. The directory may be created again at that moment; but its maker lists the marks later,
and either finds the mark of the one who removes, or misses its own mark, and gives G up.

There are such directories of marks in two places: at the top of what is mounted, and beside the directory.
Controllers that have one of the two in common never give out one id twice. The cost is that of a few small
calls, however many volumes there are.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from kube_efs.model.errors import GidTaken
from kube_efs.provisioning.workers.trash import OPEN_DIRECTORY

MARKS = ".kube-efs-gids"

_MODE = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory, by the descriptor of an open directory above it and the path from there."""

    folder: int
    path: str


def claim(gid: int, places: Sequence[Place], *, has_group: bool) -> None:
    """Mark the group id as that of the directory, which must exist, in each place.

    ``has_group`` says that the directory has this group: with its marks there too, it was claimed before.
    Raises GidTaken, with no mark of the directory left, when another directory has the id; and OSError.
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
            raise GidTaken(f"belongs to {others[0]}", field="group id", value=gid, remedy=remedy)


class _Marks:
    """The marks for one group id in one place."""

    def __init__(self, marks: int, place: Place) -> None:
        self._marks = marks
        self._place = place
        # A path can be longer than a name.
        self._own = hashlib.sha256(os.fsencode(place.path)).hexdigest()[:32]

    def add(self) -> bool:
        """Make the mark of the directory; gives whether it existed."""
        try:
            os.symlink(self._place.path, self._own, dir_fd=self._marks)
        except FileExistsError:
            return True
        return False

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._own, dir_fd=self._marks)

    def other(self) -> str | None:
        """A directory that has the id too; marks of those that do not exist are removed."""
        names = os.listdir(self._marks)  # noqa: PTH208 - of a descriptor
        if self._own not in names:
            return "a directory that was created at the same time"
        for name in names:
            if name == self._own:
                continue
            with suppress(FileNotFoundError):  # its maker has withdrawn it
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
    with _opened_or_made(folder, MARKS) as marks, _opened_or_made(marks, str(gid)) as of_gid:
        yield of_gid


@contextmanager
def _opened_or_made(folder: int, name: str) -> Iterator[int]:
    with suppress(FileExistsError):
        os.mkdir(name, _MODE, dir_fd=folder)
    descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
