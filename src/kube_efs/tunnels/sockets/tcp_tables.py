"""The node's TCP sockets as the kernel's tables list them (``/proc/net/tcp``, proc_net(5)).

For each reading, the kernel walks through its whole hash table of connections, which takes milliseconds even
on an idle node. ``sock_diag`` is faster.
"""

from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_PROC_NET = Path("/proc/net")
_HEADING = "sl"


class TcpState(IntEnum):
    """The states that matter here (``include/net/tcp_states.h`` of Linux)."""

    ESTABLISHED = 1
    SYN_SENT = 2
    LISTEN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket:
    """A socket; ``queued`` counts bytes to read, or connections to accept."""

    local_port: int
    remote_port: int
    state: int
    inode: int
    queued: int = 0


def parse_tcp_table(text: str) -> tuple[TcpSocket, ...]:
    """The sockets of the table; lines that are not sockets are skipped."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        with suppress(ValueError, IndexError):
            found.append(
                TcpSocket(
                    local_port=int(fields[1].rsplit(":", 1)[1], 16),
                    remote_port=int(fields[2].rsplit(":", 1)[1], 16),
                    state=int(fields[3], 16),
                    inode=int(fields[9]),
                    queued=int(fields[4].rsplit(":", 1)[1], 16),
                )
            )
    return tuple(found)


def read_tables() -> tuple[TcpSocket, ...]:
    """The sockets of both tables; raises OSError, and ValueError for a table without its heading."""
    tables = (_PROC_NET / "tcp", _PROC_NET / "tcp6")
    texts = [table.read_text() for table in tables if table.exists()]
    if not all(text.split(maxsplit=1)[:1] == [_HEADING] for text in texts):
        raise ValueError("a table of sockets has no heading")
    return tuple(one for text in texts for one in parse_tcp_table(text))
