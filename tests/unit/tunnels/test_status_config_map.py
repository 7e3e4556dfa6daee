"""When an agent writes its status: in virtual time, on a scripted API server."""

import asyncio
import json
import math
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
    """Notes when a status is written, and which one, with the UIDs of its owners.

    It refuses the first ``refused`` requests. ``node_uid`` None means that the Node must not be read. After
    ``deleted_at``, the ConfigMap and the Node have other UIDs.
    """

    refused: int = 0
    node_uid: str | None = "node-uid"
    deleted_at: float = math.inf
    written: list[tuple[float, TunnelsStatus]] = field(default_factory=list)
    owners: list[tuple[str, ...]] = field(default_factory=list)
    reads: int = 0

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        now = asyncio.get_running_loop().time()
        suffix = "-2" if now > self.deleted_at else ""
        if request.url.path == "/api/v1/nodes/node-a":
            self.reads += 1
            if self.node_uid is None:
                return httpx2.Response(403, json={"kind": "Status", "code": 403, "message": "denied"})
            return httpx2.Response(200, json={"metadata": {"name": "node-a", "uid": self.node_uid + suffix}})
        if request.method == "PATCH":
            if self.refused:
                self.refused -= 1
                return httpx2.Response(403, json={"kind": "Status", "code": 403, "message": "denied"})
            body = json.loads(request.content)
            status, _ = parse_status(body["data"][STATUS_KEY])
            self.written.append((now, status))
            owners = body["metadata"].get("ownerReferences") or ()
            assert not any("blockOwnerDeletion" in one for one in owners)
            self.owners.append(tuple(f"{one['apiVersion']} {one['kind']} {one['uid']}" for one in owners))
        return httpx2.Response(200, json={"metadata": {"name": "status", "uid": f"status-uid{suffix}"}})

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
    # They have five moments, one in each second. With twenty, one run of 2,700 has only three of them.
    servers = [_Server() for _ in range(40)]
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


def test_status_is_owned_by_its_node(client_of: ClientOf) -> None:
    server = _Server()
    _publish(client_of, server, lambda _: _UP, _HOUR)
    assert set(server.owners) == {("v1 Node node-uid",)}
    assert server.reads == 1


def test_status_is_written_without_an_owner_if_the_node_must_not_be_read(client_of: ClientOf) -> None:
    server = _Server(node_uid=None)
    _publish(client_of, server, lambda _: _UP, 60)
    assert server.owners == [()]


def test_node_that_was_created_again_becomes_the_owner_at_once(client_of: ClientOf) -> None:
    server = _Server(deleted_at=100)
    _publish(client_of, server, lambda _: _UP, 600)
    old, new = ("v1 Node node-uid",), ("v1 Node node-uid-2",)
    assert server.owners[:3] == [old, old, new]
    assert server.times[2] - server.times[1] <= _SPREAD_SECONDS + 1
    assert set(server.owners[3:]) == {new}
