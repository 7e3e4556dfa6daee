"""Sockets that only the user of this process and root can open."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SOCKET_MODE: Final = 0o600


def hidden_name(socket: Path) -> Path:
    """The name to bind the socket with."""
    return socket.with_name(f".{socket.name}")


@contextmanager
def published(socket: Path) -> Iterator[None]:
    """While the context is open, the socket that is bound with the hidden name has its own name.

    It is renamed after its mode is set, so no other user can connect at any moment, and clients never find a
    dead socket. It replaces the socket of an earlier process. At the end, the name is removed unless a
    successor has taken it. Raises OSError.
    """
    hidden = hidden_name(socket)
    hidden.chmod(_SOCKET_MODE)
    ours = hidden.stat().st_ino
    hidden.replace(socket)
    try:
        yield
    finally:
        if socket.exists() and socket.stat().st_ino == ours:
            socket.unlink()
