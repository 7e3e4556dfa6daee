"""What is left in the trash of a file system after a worker has tried to empty it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Reasons of events.
TRASH_NOT_EMPTIED: Final = "TrashNotEmptied"
TRASH_EMPTIED: Final = "TrashEmptied"


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckEntry:
    """An entry of the trash that cannot be removed: the first path in it that resists, and why.

    ``path`` is empty when it is the entry itself.
    """

    entry: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entry}{'/' if self.path else ''}{self.path} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashReport:
    """How much is in a trash now: ``entries``, and how many of them cannot be removed as things are.

    ``examples`` are some of those. ``removed`` counts files and directories, also those inside of entries.
    """

    entries: int = 0
    stuck: int = 0
    removed: int = 0
    examples: tuple[StuckEntry, ...] = ()

    @property
    def unfinished(self) -> bool:
        """Whether there is something that more time would help."""
        return self.entries > self.stuck


def together(reports: Sequence[TrashReport]) -> TrashReport:
    """What is in all these trashes."""
    return TrashReport(
        entries=sum(one.entries for one in reports),
        stuck=sum(one.stuck for one in reports),
        removed=sum(one.removed for one in reports),
        examples=tuple(example for one in reports for example in one.examples),
    )
