"""Commands for an administrator to copy into a shell.

Their arguments come from objects that users of the cluster write, so no check quotes them itself.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, islice


class Syntax(StrEnum):
    """What a shell reads as more than an argument."""

    PIPE = " | "
    TO_FILE = " > "
    NO_INPUT = " </dev/null"
    ANY_LOG = "*.log"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as a list of arguments, with some syntax between them; its text has all of them quoted."""

    parts: tuple[str | Syntax, ...]

    def __str__(self) -> str:
        runs = groupby(self.parts, key=lambda one: isinstance(one, Syntax))
        return "".join("".join(run) if is_syntax else shlex.join(run) for is_syntax, run in runs)

    def changed(self, change: Callable[[str], str]) -> "Command":
        """The same with changed arguments. A change of the text could remove a quote."""
        return Command(tuple(one if isinstance(one, Syntax) else change(one) for one in self.parts))


def command(words: str, *values: str) -> Command:
    """The command with these words, in which each ``{}`` is a value; a value is never more than one word."""
    left = iter(values)
    # A value can be syntax, which must not become text.
    return Command(tuple(next(left) if word == "{}" else _filled(word, left) for word in words.split()))


def _filled(word: str, values: Iterator[str]) -> str:
    return word.format(*islice(values, word.count("{}")))
