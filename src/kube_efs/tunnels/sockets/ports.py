"""The node's TCP ports: which processes listen, and which connections exist.

All functions block while they ask the kernel; call them in a thread.
"""

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from kube_efs.model.errors import PlatformError, PortTaken
from kube_efs.tunnels.sockets import sock_diag
from kube_efs.tunnels.sockets.sock_diag import Flow
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
    """One reading of the node's ports.

    ``connections`` counts the established ones of each local port. ``busy`` are ports with a connection,
    also one that is being opened, and the server ports of the kernel's NFS mounts: between two attempts to
    connect, such a mount has no socket. At ``unanswered`` ports, connections wait to be accepted.
    """

    connections: Mapping[int, int]
    busy: frozenset[int]
    listening: frozenset[int]
    unanswered: frozenset[int] = frozenset()


def parse_nfs_servers(text: str) -> frozenset[int]:
    """The server ports of the kernel's NFS client (``/proc/fs/nfsfs/servers``).

    A line is ``NV SERVER PORT USE HOSTNAME``, the port in hexadecimal digits.
    """
    ports = set()
    for line in text.splitlines():
        with suppress(ValueError, IndexError):
            ports.add(int(line.split()[2], 16))
    return frozenset(ports)


def nfs_client_ports() -> frozenset[int] | None:
    """The server ports of the kernel's NFS clients, each of which has a connection; None without the table.

    The kernel recognizes a server that it already uses, also behind another port. It then uses the first
    connection for the new mount too, and lists only the port of the first one. Raises PlatformError.
    """
    try:
        return _read_nfs_servers()
    except OSError as error:
        raise PlatformError("cannot be read", field="NFS clients", value=str(_NFS_SERVERS)) from error


def _read_nfs_servers() -> frozenset[int] | None:
    # Not with exists() first: the table is gone when the kernel module is unloaded in between.
    try:
        return parse_nfs_servers(_NFS_SERVERS.read_text())
    except FileNotFoundError:
        return None


def read_ports(expected: Collection[int] = ()) -> PortReading | None:
    """Read the ports once; None if the reading failed, or does not contain an expected listener.

    stunnel certainly listens on the ``expected`` ports, so a reading without one of them is incomplete.
    """
    try:
        sockets = _sockets(_ALL)
        mounted = _read_nfs_servers() or frozenset()
    except (OSError, ValueError) as error:
        log.warning("ports-unreadable", reason=str(error))
        return None
    listening = frozenset(one.local_port for one in sockets if _listens(one))
    if not listening.issuperset(expected):
        return None
    active = [one for one in sockets if one.state in _ACTIVE]
    return PortReading(
        connections=_count(sockets),
        # Both ends: of a connection that is being opened, only the socket of the client exists. Remote ports
        # of unrelated connections also count. That keeps a tunnel open for longer, and never closes one.
        busy=mounted.union(one.local_port for one in active).union(one.remote_port for one in active),
        listening=listening,
        unanswered=frozenset(one.local_port for one in sockets if _listens(one) and one.queued),
    )


def is_in_use(port: int) -> bool | None:
    """Whether a listener, either end of a connection, or a mount has this port; None if it cannot be read.

    Only its sockets are read: a node can have a thousand others.
    """
    try:
        sockets, mounted = _sockets(_ALL, port), _read_nfs_servers() or ()
    except (OSError, ValueError) as error:
        log.warning("ports-unreadable", reason=str(error))
        return None
    return port in mounted or any(port in (one.local_port, one.remote_port) for one in sockets)


def read_flows() -> tuple[Flow, ...]:
    """What each open connection of this node has carried; empty if the kernel does not report it."""
    if not sock_diag.is_available():
        return ()
    try:
        return sock_diag.ask_flows()
    except OSError as error:
        log.warning("flows-unreadable", reason=str(error))
        return ()


def open_connections() -> Mapping[int, int]:
    """How many established connections each local port has; 0 for all others."""
    return _count(_sockets(_CONNECTED))


def _count(sockets: Iterable[TcpSocket]) -> Mapping[int, int]:
    return Counter(one.local_port for one in sockets if one.state == TcpState.ESTABLISHED)


def listening_ports(pid: int) -> tuple[int, ...]:
    """The ports that this process listens on, in the order of its descriptors; empty when it has ended."""
    return listening_ports_of([pid])[pid]


def listening_ports_of(pids: Collection[int]) -> Mapping[int, tuple[int, ...]]:
    """The ports that each process listens on, from one reading of the kernel's sockets."""
    ports = {one.inode: one.local_port for one in _sockets(_LISTENING)} if pids else {}
    return {
        pid: tuple(ports[inode] for inode in _socket_inodes(_PROC / str(pid)) if inode in ports)
        for pid in pids
    }


def count_connections(pid: int) -> int:
    """How many established TCP connections the process has; 0 when it has ended."""
    inodes = {one.inode for one in _sockets(_CONNECTED)}
    return len(inodes.intersection(_socket_inodes(_PROC / str(pid))))


def find_taken(ports: Collection[int], *, except_by: int | None = None) -> Mapping[int, PortTaken]:
    """The ports that cannot be bound at 127.0.0.1, each with an error that names its listener.

    Ports of the process ``except_by`` do not count.
    """
    taken = frozenset(port for port in ports if not _can_listen(port))
    if taken and except_by is not None:
        taken = taken.difference(listening_ports(except_by))
    return {port: port_taken_error(port) for port in taken}


def _can_listen(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As stunnel does: otherwise connections in TIME_WAIT would block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
        return True


def port_taken_error(port: int) -> PortTaken:
    """The error for a port of another program; it names the program if this process may see it."""
    holder = _holder(port)
    return PortTaken(
        f"is taken by {holder}" if holder else "is taken by another program",
        field="stunnel_port",
        value=port,
        remedy="stop that program or let it use another port; it is retried",
    )


def _holder(port: int) -> str:
    """Name and pid of the process that listens there; empty if this process may not see it."""
    inodes = {one.inode for one in _sockets(_LISTENING) if one.local_port == port}
    for process in _PROC.iterdir():
        if process.name.isdigit() and not inodes.isdisjoint(_socket_inodes(process)):
            with suppress(OSError):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _listens(one: TcpSocket) -> bool:
    return one.state == TcpState.LISTEN


def _sockets(states: Collection[TcpState], port: int | None = None) -> tuple[TcpSocket, ...]:
    """The sockets in these states; the tables also give those of other ports."""
    # Also those of IPv6: a wildcard socket there also takes the IPv4 port.
    if sock_diag.is_available():
        return sock_diag.ask(states, port)
    # The tables are read in parts. While other sockets come and go, one can be in two of them.
    return tuple(dict.fromkeys(one for one in read_tables() if one.state in states))


def _socket_inodes(process: Path) -> tuple[int, ...]:
    """The inodes of a process's sockets, in the order of their descriptors."""
    inodes = {}
    with suppress(OSError):
        for handle in (process / "fd").iterdir():
            with suppress(OSError, ValueError):
                target = str(handle.readlink())
                if target.startswith("socket:["):
                    inodes[int(handle.name)] = int(target[len("socket:[") : -1])
    return tuple(inodes[descriptor] for descriptor in sorted(inodes))
