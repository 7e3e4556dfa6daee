"""``python -m bench.debian [ROW ...]``: measure rows in a fresh root file system of Debian 13.

The image stands on Debian 13, so these are its versions of Python, stunnel and OpenSSL; the kernel is that of
this machine. The committed state is measured, on the control plane that ``make conformance`` has built here,
if there is one. The results go where ``python -m bench`` writes its own.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.page import publish
from bench.results import LATEST, read_results
from rich.console import Console
from tests.conformance.programs import PROGRAMS
from tests.newcomer.root_file_systems import CHECKOUT, DEBIAN_13, TOP, unpack

_SECONDS: Final = 7200


def main() -> int:
    """Measure, and take the results over; the exit status of the measurement."""
    console = Console()
    rows = sys.argv[1:]
    options = {name: text for name, text in os.environ.items() if name.startswith("BENCH_")}
    with tempfile.TemporaryDirectory(prefix="bench-debian-", dir="/var/tmp") as name:
        with console.status("Debian 13: setting up, then measuring; its output follows"):
            root = unpack(DEBIAN_13, Path(name))
            if PROGRAMS.is_dir():
                shutil.copytree(PROGRAMS, Path(f"{name}{CHECKOUT}", PROGRAMS.relative_to(TOP)))
            bench = root.run("make", "bench", f"ROWS={' '.join(rows)}", seconds=_SECONDS, environment=options)
            answer = asyncio.run(bench)
        console.print(answer.text, markup=False)
        measured = read_results(Path(f"{name}{CHECKOUT}", LATEST.relative_to(TOP)))
    before = read_results()
    publish(before.updated({name: new for name, new in measured.rows.items() if name in rows or not rows}))
    return answer.code


if __name__ == "__main__":
    sys.exit(main())
