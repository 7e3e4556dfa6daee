"""The data of one connection: copied between the client and the mount target without entering user space.

``os.splice`` moves pages between a socket and a pipe. Each direction has a thread, which waits in the kernel
for data of one side, and then for room at the other. The kernel encrypts and decrypts inside of these calls,
so the connections of a node use all its processors. An event loop was rejected: all connections would share
one processor.

From the socket of the mount target, splice returns only the data of intact TLS records. Everything else ends
the connection:

* EBADMSG: a record that was changed on its way.
* EINVAL: a record that is not data. ``recvmsg`` returns it with its type. Only the alert ``close_notify`` is
  a regular end. Other alerts and a renegotiation are not.
* 0 bytes: TCP ended without ``close_notify``, so data may be missing.

A regular end of one side is passed on, and the other direction continues. If nothing comes from there for a
minute, the connection ends, because a peer that is gone looks the same.

Only the last of the two threads closes the sockets. While the other one can still use their numbers, a new
connection could get the same number, and its data.
"""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kube_efs.tunnels.relay.mount_target import SOL_TLS

_RECORD_TYPE = 1  # TLS_SET_RECORD_TYPE of linux/tls.h
_RECORD_TYPE_BYTES = socket.CMSG_SPACE(1)
_RECORD_BYTES = 16 * 1024
_ALERT = b"\x15"
_HANDSHAKE = b"\x16"
_CLOSE_NOTIFY = b"\x01\x00"
# As much as a pipe takes. Larger pipes than by default would save calls, but they count for the limit of all
# processes of this user on the node, and beyond it, those in other containers get tiny ones.
_MOST_BYTES = 1 << 20
_SILENCE = struct.pack("ll", 60, 0)
_RESET = struct.pack("ii", 1, 0)


def reset(client: socket.socket) -> None:
    """Close with RST, so that the client does not take what it received for everything."""
    with suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()


class Splicing:
    """Copies both directions from ``start`` on.

    ``on_end`` is called after the sockets are closed, in one of its threads, or in ``start`` if no thread can
    start. ``sent_bytes`` and ``received_bytes`` are those to and from the mount target until now. ``problem``
    is the reason of an irregular end.
    """

    def __init__(self, client: socket.socket, stream: socket.socket, on_end: Callable[[], None]) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.problem = ""
        self._client = client
        self._stream = stream
        self._on_end = on_end
        self._lock = threading.Lock()
        self._running = 2
        self._is_half_closed = False

    def start(self) -> None:
        """Start both threads; if the system has none left, the connection ends."""
        for side in (self._client, self._stream):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SILENCE)
        for copy in (self._send, self._receive):
            try:
                threading.Thread(target=self._run, args=(copy,), daemon=True).start()
            except RuntimeError as error:
                self.abort(str(error))
                self._leave()

    def abort(self, problem: str) -> None:
        """Make both directions end.

        One that waits for room at a client that does not read ends only when the client reads or closes.
        """
        with self._lock:
            if not self._running:
                return
            self.problem = self.problem or problem
            # In this order: the sending thread sees the end of the client, and must not send close_notify.
            with suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Not both halves: that would send FIN, a regular end for the client.
                self._client.shutdown(socket.SHUT_RD)

    def _run(self, copy: Callable[[], None]) -> None:
        try:
            copy()
        except OSError as error:
            self.abort((error.strerror or str(error)).lower())
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            self._is_half_closed = True
            if self._running:
                return
            self._client.close()
            self._stream.close()
        self._on_end()

    def _send(self) -> None:
        with _pipe() as (reading, writing):
            while count := self._take(self._client, writing):
                _put(reading, count, self._stream)
                self.sent_bytes += count
        with suppress(OSError):  # the other direction sees that the mount target is gone
            self._stream.sendmsg([_CLOSE_NOTIFY], [(SOL_TLS, _RECORD_TYPE, _ALERT)])
            self._stream.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        with _pipe() as (reading, writing):
            while count := self._take_records(writing):
                _put(reading, count, self._client)
                self.received_bytes += count
        with suppress(OSError):  # the client is gone
            self._client.shutdown(socket.SHUT_WR)

    def _take_records(self, writing: int) -> int:
        """Move the data of the next records into the pipe; 0 after ``close_notify``."""
        try:
            count = self._take(self._stream, writing)
        except OSError as error:
            if error.errno == errno.EBADMSG:
                raise ConnectionError("a TLS record was changed on its way") from error
            if error.errno != errno.EINVAL:
                raise
            self._require_close_notify()
            return 0
        if not count:
            raise ConnectionError("the mount target ended the connection without close_notify")
        return count

    def _take(self, side: socket.socket, writing: int) -> int:
        """Move what a side sends into the pipe; 0 at its end."""
        while True:
            try:
                return os.splice(side.fileno(), writing, _MOST_BYTES)
            except BlockingIOError as error:  # a minute without data, which is usual for NFS
                if self._is_half_closed:
                    raise ConnectionError("one side has ended, and the other one is silent") from error

    def _require_close_notify(self) -> None:
        record, ancillary, _, _ = self._stream.recvmsg(_RECORD_BYTES, _RECORD_TYPE_BYTES, socket.MSG_DONTWAIT)
        record_type = ancillary[0][2] if ancillary else b""
        if record_type == _HANDSHAKE:
            raise ConnectionError("the mount target asks for a new handshake")
        if record_type != _ALERT or len(record) != len(_CLOSE_NOTIFY):
            raise ConnectionError("the mount target sent a TLS record that is not data")
        if record[1:] != _CLOSE_NOTIFY[1:]:
            raise ConnectionError(f"the mount target sent the TLS alert {record[1]}")


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def _put(reading: int, count: int, side: socket.socket) -> None:
    """Move so many bytes from the pipe to a side; waits for room there."""
    while count:
        count -= os.splice(reading, side.fileno(), count)
