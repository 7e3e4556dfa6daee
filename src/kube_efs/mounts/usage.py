"""How full a file system is, asked so that one that does not answer holds up nothing else."""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What statvfs(3) says; ``available`` is what users can have. EFS counts no inodes: zero."""

    total_bytes: int
    used_bytes: int
    available_bytes: int
    total_inodes: int = 0
    used_inodes: int = 0
    available_inodes: int = 0

    @classmethod
    def of(cls, found: os.statvfs_result) -> Self:
        """The figures in bytes, as df(1) counts them."""
        return cls(
            total_bytes=found.f_blocks * found.f_frsize,
            used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
            available_bytes=found.f_bavail * found.f_frsize,
            total_inodes=found.f_files,
            used_inodes=found.f_files - found.f_ffree,
            available_inodes=found.f_favail,
        )


def read_usage(path: Path, look: Callable[[Path], os.statvfs_result] = os.statvfs) -> "asyncio.Future[Usage]":
    """The usage of what is mounted there, or OSError, whenever the file system answers.

    Each call waits in a thread of its own, which cannot be ended and does not hold up the end of the process:
    whoever asks must not ask again before there is an answer.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Usage] = loop.create_future()

    def tell(usage: Usage | OSError) -> None:
        if not answer.done():
            answer.set_exception(usage) if isinstance(usage, OSError) else answer.set_result(usage)

    def wait() -> None:
        try:
            found: Usage | OSError = Usage.of(look(path))
        except OSError as error:
            found = error
        # After the loop has ended nobody is there to be told.
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=wait, name=f"usage {path}", daemon=True).start()
    return answer
