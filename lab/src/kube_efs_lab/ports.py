"""Loopback ports for the tunnels of one embedded cluster, so that several can run on one machine."""

import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from fake_efs.errors import PlatformError

# Up to here a cluster may have file systems without meeting its neighbour's ports.
_BLOCK = 32
# The usual first port, then blocks below the range that the kernel gives to outgoing connections.
_USUAL = 20490
_BLOCKS = range(21000, 32000, _BLOCK)


@contextmanager
def reserved_base_port(candidates: Iterable[int] | None = None) -> Iterator[int]:
    """A base port that nobody else who asks in the same way gets meanwhile; raises PlatformError.

    The mark of it is a socket bound to the port before it. The port itself must be free as well.
    """
    for base in candidates or chain([_USUAL], random.sample(_BLOCKS, len(_BLOCKS))):
        with socket.socket() as mark, socket.socket() as probe:
            try:
                mark.bind(("127.0.0.1", base - 1))
                probe.bind(("127.0.0.1", base))
            except OSError:
                continue
            probe.close()
            yield base
            return
    raise PlatformError(
        "is free for tunnels", field="no loopback port", remedy="stop other embedded clusters"
    )
