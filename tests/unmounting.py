"""Unmounting what a test has mounted."""

import subprocess
import time
from pathlib import Path

_DEADLINE_SECONDS = 20


def unmount(point: Path, *options: str) -> None:
    """Unmount it, as soon as nobody is in it.

    Everything on the machine that walks through the mount point or asks for its figures makes it busy for a
    moment: an NFS server that starts, a search for files. What a test itself has left open stays, and fails.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        done = subprocess.run(["umount", *options, str(point)], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"cannot be unmounted: {done.stderr}")
        time.sleep(0.01)
