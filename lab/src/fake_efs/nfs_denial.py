"""How a mount target answers a client that the policy of its file system denies.

The TLS connection stays open and the null procedure is answered, as it needs no permission (RFC 7530,
section 16.1). Every other call ends with NFS4ERR_ACCESS, for which mount.nfs(8) reports "access denied by
server".
"""

import struct
from typing import Final

_CALL, _REPLY = 0, 1
_NULL = 0
_ACCESS: Final = 13  # NFS4ERR_ACCESS (RFC 7530, section 13.1.6.1)
_LAST_FRAGMENT: Final = 0x8000_0000
# xid, type, version of RPC, program, version, procedure
_HEADER: Final = struct.Struct(">6I")
_MARK_BYTES: Final = 4


class DenyingServer:
    """Answers the calls of one connection."""

    def __init__(self) -> None:
        self._received = b""

    def answer(self, data: bytes) -> bytes:
        """The answers to the calls that are complete now; raises ValueError if these are no calls of NFS."""
        self._received += data
        answers = b""
        while len(self._received) >= _MARK_BYTES:
            size = int.from_bytes(self._received[:_MARK_BYTES]) & ~_LAST_FRAGMENT
            call = self._received[_MARK_BYTES : _MARK_BYTES + size]
            if len(call) < size:
                break
            self._received = self._received[_MARK_BYTES + size :]
            answers += _answer(call)
        return answers


def _answer(call: bytes) -> bytes:
    try:
        xid, kind, _, _, _, procedure = _HEADER.unpack_from(call)
        accepted = struct.pack(">6I", xid, _REPLY, 0, 0, 0, 0)
        result = b"" if procedure == _NULL else _denied_compound(call)
    except struct.error as error:
        raise ValueError("is not a call of NFS") from error
    if kind != _CALL:
        raise ValueError("is not a call of NFS")
    return struct.pack(">I", _LAST_FRAGMENT | len(accepted + result)) + accepted + result


def _denied_compound(call: bytes) -> bytes:
    """The result of a COMPOUND whose first operation is denied."""
    place = _HEADER.size
    for _ in ("credentials", "verifier"):
        place = _after_opaque(call, place + 4)  # each begins with its flavor
    end = _after_opaque(call, place)
    (operation,) = struct.unpack_from(">I", call, end + 8)  # after the minor version and the count
    return struct.pack(">I", _ACCESS) + call[place:end] + struct.pack(">3I", 1, operation, _ACCESS)


def _after_opaque(call: bytes, place: int) -> int:
    """The end of variable-length data, which XDR pads to four bytes (RFC 4506, section 4.10)."""
    (length,) = struct.unpack_from(">I", call, place)
    return int(place + 4 + length + -length % 4)
