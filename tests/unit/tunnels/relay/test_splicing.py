"""Splicing with plain sockets: how it copies, counts and ends does not depend on TLS.

What it does with TLS records needs a kernel with TLS: ``tests/integration/data_planes``. The socket of the
mount target is of two kinds, because kernels differ: TCP ignores SPLICE_F_NONBLOCK, UNIX sockets do not.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from kube_efs.tunnels.relay import splicing
from kube_efs.tunnels.relay.splicing import RESET, Splicing

DEADLINE_SECONDS = 60.0


def reset(side: socket.socket) -> None:
    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    side.close()


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname(), timeout=DEADLINE_SECONDS)
        other, _ = listener.accept()
    return one, other


@dataclass(slots=True)
class Connection:
    """``client`` and ``mount_target`` are the two ends, with the splicing in between."""

    client: socket.socket
    mount_target: socket.socket
    splicing: Splicing
    thread: threading.Thread

    def wait_until_it_ends(self) -> None:
        self.thread.join(DEADLINE_SECONDS)
        assert not self.thread.is_alive()


def new_connection(pair: Callable[[], tuple[socket.socket, socket.socket]] = connected_pair) -> Connection:
    """A connection whose splicing has not started; ``pair`` makes the sockets of the mount target's side."""
    client, relay_side = connected_pair()
    relay_side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    mount_target, stream = pair()
    splicing = Splicing(relay_side, stream)
    return Connection(client, mount_target, splicing, threading.Thread(target=splicing.run))


@pytest.fixture(params=[connected_pair, socket.socketpair], ids=["waiting", "prompt"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    made = new_connection(request.param)
    made.thread.start()
    with made.client, made.mount_target:
        yield made
    made.wait_until_it_ends()


def receive(side: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = side.recv(1 << 20)
        assert part
        received += part
    return received


def test_both_directions_carry_everything_at_the_same_time_and_are_counted(connection: Connection) -> None:
    written, read = os.urandom(3_000_001), os.urandom(2_000_003)
    writers = [
        threading.Thread(target=connection.client.sendall, args=(written,)),
        threading.Thread(target=connection.mount_target.sendall, args=(read,)),
    ]
    for writer in writers:
        writer.start()
    found: dict[str, bytes] = {}
    reader = threading.Thread(
        target=lambda: found.update(written=receive(connection.mount_target, len(written)))
    )
    reader.start()
    found["read"] = receive(connection.client, len(read))
    for thread in (reader, *writers):
        thread.join(DEADLINE_SECONDS)

    assert hashlib.sha256(found["written"]).digest() == hashlib.sha256(written).digest()
    assert hashlib.sha256(found["read"]).digest() == hashlib.sha256(read).digest()
    reset(connection.client)
    connection.wait_until_it_ends()
    assert connection.splicing.sent_bytes == len(written)
    assert connection.splicing.received_bytes == len(read)


@pytest.mark.parametrize("count", [1, 8 * 1024, 100_000, 1_000_000])
def test_answer_does_not_wait_for_the_next_one(connection: Connection, count: int) -> None:
    for number in range(20):
        connection.client.sendall(b"call")
        assert receive(connection.mount_target, 4) == b"call"
        answer = bytes([number]) * count
        connection.mount_target.sendall(answer)
        assert receive(connection.client, count) == answer


@dataclass(slots=True)
class Pipes:
    """What was done with pipes: the number of records at each call that does not wait, and the sizes."""

    records: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Pipes:
    """Calls that the test notes, and makes."""
    noted, fill = Pipes(), splicing._Pipe.fill

    def fill_and_note(pipe: splicing._Pipe, side: socket.socket, flags: int = 0) -> int:
        if flags and pipe.records:
            noted.records.append((pipe.records, fcntl.fcntl(pipe._writing, fcntl.F_GETPIPE_SZ)))
        return fill(pipe, side, flags)

    def control(pipe: int, command: int, size: int = 0) -> int:
        noted.sizes += [size] if size else []
        return fcntl.fcntl(pipe, command, size)

    names = {"F_SETPIPE_SZ": fcntl.F_SETPIPE_SZ, "F_GETPIPE_SZ": fcntl.F_GETPIPE_SZ}
    monkeypatch.setattr(splicing._Pipe, "fill", fill_and_note)
    monkeypatch.setattr(splicing, "fcntl", SimpleNamespace(fcntl=control, **names))
    return noted


@pytest.mark.parametrize("connection", [socket.socketpair], indirect=True)
def test_several_records_are_passed_on_at_once_if_all_fit(pipes: Pipes, connection: Connection) -> None:
    answer = os.urandom(1 << 24)
    threading.Thread(target=connection.mount_target.sendall, args=(answer,)).start()
    assert receive(connection.client, len(answer)) == answer

    assert pipes.sizes == [splicing._LARGE_PIPE_BYTES]
    assert pipes.records
    # Each record can take 17 pages, whatever its size.
    assert all((records + 1) * 17 * mmap.PAGESIZE <= size for records, size in pipes.records)


def test_only_some_pipes_are_large(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splicing, "_large_pipes", threading.BoundedSemaphore(2))
    first, second, third = (splicing._Pipe() for _ in range(3))
    for pipe in (first, first, second, third):
        pipe.enlarge()
    assert [pipe.room for pipe in (first, second, third)] == [7, 7, 0]
    first.close()
    third.enlarge()
    assert third.room == 7
    assert len(pipes.sizes) == 3
    second.close()
    third.close()


def test_connection_with_a_tiny_pipe_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = SimpleNamespace(fcntl=lambda *_: 2 * mmap.PAGESIZE, F_GETPIPE_SZ=fcntl.F_GETPIPE_SZ)
    monkeypatch.setattr(splicing, "fcntl", tiny)
    made = new_connection()
    with made.client, made.mount_target:
        made.splicing.run()
        assert "fs.pipe-user-pages-soft" in made.splicing.problem


@pytest.mark.parametrize(("seconds", "can_look"), [(0, True), (60, False)])
def test_kernel_that_waits_despite_the_flag_is_recognized(
    monkeypatch: pytest.MonkeyPatch, seconds: int, can_look: bool
) -> None:
    client, relay_side = connected_pair()
    mount_target, stream = socket.socketpair()
    times: list[float] = []

    def monotonic() -> float:
        if times:  # the call without waiting has ended
            mount_target.sendall(b"an answer")
        times.append(seconds if times else 0)
        return times[-1]

    monkeypatch.setattr(splicing, "time", SimpleNamespace(monotonic=monotonic))
    between, pipe = Splicing(relay_side, stream), splicing._Pipe()
    with client, relay_side, stream, mount_target, closing(pipe):
        assert between._take_first(pipe) == len(b"an answer")
    assert between._can_look is can_look


@pytest.mark.parametrize("pair", [connected_pair, socket.socketpair], ids=["waiting", "prompt"])
def test_bytes_that_are_no_record_end_the_connection(
    pair: Callable[[], tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses them, returns them to nobody, and then waits without an end."""
    fill = splicing._Pipe.fill

    def refuse(pipe: splicing._Pipe, side: socket.socket, flags: int = 0) -> int:
        if fill(pipe, side, flags):
            raise OSError(errno.EINVAL, "Invalid argument")
        return 0

    monkeypatch.setattr(splicing._Pipe, "fill", refuse)
    made = new_connection(pair)
    with made.client, made.mount_target:
        made.thread.start()
        made.mount_target.sendall(b"a header of another version")

        made.wait_until_it_ends()
        assert made.splicing.problem == "the mount target sent something that is not TLS"


def test_end_of_the_mount_target_without_close_notify_resets_the_client(connection: Connection) -> None:
    connection.mount_target.sendall(b"part of an answer")
    connection.mount_target.shutdown(socket.SHUT_WR)

    with pytest.raises(ConnectionResetError):
        receive(connection.client, 1 << 20)
    connection.wait_until_it_ends()
    assert connection.splicing.problem == "the mount target ended the connection without close_notify"


def test_reset_of_the_client_ends_the_stream(connection: Connection) -> None:
    reset(connection.client)

    connection.wait_until_it_ends()
    assert connection.mount_target.recv(1) == b""
    assert connection.splicing.problem == "connection reset by peer"


def test_direction_that_waits_for_room_at_the_mount_target_ends_with_the_other_one(
    connection: Connection,
) -> None:
    connection.client.settimeout(0.2)
    with pytest.raises(TimeoutError):  # as soon as everything in between is full
        connection.client.sendall(bytes(1 << 26))

    connection.mount_target.shutdown(socket.SHUT_WR)

    connection.wait_until_it_ends()


@pytest.fixture
def no_threads() -> Iterator[None]:
    """No thread can start, because its stack would be larger than the address space."""
    before = threading.stack_size(1 << 50)
    yield
    threading.stack_size(before)


@pytest.mark.usefixtures("no_threads")
def test_connection_ends_if_no_thread_can_start() -> None:
    made = new_connection()
    with made.client, made.mount_target:
        made.splicing.run()

        assert made.splicing.problem == "can't start new thread"
        with pytest.raises(ConnectionResetError):
            made.client.recv(1)
