"""The wanted tunnels of a node, each with its mount targets in order.

Different tasks write the inputs of the plan: the agent writes documents and which mount targets are down,
``on_demand`` writes reservations and certificates. All inputs are in one ``NodePlan``, which imports none of
its writers. After a change, the writer calls ``apply``, which computes the plan again and loads it into
stunnel. No task therefore reads the state of another task.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import SubnetId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.config_map import Served
from kube_efs.tunnels.mount_targets import (
    Candidate,
    Nearness,
    Reachability,
    choose_addresses,
    rank_candidates,
)
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Reservation, Reservations, TunnelSpec
from kube_efs.tunnels.stunnel.configuration import CertificateFile, TunnelService
from kube_efs.tunnels.stunnel.keeper import StunnelKeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTunnel:
    """A target, its mount targets, the nearest first, and its service, or the ``obstacle`` that prevents it.

    ``reservation`` is set for a tunnel on demand, whose name is that of its spec.
    """

    target: TunnelTarget
    candidates: tuple[Candidate, ...]
    service: TunnelService | None = None
    obstacle: str = ""
    leaving: bool = False
    reservation: Reservation | None = None


class NodePlan:
    """The current plan and its inputs; each input has one writer.

    ``served`` is None before the first document. ``reservations`` are on the disk and are served; ``wanted``
    are those after the next successful write. ``certificates`` are those of the reservations, by name.
    """

    def __init__(self, options: TunnelOptions, metrics: TunnelMetrics, keeper: StunnelKeeper) -> None:
        self._options = options
        self._metrics = metrics
        self._keeper = keeper
        self.served: Served | None = None
        self.reservations = Reservations()
        self.wanted = Reservations()
        self.certificates: Mapping[str, CertificateFile] = MappingProxyType({})
        self.reachability = Reachability()
        self.tunnels: tuple[PlannedTunnel, ...] = ()

    @property
    def targets(self) -> TunnelTargets:
        """The file systems of the ConfigMap."""
        return self.served.document if self.served else TunnelTargets()

    @property
    def config_map_ports(self) -> frozenset[int]:
        """The ports of the ConfigMap's tunnels, lingering ones included."""
        served = self.served or Served()
        return served.lingering_ports.union(target.port for target in served.document.targets.values())

    @property
    def on_demand_ports(self) -> frozenset[int]:
        """The reserved ports, also of reservations that are not on the disk yet.

        The calls for the latter have no answer yet, but repeating one gives the same port.
        """
        return self.reservations.ports | self.wanted.ports

    @property
    def services(self) -> Mapping[str, TunnelService]:
        """The services that stunnel must serve, by name."""
        return {tunnel.service.name: tunnel.service for tunnel in self.tunnels if tunnel.service}

    def apply(self) -> None:
        """Compute the plan again and load it into stunnel."""
        served = self.served or Served()
        self.tunnels = plan_config_map_tunnels(served, self.reachability, self._options, self.on_demand_ports)
        if self.reservations.tunnels:
            self.tunnels += plan_on_demand_tunnels(
                self.reservations, self.certificates, served, self.reachability, self._options
            )
        self._metrics.rejected_entries.set(len(served.rejections))
        self._keeper.set_services(self.services.values())

    async def wait_until_listening(self, name: str) -> None:
        """Wait until stunnel listens for this tunnel; raises TunnelError when it cannot."""
        await self._keeper.wait_until_listening(name)


def plan_on_demand_tunnels(
    reservations: Reservations,
    certificates: Mapping[str, CertificateFile],
    served: Served,
    reachability: Reachability,
    options: TunnelOptions,
) -> tuple[PlannedTunnel, ...]:
    """The plan for each tunnel on demand; a tunnel without a certificate has no service yet."""

    def planned(tunnel: Reservation) -> PlannedTunnel:
        spec = tunnel.spec
        target = TunnelTarget(file_system_id=spec.file_system_id, port=tunnel.port)
        certificate = certificates.get(tunnel.name)
        leaving = not tunnel.holders
        try:
            candidates = find_candidates(spec, served.document, options)
        except InvalidSetting as error:
            return PlannedTunnel(
                target=target, candidates=(), obstacle=str(error), leaving=leaving, reservation=tunnel
            )
        service = TunnelService(
            name=tunnel.name,
            file_system_id=spec.file_system_id,
            port=tunnel.port,
            addresses=choose_addresses(candidates, reachability.down),
            check_host=server_name(spec, options),
            ca_file=Path(spec.ca_file)
            if spec.ca_file
            else options.authorities(spec.region or options.region),
            certificate=certificate,
            checks_revocation=spec.checks_revocation,
        )
        return PlannedTunnel(
            target=target,
            candidates=candidates,
            service=service if certificate else None,
            obstacle="" if certificate else "there is no client certificate for it yet",
            leaving=leaving,
            reservation=tunnel,
        )

    return tuple(planned(tunnel) for _, tunnel in sorted(reservations.tunnels.items()))


def plan_config_map_tunnels(
    served: Served,
    reachability: Reachability,
    options: TunnelOptions,
    on_demand_ports: Collection[int] = (),
) -> tuple[PlannedTunnel, ...]:
    """The plan for each target of the document and each lingering one.

    A port of a tunnel on demand stays there: mounts depend on it, and with one port twice stunnel would
    serve no tunnel at all.
    """

    def planned(
        target: TunnelTarget, *, name: str, obstacle: str = "", leaving: bool = False
    ) -> PlannedTunnel:
        zones = served.document.zone_by_subnet
        candidates = rank_candidates(target, options.location, zones)
        addresses = choose_addresses(candidates, reachability.down)
        obstacle = obstacle if candidates else "the file system has no usable mount target"
        if target.port in on_demand_ports:
            obstacle = f"port {target.port} belongs to a tunnel on demand"
        service = TunnelService(
            name=name,
            file_system_id=target.file_system_id,
            port=target.port,
            addresses=addresses,
            check_host=dns_name(target.file_system_id, options.region, options.dns_suffix),
            ca_file=options.authorities(options.region),
        )
        return PlannedTunnel(
            target=target,
            candidates=candidates,
            service=None if obstacle else service,
            obstacle=obstacle,
            leaving=leaving,
        )

    def tunnels() -> Iterator[PlannedTunnel]:
        for target in served.current:
            yield planned(target, name=target.file_system_id)
        for target in served.lingering:
            # With the port in its name: the document may contain the file system again, with another port.
            yield planned(target, name=f"{target.file_system_id}-{target.port}", leaving=True)
        owners = {target.port: target.file_system_id for target in served.lingering}
        for target in served.waiting:
            obstacle = f"port {target.port} still belongs to {owners[target.port]}"
            yield planned(target, name=target.file_system_id, obstacle=obstacle)

    return tuple(tunnels())


def find_candidates(
    spec: TunnelSpec, targets: TunnelTargets, options: TunnelOptions
) -> tuple[Candidate, ...]:
    """The mount targets that can serve the spec, the best first; at least one.

    The mount targets of the ConfigMap come before DNS, because a tunnel can fail over between them, also to
    another zone. Raises InvalidSetting when the ID of the node's zone is needed and not known.
    """
    if spec.address is not None:
        return (_only(spec.address),)
    known = targets.targets.get(spec.file_system_id)
    if known and known.address_by_subnet and not spec.cross_account and _is_own_region(spec, options):
        location = options.location
        if spec.zone is not None:
            location = replace(location, subnets=frozenset(), zone=spec.zone)
        return rank_candidates(known, location, targets.zone_by_subnet)
    name = server_name(spec, options)
    zone = options.location.zone_id if spec.cross_account else spec.zone
    if spec.cross_account and zone is None:
        raise InvalidSetting(
            "is not set and the instance metadata does not contain it",
            field="KUBE_EFS_ZONE_ID",
            remedy="for file systems of other accounts set it to the ID of the node's zone, such as use1-az1",
        )
    return (_only(f"{zone}.{name}" if zone else name),)


def server_name(spec: TunnelSpec, options: TunnelOptions) -> str:
    """The name that the server's certificate must contain, whichever address the tunnel uses."""
    suffix = options.dns_suffix if _is_own_region(spec, options) else None
    return dns_name(spec.file_system_id, spec.region or options.region, suffix)


def _only(address: str) -> Candidate:
    return Candidate(address=address, subnet_id=SubnetId(""), zone=None, nearness=Nearness.OTHER_ZONE)


def _is_own_region(spec: TunnelSpec, options: TunnelOptions) -> bool:
    return spec.region in {None, options.region}
