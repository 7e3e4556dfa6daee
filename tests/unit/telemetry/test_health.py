import errno
import socket

import aiohttp
import pytest

from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry import serving
from kube_efs.telemetry.health import Health, HealthServer, Heartbeat, combine
from kube_efs.telemetry.metrics import ControllerMetrics, new_registry


async def get(server: HealthServer, path: str, *, host: str = "127.0.0.1") -> tuple[int, str]:
    url = f"http://{host}:{server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_healthy_process_answers_200_on_a_free_port() -> None:
    async with HealthServer("127.0.0.1", 0, new_registry()) as server:
        assert server.port > 0
        assert await get(server, "/healthz") == (200, '{"ok": true, "reasons": []}')
        assert await get(server, "/readyz") == (200, '{"ok": true, "reasons": []}')
        assert (await get(server, "/other"))[0] == 404


@pytest.mark.skipif(not serving._has_ipv6(), reason="this machine has no IPv6")
async def test_every_address_is_also_one_of_ipv6() -> None:
    """Otherwise, the kubelet of a cluster with IPv6 kills the controller and the operator again and again."""
    async with HealthServer("0.0.0.0", 0, new_registry()) as server:
        for host in ("127.0.0.1", "[::1]"):
            assert (await get(server, "/healthz", host=host))[0] == 200
    async with HealthServer("127.0.0.1", 0, new_registry()) as server:
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(server, "/healthz", host="[::1]")


async def test_kernel_without_ipv6_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.socket

    def refuse(family: int = -1, *others: int, **named: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return create(family, *others, **named)

    monkeypatch.setattr(socket, "socket", refuse)
    async with HealthServer("0.0.0.0", 0, new_registry()) as server:
        assert (await get(server, "/healthz"))[0] == 200


async def test_failing_process_answers_503_with_the_reasons() -> None:
    server = HealthServer(
        "127.0.0.1",
        0,
        new_registry(),
        liveness=lambda: Health.failing("the catalog stands still"),
        readiness=lambda: combine(Health(), Health.failing("no file systems yet", "no lease")),
    )
    async with server:
        assert await get(server, "/healthz") == (
            503,
            '{"ok": false, "reasons": ["the catalog stands still"]}',
        )
        assert await get(server, "/readyz") == (
            503,
            '{"ok": false, "reasons": ["no file systems yet", "no lease"]}',
        )


async def test_metrics_and_further_pages_are_served() -> None:
    registry = new_registry()
    ControllerMetrics(registry).claims_waiting.set(3)
    async with HealthServer("127.0.0.1", 0, registry, pages={"/status": lambda: {"tunnels": 2}}) as server:
        status, text = await get(server, "/metrics")
        assert status == 200
        assert "kube_efs_claims_waiting 3.0" in text
        assert await get(server, "/status") == (200, '{"tunnels": 2}')


async def test_port_in_use_is_an_invalid_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSetting, match="cannot be bound") as caught:
            async with HealthServer("127.0.0.1", port, new_registry()):
                pass

    assert caught.value.value == f"127.0.0.1:{port}"


async def test_port_is_free_after_the_end() -> None:
    async with HealthServer("127.0.0.1", 0, new_registry()) as server:
        port = server.port
    async with HealthServer("127.0.0.1", port, new_registry()) as server:
        assert server.port == port


def test_missing_heartbeat_is_a_failure() -> None:
    now = [100.0]
    heart = Heartbeat("discovery", max_age_seconds=30, clock=lambda: now[0])

    now[0] = 130.0
    assert heart.health() == Health()
    now[0] = 131.0
    assert heart.health() == Health.failing("discovery made no progress for 31 s (expected at most 30 s)")
    heart.beat()
    assert heart.health() == Health()


def test_health_without_reasons_is_healthy() -> None:
    assert Health.failing() == Health()
    assert combine() == Health()
