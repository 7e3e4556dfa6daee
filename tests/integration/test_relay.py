"""The process of the relay: its control socket, its limits, and its successor.

What a mount target sees and what clients get through it is tested in ``data_planes``, for both data planes.
"""

import ast
import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from tests.integration.nfs_backend import Authority, Backend, free_address
from tests.integration.relay_runner import COMMAND, DEADLINE_SECONDS, relay_process, service_of, serving
from tests.integration.tunnel_node import FS, eventually, host_of, listening

from kube_efs.model.errors import InvalidValue, PortTaken, RelayUnavailable, TunnelError
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.relay import mount_target
from kube_efs.tunnels.relay.control import RelayControl, RelayedService
from tinykube.ports import free_port

_SOURCES = Path(mount_target.__file__).parent
_NOBODY = 65534


@pytest.fixture
def path() -> Iterator[Path]:
    # That of pytest can be too long for a socket.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "relay.sock")


@pytest.fixture
async def relay(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    async with relay_process(path) as process:
        yield process


@pytest.fixture
def control(path: Path) -> RelayControl:
    return RelayControl(path, timeout_seconds=DEADLINE_SECONDS, connect_timeout_seconds=1)


@contextmanager
def silent_mount_target() -> Iterator[str]:
    """The address of a mount target where the kernel accepts connections, and nobody answers."""
    address = free_address()
    with socket.create_server((address, 2049)):
        yield address


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    return Authority(tmp_path, "ca").file


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


async def only_service(control: RelayControl) -> RelayedService:
    [service] = (await control.state()).services
    return service


async def answer_to(service: TunnelService) -> bytes:
    """What a client of this service reads; raises ConnectionResetError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await reader.read()
    finally:
        writer.close()


async def reason_of(control: RelayControl, service: TunnelService) -> str:
    """The reason after a client of this service was refused."""
    await control.add(service)
    with pytest.raises(ConnectionResetError):
        await answer_to(service)
    return (await only_service(control)).reason


def raw_request(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_SECONDS)
        connection.connect(str(path))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.usefixtures("relay")
async def test_state_has_the_services_as_they_were_added(control: RelayControl) -> None:
    certificate = CertificateFile(
        path=Path("/state/client.pem"), serial=2**159 + 1, not_after=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    )
    services = [
        service_of("127.0.0.1", "127.0.0.2", name="fs-1"),
        service_of(host_of(FS), name="fs-2", certificate=certificate),
    ]
    for service in services:
        await control.add(service)

    state = await control.state()

    assert [one.service for one in state.services] == services
    assert not state.leaving
    assert {(one.connections, one.connected, one.reason) for one in state.services} == {(0, 0, "")}


@pytest.mark.usefixtures("relay")
async def test_changed_service_replaces_the_earlier_one(control: RelayControl) -> None:
    service = service_of(free_address())
    other_port = replace(service, port=service_of().port)
    for one in (service, replace(service, addresses=(free_address(),)), other_port):
        await control.add(one)
        await listening(one.port)
        assert (await only_service(control)).service == one

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", service.port)


@pytest.mark.usefixtures("relay")
async def test_removed_service_is_not_served(control: RelayControl) -> None:
    service = service_of(free_address())
    await control.add(service)
    await control.remove(service.name)
    await control.remove(service.name)

    assert (await control.state()).services == ()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", service.port)


@pytest.mark.usefixtures("relay")
async def test_port_of_another_program_is_refused_and_the_earlier_service_stays(
    control: RelayControl,
) -> None:
    service = service_of(free_address())
    await control.add(service)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(PortTaken, match="is taken by"),
    ):
        await control.add(replace(service, port=taken.getsockname()[1]))

    assert (await only_service(control)).service == service
    await listening(service.port)


async def test_service_with_revocation_is_refused(control: RelayControl) -> None:
    with pytest.raises(InvalidValue, match="cannot be checked"):
        await control.add(replace(service_of("127.0.0.1"), checks_revocation=True))


async def test_no_relay_is_reported(control: RelayControl, path: Path) -> None:
    with pytest.raises(RelayUnavailable, match="cannot be reached"):
        await control.state()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(RelayUnavailable, match=r"did not answer in 0\.1 s"):
            await RelayControl(path, timeout_seconds=0.1).state()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "line of JSON"),
        (b"pong\n", "line of JSON"),
        (b"[]\n", "JSON object"),
        (b"{}\n", "something else than its state"),
        (b'{"pid": 1, "leaving": false, "services": [{}]}\n', "something else than its state"),
    ],
)
async def test_other_program_at_the_socket_is_reported(
    control: RelayControl, path: Path, answer: bytes, problem: str
) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(reply, path):
        with pytest.raises(RelayUnavailable, match=problem):
            await control.state()


@pytest.mark.usefixtures("relay")
async def test_next_address_is_used_if_one_does_not_accept(control: RelayControl, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    async with Backend(authority, "another.efs.us-east-1.amazonaws.com") as backend:
        service = service_of(free_address(), backend.address, ca_file=authority.file)

        found = await reason_of(control, service)

    assert found == f"{backend.address}: the server's certificate is for another name"


@pytest.mark.usefixtures("relay")
async def test_wrong_certificate_is_not_skipped(control: RelayControl, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    async with (
        Backend(Authority(tmp_path, "another"), host_of(FS)) as wrong,
        Backend(authority, host_of(FS)) as right,
    ):
        found = await reason_of(control, service_of(wrong.address, right.address, ca_file=authority.file))

        assert found.startswith(f"{wrong.address}: the server's certificate is not trusted: ")
        assert right.connections == 0


@pytest.mark.usefixtures("relay")
async def test_silent_mount_target_delays_no_other_service(control: RelayControl, ca_file: Path) -> None:
    with silent_mount_target() as address:
        silent, other = (
            service_of(address, name="fs-1", ca_file=ca_file),
            service_of(free_address(), name="fs-2"),
        )
        await control.add(silent)
        await control.add(other)
        waiting = [asyncio.create_task(answer_to(silent)) for _ in range(50)]

        for _ in range(10):
            with pytest.raises(ConnectionResetError):
                await answer_to(other)

        assert not any(one.done() for one in waiting)
    # Nobody listens any more, so the handshakes fail at once.
    assert all(isinstance(one, OSError) for one in await asyncio.gather(*waiting, return_exceptions=True))


def test_socket_is_for_its_user_alone(relay: asyncio.subprocess.Process, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    # Even if others could open it.
    path.parent.chmod(0o755)
    path.chmod(0o666)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setuid(_NOBODY)
            status = 2 if raw_request(path, b'{"command": "state"}\n') else 0
        except ConnectionError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert relay.returncode is None


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\n", id="empty line"),
        pytest.param(b"[1]\n", id="no object"),
        pytest.param(b"\xff\xfe\n", id="no UTF-8"),
        pytest.param(b"[" * 60_000 + b"\n", id="deep"),
        pytest.param(b"x" * 1_000_000, id="endless line"),
        pytest.param(b'{"command": ["state"]}\n', id="command is a list"),
        pytest.param(b'{"command": "remove"}\n', id="remove without a name"),
        pytest.param(b'{"command": "add", "service": 1}\n', id="service is a number"),
        pytest.param(b'{"command": "renew", "name": "fs-1"}\n', id="unknown command"),
    ],
)
@pytest.mark.usefixtures("relay")
async def test_invalid_request_is_refused(control: RelayControl, path: Path, request_: bytes) -> None:
    try:
        answer = await asyncio.to_thread(raw_request, path, request_)
    except ConnectionError:  # refused before everything was sent
        answer = b'{"error": "invalid"}'

    assert json.loads(answer)["error"] == "invalid"
    assert (await control.state()).services == ()


@pytest.mark.usefixtures("relay")
async def test_half_requests_delay_no_other_request(control: RelayControl, path: Path) -> None:
    halves = []
    for _ in range(20):
        half = socket.socket(socket.AF_UNIX)
        half.connect(str(path))
        half.sendall(b'{"command": ')
        halves.append(half)

    await control.add(service_of("127.0.0.1"))

    # The relay gives up each of them.
    for half in halves:
        with half:
            half.settimeout(DEADLINE_SECONDS)
            assert await asyncio.to_thread(half.recv, 1) == b""


async def test_sigterm_ends_it_with_pending_connections(
    relay: asyncio.subprocess.Process, control: RelayControl, ca_file: Path
) -> None:
    await end_resets_a_pending_connection(relay, control, ca_file, signal.SIGTERM)

    assert relay.returncode == 0
    with pytest.raises(RelayUnavailable, match="No such file"):
        await control.state()


async def test_client_is_reset_if_the_relay_is_killed(
    relay: asyncio.subprocess.Process, control: RelayControl, ca_file: Path
) -> None:
    await end_resets_a_pending_connection(relay, control, ca_file, signal.SIGKILL)


async def end_resets_a_pending_connection(
    relay: asyncio.subprocess.Process, control: RelayControl, ca_file: Path, number: signal.Signals
) -> None:
    with silent_mount_target() as address:
        service = service_of(address, ca_file=ca_file)
        await control.add(service)
        waiting = asyncio.create_task(answer_to(service))
        await eventually(lambda: len(psutil.Process(relay.pid).net_connections()) == 3, "the connection")

        relay.send_signal(number)

        async with asyncio.timeout(DEADLINE_SECONDS):
            await relay.wait()
        with pytest.raises(ConnectionResetError):
            await waiting


async def test_socket_of_a_killed_relay_is_replaced(
    relay: asyncio.subprocess.Process, control: RelayControl, path: Path
) -> None:
    service = service_of(free_address())
    await control.add(service)
    relay.kill()
    await relay.wait()

    async with relay_process(path) as second:
        await control.add(service)
        assert (await control.state()).pid == second.pid


async def test_socket_that_was_removed_is_created_again(
    relay: asyncio.subprocess.Process, control: RelayControl, path: Path
) -> None:
    service = service_of(free_address())
    await control.add(service)
    await asyncio.to_thread(path.unlink)

    await serving(path, relay)
    assert (await only_service(control)).service == service
    assert stat.S_IMODE((await asyncio.to_thread(path.stat)).st_mode) == 0o600

    async with relay_process(path) as successor:
        await asyncio.to_thread(path.unlink)
        await serving(path, successor)


async def test_successor_serves_the_ports_while_the_first_one_keeps_its_connections(
    relay: asyncio.subprocess.Process, control: RelayControl, path: Path, ca_file: Path
) -> None:
    refused = asyncio.Event()

    async def connect_all_the_time(port: int) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                refused.set()
                return
            except ConnectionResetError:  # by the relay, which cannot connect either
                continue
            writer.close()
            await asyncio.sleep(0)

    with silent_mount_target() as address:
        pending, other = (
            service_of(address, name="fs-1", ca_file=ca_file),
            service_of(free_address(), name="fs-2"),
        )
        await control.add(pending)
        await control.add(other)
        waiting = asyncio.create_task(answer_to(pending))
        ports = psutil.Process(relay.pid).net_connections
        await eventually(lambda: any(one.status == "ESTABLISHED" for one in ports()), "the connection")
        connecting = asyncio.create_task(connect_all_the_time(other.port))

        async with relay_process(path) as successor:
            state = await control.state()
            assert (state.pid, state.leaving) == (successor.pid, False)
            assert [one.service for one in state.services] == [pending, other]
            with pytest.raises(ConnectionResetError):
                await answer_to(other)
            await eventually(lambda: not any(one.status == "LISTEN" for one in ports()), "no listener")
            assert relay.returncode is None
            assert not waiting.done()
            connecting.cancel()
            assert not refused.is_set()
            await control.remove(other.name)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", other.port)
            os.kill(successor.pid, signal.SIGTERM)
            await successor.wait()
            assert relay.returncode is None
    with suppress(ConnectionResetError):
        await waiting
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await relay.wait() == 0


async def test_successor_that_disappears_before_its_commit_changes_nothing(
    relay: asyncio.subprocess.Process, control: RelayControl, path: Path
) -> None:
    service = service_of(free_address())
    await control.add(service)
    answer = await asyncio.to_thread(raw_request, path, b'{"command": "hand_over"}\n')
    assert json.loads(answer)["services"]

    # Waits for the end of the attempt, then works as before.
    await control.add(replace(service, addresses=(free_address(),)))
    state = await control.state()
    assert (state.pid, state.leaving) == (relay.pid, False)
    with pytest.raises(ConnectionResetError):
        await answer_to(service)


async def test_successor_that_was_given_up_before_its_commit_changes_nothing(
    relay: asyncio.subprocess.Process, control: RelayControl, path: Path
) -> None:
    service = service_of(free_address())
    await control.add(service)
    relay.send_signal(signal.SIGSTOP)
    successor = await asyncio.create_subprocess_exec(*COMMAND, str(path))
    await eventually(lambda: blocks_sigterm(successor.pid), "it can be ended only after its start")
    successor.terminate()
    relay.send_signal(signal.SIGCONT)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await successor.wait() == 1
    state = await control.state()
    assert (state.pid, state.leaving) == (relay.pid, False)
    with pytest.raises(ConnectionResetError):
        await answer_to(service)


def blocks_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [blocked] = [line.split()[1] for line in lines if line.startswith("SigBlk:")]
    return bool(int(blocked, 16) & 1 << signal.SIGTERM - 1)


async def test_successor_takes_over_more_listeners_than_fit_into_a_message(
    relay: asyncio.subprocess.Process, control: RelayControl, path: Path
) -> None:
    address = free_address()
    services = [service_of(address, name=f"fs-{port}", port=port) for port in free_ports(300)]
    for service in services:
        await control.add(service)

    async with relay_process(path) as successor:
        state = await control.state()
        assert state.pid == successor.pid
        assert [one.service for one in state.services] == services
        with pytest.raises(ConnectionResetError):
            await answer_to(services[-1])
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await relay.wait() == 0


async def test_more_connections_than_descriptors_wait_until_others_end(path: Path, ca_file: Path) -> None:
    async with relay_process(path, files=64) as relay:
        control = RelayControl(path, timeout_seconds=DEADLINE_SECONDS, connect_timeout_seconds=1)
        with silent_mount_target() as address:
            service = service_of(address, ca_file=ca_file)
            await control.add(service)
            waiting = [asyncio.create_task(answer_to(service)) for _ in range(20)]
            ports = psutil.Process(relay.pid).net_connections
            await eventually(
                lambda: sum(1 for one in ports() if one.raddr == (address, 2049)) == 8, "8 of 20"
            )

            # The control socket does not wait.
            assert (await only_service(control)).service == service
            assert not any(one.done() for one in waiting)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, ConnectionResetError) for one in results)


async def test_more_services_than_descriptors_are_refused_and_requests_still_answered(path: Path) -> None:
    async with relay_process(path, files=256):
        control = RelayControl(path, timeout_seconds=DEADLINE_SECONDS)
        *services, last = (service_of("127.0.0.1", name=f"fs-{port}", port=port) for port in free_ports(33))
        for service in services:
            await control.add(service)

        with pytest.raises(TunnelError, match="32 services are the most"):
            await control.add(last)
        await control.remove(services[0].name)
        await control.add(last)


async def test_relay_without_descriptors_waits_and_then_goes_on(
    relay: asyncio.subprocess.Process, control: RelayControl
) -> None:
    service = service_of(free_address())
    await control.add(service)
    process = psutil.Process(relay.pid)
    limits = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    waiting = asyncio.create_task(answer_to(service))
    before = process.cpu_times()
    await asyncio.sleep(1)  # the time of the measurement
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.5
    assert not waiting.done()

    process.rlimit(psutil.RLIMIT_NOFILE, limits)

    with pytest.raises(ConnectionResetError):
        await waiting
    assert "no certificate" in (await only_service(control)).reason


def test_process_is_small(relay: asyncio.subprocess.Process) -> None:
    memory = psutil.Process(relay.pid).memory_info()
    # The rest of its memory are pages of Python and OpenSSL that it shares with the agent.
    assert memory.rss - memory.shared < 10 * 1024 * 1024

    program = "import sys, kube_efs.tunnels.relay.process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    names = {name for name in loaded.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in names if not name.startswith("kube_efs")} <= {"__main__", "_distutils_hack"}
    assert {name for name in names if name.count(".") > 1} == {
        "kube_efs.tunnels.relay",
        *(f"kube_efs.tunnels.relay.{name}" for name in ("mount_target", "process", "serving", "splicing")),
    }
    sources = (_SOURCES / f"{name}.py" for name in ("mount_target", "process", "serving", "splicing"))
    assert sum(count_code_lines(source.read_text()) for source in sources) <= 600


def count_code_lines(source: str) -> int:
    """The lines without blank ones, comments and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(source)
    documentation = (
        one.body[0] for one in ast.walk(tree) if isinstance(one, documented) and ast.get_docstring(one)
    )
    text = {line for one in documentation for line in range(one.lineno, (one.end_lineno or 0) + 1)}
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in text
        for number, line in enumerate(source.splitlines(), 1)
    )
