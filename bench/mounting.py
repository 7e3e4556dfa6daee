"""``python mounting.py FOLDER LINES``: fill the mount table up, then mount and unmount until killed.

By system calls, and without the package: a program for each mount would take longer than what is measured.
"""

import ctypes
import os
import sys
from pathlib import Path

_MS_BIND = 4096
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Say so when the table is full; then do not stop."""
    folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir()
    lines = len(Path("/proc/self/mountinfo").read_bytes().splitlines())
    for number in range(lines, wanted):
        _bind(folder / str(number) / "volumes" / "kubernetes.io~csi" / f"pv-{number}" / "mount")
    print("mounted", flush=True)  # noqa: T201 - what the starter waits for
    changing = folder / "changing"
    while True:
        _bind(changing)
        _checked(_libc.umount2(os.fsencode(changing), 0))


def _bind(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    _checked(_libc.mount(b"/dev", os.fsencode(place), None, ctypes.c_ulong(_MS_BIND), None))


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "mount")


if __name__ == "__main__":
    main()
