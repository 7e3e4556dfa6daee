"""The program of a pod: appends blocks to a file with fsync, and reads each back.

``pod.py FILE`` prints the number of blocks and the seconds for the last one after each block. It ends with
its input. It imports very little, so that it starts quickly.
"""

import hashlib
import os
import select
import sys
import time

BLOCK = 4096
# Rarely enough for several guests to share a processor.
_PAUSE_SECONDS = 0.1


def content(number: int) -> bytes:
    """The content of that block, which is unique."""
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
        print(blocks, time.monotonic() - began, flush=True)  # noqa: T201 - for the parent process
    os.close(writing)


if __name__ == "__main__":
    main(sys.argv[1])
