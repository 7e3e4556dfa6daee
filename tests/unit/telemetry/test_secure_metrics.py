"""Metrics over TLS: with an existing, later and renewed certificate."""

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.secure_metrics import SecureMetrics, TlsTerms
from tiny_ca.authority import Authority, trusting

NAME = "aws-efs-csi-driver-controller-metrics.storage.svc"


def certify(authority: Authority, folder: Path) -> None:
    """Write a new certificate; both files contain both parts, which also works."""
    pem = authority.issue([NAME]).secret_pem()
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(pem)


@asynccontextmanager
async def serving(folder: Path, terms: TlsTerms | None = None) -> AsyncIterator[SecureMetrics]:
    registry = CollectorRegistry()
    Gauge("answer", "To everything.", registry=registry).set(42)
    async with SecureMetrics("127.0.0.1", 0, folder, registry, terms, check_seconds=0.02) as server:
        yield server


async def ask(server: SecureMetrics, authority: Authority, path: str = "/metrics") -> tuple[int, str]:
    """The status and text of a request that trusts this authority; raises ClientError."""
    context = trusting(authority.pem)
    url = f"https://127.0.0.1:{server.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context, server_hostname=NAME) as answer,
    ):
        return answer.status, await answer.text()


async def eventually_answers(server: SecureMetrics, authority: Authority) -> str:
    async with asyncio.timeout(20):
        while True:
            try:
                return (await ask(server, authority))[1]
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)


async def test_metrics_are_served_with_the_certificate_of_the_directory(tmp_path: Path) -> None:
    authority = Authority.create()
    certify(authority, tmp_path)
    async with serving(tmp_path) as server:
        assert "answer 42.0" in await eventually_answers(server, authority)
        assert (await ask(server, authority, "/healthz"))[0] == 404
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(server, Authority.create())


async def test_later_and_renewed_certificates_are_used(tmp_path: Path) -> None:
    first, second = Authority.create(), Authority.create()
    async with serving(tmp_path) as server:
        with pytest.raises(aiohttp.ClientError):
            await ask(server, first)
        certify(first, tmp_path)
        await eventually_answers(server, first)
        certify(second, tmp_path)
        await eventually_answers(server, second)


async def test_invalid_certificate_keeps_the_previous_one(tmp_path: Path) -> None:
    authority = Authority.create()
    certify(authority, tmp_path)
    async with serving(tmp_path) as server:
        await eventually_answers(server, authority)
        (tmp_path / "tls.crt").write_text("no certificate")
        await asyncio.sleep(0.2)  # that nothing changes takes a time to see
        await ask(server, authority)


@pytest.mark.parametrize(
    ("terms", "spoken"),
    [
        pytest.param(TlsTerms(), {"TLSv1.2", "TLSv1.3"}, id="default terms"),
        pytest.param(TlsTerms(version="1.3"), {"TLSv1.3"}, id="only the newest version"),
    ],
)
async def test_versions_before_tls_1_2_are_refused(tmp_path: Path, terms: TlsTerms, spoken: set[str]) -> None:
    authority = Authority.create()
    certify(authority, tmp_path)
    async with serving(tmp_path, terms) as server:
        await eventually_answers(server, authority)
        versions = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
        found = {(await shake_hands(server, authority, one))[0] for one in versions}
    assert found - {""} == spoken


async def test_configured_ciphers_are_used(tmp_path: Path) -> None:
    authority, chosen = Authority.create(), "ECDHE-ECDSA-CHACHA20-POLY1305"
    certify(authority, tmp_path)
    async with serving(tmp_path, TlsTerms(ciphers=f"UNKNOWN-TO-ALL,{chosen}")) as server:
        await eventually_answers(server, authority)
        assert (await shake_hands(server, authority, ssl.TLSVersion.TLSv1_2))[1] == chosen
    with pytest.raises(InvalidSetting, match="KUBE_EFS_METRICS_TLS_CIPHERS"):
        SecureMetrics("127.0.0.1", 0, tmp_path, CollectorRegistry(), TlsTerms(ciphers="UNKNOWN-TO-ALL"))


async def shake_hands(
    server: SecureMetrics, authority: Authority, version: ssl.TLSVersion
) -> tuple[str, str]:
    """The negotiated version and cipher for a client with one version; empty without a connection."""
    context = trusting(authority.pem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what must not be spoken
        context.minimum_version = context.maximum_version = version
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=NAME)
    except (ssl.SSLError, ConnectionError):
        return "", ""
    connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
    cipher = connection.cipher()
    writer.close()
    return connection.version() or "", cipher[0] if cipher else ""


async def test_port_that_cannot_be_bound_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        taken = SecureMetrics("127.0.0.1", server.port, tmp_path, CollectorRegistry())
        with pytest.raises(InvalidSetting, match="KUBE_EFS_METRICS_PORT"):
            await taken.__aenter__()
