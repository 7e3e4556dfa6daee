"""The content of the trash of a file system after a worker has tried to empty it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Reasons of events.
TRASH_NOT_EMPTIED: Final = "TrashNotEmptied"
TRASH_EMPTIED: Final = "TrashEmptied"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckEntry:
    """An entry of the trash that cannot be removed: the first path in it that fails, and the reason.

    ``path`` is empty for the entry itself.
    """

    entry: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entry}{'/' if self.path else ''}{self.path} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashReport:
    """The number of ``entries`` in a trash, and how many of them are ``stuck``: they cannot be removed.

    ``examples`` are some of the stuck entries. ``removed`` counts files and directories, also inside of
    entries.
    """

    entries: int = 0
    stuck: int = 0
    removed: int = 0
    examples: tuple[StuckEntry, ...] = ()

    @property
    def unfinished(self) -> bool:
        """Whether more entries can be removed with more time."""
        return self.entries > self.stuck


def together(reports: Sequence[TrashReport]) -> TrashReport:
    """The sum of these reports."""
    return TrashReport(
        entries=sum(one.entries for one in reports),
        stuck=sum(one.stuck for one in reports),
        removed=sum(one.removed for one in reports),
        examples=tuple(example for one in reports for example in one.examples),
    )
