"""The log lines of stunnel 5.68."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.tunnels.data_plane import ServiceFacts
from kube_efs.tunnels.stunnel.log import ConnectionLog, LogFollower, LogLine, parse_line

PATH, OTHER = Path("/run/stunnel.log"), Path("/run/stunnel-1.log")

STAMP = "2026.11.21 08:02:05 "

GOOD = """\
LOG5[0]: Service [fs-1] accepted connection from 127.0.0.1:54948
LOG6[0]: failover: priority, starting at entry #0
LOG6[0]: s_connect: connecting 127.77.0.99:2049
LOG3[0]: s_connect: connect 127.77.0.99:2049: Connection refused (111)
LOG6[0]: s_connect: connecting 127.77.0.1:2049
LOG5[0]: s_connect: connected 127.77.0.1:2049
LOG5[0]: Service [fs-1] connected remote server from 127.0.0.1:49714
LOG6[0]: Peer certificate required
LOG6[0]: Certificate accepted at depth=1: CN=ca
LOG5[0]: Certificate accepted at depth=0: CN=fs-1.efs.us-east-1.amazonaws.com
LOG6[0]: TLS connected: new session negotiated
LOG6[0]: TLSv1.3 ciphersuite: TLS_AES_256_GCM_SHA384 (256-bit encryption)
LOG6[0]: Read socket closed (readsocket)
LOG3[0]: transfer: s_poll_wait: TIMEOUTclose exceeded: closing
LOG5[0]: Connection closed: 3 byte(s) sent to TLS, 3 byte(s) sent to socket
"""

WRONG_NAME = """\
LOG5[2]: Service [fs-2] accepted connection from 127.0.0.1:59742
LOG5[2]: s_connect: connected 127.77.0.1:2049
LOG6[2]: Certificate accepted at depth=1: CN=ca
LOG4[2]: CERT: Subject checks failed
LOG4[2]: Rejected by CERT at depth=0: CN=fs-1.efs.us-east-1.amazonaws.com
LOG3[2]: SSL_connect: ../ssl/statem/statem_clnt.c:1889: error:0A000086:SSL routines::certificate verify failed
LOG5[2]: Connection closed/reset: 0 byte(s) sent to TLS, 0 byte(s) sent to socket
"""

UNTRUSTED = """\
LOG5[3]: Service [fs-3] accepted connection from 127.0.0.1:53558
LOG5[3]: s_connect: connected 127.77.0.3:2049
LOG4[3]: CERT: Pre-verification error: self-signed certificate
LOG4[3]: Rejected by CERT at depth=0: CN=fs-3.efs.us-east-1.amazonaws.com
LOG3[3]: SSL_connect: ../ssl/statem/statem_clnt.c:1889: error:0A000086:SSL routines::certificate verify failed
LOG5[3]: Connection closed/reset: 0 byte(s) sent to TLS, 0 byte(s) sent to socket
"""

NOBODY_THERE = """\
LOG5[4]: Service [fs-4] accepted connection from 127.0.0.1:53558
LOG3[4]: s_connect: connect 127.77.0.99:2049: Connection refused (111)
LOG3[4]: s_connect: s_poll_wait 127.77.0.50:2049: TIMEOUTconnect exceeded
LOG3[4]: s_connect: connect fd00::1:2049: Network is unreachable (101)
LOG3[4]: No more addresses to connect
LOG5[4]: Connection reset: 0 byte(s) sent to TLS, 0 byte(s) sent to socket
"""

NO_TLS = """\
LOG5[5]: Service [fs-5] accepted connection from 127.0.0.1:53558
LOG5[5]: s_connect: connected 127.77.0.3:2049
LOG3[5]: SSL_connect: ../ssl/record/ssl3_record.c:354: error:0A00010B:SSL routines::wrong version number
LOG5[5]: Connection reset: 0 byte(s) sent to TLS, 0 byte(s) sent to socket
"""

HUNG = """\
LOG5[6]: Service [fs-6] accepted connection from 127.0.0.1:53558
LOG5[6]: s_connect: connected 127.77.0.3:2049
LOG3[6]: SSL_connect: s_poll_wait: TIMEOUTbusy exceeded: sending reset
LOG5[6]: Connection reset: 0 byte(s) sent to TLS, 0 byte(s) sent to socket
"""


def lines(text: str) -> list[LogLine]:
    parsed = [parse_line(STAMP + line) for line in text.splitlines()]
    return [line for line in parsed if line is not None]


def facts(service: str, *texts: str) -> ServiceFacts:
    log = ConnectionLog()
    for text in texts:
        log.feed(PATH, lines(text))
    return log.facts(service)


@pytest.mark.parametrize(
    ("line", "level", "thread", "text"),
    [
        pytest.param(f"{STAMP}LOG5[17]: Connection closed", 5, "17", "Connection closed", id="connection"),
        pytest.param(
            f"{STAMP}LOG3[ui]: Configuration failed", 3, "ui", "Configuration failed", id="final message"
        ),
        pytest.param("[!] Configuration failed", 3, "ui", "Configuration failed", id="early error"),
        pytest.param("[.] Reading", 5, "ui", "Reading", id="early notice"),
        pytest.param("[ ] Clients allowed=500", 7, "ui", "Clients allowed=500", id="early chatter"),
    ],
)
def test_both_forms_of_lines_are_read(line: str, level: int, thread: str, text: str) -> None:
    assert parse_line(line) == LogLine(level=level, thread=thread, text=text)


@pytest.mark.parametrize("line", ["", " ", "stunnel: command not found", "LOG5[0]: no time stamp"])
def test_lines_of_other_programs_are_ignored(line: str) -> None:
    assert parse_line(line) is None


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    parsed = parse_line(STAMP + "LOG3[1]: " + text)
    log = ConnectionLog()
    log.feed(
        PATH, [*lines("LOG5[1]: Service [fs-1] accepted connection from x"), *([parsed] if parsed else [])]
    )


def test_successful_connection_shows_address_protocol_cipher_and_peer() -> None:
    assert facts("fs-1", GOOD) == ServiceFacts(
        address="127.77.0.1",
        tls_version="TLSv1.3",
        cipher="TLS_AES_256_GCM_SHA384",
        peer="CN=fs-1.efs.us-east-1.amazonaws.com",
    )


@pytest.mark.parametrize(
    ("service", "text", "reason"),
    [
        pytest.param(
            "fs-2",
            WRONG_NAME,
            "the server's certificate is for another name (CN=fs-1.efs.us-east-1.amazonaws.com)",
            id="certificate of another file system",
        ),
        pytest.param(
            "fs-3",
            UNTRUSTED,
            "the server's certificate is not trusted: self-signed certificate"
            " (CN=fs-3.efs.us-east-1.amazonaws.com)",
            id="unknown authority",
        ),
        pytest.param(
            "fs-4",
            NOBODY_THERE,
            "127.77.0.99: connection refused; 127.77.0.50: no connection in time;"
            " fd00::1: network is unreachable",
            id="no mount target accepts",
        ),
        pytest.param("fs-5", NO_TLS, "TLS failed: wrong version number", id="no TLS"),
        pytest.param("fs-6", HUNG, "the server does not answer the TLS handshake", id="hung server"),
    ],
)
def test_failures_have_a_readable_reason(service: str, text: str, reason: str) -> None:
    assert facts(service, text).reason == reason


def test_failure_keeps_the_facts_and_a_success_removes_the_reason() -> None:
    failed = WRONG_NAME.replace("fs-2]", "fs-1]")
    known = facts("fs-1", GOOD, failed)
    assert (known.tls_version, known.address) == ("TLSv1.3", "127.77.0.1")
    assert known.reason.startswith("the server's certificate is for another name")
    assert facts("fs-1", failed, GOOD).reason == ""


def test_concurrent_connections_are_not_mixed() -> None:
    log = ConnectionLog()
    for pair in zip(lines(WRONG_NAME), lines(UNTRUSTED), strict=False):
        log.feed(PATH, pair)
    log.feed(PATH, lines(WRONG_NAME)[6:])
    assert "another name" in log.facts("fs-2").reason
    assert "not trusted" in log.facts("fs-3").reason


def test_connections_of_different_stunnels_are_not_mixed() -> None:
    log, good = ConnectionLog(), lines(GOOD)
    failed = lines(UNTRUSTED)
    thread = good[0].thread
    for line, other in zip(good, failed, strict=False):
        log.feed(PATH, [line])
        log.feed(OTHER, [replace(other, thread=thread)])
    log.feed(PATH, good[len(failed) :])
    log.feed(OTHER, [replace(one, thread=thread) for one in failed[len(good) :]])
    assert log.facts("fs-1").tls_version == "TLSv1.3"
    assert "not trusted" in log.facts("fs-3").reason


def test_facts_of_removed_services_are_removed() -> None:
    log = ConnectionLog()
    log.feed(PATH, lines(GOOD) + lines(UNTRUSTED))
    log.keep_only(["fs-3"])
    assert log.facts("fs-1") == ServiceFacts()
    assert log.facts("fs-3") != ServiceFacts()


def test_connections_without_an_end_in_the_log_are_limited() -> None:
    log = ConnectionLog()
    for number in range(20_000):
        log.feed(
            PATH, [LogLine(level=5, thread=str(number), text="Service [fs-1] accepted connection from x:1")]
        )
    assert len(log._connections) == 10_000


def texts(follower: LogFollower) -> list[str]:
    return [line.text for line in follower.read()]


def test_follower_returns_complete_new_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("[.] before\n")
    follower = LogFollower(path, size_bytes=1000)
    assert texts(follower) == []
    with path.open("a") as log:
        log.write("[.] one\n[.] tw")
        log.flush()
        assert texts(follower) == ["one"]
        log.write("o\nrubbish\n")
        log.flush()
        assert texts(follower) == ["two"]
    assert texts(follower) == []


def test_follower_waits_for_a_missing_file(tmp_path: Path) -> None:
    follower = LogFollower(tmp_path / "log", size_bytes=1000)
    assert texts(follower) == []
    (tmp_path / "log").write_text("[.] one\n")
    assert texts(follower) == ["one"]


def test_follower_restarts_in_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("[.] a long line of the past\n")
    follower = LogFollower(path, size_bytes=1000)
    path.write_text("[.] one\n")
    assert texts(follower) == ["one"]


def test_long_log_is_moved_to_a_second_file_and_continues(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LogFollower(path, size_bytes=20)
    with path.open("a") as log:
        log.write("[.] one\n")
        log.flush()
        assert texts(follower) == ["one"]
        follower.cut()
        assert path.stat().st_size == 8
        log.write("[.] two\n[.] three\n")
        log.flush()
        assert texts(follower) == ["two", "three"]
        follower.cut()
        assert (tmp_path / "log.1").read_text() == "[.] one\n[.] two\n[.] three\n"
        log.write("[.] four\n")
        log.flush()
        assert texts(follower) == ["four"]
    assert path.read_text() == "[.] four\n"


def test_long_log_is_emptied_if_the_disk_has_no_room_for_a_second_file(tmp_path: Path) -> None:
    path, second = tmp_path / "log", tmp_path / "log.1"
    second.symlink_to("/dev/full")
    follower = LogFollower(path, size_bytes=20)
    path.write_text("[.] one\n[.] two\n[.] three\n")
    assert texts(follower) == ["one", "two", "three"]
    follower.cut()
    assert path.read_text() == ""
    assert not second.is_symlink()  # half of a copy would need the room
    path.write_text("[.] four\n")
    assert texts(follower) == ["four"]


def test_long_log_that_cannot_be_emptied_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    (tmp_path / "log.1").mkdir()
    follower = LogFollower(path, size_bytes=20)
    path.write_text("[.] one\n[.] two\n[.] three\n")
    follower.cut()
    assert texts(follower) == ["one", "two", "three"]
