"""A node with a real agent and a simulated kernel and stunnel; the agent can be killed at any step."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self, cast

from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client import CollectorRegistry

from kube_efs.aws.credential_sources import CredentialOptions, ProfileFiles
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.agent import TargetDocuments, TunnelAgent
from kube_efs.tunnels.data_plane import DataPlaneReport, ServiceFacts, TunnelService
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.on_demand.certificate import ClientKey
from kube_efs.tunnels.on_demand.tunnels import OnDemandTunnels
from kube_efs.tunnels.options import ClientInfo, OnDemandOptions, TunnelOptions
from kube_efs.tunnels.reservations import PortRange, TunnelSpec
from kube_efs.tunnels.sockets.detection import IdlePolicy
from kube_efs.tunnels.sockets.ports import PortReading

KEY = ClientKey(rsa.generate_private_key(65537, 1024))  # too short for anything but a quick test
# Above those of outgoing connections and of every other test, so that nothing listens there.
PORTS = PortRange(first=61001, last=61006)
IDLE = IdlePolicy(seconds=30, readings=3)
_HERE = "127.0.0.1"
_REGION = Region("us-east-1")
_NOWHERE = Path("/nowhere")

Answer = object


class Sight(Enum):
    """The result of a reading of the kernel's tables: complete, without existing connections, or an error."""

    CLEAR = "clear"
    BLIND = "blind"
    FAILED = "failed"


def spec(number: int) -> TunnelSpec:
    """One of several specs."""
    return TunnelSpec(
        file_system_id=FileSystemId("fs-0123456789abcdef0"),
        access_point_id=AccessPointId(f"fsap-{number:017x}"),
        region=_REGION,
        address=_HERE,
    )


def document(ports: Mapping[str, int]) -> TargetDocuments:
    """The text of the ConfigMap for these file systems and ports."""
    subnets = {"subnet-a": _HERE}
    entries = {
        name: {"stunnel_port": port, "mount_target_ip_by_subnet": subnets} for name, port in ports.items()
    }
    return TargetDocuments(targets=json.dumps({"efs_stunnel_targets": entries}))


def leads_to(service: TunnelService) -> str:
    """The destination of a service, without its name."""
    return service.name if service.certificate else service.file_system_id


@dataclass(frozen=True)
class Connection:
    """The connection of a mount to a port, and its expected destination."""

    port: int
    leads_to: str


class Stunnel:
    """Replaces the data planes: listens at once, and survives the agents."""

    def __init__(self) -> None:
        self.services: Mapping[str, TunnelService] = {}
        self.connections: list[Connection] = []
        self.refusal: Exception | None = None

    @property
    def report(self) -> DataPlaneReport:
        return DataPlaneReport(
            pids=(1,), loaded=self.services, pid_by_service=dict.fromkeys(self.services, 1)
        )

    @property
    def ports(self) -> dict[int, TunnelService]:
        return {service.port: service for service in self.services.values()}

    def set_services(self, services: Iterable[TunnelService]) -> None:
        self.services = {service.name: service for service in services}
        assert len(self.ports) == len(self.services), "a port twice: stunnel would listen on none"

    async def wait_until_listening(self, name: str, port: int) -> None:
        if self.refusal:
            raise self.refusal
        assert self.services[name].port == port

    async def find_services(self) -> list[TunnelService]:
        return [one for one in self.services.values() if not one.certificate]

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        return dict.fromkeys(names, ServiceFacts())

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        pass

    async def stop(self) -> None:
        self.services, self.connections = {}, []


class _AtOnce(ThreadPoolExecutor):
    """Runs threads synchronously, so that a run can be repeated exactly."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - as the real one does
            future.set_exception(error)
        return future


class _Documents:
    """Documents that the agent follows. Not a generator, which would have to be closed after a kill."""

    def __init__(self, documents: Iterable[TargetDocuments]) -> None:
        self._left = iter(documents)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TargetDocuments:
        for document in self._left:
            return document
        raise StopAsyncIteration


class Node:
    """The directory, kernel and stunnel of a node, and its current agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ca.pem").touch()
        self.stunnel = Stunnel()
        self.sight = Sight.CLEAR
        self.now = 0.0
        self.strangers: set[int] = set()
        self.options = TunnelOptions(
            region=_REGION,
            stunnel_path=Path("/bin/true"),
            conf_path=folder / "stunnel.conf",
            ca_file=folder / "ca.pem",
            on_demand=OnDemandOptions(
                socket_path=folder / "tunnel.sock",
                node="node-1",
                credentials=CredentialOptions(
                    region=_REGION, files=ProfileFiles(credentials=_NOWHERE, config=_NOWHERE)
                ),
                client_info=ClientInfo.of("k8s", "1.0"),
                ports=PORTS,
                idle=IDLE,
            ),
        )
        self.agent = self._next_agent()

    def _next_agent(self) -> TunnelAgent:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_AtOnce())
        agent = TunnelAgent(
            self.options,
            TunnelMetrics(CollectorRegistry()),
            clock=lambda: self.now,
            read=self.read,
            is_in_use=self.is_in_use,
        )
        agent._data_planes = agent._plan._data_planes = cast("DataPlanes", self.stunnel)
        agent._prober.probe_round = _no_probes  # type: ignore[method-assign]
        certificates = agent._certificates
        certificates._key = self._loop.create_task(_key())
        return agent

    @property
    def tunnels(self) -> OnDemandTunnels:
        assert self.agent._on_demand
        return self.agent._on_demand

    @property
    def known_ports(self) -> frozenset[int]:
        """The ports of stunnel, except those that a killed agent could not store."""
        planned = {one.target.port for one in self.agent._plan.tunnels}
        return frozenset(planned & self.stunnel.ports.keys())

    @property
    def certificates(self) -> set[str]:
        """The names of certificate files of tunnels, and of all other files."""
        folder = self.options.certificates_path
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def read(self, expected: Collection[int]) -> PortReading | None:
        """A reading of the kernel's tables."""
        listening = frozenset(self.stunnel.ports) | self.strangers
        if self.sight is Sight.FAILED or not listening.issuperset(expected):
            return None
        seen = [] if self.sight is Sight.BLIND else [one.port for one in self.stunnel.connections]
        return PortReading(connections=Counter(seen), busy=frozenset(seen), listening=listening)

    def is_in_use(self, port: int) -> bool | None:
        """A reading of the sockets of one port."""
        reading = self.read(())
        return None if reading is None else port in reading.busy | reading.listening

    def run(self, *operations: Awaitable[Answer], steps: int | None = None) -> Sequence[Answer]:
        """Run these concurrently; returns their answers or errors, None for unfinished ones."""
        tasks = [self._loop.create_task(_awaited(one)) for one in operations]
        if steps is None:
            self._loop.run_until_complete(asyncio.wait(tasks))
        for _ in range(steps or 0):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        return [(task.exception() or task.result()) if task.done() else None for task in tasks]

    async def push(self, ports: Mapping[str, int]) -> Answer:
        """Change the ConfigMap to this document."""

        await self.agent._follow_documents(_Documents([document(ports)]))
        return True

    async def look(self) -> Answer:
        await self.agent._check_tunnels()
        return True

    async def look_at_mount_targets(self) -> Answer:
        await self.agent._check_mount_targets()
        return True

    async def end(self) -> Answer:
        await self.agent._stop_data_planes()
        return True

    def follow(self) -> None:
        """Kill the agent, and start the next one."""
        self.close()
        self.agent = self._next_agent()
        self.run(self.agent._load_state())

    def close(self) -> None:
        """End all tasks of the agent."""
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(RuntimeError):
                cast("Any", task.get_coro()).close()
        self._loop.close()


async def _no_probes(*_: object, **__: object) -> None:
    pass


async def _key() -> ClientKey:
    return KEY


async def _awaited(operation: Awaitable[Answer]) -> Answer:
    return await operation
