"""What carries the connections of mounts: the contract between the agent and a data plane, as values.

A data plane listens on a loopback port for each service, and carries each connection over TLS to a mount
target. There are two: ``stunnel`` encrypts in its own processes; with ``relay``, the kernel encrypts. The
agent knows only this contract, and ``data_planes`` decides which of the two serves which port.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import KubeEfsError
from kube_efs.tunnels.sockets.ports import PortReading


class DataPlaneName(StrEnum):
    """The two data planes."""

    STUNNEL = "stunnel"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaneChoice:
    """The data plane of new tunnels; ``reason`` is why ``auto`` did not choose the kernel's."""

    name: DataPlaneName
    reason: str = ""


STUNNEL: Final = DataPlaneChoice(name=DataPlaneName.STUNNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFile:
    """A client certificate with its key in a file; ``serial`` distinguishes it from the next one there."""

    path: Path
    serial: int
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelService:
    """A loopback port that leads to the first address that accepts.

    ``name`` is unique on the node. ``addresses`` may be names, which are then looked up for each connection.
    ``check_host`` is the name the server's certificate must carry, and an authority in ``ca_file`` must have
    signed it. ``hashed_ca_directory`` has the same authorities under the names that openssl-rehash(1) gives.
    """

    name: str
    file_system_id: FileSystemId
    port: int
    addresses: tuple[str, ...]
    check_host: str
    ca_file: Path
    # Only how stunnel reads the authorities; which they are is in ca_file. The relay does not know it.
    hashed_ca_directory: Path | None = field(default=None, compare=False)
    certificate: CertificateFile | None = None
    checks_revocation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a service has carried since its data plane serves it, probes included."""

    connections: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """What is known about the last connections of a service.

    ``reason`` is why the last one failed, empty when it did not; ``address`` to ``peer`` are of the last good
    one. ``peer`` is the subject of the server's certificate. ``traffic`` is None if the data plane does not
    count it.
    """

    address: str = ""
    tls_version: str = ""
    cipher: str = ""
    peer: str = ""
    reason: str = ""
    traffic: Traffic | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaneReport:
    """The processes of a data plane, and what they serve.

    ``loaded`` are the services that listen, ``pid_by_service`` the process of each, ``left_out`` why others
    do not; all by name. ``pids`` are the running stunnels. ``relay_pid`` is the relay, and those in
    ``leaving`` are earlier ones, which only carry the connections that they have and end with the last one.
    """

    pids: tuple[int, ...] = ()
    relay_pid: int | None = None
    leaving: tuple[int, ...] = ()
    loaded: Mapping[str, TunnelService] = field(default_factory=lambda: MappingProxyType({}))
    pid_by_service: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    left_out: Mapping[str, KubeEfsError] = field(default_factory=lambda: MappingProxyType({}))


class DataPlane(Protocol):
    """The processes that serve tunnels. They survive the agent, and ``run`` takes them over."""

    @property
    def report(self) -> DataPlaneReport:
        """The current state."""

    @property
    def is_running(self) -> bool:
        """Whether every wanted service has a process."""

    def set_services(self, services: Iterable[TunnelService]) -> None:
        """Set the services that must be served; ``run`` loads them as soon as possible."""

    def reload_or_replace(self, ports: Collection[int]) -> None:
        """Make the processes of these ports accept again, and replace those that do not: they hang."""

    def merge(self, reading: PortReading | None, *, now: float) -> None:
        """End processes that others can replace, without a change for ports that are in use."""

    async def find_ports(self) -> frozenset[int]:
        """The ports of the running processes, also before ``run`` has taken them over."""

    async def find_services(self) -> Collection[TunnelService]:
        """Those of the running processes without a client certificate, also before ``run`` has taken over."""

    async def read_facts(self, names: Collection[str]) -> Mapping[str, ServiceFacts]:
        """The facts about these services; the same object as before while nothing has changed."""

    async def run(self) -> None:
        """Take over running processes and serve the wanted services; ends no process when cancelled."""

    async def stop(self) -> None:
        """End all processes, and with them every connection, in less than 5 s."""
