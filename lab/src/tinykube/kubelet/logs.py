"""Container logs as files, and reading them while they grow."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 64 * 1024
_POLL_SECONDS = 0.1


async def read_log(
    path: Path, finished: Callable[[], bool], *, follow: bool, tail_lines: int | None
) -> AsyncGenerator[bytes, None]:
    """The last lines of a log, all for None, and with ``follow`` what is added until it is finished."""
    try:
        # Opened in a thread it would stay open when the waiting task is cancelled.
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if tail_lines is not None:
            await asyncio.to_thread(seek_last_lines, file, tail_lines)
        while True:
            ending = not follow or finished()  # asked before reading, so that nothing is missed
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield chunk
            if ending:
                return
            await asyncio.sleep(_POLL_SECONDS)


def seek_last_lines(file: BinaryIO, count: int) -> None:
    """Place the file at its last lines; a last line without an end counts."""
    position = file.seek(0, os.SEEK_END)
    if count <= 0:
        return
    data = b""
    while position > 0 and data.rstrip(b"\n").count(b"\n") < count:
        step = min(_CHUNK_BYTES, position)
        position -= step
        file.seek(position)
        data = file.read(step) + data
    kept = b"".join(data.splitlines(keepends=True)[-count:])
    file.seek(position + len(data) - len(kept))


def last_bytes(path: Path, most: int) -> str:
    """The end of a file; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
