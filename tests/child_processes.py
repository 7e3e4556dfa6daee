"""Child processes, some of which end while a test looks at them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import psutil


def children_with(
    fits: Callable[[Sequence[str]], bool],
    parent: psutil.Process | None = None,
    *,
    recursive: bool = False,
) -> Iterator[psutil.Process]:
    """The children of this process, or of another one, whose command line fits."""
    for child in (parent or psutil.Process()).children(recursive=recursive):
        with suppress(psutil.Error):
            # It is empty for a process that has ended.
            if fits(child.cmdline()):
                yield child
