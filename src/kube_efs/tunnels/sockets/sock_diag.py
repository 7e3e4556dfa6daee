"""The node's TCP sockets from the kernel's sock_diag(7), as ``ss`` uses it.

The kernel sends only the sockets in the requested states. To read the listeners takes some microseconds;
``/proc/net/tcp`` takes milliseconds. No privilege is needed.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from functools import cache

import structlog

from kube_efs.tunnels.sockets.tcp_tables import TcpSocket, TcpState

log = structlog.get_logger()

# linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_LAST = (2, 3)  # NLMSG_ERROR, NLMSG_DONE
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, which socket
_SOCKET = struct.Struct("=xBxx2s2s48xI8xI")  # state, ports, then behind addresses: queued, and the inode
_ERROR = struct.Struct("=i")
_ALIGNMENT = 4
_BUFFER_BYTES = 1 << 16
_ANSWER_SECONDS = 5.0


@cache
def is_available() -> bool:
    """Whether this kernel and its sandbox permit the call; tested once."""
    try:
        ask({TcpState.LISTEN})
    except OSError as error:
        log.info("sock-diag-unavailable", reason=str(error), instead="/proc/net/tcp")
        return False
    return True


def ask(states: Collection[TcpState]) -> tuple[TcpSocket, ...]:
    """The sockets in these states, of IPv4 and then of IPv6; raises OSError."""
    return tuple(one for family in (socket.AF_INET, socket.AF_INET6) for one in _dump(family, states))


def _dump(family: socket.AddressFamily, states: Collection[TcpState]) -> Iterator[TcpSocket]:
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, sum(1 << state for state in states))
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.send(header + body)
        while True:
            for kind, message in _messages(netlink.recv(_BUFFER_BYTES)):
                if kind in _LAST:
                    _raise_for(message)
                    return
                yield _parse(message)


def _raise_for(message: bytes) -> None:
    number = -_ERROR.unpack_from(message)[0]
    if number:
        raise OSError(number, os.strerror(number))


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    while answer:
        length, kind, *_ = _HEADER.unpack_from(answer)
        yield kind, answer[_HEADER.size : length]
        answer = answer[length + -length % _ALIGNMENT :]


def _parse(message: bytes) -> TcpSocket:
    state, local, remote, queued, inode = _SOCKET.unpack_from(message)
    return TcpSocket(
        local_port=int.from_bytes(local),
        remote_port=int.from_bytes(remote),
        state=state,
        inode=inode,
        queued=queued,
    )
