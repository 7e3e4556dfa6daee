"""Calls with the sizes of NFS, through a loopback port to ``record_server``. Standard library alone.

A call and its reply are records of ONC RPC (RFC 5531, 11): a mark with the length, then the header. The
header of a call is that of NFS 4, because efs-proxy reads it. A call also says how long its reply must be.
"""

import selectors
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

MEBIBYTE: Final = 1 << 20
MARK: Final = struct.Struct(">I")
LAST_FRAGMENT: Final = 0x8000_0000
# The id, the type, three versions and numbers, no credentials, no verifier, the bytes of the reply.
CALL: Final = struct.Struct(">11I")
# The id, the type, that it is accepted, no verifier, and the status.
REPLY: Final = struct.Struct(">6I")
NFS_PROGRAM: Final = 100003

_LOOPBACK: Final = "127.0.0.1"
_SMALL_BYTES: Final = 128
_REQUEST_BYTES: Final = 4096
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.001


class Connection:
    """A client's connection; every wait has a timeout."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((_LOOPBACK, port), timeout=_PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(2 * MEBIBYTE))

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def fileno(self) -> int:
        """The number of the socket."""
        return self._socket.fileno()

    def send(self, *, sent: int, received: int) -> None:
        """Send a call of ``sent`` bytes, whose reply will have ``received``."""
        header = CALL.pack(1, 0, 2, NFS_PROGRAM, 4, 1, 0, 0, 0, 0, received)
        self._socket.sendall(MARK.pack(LAST_FRAGMENT | sent) + header + bytes(sent - len(header)))

    def receive(self) -> None:
        """Receive the next reply; raises ConnectionError at the end of the connection."""
        receive_record(self._socket, self._buffer)


def receive_record(connection: socket.socket, buffer: memoryview) -> memoryview:
    """The next record without its mark; raises ConnectionError at the end of the connection."""
    _fill(connection, buffer[: MARK.size])
    (mark,) = MARK.unpack_from(buffer)
    record = buffer[: mark & ~LAST_FRAGMENT]
    _fill(connection, record)
    return record


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    while buffer:
        count = connection.recv_into(buffer)
        if not count:
            raise ConnectionError("the connection ended")
        buffer = buffer[count:]


def connect(port: int) -> Connection:
    """A connection on which a first call was answered, so its handshake is over; raises TimeoutError.

    A data plane that is starting refuses or resets connections for a moment.
    """
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            connection = Connection(port)
            connection.send(sent=_SMALL_BYTES, received=_SMALL_BYTES)
            connection.receive()
        except ConnectionError as error:
            if time.monotonic() > end:
                raise TimeoutError(f"port {port} does not answer") from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return connection


def write(connection: Connection, mebibytes: int) -> float:
    """The seconds that so many writes of 1 MiB take."""
    return _calls(connection, mebibytes, sent=MEBIBYTE, received=_SMALL_BYTES)


def read(connection: Connection, mebibytes: int) -> float:
    """The seconds that so many reads of 1 MiB take."""
    return _calls(connection, mebibytes, sent=_SMALL_BYTES, received=MEBIBYTE)


def _calls(connection: Connection, count: int, *, sent: int, received: int) -> float:
    # One side of each call is small, so all calls can be sent before the first reply is read.
    begun = time.perf_counter()
    for _ in range(count):
        connection.send(sent=sent, received=received)
    for _ in range(count):
        connection.receive()
    return time.perf_counter() - begun


def latencies(ports: Sequence[int], count: int) -> list[float]:
    """The seconds of each of ``count`` reads of 4 KiB, in order of size.

    Each port has a connection, which makes its next call after a reply.
    """
    found: list[float] = []
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        began = {}
        for port in ports:
            connection = stack.enter_context(connect(port))
            selector.register(connection, selectors.EVENT_READ)
            began[connection] = _request(connection)
        while len(found) < count:
            for connection in _ready(selector):
                connection.receive()
                found.append(time.perf_counter() - began[connection])
                began[connection] = _request(connection)
        # A connection that is closed before the reply is read is reset, and efs-proxy ends with that.
        for connection in began:
            connection.receive()
    return sorted(found)


def _request(connection: Connection) -> float:
    begun = time.perf_counter()
    connection.send(sent=_SMALL_BYTES, received=_REQUEST_BYTES)
    return begun


def _ready(selector: selectors.BaseSelector) -> list[Connection]:
    keys = selector.select(_PATIENCE_SECONDS)
    if not keys:
        raise TimeoutError(f"no reply in {_PATIENCE_SECONDS:g} s")
    return [key.fileobj for key, _ in keys if isinstance(key.fileobj, Connection)]
