"""The kernel's tables of sockets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.tunnels.sockets import tcp_tables
from kube_efs.tunnels.sockets.tcp_tables import TcpSocket, TcpState, parse_tcp_table, read_tables

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:500A 00000000:0000 0A 00000000:00000002 00:00000000 00000000     0        0 15505 1 0 100 0
   1: 0100007F:500A 0100007F:C350 01 00000000:00000000 02:000A0000 00000000     0        0 15600 2 0 20 4
"""
TABLE_6 = f"""\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr
   0: {"0" * 32}:0016 {"0" * 32}:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9999 1 0 100
"""
SOCKETS = (
    TcpSocket(local_port=20490, remote_port=0, state=TcpState.LISTEN, inode=15505, queued=2),
    TcpSocket(local_port=20490, remote_port=50000, state=TcpState.ESTABLISHED, inode=15600),
)
SOCKETS_6 = (TcpSocket(local_port=22, remote_port=0, state=TcpState.LISTEN, inode=9999),)


def test_table_is_read_without_its_heading() -> None:
    assert parse_tcp_table(TABLE) == SOCKETS


def test_ipv6_table_is_read() -> None:
    assert parse_tcp_table(TABLE_6) == SOCKETS_6


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(parse_tcp_table(text), tuple)


def test_both_tables_are_read_where_there_are_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_tables, "_PROC_NET", tmp_path)
    (tmp_path / "tcp").write_text(TABLE)
    assert read_tables() == SOCKETS
    (tmp_path / "tcp6").write_text(TABLE_6)
    assert read_tables() == SOCKETS + SOCKETS_6


@pytest.mark.parametrize("table", ["", "garbage\n", TABLE.split("\n", maxsplit=1)[1]])
def test_table_without_its_heading_is_incomplete(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_tables, "_PROC_NET", tmp_path)
    (tmp_path / "tcp").write_text(table)
    with pytest.raises(ValueError, match="no heading"):
        read_tables()
