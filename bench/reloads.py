"""Connections that are cut while stunnel loads its configuration again and again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bench.figures import Figure, Row, exactly, plain
from tests.integration.nfs_backend import Authority, Backend
from tests.integration.tunnel_node import (
    Client,
    Node,
    connected,
    document,
    eventually,
    host_of,
    running,
    target,
)

from kube_efs.model.efs.ids import Region
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.status import TunnelState
from tinykube.ports import free_port

_RELOADS: Final = 100
_CLIENTS: Final = 16
_COUNTER: Final = "kube_efs_stunnel_reloads_total"


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """NFS clients call without a pause through one tunnel while another one changes its port."""
    authority = Authority(folder, "ca")
    options = TunnelOptions(
        region=Region("us-east-1"),
        conf_path=folder / "stunnel.conf",
        ca_file=authority.file,
        probe_interval_seconds=0.1,
    )
    used, others = free_port(), (free_port(), free_port())
    async with (
        Backend(authority, host_of("fs-1")) as one,
        Backend(authority, host_of("fs-2")) as two,
        running(options) as node,
        AsyncExitStack() as stack,
    ):
        there = target("fs-1", used, a=one.address)
        node.queue.put_nowait(document(there))
        await node.until("fs-1", TunnelState.UP)
        clients = [await stack.enter_async_context(connected(used)) for _ in range(_CLIENTS)]
        stop = asyncio.Event()
        calling = [asyncio.create_task(_calls_until(client, stop)) for client in clients]
        begun = time.monotonic()
        for number in range(_RELOADS):
            port, before = others[number % 2], _reloads(node)
            node.push(there, target("fs-2", port, a=two.address))
            await eventually(partial(_has_reloaded, node, before), "a reload")
            await node.until("fs-2", TunnelState.UP, port=port)
        seconds = time.monotonic() - begun
        stop.set()
        cut = sum(not survived for survived in await asyncio.gather(*calling))
        reloads = _reloads(node)
    calls = sum(client.calls for client in clients)
    detail = f"{_CLIENTS} connections made {calls:,} NFS calls in {seconds:.0f} s"
    yield exactly(f"connections cut by {reloads:.0f} reloads under load", cut, 0, detail=detail)
    yield plain("from a change of the targets to its tunnel", seconds / _RELOADS * 1000, "ms mean")


def _reloads(node: Node) -> float:
    return node.registry.get_sample_value(_COUNTER) or 0.0


def _has_reloaded(node: Node, before: float) -> bool:
    return _reloads(node) > before


async def _calls_until(client: Client, stop: asyncio.Event) -> bool:
    """Whether every call on the connection was answered."""
    try:
        await client.call_until(stop)
    except (OSError, EOFError, TimeoutError):
        return False
    return True


ROW: Final = Row(name="reloads", measure=measure)
