"""The node's TCP ports: who listens, and who is connected.

Everything here asks the kernel at once; call it in a thread.
"""

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from kube_efs.model.errors import PortTaken
from kube_efs.tunnels.sockets import sock_diag
from kube_efs.tunnels.sockets.tcp_tables import TcpSocket, TcpState, read_tables

log = structlog.get_logger()

_PROC = Path("/proc")
_LOOPBACK = "127.0.0.1"
_NFS_SERVERS = _PROC / "fs/nfsfs/servers"


_ALL = frozenset(TcpState)
_ACTIVE = frozenset({TcpState.ESTABLISHED, TcpState.SYN_SENT})
_LISTENING = frozenset({TcpState.LISTEN})
_CONNECTED = frozenset({TcpState.ESTABLISHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """The node's ports at one look.

    ``connections`` are the established ones of each local port. ``busy`` are ports that a process is
    connected to or connecting to, or that a mounted NFS file system of the kernel has for its server's:
    between two attempts to connect, such a mount shows in no table of sockets. At ``unanswered`` ports
    connections wait to be accepted.
    """

    connections: Mapping[int, int]
    busy: frozenset[int]
    listening: frozenset[int]
    unanswered: frozenset[int] = frozenset()


def parse_nfs_servers(text: str) -> frozenset[int]:
    """The ports of the servers that the kernel's NFS client has (``/proc/fs/nfsfs/servers``).

    A line is ``NV SERVER PORT USE HOSTNAME``, the port in hexadecimal digits.
    """
    ports = set()
    for line in text.splitlines():
        with suppress(ValueError, IndexError):
            ports.add(int(line.split()[2], 16))
    return frozenset(ports)


def read_ports(expected: Collection[int] = ()) -> PortReading | None:
    """One look at the ports; None when it failed, or does not show a listener that must be there.

    ``expected`` are ports that are certainly listened on: a reading that misses one is torn.
    """
    try:
        sockets = _sockets(_ALL)
        mounted = parse_nfs_servers(_NFS_SERVERS.read_text()) if _NFS_SERVERS.exists() else frozenset()
    except (OSError, ValueError) as error:
        log.warning("ports-unreadable", reason=str(error))
        return None
    listening = frozenset(one.local_port for one in sockets if _listens(one))
    if not listening.issuperset(expected):
        return None
    active = [one for one in sockets if one.state in _ACTIVE]
    return PortReading(
        connections=_count(sockets),
        busy=mounted.union(one.local_port for one in active).union(one.remote_port for one in active),
        listening=listening,
        unanswered=frozenset(one.local_port for one in sockets if _listens(one) and one.queued),
    )


def open_connections() -> Mapping[int, int]:
    """How many established connections each local port has; 0 for all others."""
    return _count(_sockets(_CONNECTED))


def _count(sockets: Iterable[TcpSocket]) -> Mapping[int, int]:
    return Counter(one.local_port for one in sockets if one.state == TcpState.ESTABLISHED)


def listening_ports(pid: int) -> tuple[int, ...]:
    """The ports that this process listens on, in the order of its descriptors; empty when it is gone."""
    inodes = _socket_inodes(_PROC / str(pid))
    ports = {one.inode: one.local_port for one in _sockets(_LISTENING)} if inodes else {}
    return tuple(ports[inode] for inode in inodes if inode in ports)


def find_taken(ports: Collection[int], *, but_by: int | None = None) -> Mapping[int, PortTaken]:
    """Those of the ports that cannot be bound at 127.0.0.1, each with who has it.

    Those that the process ``but_by`` listens on do not count.
    """
    taken = frozenset(port for port in ports if not _can_listen(port))
    if taken and but_by is not None:
        taken = taken.difference(listening_ports(but_by))
    return {port: port_taken(port) for port in taken}


def _can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As stunnel does; else connections of the past (TIME_WAIT) would count as takers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
        return True


def port_taken(port: int) -> PortTaken:
    """The error for a port that another program has; it names that program if the kernel shows it to us."""
    holder = _holder(port)
    return PortTaken(
        f"is taken by {holder}" if holder else "is taken by another program",
        field="stunnel_port",
        value=port,
        remedy="stop that program or let it use another port; it is retried",
    )


def _holder(port: int) -> str:
    """Name and pid of the process that listens there; empty when the kernel does not show it to us."""
    inodes = {one.inode for one in _sockets(_LISTENING) if one.local_port == port}
    for process in _PROC.iterdir():
        if process.name.isdigit() and not inodes.isdisjoint(_socket_inodes(process)):
            with suppress(OSError):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _listens(one: TcpSocket) -> bool:
    return one.state == TcpState.LISTEN


def _sockets(states: Collection[TcpState]) -> tuple[TcpSocket, ...]:
    # Those of IPv6 too: a wildcard one takes the IPv4 port as well.
    if sock_diag.is_available():
        return sock_diag.ask(states)
    return tuple(one for one in read_tables() if one.state in states)


def _socket_inodes(process: Path) -> tuple[int, ...]:
    """Of the sockets that a process has, in the order of their descriptors."""
    inodes = {}
    with suppress(OSError):
        for handle in (process / "fd").iterdir():
            with suppress(OSError, ValueError):
                target = str(handle.readlink())
                if target.startswith("socket:["):
                    inodes[int(handle.name)] = int(target[len("socket:[") : -1])
    return tuple(inodes[descriptor] for descriptor in sorted(inodes))
