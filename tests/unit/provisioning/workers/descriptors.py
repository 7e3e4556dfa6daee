"""The file descriptors of this process."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OWN = Path("/proc/self/fd")


def open_descriptors() -> int:
    """How many descriptors are open."""
    return len(list(_OWN.iterdir()))


def descriptors_below(folder: Path) -> list[Path]:
    """What the descriptors that lead into the directory have open.

    Their number says nothing about a leak: what earlier tests have left is closed at any moment.
    """
    return [path for path in _targets() if path.is_relative_to(folder)]


def _targets() -> Iterator[Path]:
    for one in list(_OWN.iterdir()):
        with suppress(FileNotFoundError):  # That of the listing itself.
            yield one.readlink()
