"""Metrics over TLS: with the certificate that is there, when it comes, and when it is renewed."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Gauge

from kube_efs.local.authority import Authority
from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.secure_metrics import SecureMetrics

NAME = "aws-efs-csi-driver-controller-metrics.storage.svc"


def certify(authority: Authority, folder: Path) -> None:
    """Put a new certificate there; both files hold both parts, which is as good."""
    pem = authority.issue([NAME]).secret_pem()
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_bytes(pem)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[SecureMetrics]:
    registry = CollectorRegistry()
    Gauge("answer", "To everything.", registry=registry).set(42)
    async with SecureMetrics("127.0.0.1", 0, folder, registry, look_seconds=0.02) as server:
        yield server


async def ask(server: SecureMetrics, authority: Authority, path: str = "/metrics") -> tuple[int, str]:
    """Status and text, over a connection that trusts this authority; raises ClientError."""
    context = ssl.create_default_context(cadata=authority.pem)
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


async def test_metrics_are_served_with_the_certificate_of_the_folder(tmp_path: Path) -> None:
    authority = Authority.create()
    certify(authority, tmp_path)
    async with serving(tmp_path) as server:
        assert "answer 42.0" in await eventually_answers(server, authority)
        assert (await ask(server, authority, "/healthz"))[0] == 404
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(server, Authority.create())


async def test_a_certificate_that_comes_later_is_used_and_so_is_its_successor(tmp_path: Path) -> None:
    first, second = Authority.create(), Authority.create()
    async with serving(tmp_path) as server:
        with pytest.raises(aiohttp.ClientError):
            await ask(server, first)
        certify(first, tmp_path)
        await eventually_answers(server, first)
        certify(second, tmp_path)
        await eventually_answers(server, second)


async def test_a_broken_certificate_leaves_the_one_before(tmp_path: Path) -> None:
    authority = Authority.create()
    certify(authority, tmp_path)
    async with serving(tmp_path) as server:
        await eventually_answers(server, authority)
        (tmp_path / "tls.crt").write_text("no certificate")
        await asyncio.sleep(0.2)  # that nothing changes takes a time to see
        await ask(server, authority)


async def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path) -> None:
    authority = Authority.create()
    certify(authority, tmp_path)
    async with serving(tmp_path) as server:
        await eventually_answers(server, authority)
        assert server._context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_port_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        taken = SecureMetrics("127.0.0.1", server.port, tmp_path, CollectorRegistry())
        with pytest.raises(InvalidSetting, match="KUBE_EFS_METRICS_PORT"):
            await taken.__aenter__()
