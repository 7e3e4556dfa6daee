"""The relay with TLS 1.3, which needs OpenSSL 3.2: ``make kernel`` runs this with that of the image."""

import asyncio
import ssl
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.integration.data_planes import mount_target
from tests.integration.data_planes.conftest import Plane
from tests.integration.data_planes.mount_target import MountTarget, server_context
from tests.integration.data_planes.test_contract import (
    DEADLINE_SECONDS,
    HOST,
    connected,
    echoed,
    has_reason,
    service_at,
)
from tests.integration.nfs_backend import free_address

from kube_efs.tunnels.data_plane import DataPlaneName

pytestmark = [
    pytest.mark.usefixtures("tls_1_3"),
    pytest.mark.parametrize("plane", [DataPlaneName.KERNEL], indirect=True),
]


@pytest.fixture(scope="session")
def tls_1_3() -> None:
    """The relay's OpenSSL gives the kernel both keys of TLS 1.3."""
    program = "from kube_efs.tunnels.relay.mount_target import VERSIONS; print(*VERSIONS)"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    if str(ssl.TLSVersion.TLSv1_3) not in found.stdout.split():
        pytest.skip("TLS 1.3 in the kernel needs OpenSSL 3.2; make kernel runs this with that of the image")


@asynccontextmanager
async def tls_server(plane: Plane) -> AsyncIterator[tuple[str, Process]]:
    """A server of OpenSSL that prints what it receives, and sends its input; and its address."""
    file = plane.folder / "server.pem"
    file.write_bytes(plane.authority.issue([HOST]).secret_pem())
    address = free_address()
    options = ("-tls1_3", "-accept", f"{address}:2049", "-cert", str(file))
    process = await asyncio.create_subprocess_exec("openssl", "s_server", *options, stdin=PIPE, stdout=PIPE)
    try:
        await printed(process, b"ACCEPT")
        yield address, process
    finally:
        process.kill()
        await process.communicate()


async def printed(process: Process, text: bytes) -> None:
    assert process.stdout
    async with asyncio.timeout(DEADLINE_SECONDS):
        while line := await process.stdout.readline():
            if text in line:
                return
    raise AssertionError(f"openssl ended without {text!r}")


async def test_session_tickets_reach_no_client(plane: Plane) -> None:
    context = server_context(plane.authority.issue([HOST]), plane.folder)
    context.num_tickets = 5
    with MountTarget(context, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            for request in (b"a request", bytes(300_000), b"another request"):
                assert await echoed(*client, request) == request

            facts = await plane.facts(service)
    assert (facts.tls_version, facts.cipher) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384")


async def test_new_key_of_the_mount_target_is_an_error(plane: Plane) -> None:
    async with tls_server(plane) as (address, server):
        service = service_at(plane, address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            writer.write(b"a request\n")
            await printed(server, b"a request")
            assert server.stdin
            server.stdin.write(b"an answer\n")
            assert await reader.readline() == b"an answer\n"

            server.stdin.write(b"k\n")  # a command: use a new key
            with pytest.raises(ConnectionResetError):
                await reader.read()
        facts = await plane.until_facts(service, has_reason)
    assert facts.reason == "the mount target asks for a new handshake or a new key"
