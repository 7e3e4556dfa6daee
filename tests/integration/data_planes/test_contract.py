"""What both data planes promise to the mounts of a node."""

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.integration.data_planes import mount_target
from tests.integration.data_planes.conftest import Plane
from tests.integration.data_planes.mount_target import (
    Behaviour,
    MountTarget,
    RenegotiatingMountTarget,
    expired,
    server_context,
)
from tests.integration.nfs_backend import free_address
from tests.integration.tunnel_node import FS, eventually, host_of

from kube_efs.tunnels.data_plane import CertificateFile, ServiceFacts, TunnelService
from tiny_ca.authority import Authority, ServerCertificate
from tinykube.ports import free_port

HOST = host_of(FS)
DEADLINE_SECONDS = 120.0


def service_at(plane: Plane, *addresses: str, name: str = FS) -> TunnelService:
    return TunnelService(
        name=name,
        file_system_id=FS,
        port=free_port(),
        addresses=addresses,
        check_host=HOST,
        ca_file=plane.ca_file,
    )


def trusted(plane: Plane, behaviour: Behaviour) -> MountTarget:
    context = server_context(plane.authority.issue([HOST]), plane.folder, clients=plane.authority)
    return MountTarget(context, behaviour)


def has_reason(facts: ServiceFacts) -> bool:
    return bool(facts.reason)


@asynccontextmanager
async def connected(
    service: TunnelService,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The answer of a mount target that repeats the request."""
    writer.write(request)
    return await reader.readexactly(len(request) * mount_target.REPETITIONS)


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await reader.readexactly(len(data))


async def until_the_end(reader: asyncio.StreamReader) -> bytes:
    """All data that comes until the end, whether it is a regular one or not."""
    received = b""
    with suppress(ConnectionResetError):
        while data := await reader.read(1 << 16):
            received += data
    return received


async def answer_to(service: TunnelService, request: bytes = b"") -> bytes:
    """All that a client gets for a request until the end, which may come while it connects."""
    with suppress(ConnectionResetError):
        async with connected(service) as (reader, writer):
            writer.write(request)
            return await until_the_end(reader)
    return b""


async def test_data_reaches_the_mount_target_and_its_facts_are_known(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            assert await echoed(*client, b"a request") == b"a request"

            facts = await plane.facts(service)
    assert facts.address == target.address
    assert facts.tls_version in {"TLSv1.2", "TLSv1.3"}
    assert "GCM" in facts.cipher
    assert HOST in facts.peer
    assert facts.reason == ""


Served = Callable[[Authority], ServerCertificate]


@pytest.mark.parametrize(
    ("served", "reason"),
    [
        pytest.param(
            lambda authority: authority.issue(["fs-1.efs.us-east-1.amazonaws.com"]),
            "the server's certificate is for another name",
            id="another name",
        ),
        pytest.param(
            lambda _: Authority.create("another").issue([HOST]),
            "the server's certificate is not trusted: unable to get local issuer certificate",
            id="another authority",
        ),
        pytest.param(
            lambda authority: expired(authority, HOST),
            "the server's certificate is not trusted: certificate has expired",
            id="expired",
        ),
    ],
)
async def test_nothing_is_sent_to_a_mount_target_with_a_wrong_certificate(
    plane: Plane, served: Served, reason: str
) -> None:
    seen: list[bytes] = []
    context = server_context(served(plane.authority), plane.folder)
    with MountTarget(context, lambda tls: seen.append(tls.recv(1 << 16))) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        assert await answer_to(service, b"a request") == b""

        facts = await plane.until_facts(service, has_reason)
    assert reason in facts.reason
    assert not any(seen)


async def test_mount_target_that_does_not_speak_tls_is_refused(plane: Plane) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"forged data")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    address = free_address()
    async with await asyncio.start_server(serve, address, 2049):
        service = service_at(plane, address)
        await plane.serve(service)
        assert await answer_to(service) == b""

        assert "TLS failed: wrong version number" in (await plane.until_facts(service, has_reason)).reason


async def test_client_certificate_is_presented_and_renewed_without_a_cut(plane: Plane) -> None:
    def issue() -> CertificateFile:
        issued = plane.authority.issue(["client"], of_client=True)
        path = plane.folder / "client.pem"
        replacement = path.with_suffix(".new")
        replacement.write_bytes(issued.secret_pem())
        replacement.replace(path)
        return CertificateFile(
            path=path, serial=issued.certificate.serial_number, not_after=datetime(2035, 1, 1, tzinfo=UTC)
        )

    with trusted(plane, mount_target.echo) as target:
        first = issue()
        service = replace(service_at(plane, target.address), certificate=first)
        await plane.serve(service)
        async with connected(service) as client:
            assert await echoed(*client, b"before") == b"before"

            second = issue()
            await plane.serve(replace(service, certificate=second))
            assert await echoed(*client, b"after") == b"after"
            async with connected(service) as other:
                assert await echoed(*other, b"other") == b"other"
    presented = [one and one.serial_number for one in target.client_certificates]
    assert presented == [first.serial, second.serial]


async def test_addresses_are_tried_in_order(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as first, trusted(plane, mount_target.echo) as second:
        dead = service_at(plane, free_address(), second.address, first.address, name="fs-1")
        alive = service_at(plane, first.address, second.address, name="fs-2")
        await plane.serve(dead, alive)
        for service, expected in ((dead, second), (alive, first)):
            async with connected(service) as client:
                assert await echoed(*client, b"a request") == b"a request"
            assert (await plane.facts(service)).address == expected.address


async def test_dead_mount_target_is_reported(plane: Plane) -> None:
    addresses = free_address(), free_address()
    service = service_at(plane, *addresses)
    await plane.serve(service)
    assert await answer_to(service) == b""

    facts = await plane.until_facts(service, has_reason)
    assert facts.reason == f"{addresses[0]}: connection refused; {addresses[1]}: connection refused"


async def test_silent_mount_target_delays_no_other_service(plane: Plane) -> None:
    address = free_address()
    with socket.create_server((address, 2049)), trusted(plane, mount_target.echo) as target:
        silent = service_at(plane, address, name="fs-1")
        other = service_at(plane, target.address, name="fs-2")
        await plane.serve(silent, other)
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(socket.create_connection(("127.0.0.1", silent.port)))
            async with connected(other) as client:
                assert await echoed(*client, b"a request") == b"a request"


async def test_many_busy_connections_carry_everything_in_both_directions(plane: Plane) -> None:
    async def carry(number: int) -> None:
        data = os.urandom(1_500_000 + number)
        async with connected(service) as (reader, writer):
            receiving = asyncio.create_task(reader.readexactly(len(data)))
            writer.write(data)
            received = await receiving
        assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()

    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        await asyncio.gather(*map(carry, range(8)))


async def test_end_of_the_client_is_the_end_of_tls(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            assert await echoed(*client, b"a request") == b"a request"
        await eventually(lambda: target.ended, "the end of the connection")

    assert target.failures == []


async def test_end_of_the_mount_target_is_the_end_for_the_client(plane: Plane) -> None:
    with trusted(plane, mount_target.answer_and_close) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            writer.write(b"a request")
            assert await reader.read() == b"a request"  # not ConnectionResetError


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(mount_target.answer_and_tamper, id="tampered record"),
        pytest.param(mount_target.answer_and_send_plain_text, id="plain text"),
    ],
)
async def test_broken_stream_ends_with_an_error_after_its_intact_part(
    plane: Plane, behaviour: Behaviour
) -> None:
    with trusted(plane, behaviour) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            assert await answered(reader, writer, b"a request") == b"a request" * mount_target.REPETITIONS
            with pytest.raises(ConnectionResetError):
                await reader.read()


async def test_truncated_stream_ends_after_its_intact_part(plane: Plane) -> None:
    with trusted(plane, mount_target.answer_and_truncate) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            assert await answered(reader, writer, b"a request") == b"a request" * mount_target.REPETITIONS
            assert await until_the_end(reader) == b""


async def test_request_for_a_new_handshake_reaches_no_client(plane: Plane) -> None:
    with RenegotiatingMountTarget(plane.authority.issue([HOST]), waits=False) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            assert await echoed(reader, writer, b"a request") == b"a request"
            assert await until_the_end(reader) == b""


async def test_removed_service_keeps_its_connections(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        removed, other = (service_at(plane, target.address, name=name) for name in ("fs-1", "fs-2"))
        await plane.serve(removed, other)
        async with connected(removed) as client:
            assert await echoed(*client, b"before") == b"before"
            await plane.serve(other)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", removed.port)

            assert await echoed(*client, b"after") == b"after"


async def test_replacement_of_a_process_that_does_not_accept_cuts_no_connection(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            assert await echoed(*client, b"before") == b"before"
            await plane.reload_or_replace(service)

            assert await echoed(*client, b"after") == b"after"
            async with connected(service) as other:
                assert await echoed(*other, b"other") == b"other"
            assert await echoed(*client, b"at last") == b"at last"


async def test_end_of_the_data_plane_ends_its_connections(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            assert await echoed(reader, writer, b"a request") == b"a request"
            await plane.plane.stop()
            assert await until_the_end(reader) == b""


async def test_idle_connection_is_probed(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            assert await echoed(*client, b"a request") == b"a request"
            await eventually(lambda: _KEEPALIVE in timers_to(target.address), "the timer of keep-alive")


_KEEPALIVE = "02"


def timers_to(address: str) -> set[str]:
    """The active timers of connections to port 2049 of this address (proc(5), ``/proc/net/tcp``)."""
    remote = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{2049:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {row[5].partition(":")[0] for row in rows if row[2] == remote}
