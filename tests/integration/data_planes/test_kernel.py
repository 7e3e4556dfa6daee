"""What only the kernel's data plane promises."""

import os
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime

import psutil
import pytest
from tests.integration.data_planes import mount_target
from tests.integration.data_planes.conftest import Plane
from tests.integration.data_planes.mount_target import RenegotiatingMountTarget
from tests.integration.data_planes.test_contract import (
    HOST,
    answer_to,
    answered,
    connected,
    echoed,
    has_reason,
    service_at,
    trusted,
)

from kube_efs.tunnels.data_plane import CertificateFile, DataPlaneName, Traffic
from tiny_ca.authority import Authority

pytestmark = pytest.mark.parametrize("plane", [DataPlaneName.KERNEL], indirect=True)

_IDLE_CONNECTIONS = 60
_BYTES_OF_A_CONNECTION = 256 * 1024


async def test_truncated_stream_is_an_error(plane: Plane) -> None:
    with trusted(plane, mount_target.answer_and_truncate) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            assert await answered(reader, writer, b"a request") == b"a request" * mount_target.REPETITIONS
            with pytest.raises(ConnectionResetError):
                await reader.read()


async def test_request_for_a_new_handshake_is_an_error(plane: Plane) -> None:
    with RenegotiatingMountTarget(plane.authority.issue([HOST]), waits=True) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            assert await echoed(reader, writer, b"a request") == b"a request"
            with pytest.raises(ConnectionResetError):
                await reader.read()


async def test_refusal_of_the_client_certificate_is_reported(plane: Plane) -> None:
    """With TLS 1.3, it comes after the handshake of the client."""
    other = Authority.create("another")
    file = plane.folder / "client.pem"
    issued = other.issue(["client"], of_client=True)
    file.write_bytes(issued.secret_pem())
    certificate = CertificateFile(
        path=file, serial=issued.certificate.serial_number, not_after=datetime(2035, 1, 1, tzinfo=UTC)
    )
    with trusted(plane, mount_target.echo) as target:
        service = replace(service_at(plane, target.address), certificate=certificate)
        await plane.serve(service)
        assert await answer_to(service, b"a request") == b""

        facts = await plane.until_facts(service, has_reason)
    assert re.search("TLS failed: .*alert unknown ca|TLS alert 48 about the client certificate", facts.reason)


async def test_client_that_ends_its_side_gets_the_rest_of_the_answer(plane: Plane) -> None:
    data = os.urandom(300_000)
    with trusted(plane, mount_target.answer_at_the_end) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == data


async def test_connections_and_their_bytes_are_counted_while_they_are_open_and_after(plane: Plane) -> None:
    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            assert await echoed(*client, bytes(70_000)) == bytes(70_000)
            await plane.until_facts(service, lambda facts: facts.traffic == _traffic(connections=1))
        async with connected(service) as client:
            assert await echoed(*client, bytes(70_000)) == bytes(70_000)
            await plane.until_facts(service, lambda facts: facts.traffic == _traffic(connections=2))


def _traffic(*, connections: int) -> Traffic:
    size = connections * 70_000
    return Traffic(connections=connections, sent_bytes=size, received_bytes=size)


async def test_connection_takes_little_memory(plane: Plane) -> None:
    def own_memory() -> int:
        memory = process.memory_info()
        return int(memory.rss - memory.shared)

    with trusted(plane, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        process = psutil.Process(plane.plane.report.relay_pid)
        async with connected(service) as client:
            assert await echoed(*client, bytes(70_000)) == bytes(70_000)
            before = own_memory()
            async with AsyncExitStack() as stack:
                for _ in range(_IDLE_CONNECTIONS):
                    other = await stack.enter_async_context(connected(service))
                    assert await echoed(*other, bytes(70_000)) == bytes(70_000)
                added = own_memory() - before

    assert added < _IDLE_CONNECTIONS * _BYTES_OF_A_CONNECTION
