"""A tunnel agent in its own process, for tests that kill it.

``tunnel_runner.py CONF CA [DOCUMENT…]``, with DATA_PLANE in the environment. With SOCKET there, it serves
tunnels on demand.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry
from tests.integration.on_demand_options import on_demand_options

from kube_efs.model.efs.ids import Region
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.data_plane import DataPlaneChoice, DataPlaneName
from kube_efs.tunnels.options import TunnelOptions


async def documents(texts: Sequence[str]) -> AsyncIterator[TargetDocuments]:
    for text in texts:
        yield TargetDocuments(targets=text)


async def main(conf: str, ca_file: str, *texts: str) -> None:
    options = TunnelOptions(
        region=Region("us-east-1"),
        data_plane=DataPlaneChoice(name=DataPlaneName(os.environ["DATA_PLANE"])),
        conf_path=Path(conf),
        ca_file=Path(ca_file),
        probe_interval_seconds=0.1,
        on_demand=on_demand_options(Path(os.environ["SOCKET"])) if "SOCKET" in os.environ else None,
    )
    agent = TunnelAgent(options, TunnelMetrics(CollectorRegistry()))
    running = asyncio.create_task(agent.run(documents(texts)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
