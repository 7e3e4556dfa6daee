"""The replies of the mount target of the benchmark."""

from bench.record_server import reply
from bench.records import CALL, LAST_FRAGMENT, MARK, NFS_PROGRAM, REPLY

_XID = 7


def _call(program: int, wanted: int) -> memoryview:
    return memoryview(CALL.pack(_XID, 0, 2, program, 1, 1, 0, 0, 0, 0, wanted))


def test_reply_has_the_wanted_length() -> None:
    record = reply(_call(NFS_PROGRAM, 4096))
    assert MARK.unpack_from(record) == (LAST_FRAGMENT | 4096,)
    assert len(record) == MARK.size + 4096
    assert REPLY.unpack_from(record, MARK.size) == (_XID, 1, 0, 0, 0, 0)


def test_other_programs_are_unavailable() -> None:
    record = reply(_call(100200, 4096))
    assert MARK.unpack_from(record) == (LAST_FRAGMENT | REPLY.size,)
    assert record[MARK.size :] == REPLY.pack(_XID, 1, 0, 0, 0, 1)
