"""The node's TCP sockets from the kernel's sock_diag(7), as ``ss`` uses it.

The kernel sends only the sockets in the requested states, on request only those of one port. To read some
listeners takes some microseconds; ``/proc/net/tcp`` takes milliseconds. No privilege is needed.
"""

import os
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
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
_MESSAGE_BYTES = 72  # of struct inet_diag_msg; attributes follow
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_FILTER = 1  # INET_DIAG_REQ_BYTECODE, a program of struct inet_diag_bc_op
_STEP = struct.Struct("=BBHxxH")  # code, where to continue if it is true and if it is false; the port
_JUMP = struct.Struct("=BBH")
_JUMP_CODE = 1
_LOCAL_AT_LEAST, _LOCAL_AT_MOST, _REMOTE_AT_LEAST, _REMOTE_AT_MOST = 2, 3, 4, 5
_INFO = 2  # INET_DIAG_INFO, which asks for a struct tcp_info (linux/tcp.h) of each connection
_FLOW = struct.Struct(
    "=44xI72xQQ"
)  # tcpi_last_data_sent in milliseconds, tcpi_bytes_acked, tcpi_bytes_received
_ERROR = struct.Struct("=i")
_ALIGNMENT = 4
_BUFFER_BYTES = 1 << 16
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What a connection has carried: bytes that its peer acknowledged and bytes from the peer.

    ``seconds_ago`` is when the last ones were sent.
    """

    local_port: int
    remote_port: int
    sent_bytes: int
    received_bytes: int
    seconds_ago: float


@cache
def is_available() -> bool:
    """Whether this kernel and its sandbox permit the call; tested once."""
    try:
        ask({TcpState.LISTEN}, port=1)
    except OSError as error:
        log.info("sock-diag-unavailable", reason=str(error), instead="/proc/net/tcp")
        return False
    return True


def ask(states: Collection[TcpState], port: int | None = None) -> tuple[TcpSocket, ...]:
    """The sockets in these states, of IPv4 and then of IPv6; with ``port`` only those with it at either end.

    Raises OSError.
    """
    families, attribute = (socket.AF_INET, socket.AF_INET6), b"" if port is None else _filter(port)
    return tuple(
        _parse(message) for family in families for message in _dump(family, states, attribute=attribute)
    )


def _filter(port: int) -> bytes:
    """The attribute that selects sockets with this local or remote port.

    An offset counts from its step. One beyond the end of the program rejects the socket.
    """
    program = (
        _STEP.pack(_LOCAL_AT_LEAST, 8, 20, port)
        + _STEP.pack(_LOCAL_AT_MOST, 8, 12, port)
        + _JUMP.pack(_JUMP_CODE, 4, 20)
        + _STEP.pack(_REMOTE_AT_LEAST, 8, 20, port)
        + _STEP.pack(_REMOTE_AT_MOST, 8, 12, port)
    )
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(program), _FILTER) + program


def ask_flows() -> tuple[Flow, ...]:
    """What the established connections of IPv4 have carried; raises OSError.

    A kernel before 4.2 does not report it, and its connections are left out.
    """
    messages = _dump(socket.AF_INET, {TcpState.ESTABLISHED}, extensions=1 << (_INFO - 1))
    return tuple(flow for message in messages if (flow := _parse_flow(message)) is not None)


def _dump(
    family: socket.AddressFamily,
    states: Collection[TcpState],
    *,
    extensions: int = 0,
    attribute: bytes = b"",
) -> Iterator[bytes]:
    wanted = sum(1 << state for state in states)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, extensions, wanted) + attribute
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.send(header + body)
        while True:
            for kind, message in _messages(netlink.recv(_BUFFER_BYTES)):
                if kind in _LAST:
                    _raise_for(message)
                    return
                yield message


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


def _parse_flow(message: bytes) -> Flow | None:
    attributes = message[_MESSAGE_BYTES:]
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if length < _ATTRIBUTE.size:
            break
        value = attributes[_ATTRIBUTE.size : length]
        if kind == _INFO and len(value) >= _FLOW.size:
            milliseconds, sent, received = _FLOW.unpack_from(value)
            ends = _parse(message)
            return Flow(
                local_port=ends.local_port,
                remote_port=ends.remote_port,
                sent_bytes=sent,
                received_bytes=received,
                seconds_ago=milliseconds / 1000,
            )
        attributes = attributes[length + -length % _ALIGNMENT :]
    return None
