"""Many tunnel agents in one process: ``kube-efs tunnel`` as it is, except for what the kernel gives a node.

A node has its own sockets and its own stunnel; here, all agents are on one machine. So an agent hands its
services to ``Listeners`` elsewhere on the machine instead of to a data plane, and sees no sockets of others.
Everything else is the product's: settings, watch, plan, probes, checks of mount targets, status and events.

``BENCH_NODES`` are the names of the nodes; each has a kubeconfig of its name in ``BENCH_KUBECONFIGS``. Each
change of the addresses of services is appended to the file ``BENCH_HANDED_OVER``: the time, the node and the
addresses. Each request that the API server answers 429 a second time is appended to ``BENCH_REFUSED_TWICE``.
"""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx2

from kube_efs.kube import retrying
from kube_efs.settings.loading import load
from kube_efs.settings.tunnel import TunnelSettings
from kube_efs.telemetry.logging import configure
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels import agent, run
from kube_efs.tunnels.data_plane import DataPlaneName, DataPlaneReport, ServiceFacts, TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.sockets.ports import PortReading

_PID: Final = 1
_ZONES: Final = 3
_NICE: Final = 19
_TOO_MANY_REQUESTS: Final = 429
_NO_SOCKETS: Final = PortReading(connections={}, busy=frozenset(), listening=frozenset())


class HandedOver:
    """Takes the services instead of ``DataPlanes``, and reports that they are loaded."""

    def __init__(
        self, options: TunnelOptions, _metrics: TunnelMetrics, on_change: Callable[[], None]
    ) -> None:
        self._node = options.conf_path.parent.name
        self._on_change = on_change
        self.not_running: tuple[DataPlaneName, ...] = ()
        self.report = DataPlaneReport()

    def set_services(self, services: Iterable[TunnelService]) -> None:
        """Note the addresses of the services."""
        loaded = {service.name: service for service in services}
        if loaded == self.report.loaded:
            return
        addresses = sorted(address for one in loaded.values() for address in one.addresses)
        with open(os.environ["BENCH_HANDED_OVER"], "a", encoding="ascii") as notes:  # noqa: PTH123 - short
            notes.write(f"{time.time()} {self._node} {' '.join(addresses)}\n")
        self.report = DataPlaneReport(pids=(_PID,), loaded=loaded, pid_by_service=dict.fromkeys(loaded, _PID))
        self._on_change()

    def reload_or_replace(self, ports: Collection[int]) -> None:
        """Nothing hangs."""

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        """There are no shards."""

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        """Nothing is known."""
        return dict.fromkeys(names, ServiceFacts())

    async def run(self) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Nothing runs."""


class _Agent(agent.TunnelAgent):
    def __init__(self, options: TunnelOptions, metrics: TunnelMetrics, **given: Any) -> None:  # noqa: ANN401
        super().__init__(options, metrics, read=lambda _: _NO_SOCKETS, is_in_use=lambda _: False, **given)


def _note_refusal(request: httpx2.Request, outcome: httpx2.Response | Exception, *_: float) -> None:
    """Called before a request is repeated, instead of the log."""
    if isinstance(outcome, httpx2.Response) and outcome.status_code == _TOO_MANY_REQUESTS:
        refused = request.extensions["refused"] = request.extensions.get("refused", 0) + 1
        if refused == 2:
            with open(os.environ["BENCH_REFUSED_TWICE"], "a", encoding="ascii") as notes:  # noqa: PTH123
                notes.write(f"{request.method} {request.url.path}\n")


def _settings(number: int, node: str) -> TunnelSettings:
    folder = Path(os.environ["BENCH_FOLDER"], node)
    folder.mkdir()
    subnets = os.environ["BENCH_SUBNETS"].split(",")
    zones = os.environ["BENCH_ZONES"].split(",")
    return load(
        TunnelSettings,
        {
            **os.environ,
            "NODE_NAME": node,
            "POD_NAME": f"agent-of-{node}",
            "KUBECONFIG": str(Path(os.environ["BENCH_KUBECONFIGS"], node)),
            "STUNNEL_CONF_PATH": str(folder / "stunnel.conf"),
            "KUBE_EFS_ZONE": zones[number % _ZONES],
            "KUBE_EFS_SUBNETS": subnets[number % _ZONES],
        },
    )


async def _run(names: Iterable[str]) -> None:
    settings = [_settings(number, name) for number, name in enumerate(names)]
    nodes = [asyncio.create_task(run._run(one)) for one in settings]  # noqa: SLF001 - all of it
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: [one.cancel() for one in nodes])
    await asyncio.gather(*nodes, return_exceptions=True)


def main() -> None:
    """Run the agents until SIGTERM."""
    # On nodes of their own, agents take no processor from the API server. Between sessions, Linux goes by the
    # niceness of the session, if it has one.
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE), encoding="ascii")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    configure("WARNING")
    places = vars(agent)
    places["DataPlanes"], places["read_flows"] = HandedOver, tuple
    vars(run)["TunnelAgent"] = _Agent
    vars(retrying)["_log_retry"] = _note_refusal
    asyncio.run(_run(os.environ["BENCH_NODES"].split(",")))


if __name__ == "__main__":
    main()
