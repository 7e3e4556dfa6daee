"""Whether a tunnel leads to a working NFS server: the NULL call of NFS version 4 through it.

ONC RPC (RFC 5531) over TCP with record marking (its section 11); NFS version 4 is program 100003
(RFC 7530, section 1.2). NULL has no arguments, no results, and needs no permission.
"""

import asyncio
import struct
import time
from dataclasses import dataclass

_NFS_PROGRAM, _NFS_VERSION, _NULL = 100003, 4, 0
_CALL, _REPLY, _RPC_VERSION = 0, 1, 2
_ACCEPTED, _SUCCESS = 0, 0
_LAST_FRAGMENT = 0x8000_0000
# The answer to NULL has 24 bytes; a verifier may add 400 (RFC 5531, 8.2).
_LONGEST_ANSWER = 1024
_REFUSALS = {1: "no such program", 2: "no such version", 3: "no such procedure"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How a probe ended: the time it took, and in words why it failed."""

    ok: bool
    seconds: float
    reason: str = ""


class _BadAnswer(Exception):
    """What came back is not an acceptance of the call."""


async def probe(port: int, *, timeout_seconds: float, xid: int) -> ProbeResult:
    """One NULL call to 127.0.0.1 at ``port``; never raises for what the network does.

    ``xid`` is the call's number, 0 to 2**32-1; an answer with another number is a failure.
    """
    start = time.monotonic()
    try:
        async with asyncio.timeout(timeout_seconds):
            await _call(port, xid)
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
        return ProbeResult(ok=True, seconds=time.monotonic() - start)
    return ProbeResult(ok=False, seconds=time.monotonic() - start, reason=reason)


async def _call(port: int, xid: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(null_call(xid))
        check_reply(await _read_record(reader), xid)
    finally:
        writer.close()


def null_call(xid: int) -> bytes:
    """The call as one record: its mark, the header, and empty credentials and verifier (AUTH_NONE)."""
    call = struct.pack(">10I", xid, _CALL, _RPC_VERSION, _NFS_PROGRAM, _NFS_VERSION, _NULL, *(0, 0), *(0, 0))
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


def check_reply(record: bytes, xid: int) -> None:
    """Nothing when the record accepts call ``xid``, else raises an error that says what it is instead."""
    try:
        answered, kind, state = struct.unpack_from(">3I", record)
        if kind != _REPLY or answered != xid:
            raise _BadAnswer("the answer belongs to another call")
        if state != _ACCEPTED:
            raise _BadAnswer("the server denied the call")
        (verifier_length,) = struct.unpack_from(">I", record, 16)
        # XDR pads to four bytes (RFC 4506, 4.10).
        (accepted,) = struct.unpack_from(">I", record, 20 + -(-verifier_length // 4) * 4)
    except struct.error as error:
        raise _BadAnswer("the answer is not an RPC reply") from error
    if accepted != _SUCCESS:
        raise _BadAnswer(
            f"the server does not serve NFS 4 ({_REFUSALS.get(accepted, f'accept state {accepted}')})"
        )
