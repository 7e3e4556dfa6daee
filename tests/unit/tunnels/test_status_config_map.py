"""When an agent writes its status: in virtual time, on a scripted API server."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest
from lightkube import AsyncClient
from tests.simulation.virtual import VirtualLoop

from kube_efs.model.names import NEW_INSTALLATION
from kube_efs.tunnels import status_config_map
from kube_efs.tunnels.status import TunnelsStatus, TunnelState, TunnelStatus, parse_status
from kube_efs.tunnels.status_config_map import STATUS_KEY, publish_status

Handler = Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]
ClientOf = Callable[[Handler], AsyncClient]

_UP = TunnelStatus(file_system_id="fs-a", port=20490, state=TunnelState.UP)
_SPREAD_SECONDS = 5.0
_HOUR = 3600.0


@dataclass
class _Server:
    """Notes when a status is written, and which one; it refuses the first ``refused`` requests."""

    refused: int = 0
    written: list[tuple[float, TunnelsStatus]] = field(default_factory=list)

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "PATCH":
            if self.refused:
                self.refused -= 1
                return httpx2.Response(403, json={"kind": "Status", "code": 403, "message": "denied"})
            status, _ = parse_status(json.loads(request.content)["data"][STATUS_KEY])
            self.written.append((asyncio.get_running_loop().time(), status))
        return httpx2.Response(200, json={"metadata": {"name": "status"}})

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.written]


def _publish(
    client_of: ClientOf, server: _Server, tunnel_at: Callable[[float], TunnelStatus], seconds: float
) -> None:
    """Publish the status of that tunnel for so long."""

    async def publish() -> None:
        clock = asyncio.get_running_loop().time
        async with client_of(server) as client, asyncio.timeout(seconds):
            await publish_status(
                client,
                lambda: TunnelsStatus(tunnels=(tunnel_at(clock()),)),
                names=NEW_INSTALLATION.names,
                node="node-a",
                interval_seconds=1.0,
                spread_seconds=_SPREAD_SECONDS,
            )

    loop = VirtualLoop()
    try:
        loop.run_until_complete(publish())
    except TimeoutError:
        pass
    finally:
        loop.close()


def test_only_changed_tunnels_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(replace(_UP, port=_UP.port + number) for number in range(100))
    before = TunnelsStatus(tunnels=many)
    compared: list[int] = []
    compare = status_config_map._without_numbers

    def counted(one: TunnelStatus) -> TunnelStatus:
        compared.append(one.port)
        return compare(one)

    monkeypatch.setattr(status_config_map, "_without_numbers", counted)
    now = replace(before, tunnels=(replace(many[0], connections=7), *many[1:]))
    assert not status_config_map._differ(now, before)
    now = replace(before, tunnels=(replace(many[0], reason="x"), *many[1:]))
    assert status_config_map._differ(now, before)
    assert compared == [_UP.port] * 4


def test_numbers_that_change_do_not_cause_a_write(client_of: ClientOf) -> None:
    def tunnel(now: float) -> TunnelStatus:
        count = round(now)
        return replace(
            _UP,
            connections=count,
            sent_bytes=count,
            holders=count,
            probe_seconds=now,
            certificate_ends=f"{now}",
        )

    server = _Server()
    _publish(client_of, server, tunnel, _HOUR)
    # Each of them is due after four to five minutes.
    assert 12 <= len(server.written) <= 16
    assert [status.tunnels[0].connections for _, status in server.written] == [
        round(time) for time in server.times
    ]


def test_regular_writes_of_nodes_that_start_together_do_not_stay_together(client_of: ClientOf) -> None:
    servers = [_Server() for _ in range(20)]
    for server in servers:
        _publish(client_of, server, lambda _: _UP, 400)
    assert len({server.times[1] for server in servers}) > 10


def test_change_of_a_state_is_written_soon_but_not_by_all_nodes_at_once(client_of: ClientOf) -> None:
    changed_at = 100.0
    down = replace(_UP, state=TunnelState.DOWN)
    servers = [_Server() for _ in range(20)]
    for server in servers:
        _publish(client_of, server, lambda now: down if now >= changed_at else _UP, 200)
    delays = [server.times[1] - changed_at for server in servers]
    assert all(0 <= delay <= _SPREAD_SECONDS + 1 for delay in delays)
    assert len(set(delays)) > 3
    assert {server.written[1][1].tunnels[0].state for server in servers} == {TunnelState.DOWN}


def test_refused_write_is_repeated(client_of: ClientOf) -> None:
    server = _Server(refused=3)
    _publish(client_of, server, lambda _: _UP, 60)
    assert len(server.written) == 1
