"""``python -m bench.debian [ROW ...]``: measure rows in a fresh root file system of Debian 13.

The image stands on Debian 13, so these are its versions of Python, stunnel and OpenSSL; the kernel is that of
this machine. The committed state is measured. The results go where ``python -m bench`` writes its own.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.page import PAGE, updated
from bench.results import LATEST, read_results, write_results
from rich.console import Console
from tests.newcomer.root_file_systems import CHECKOUT, DEBIAN_13, TOP, unpack

_SECONDS: Final = 7200


def main() -> int:
    """Measure, and take the results over; the exit status of the measurement."""
    console = Console()
    rows = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="bench-debian-", dir="/var/tmp") as name:
        with console.status("Debian 13: setting up, then measuring; its output follows"):
            root = unpack(DEBIAN_13, Path(name))
            answer = asyncio.run(root.run("make", "bench", f"ROWS={' '.join(rows)}", seconds=_SECONDS))
        console.print(answer.text, markup=False)
        measured = read_results(Path(f"{name}{CHECKOUT}", LATEST.relative_to(TOP)))
    before = read_results()
    results = before.updated({name: new for name, new in measured.rows.items() if name in rows or not rows})
    write_results(results)
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    return answer.code


if __name__ == "__main__":
    sys.exit(main())
