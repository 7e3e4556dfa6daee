"""Recognizable secrets, and the search for them in places that must not contain any."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# No shape that secrets are known by: what is found is what the code itself should not have shown.
_MARK: Final = "pl4nted"
_PLANTED: Final = re.compile(rf"{_MARK}-[a-z-]+")

_numbers = itertools.count(1)


def planted(place: str) -> str:
    """A secret for that place; ``place`` has lowercase letters and dashes."""
    return f"{_MARK}-{place}-{next(_numbers):06}"


def places_in(text: str) -> Counter[str]:
    """The number of secrets in the text, by the place where they were planted."""
    return Counter(found.removeprefix(f"{_MARK}-").rstrip("-") for found in _PLANTED.findall(text))


def places_in_files(files: Iterable[Path]) -> dict[str, Counter[str]]:
    """The number of secrets in each file that has any, by file name."""
    found: dict[str, Counter[str]] = {}
    for file in files:
        counted = Counter[str]()
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                counted += places_in(line)
        if counted:
            found[file.name] = counted
    return found
