"""The data of one connection: copied between the client and the mount target without entering user space.

``os.splice`` moves pages between a socket and a pipe. Each direction has a thread, which waits in the kernel
for data of one side, and then for room at the other. The kernel encrypts and decrypts inside of these calls,
so the connections of a node use all its processors. An event loop was rejected: all connections would share
one processor.

From the socket of the mount target, splice returns only the data of intact TLS records. Everything else ends
the connection, except a session ticket:

* EBADMSG: a record that was changed on its way.
* EINVAL: a record that is not data. ``recvmsg`` returns it with its type. A session ticket in one record,
  which servers of TLS 1.3 send after the handshake, is skipped. Only the alert ``close_notify`` is a regular
  end. Other alerts, a renegotiation and a change of the key (KeyUpdate), which nobody could give to the
  kernel, are not. If the bytes are not a record, the kernel has nothing to return, and each further call
  would wait.
* 0 bytes: TCP ended without ``close_notify``, so data may be missing. A record without data, which no server
  of NFS needs, looks the same.

Each of these calls returns one record. A record that is followed by others is passed on together with those
that have arrived, because each call at the side of the client costs processor time, too. But only if the pipe
has room for all of them: from Linux 5.15 on, the kernel drops what does not fit, without an error ("net: tls:
fix silent data drop under pipe back-pressure", in 6.1.189). A record takes at most 17 pages (MAX_SKB_FRAGS).

A regular end of one side is passed on, and the other direction continues. If nothing comes from there for a
minute, the connection ends, because a peer that is gone looks the same.

The sockets are closed after both threads have ended. While one can still use their numbers, a new connection
could get the same number, and its data.
"""

import errno
import fcntl
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from kube_efs.tunnels.relay.mount_target import SOL_TLS

_RECORD_TYPE = 1  # TLS_SET_RECORD_TYPE of linux/tls.h
_TYPE_BYTES = socket.CMSG_SPACE(1)
_RECORD_BYTES = 16 * 1024
_ALERT, _HANDSHAKE = b"\x15", b"\x16"
_TICKET = b"\x04"
_CLOSE_NOTIFY = b"\x01\x00"
# RFC 8446, section 6. With TLS 1.3, a server refuses a certificate after the handshake of the client.
_ALERTS_OF_CERTIFICATES = (42, 43, 44, 45, 46, 48, 49, 116)
# A piece of so much is probably followed by others.
_LARGE_BYTES = 8 * 1024
# As much as a pipe takes.
_MOST_BYTES = 1 << 20
_RECORD_PIPE_BYTES = 17 * mmap.PAGESIZE
# The size of a pipe. Large ones save calls, but they count for the limit of all processes of this user on the
# node, and beyond it, those in other containers get tiny ones. So only a few connections have one.
_PIPE_BYTES = 16 * mmap.PAGESIZE
_LARGE_PIPE_BYTES = 128 * mmap.PAGESIZE
_large_pipes = threading.BoundedSemaphore(32)
_SILENCE_SECONDS = 60
_SILENCE = struct.pack("ll", _SILENCE_SECONDS, 0)
# SO_LINGER: the end of a socket is RST, so that its peer does not take what it received for everything.
RESET, _NO_RESET = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


class Splicing:
    """Copies both directions in ``run``. The client has SO_LINGER with RESET, until a regular end.

    ``sent_bytes`` and ``received_bytes`` are those to and from the mount target until now. ``problem`` is the
    reason of an irregular end.
    """

    def __init__(self, client: socket.socket, stream: socket.socket) -> None:
        self.sent_bytes = self.received_bytes = 0
        self.problem = ""
        self._client = client
        self._stream = stream
        self._can_look: bool | None = None  # without waiting; None: not known yet
        self._is_half_closed = False

    def run(self) -> None:
        """Copy until both directions have ended, and close both sides."""
        for side in (self._client, self._stream):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SILENCE)
        sender = threading.Thread(target=self._copy, args=(self._send,), daemon=True)
        try:
            sender.start()
            self._copy(self._receive)
        except RuntimeError as error:  # the limit of threads
            self._abort(str(error))
        finally:
            if sender.is_alive():
                sender.join()
            self._client.close()
            self._stream.close()

    def _abort(self, problem: str) -> None:
        """Make both directions end.

        One that waits for room at a client that does not read ends only when the client reads or closes.
        """
        self.problem = self.problem or problem
        # In this order: the sending thread sees the end of the client, and must not send close_notify.
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        # Not both halves: that would send FIN, a regular end for the client.
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RD)

    def _copy(self, copy: Callable[[], None]) -> None:
        try:
            copy()
        except OSError as error:
            self._abort(error.strerror.lower() if error.strerror else str(error))
        finally:
            self._is_half_closed = True

    def _send(self) -> None:
        with closing(_Pipe()) as pipe:
            while count := self._take(self._client, pipe):
                pipe.empty(count, self._stream)
                self.sent_bytes += count
        with suppress(OSError):  # the other direction sees that the mount target is gone
            self._stream.sendmsg([_CLOSE_NOTIFY], [(SOL_TLS, _RECORD_TYPE, _ALERT)])
            self._stream.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        with closing(_Pipe()) as pipe, suppress(_CloseNotify):
            while True:
                count = last = self._take_first(pipe)
                try:
                    with suppress(BlockingIOError):  # no other record has arrived
                        while self._can_look and last >= _LARGE_BYTES and pipe.records < pipe.room:
                            last = self._take_record(pipe, os.SPLICE_F_NONBLOCK)
                            count += last
                finally:
                    # Also before the end of the connection: these records are intact.
                    pipe.empty(count, self._client)
                    self.received_bytes += count
                if last >= _LARGE_BYTES:
                    pipe.enlarge()
        with suppress(OSError):  # the client is gone
            # It gets everything, so this is a regular end.
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_RESET)
            self._client.shutdown(socket.SHUT_WR)

    def _take_first(self, pipe: "_Pipe") -> int:
        """Wait for a record, and find out whether a call with SPLICE_F_NONBLOCK would wait, too.

        Some kernels ignore it. Then no call may be made while records are in the pipe, which is empty now.
        """
        if self._can_look is None:
            began = time.monotonic()
            try:
                return self._take_record(pipe, os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                self._can_look = time.monotonic() - began < _SILENCE_SECONDS / 2
        return self._take_record(pipe)

    def _take_record(self, pipe: "_Pipe", flags: int = 0) -> int:
        """Move the data of a record, or a part of it, into the pipe; raises _CloseNotify, BlockingIOError."""
        while True:
            try:
                count = pipe.fill(self._stream, flags) if flags else self._take(self._stream, pipe)
            except OSError as error:
                if error.errno == errno.EBADMSG:
                    raise ConnectionError("a TLS record was changed on its way") from error
                if error.errno != errno.EINVAL:
                    raise
                self._read_control_record()
            else:
                if not count:
                    raise ConnectionError("the mount target ended the connection without close_notify")
                return count

    def _take(self, side: socket.socket, pipe: "_Pipe") -> int:
        """Move what a side sends into the pipe; 0 at its end."""
        while True:
            try:
                return pipe.fill(side)
            except BlockingIOError as error:  # a minute without data, which is usual for NFS
                if self._is_half_closed:
                    raise ConnectionError("one side has ended, and the other one is silent") from error

    def _read_control_record(self) -> None:
        """Read a record that is not data; raises _CloseNotify or ConnectionError unless it is a ticket."""
        try:
            record, ancillary, *_ = self._stream.recvmsg(_RECORD_BYTES, _TYPE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            raise ConnectionError("the mount target sent something that is not TLS") from error
        record_type = ancillary[0][2] if ancillary else b""
        if record_type == _HANDSHAKE and record.startswith(_TICKET):
            return
        if record_type == _HANDSHAKE:
            raise ConnectionError("the mount target asks for a new handshake or a new key")
        if record_type != _ALERT or len(record) != len(_CLOSE_NOTIFY):
            raise ConnectionError("the mount target sent a TLS record that is not data")
        if record[1:] == _CLOSE_NOTIFY[1:]:
            raise _CloseNotify
        about = " about the client certificate" if record[1] in _ALERTS_OF_CERTIFICATES else ""
        raise ConnectionError(f"the mount target sent the TLS alert {record[1]}{about}")


class _CloseNotify(Exception):
    """The mount target has ended the data in the regular way."""


class _Pipe:
    """A pipe between two sockets with ``records`` in it; if there are less than ``room``, one more fits."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._is_large = False
        self.records = self.room = 0
        if fcntl.fcntl(self._writing, fcntl.F_GETPIPE_SZ) < _PIPE_BYTES:
            self.close()
            raise ConnectionError("the node has too many pipes (fs.pipe-user-pages-soft)")

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)
        if self._is_large:
            _large_pipes.release()

    def enlarge(self) -> None:
        """Have room for several records, if the limit of the node permits it."""
        if not self._is_large and _large_pipes.acquire(blocking=False):
            self._is_large = True
            with suppress(OSError):
                size = fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES)
                self.room = size // _RECORD_PIPE_BYTES

    def fill(self, side: socket.socket, flags: int = 0) -> int:
        """Move what the side has received into the pipe; 0 at its end."""
        self.records += 1
        return os.splice(side.fileno(), self._writing, _MOST_BYTES, flags=flags)

    def empty(self, count: int, side: socket.socket) -> None:
        """Move so many bytes, which are all, to the side; waits for room there."""
        while count:
            count -= os.splice(self._reading, side.fileno(), count)
        self.records = 0
