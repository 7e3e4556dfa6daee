"""A pod's program: appends blocks to a file, each on the server's disk before the next, and reads each back.

``pod.py FILE`` tells after each block how many there are and how long that took, in seconds. It ends when
its input does. It imports next to nothing, so that it starts at once.
"""

import hashlib
import os
import select
import sys
import time

BLOCK = 4096
# Seldom enough for several guests to share a processor.
_PAUSE_SECONDS = 0.1


def content(number: int) -> bytes:
    """What is in that block of the file: no two are alike."""
    return hashlib.shake_128(b"block %d" % number).digest(BLOCK)


def main(file: str) -> None:
    writing = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # Past the page cache: each reading is a call to the server.
    reading = os.open(file, os.O_RDONLY | os.O_DIRECT)
    blocks = 0
    while not select.select([0], [], [], _PAUSE_SECONDS)[0]:
        began = time.monotonic()
        os.write(writing, content(blocks))
        os.fsync(writing)
        if os.pread(reading, BLOCK, blocks * BLOCK) != content(blocks):
            sys.exit(f"block {blocks} of {file} is not what was written")
        blocks += 1
        print(blocks, time.monotonic() - began, flush=True)  # noqa: T201 - to whom started it
    os.close(writing)


if __name__ == "__main__":
    main(sys.argv[1])
