"""Loopback ports for servers of this machine."""

import atexit
import socket
from collections import deque
from typing import Final

_HOST: Final = "127.0.0.1"
# More than any program needs at a time; each is a descriptor.
_MOST: Final = 512
_held: Final[deque[socket.socket]] = deque()


def free_port(host: str = _HOST) -> int:
    """A port for a server that starts later, or starts again; the kernel gives it to nobody else meanwhile.

    A socket of this process is bound to it, and never listens. Only servers that name the port and set
    SO_REUSEADDR, as servers do, can listen on it. The oldest of many hundred ports are given back.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
    except OSError:
        holder.close()
        raise
    _held.append(holder)
    if len(_held) > _MOST:
        _held.popleft().close()
    port: int = holder.getsockname()[1]
    return port


@atexit.register
def _give_back() -> None:
    """Python warns of each socket that is open at the end of the process."""
    while _held:
        _held.pop().close()
