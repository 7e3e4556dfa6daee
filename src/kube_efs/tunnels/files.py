"""Files that are either old or new, never half of each."""

import asyncio
import glob
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec

Given = ParamSpec("Given")


async def in_thread_to_the_end(
    write: Callable[Given, None], *arguments: Given.args, **options: Given.kwargs
) -> None:
    """Write in a thread; a cancelled caller continues only after the write has ended. Raises OSError."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *arguments, **options))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        with suppress(OSError):
            writing.result()
        raise


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace the file at ``path``; afterwards it has mode 0600.

    If ``durable`` it also survives a power failure, for which the disk is waited for. Raises OSError when
    the directory does not exist or is not writable.
    """
    # mkstemp gives mode 0600 and refuses links, which matters in a directory such as /tmp.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if not durable:
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def discard_unfinished(path: Path) -> None:
    """Remove what killed processes have left of new contents for this file, which no process writes now."""
    for unfinished in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with suppress(OSError):
            unfinished.unlink()
