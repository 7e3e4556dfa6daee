"""The relay with TLS 1.3, which needs OpenSSL 3.2: ``make kernel`` runs this with that of the image.

After the handshake, the mount target makes records itself, so that each test decides what is in them.
"""

import os
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from tests.integration.data_planes import mount_target
from tests.integration.data_planes.conftest import Plane
from tests.integration.data_planes.mount_target import TIMEOUT_SECONDS, MountTarget, server_context
from tests.integration.data_planes.test_contract import (
    HOST,
    connected,
    echoed,
    has_reason,
    service_at,
)

from kube_efs.tunnels.data_plane import DataPlaneName

pytestmark = [
    pytest.mark.usefixtures("tls_1_3"),
    pytest.mark.parametrize("plane", [DataPlaneName.KERNEL], indirect=True),
]

_DATA, _HANDSHAKE, _ALERT = 23, 22, 21
_CLOSE_NOTIFY = b"\x01\x00"
_TICKET = b"\x04\x00\x00\xc8" + bytes(200)
_KEY_UPDATE = b"\x18\x00\x00\x01\x00"
_PARTS = tuple(os.urandom(16 * 1024) for _ in range(40))


@pytest.fixture(scope="session")
def tls_1_3() -> None:
    """The relay's OpenSSL gives the kernel both keys of TLS 1.3."""
    program = "from kube_efs.tunnels.relay.mount_target import VERSIONS; print(*VERSIONS)"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    if str(ssl.TLSVersion.TLSv1_3) not in found.stdout.split():
        pytest.skip("TLS 1.3 in the kernel needs OpenSSL 3.2; make kernel runs this with that of the image")


class Sender:
    """Makes the records of a server of TLS_AES_256_GCM_SHA384 from its secret (RFC 8446, 5.2 and 7.3)."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._key, self._iv = AESGCM(_expand(secret, b"key", 32)), _expand(secret, b"iv", 12)
        self._number = 0

    def record(self, content: bytes, kind: int, *, padding: int = 0) -> bytes:
        inner = content + bytes([kind]) + bytes(padding)
        header = struct.pack("!BHH", _DATA, 0x0303, len(inner) + 16)
        nonce = int.from_bytes(self._iv) ^ self._number
        self._number += 1
        return header + self._key.encrypt(nonce.to_bytes(12), inner, header)

    def with_next_key(self) -> "Sender":
        return Sender(_expand(self._secret, b"traffic upd", 48))


def _expand(secret: bytes, label: bytes, count: int) -> bytes:
    label = b"tls13 " + label
    return HKDFExpand(SHA384(), count, struct.pack("!HB", count, len(label)) + label + b"\0").derive(secret)


Answer = Callable[[Sender], bytes]


async def test_data_passes_with_tls_1_3(plane: Plane) -> None:
    context = server_context(plane.authority.issue([HOST]), plane.folder)
    with MountTarget(context, mount_target.echo) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as client:
            for request in (b"a request", os.urandom(300_000), b"another request"):
                assert await echoed(*client, request) == request

            facts = await plane.facts(service)
    assert (facts.tls_version, facts.cipher) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384")


def _with_tickets(sender: Sender) -> bytes:
    sent = [sender.record(_TICKET, _HANDSHAKE) + sender.record(one, _DATA) for one in _PARTS]
    return b"".join(sent) + sender.record(_TICKET * 2, _HANDSHAKE) + sender.record(_CLOSE_NOTIFY, _ALERT)


def _with_padding(sender: Sender) -> bytes:
    halves = ((one[:9000], one[9000:]) for one in _PARTS)
    sent = [sender.record(one, _DATA, padding=3000) + sender.record(other, _DATA) for one, other in halves]
    return b"".join(sent) + sender.record(_CLOSE_NOTIFY, _ALERT, padding=1)


@pytest.mark.parametrize("answer", [_with_tickets, _with_padding])
async def test_records_and_padding_between_data_reach_no_client(plane: Plane, answer: Answer) -> None:
    with answering(plane, answer) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            writer.write(b"a request")
            assert await reader.read(-1) == b"".join(_PARTS)  # not ConnectionResetError


def _with_new_key(sender: Sender) -> bytes:
    sent = b"".join(sender.record(one, _DATA) for one in _PARTS) + sender.record(_KEY_UPDATE, _HANDSHAKE)
    following = sender.with_next_key()
    return sent + b"".join(following.record(one, _DATA) for one in _PARTS)


async def test_new_key_of_the_mount_target_is_an_error_after_the_data_before_it(plane: Plane) -> None:
    with answering(plane, _with_new_key) as target:
        service = service_at(plane, target.address)
        await plane.serve(service)
        async with connected(service) as (reader, writer):
            writer.write(b"a request")
            size = sum(map(len, _PARTS))
            assert await reader.readexactly(size) == b"".join(_PARTS)
            with pytest.raises(ConnectionResetError):
                await reader.read()
        facts = await plane.until_facts(service, has_reason)
    assert facts.reason == "the mount target asks for a new handshake or a new key"


def answering(plane: Plane, answer: Answer) -> MountTarget:
    """A mount target that answers a request with these records, and then waits for the end of TCP."""
    keys = plane.folder / "keys"

    def behave(tls: ssl.SSLSocket) -> None:
        tls.recv(1 << 16)
        sender = Sender(_server_secret(keys))
        with socket.socket(fileno=tls.detach()) as raw, suppress(ConnectionError):
            raw.settimeout(TIMEOUT_SECONDS)
            raw.sendall(answer(sender))
            while raw.recv(1 << 16):
                pass

    context = server_context(plane.authority.issue([HOST]), plane.folder)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.keylog_filename = str(keys)
    return MountTarget(context, behave)


def _server_secret(keys: Path) -> bytes:
    [line] = (one for one in keys.read_text().splitlines() if one.startswith("SERVER_TRAFFIC_SECRET_0 "))
    return bytes.fromhex(line.split()[-1])
