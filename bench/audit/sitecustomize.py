"""In a Python program's path: writes a line to the file BENCH_STARTED for each process that it starts."""

import os
import sys
from typing import Any, Final

_FILE: Final = os.environ.get("BENCH_STARTED", "")
_STARTS: Final = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"})


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        with open(_FILE, "a", encoding="utf-8") as file:  # noqa: PTH123 - nothing else is imported this early
            file.write(f"{event} {arguments!r}\n")


if _FILE:
    sys.addaudithook(_note)
