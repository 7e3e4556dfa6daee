"""Both data planes, each with its real processes.

That of the kernel needs a kernel with TLS. Elsewhere, its tests are skipped, and ``make kernel`` runs them.
The environment variable RELAY_PYTHON names another Python for its relay, with another OpenSSL.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.integration.tunnel_node import DEADLINE_SECONDS, eventually

from kube_efs.model.efs.ids import Region
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.data_plane import DataPlane, DataPlaneName, ServiceFacts, TunnelService
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.relay.keeper import RelayKeeper
from kube_efs.tunnels.relay.self_connection import kernel_tls_obstacle
from kube_efs.tunnels.stunnel.shards import StunnelShards
from tiny_ca.authority import Authority


@dataclass(slots=True)
class Plane:
    """A running data plane, and the authority that it trusts."""

    name: DataPlaneName
    plane: DataPlane
    authority: Authority
    folder: Path

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    async def serve(self, *services: TunnelService) -> None:
        """Serve exactly these."""
        wanted = {service.name: service for service in services}
        self.plane.set_services(services)
        await eventually(lambda: self.plane.report.loaded == wanted, f"{sorted(wanted)} are served")

    async def reload_or_replace(self, service: TunnelService) -> None:
        """Treat the process of the service as one that hangs, and wait until that is done."""
        before = self._loads()
        self.plane.reload_or_replace({service.port})
        await eventually(
            lambda: self.plane.report.leaving or self._loads() > before, "a reload or a successor"
        )

    def _loads(self) -> int:
        # stunnel logs "Configuration successful" before it closes its ports and binds them again.
        logs = (path.read_text() for path in self.folder.glob("*.log"))
        return sum(log.count(" bound to ") for log in logs)

    async def facts(self, service: TunnelService) -> ServiceFacts:
        return (await self.plane.read_facts({service.name}))[service.name]

    async def until_facts(
        self, service: TunnelService, are_expected: Callable[[ServiceFacts], bool]
    ) -> ServiceFacts:
        """The facts as soon as they are as expected."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not are_expected(facts := await self.facts(service)):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
        return facts


@pytest.fixture(scope="session", autouse=True)
def python_of_the_relay() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "executable", os.environ.get("RELAY_PYTHON", sys.executable))
        yield


@pytest.fixture(scope="session")
def obstacle() -> str:
    return asyncio.run(kernel_tls_obstacle(timeout_seconds=120))


@pytest.fixture
def folder() -> Iterator[Path]:
    # The path of a socket is short.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(params=list(DataPlaneName))
async def plane(request: pytest.FixtureRequest, folder: Path, obstacle: str) -> AsyncIterator[Plane]:
    name: DataPlaneName = request.param
    if name is DataPlaneName.KERNEL and obstacle:
        pytest.skip(f"{obstacle}; make kernel runs this")
    authority = Authority.create()
    (folder / "ca.pem").write_text(authority.pem)
    options = TunnelOptions(
        region=Region("us-east-1"),
        conf_path=folder / "stunnel.conf",
        retry_seconds=0.1,
        connect_timeout_seconds=5,
    )
    metrics = TunnelMetrics(CollectorRegistry())
    kind = StunnelShards if name is DataPlaneName.STUNNEL else RelayKeeper
    plane: DataPlane = kind(options, metrics, lambda: None)
    running = asyncio.create_task(plane.run())
    yield Plane(name=name, plane=plane, authority=authority, folder=folder)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await plane.stop()
