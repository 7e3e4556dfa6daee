"""The program of a pod: appends blocks to a file with fsync, and reads each back past the page cache.

``workload.py FILE`` prints the number of blocks and the seconds for the last one after each block. It ends at
SIGTERM with status 0, and with another status at the first error. It imports very little, so that it starts
quickly.
"""

import hashlib
import mmap
import os
import signal
import sys
import time

BLOCK = 4096
# On the node of the tests, a shorter one would need a third of the processor.
_PAUSE_SECONDS = 0.5


def content(number: int) -> bytes:
    """The content of that block, which is unique."""
    return hashlib.shake_128(b"block %d" % number).digest(BLOCK)


def main(file: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    writing = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # Past the page cache: each reading is a call to the server. A page is aligned, as O_DIRECT wants it.
    reading = os.open(file, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    # After a restart it continues behind the blocks from before. The last one may be incomplete.
    blocks = os.fstat(writing).st_size // BLOCK
    os.ftruncate(writing, blocks * BLOCK)
    while True:
        began = time.monotonic()
        os.write(writing, content(blocks))
        os.fsync(writing)
        os.preadv(reading, [page], blocks * BLOCK)
        if page[:] != content(blocks):
            sys.exit(f"block {blocks} of {file} is not what was written")
        blocks += 1
        print(blocks, time.monotonic() - began, flush=True)  # noqa: T201 - the pod's log
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
