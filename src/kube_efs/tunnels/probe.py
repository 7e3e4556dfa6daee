"""Whether a tunnel leads to a working NFS server, and whether this server lets the tunnel mount.

ONC RPC (RFC 5531) over TCP with record marking (its section 11); NFS version 4 is program 100003
(RFC 7530, section 1.2). NULL has no arguments, no results, and needs no permission: its answer shows that the
server works. If the policy of the file system denies the tunnel, mount.nfs(8) fails with "access denied by
server". So a second call requests the root of the file system, as a mount does. Only a clear denial counts.
Any other answer, or none, changes nothing: a server may not serve this minor version.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_NFS_PROGRAM, _NFS_VERSION, _NULL, _COMPOUND = 100003, 4, 0, 1
_CALL, _REPLY, _RPC_VERSION = 0, 1, 2
_ACCEPTED, _SUCCESS = 0, 0
_AUTH_ERROR = 1  # of a denied call; the other reason is the version of RPC
# RFC 5531, appendix A: flavor, length, then stamp, machine name, user, group and further groups. Any user can
# request the root.
_NOBODY = struct.pack(">7I", 1, 20, 0, 0, 65534, 65534, 0)
# RFC 7530, section 16.2: tag, minor version, and two operations, PUTROOTFH and GETFH.
_GET_ROOT = struct.pack(">5I", 0, 0, 2, 24, 10)
_DENIALS = frozenset({1, 13})  # NFS4ERR_PERM and NFS4ERR_ACCESS (RFC 7530, section 13.1)
_OK = bytes(4)
_DENIED = "the server denies access"
# For an answer that changes nothing if it is missing. The next tunnels wait for it.
_ROOT_SECONDS = 1.0
_LAST_FRAGMENT = 0x8000_0000
# The answer to NULL has 24 bytes; a verifier may add 400 (RFC 5531, 8.2).
_LONGEST_ANSWER = 1024
_REFUSALS = {1: "no such program", 2: "no such version", 3: "no such procedure"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How a probe ended: the time until the answer of NULL, and in words why it failed.

    ``is_denied``: the server works, and denies access to every client of this tunnel. ``is_allowed``: it does
    not. Both are false without a clear answer.
    """

    ok: bool
    seconds: float
    reason: str = ""
    is_denied: bool = False
    is_allowed: bool = False


class _BadAnswer(Exception):
    """What came back is not an acceptance of the call."""


class _Denied(Exception):
    """The server works, and denies the call."""


async def probe(port: int, *, timeout_seconds: float, xid: int) -> ProbeResult:
    """Probe the tunnel at 127.0.0.1 and ``port``; never raises for what the network does.

    ``xid`` is the number of the calls, 0 to 2**32-1; an answer with another number is a failure.
    """
    start, answered, is_allowed = time.monotonic(), None, False
    try:
        async with asyncio.timeout(timeout_seconds), _connected(port) as (reader, writer):
            writer.write(null_call(xid))
            _read_results(await _read_record(reader), xid)
            answered = time.monotonic()
            writer.write(_root_call(xid))
            async with asyncio.timeout(_ROOT_SECONDS):
                results = _read_results(await _read_record(reader), xid)
            if int.from_bytes(results[:4]) in _DENIALS:
                raise _Denied
            is_allowed = results[:4] == _OK
    except _Denied:
        ended = answered or time.monotonic()
        return ProbeResult(ok=False, seconds=ended - start, reason=_DENIED, is_denied=True)
    except TimeoutError:
        reason = f"no answer within {timeout_seconds:g} s"
    except (asyncio.IncompleteReadError, ConnectionResetError):
        reason = "the tunnel closed the connection"
    except ConnectionRefusedError:
        reason = "nothing listens on the tunnel's port"
    except OSError as error:
        reason = error.strerror or str(error)
    except _BadAnswer as error:
        reason = str(error)
    else:
        reason = ""
    if answered is not None:
        return ProbeResult(ok=True, seconds=answered - start, is_allowed=is_allowed)
    return ProbeResult(ok=False, seconds=time.monotonic() - start, reason=reason)


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


def null_call(xid: int) -> bytes:
    """The call as one record: its mark, the header, and empty credentials and verifier (AUTH_NONE)."""
    return _record(_header(xid, _NULL) + struct.pack(">4I", *(0, 0), *(0, 0)))


def _root_call(xid: int) -> bytes:
    return _record(_header(xid, _COMPOUND) + _NOBODY + struct.pack(">2I", *(0, 0)) + _GET_ROOT)


def _header(xid: int, procedure: int) -> bytes:
    return struct.pack(">6I", xid, _CALL, _RPC_VERSION, _NFS_PROGRAM, _NFS_VERSION, procedure)


def _record(call: bytes) -> bytes:
    return struct.pack(">I", _LAST_FRAGMENT | len(call)) + call


async def _read_record(reader: asyncio.StreamReader) -> bytes:
    record = b""
    while True:
        (mark,) = struct.unpack(">I", await reader.readexactly(4))
        length = mark & ~_LAST_FRAGMENT
        if len(record) + length > _LONGEST_ANSWER:
            raise _BadAnswer("the answer is not an RPC reply")
        record += await reader.readexactly(length)
        if mark & _LAST_FRAGMENT:
            return record


def _read_results(record: bytes, xid: int) -> bytes:
    """What follows the acceptance of call ``xid``; raises an error that says what the record is instead."""
    try:
        answered, kind, state = struct.unpack_from(">3I", record)
        if kind != _REPLY or answered != xid:
            raise _BadAnswer("the answer belongs to another call")
        if state != _ACCEPTED:
            (why,) = struct.unpack_from(">I", record, 12)
            raise _Denied if why == _AUTH_ERROR else _BadAnswer("the server denied the call")
        (verifier_length,) = struct.unpack_from(">I", record, 16)
        # XDR pads to four bytes (RFC 4506, 4.10).
        place = 20 + -(-verifier_length // 4) * 4
        (accepted,) = struct.unpack_from(">I", record, place)
    except struct.error as error:
        raise _BadAnswer("the answer is not an RPC reply") from error
    if accepted != _SUCCESS:
        raise _BadAnswer(
            f"the server does not serve NFS 4 ({_REFUSALS.get(accepted, f'accept state {accepted}')})"
        )
    return record[place + 4 :]
