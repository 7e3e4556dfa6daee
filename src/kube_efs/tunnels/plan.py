"""The wanted tunnels of a node, each with its mount targets in order.

Different tasks write the inputs of the plan: the agent writes documents, which mount targets are down, and
the location of the node; ``on_demand`` writes reservations and certificates. All inputs are in one
``NodePlan``, which imports none of its writers. After a change, the writer calls ``apply``, which computes
the plan again and loads it into the data planes. No task therefore calls another one to learn its state.

A node can have a thousand tunnels on demand, and each new one changes the plan. ``apply`` therefore keeps the
planned tunnels whose inputs have not changed.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import SubnetId
from kube_efs.model.efs.targets import S3FilesTargets, TunnelTarget, TunnelTargets
from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.metrics import TunnelMetrics
from kube_efs.tunnels.changes import changed_keys
from kube_efs.tunnels.config_map import Served
from kube_efs.tunnels.data_plane import CertificateFile, TunnelService
from kube_efs.tunnels.data_planes import DataPlanes
from kube_efs.tunnels.mount_targets import (
    Candidate,
    Nearness,
    Reachability,
    choose_addresses,
    rank_candidates,
)
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Reservation, Reservations, TunnelSpec


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

    @property
    def certificate(self) -> CertificateFile | None:
        """The client certificate of its service."""
        return self.service.certificate if self.service else None


class NodePlan:
    """The current plan and its inputs; each input has one writer. ``options`` change in the location only.

    ``served`` is None before the first document. ``reservations`` are on the disk and are served; ``wanted``
    are those after the next successful write. ``certificates`` are those of the reservations, by name.
    """

    def __init__(self, options: TunnelOptions, metrics: TunnelMetrics, data_planes: DataPlanes) -> None:
        self.options = options
        self._metrics = metrics
        self._data_planes = data_planes
        self.served: Served | None = None
        self.reservations = Reservations()
        self.wanted = Reservations()
        self.certificates: Mapping[str, CertificateFile] = MappingProxyType({})
        self.reachability = Reachability()
        self.tunnels: tuple[PlannedTunnel, ...] = ()
        self.services: Mapping[str, TunnelService] = MappingProxyType({})
        self._of_config_map: tuple[PlannedTunnel, ...] = ()
        self._of_config_map_for: object = None
        self._on_demand: dict[str, PlannedTunnel] = {}
        self._on_demand_for: object = None
        self._planned_reservations: Mapping[str, Reservation] = {}
        self._planned_certificates: Mapping[str, CertificateFile] = {}

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

    def apply(self) -> None:
        """Plan the tunnels whose inputs have changed, and load all into the data planes.

        A certificate exists before the reservation of its tunnel, and then changes nothing.
        """
        has_changed = self._plan_config_map()
        if self._plan_on_demand() or has_changed:
            self.tunnels = (*self._of_config_map, *self._on_demand.values())
            self.services = {tunnel.service.name: tunnel.service for tunnel in self.tunnels if tunnel.service}
            self._data_planes.set_services(self.services.values())

    def _plan_config_map(self) -> bool:
        """Plan its tunnels after a change of an input, and the first time; returns whether it did."""
        served, ports = self.served or Served(), self.config_map_ports
        taken = ports and ports & self.on_demand_ports
        inputs = self.served, self.reachability.down, taken, self.options.location
        if inputs == self._of_config_map_for:
            return False
        self._of_config_map_for = inputs
        self._of_config_map = plan_config_map_tunnels(served, self.reachability, self.options, taken)
        self._metrics.rejected_entries.set(len(served.rejections))
        return True

    def _plan_on_demand(self) -> bool:
        """Plan the tunnels whose inputs have changed; returns whether there was one."""
        inputs = self.targets, self.reachability.down, self.options.location
        reservations, certificates = self.reservations.tunnels, dict(self.certificates)
        if inputs == self._on_demand_for:
            changed = changed_keys(self._planned_reservations, reservations)
            changed |= changed_keys(self._planned_certificates, certificates) & reservations.keys()
        else:
            changed = {*self._on_demand, *reservations}
        self._on_demand_for = inputs
        self._planned_reservations, self._planned_certificates = reservations, certificates
        if not changed:
            return False
        planned = self._on_demand
        for name in changed - reservations.keys():
            del planned[name]
        for name in changed & reservations.keys():
            last = planned.get(name)
            planned[name] = plan_on_demand_tunnel(
                reservations[name],
                certificates.get(name),
                self.targets,
                self.reachability,
                self.options,
                last=last.candidates if last else (),
            )
        self._on_demand = dict(sorted(planned.items()))
        return True

    async def wait_until_listening(self, name: str, port: int) -> None:
        """Wait until a data plane listens for this tunnel; raises TunnelError when it cannot."""
        await self._data_planes.wait_until_listening(name, port)


def plan_on_demand_tunnel(
    reservation: Reservation,
    certificate: CertificateFile | None,
    targets: TunnelTargets,
    reachability: Reachability,
    options: TunnelOptions,
    *,
    last: tuple[Candidate, ...] = (),
) -> PlannedTunnel:
    """The plan for a tunnel on demand; without a certificate it has no service yet.

    If its mount targets are not known any more, the ``last`` ones stay: mounts may use them.
    """
    spec = reservation.spec
    target = TunnelTarget(file_system_id=spec.file_system_id, port=reservation.port)
    leaving = not reservation.holders
    try:
        candidates = find_candidates(spec, targets, options)
    except InvalidSetting as error:
        if not last:
            return PlannedTunnel(
                target=target, candidates=(), obstacle=str(error), leaving=leaving, reservation=reservation
            )
        candidates = last
    ca_file = Path(spec.ca_file) if spec.ca_file else options.authorities(spec.region or options.region)
    service = TunnelService(
        name=reservation.name,
        file_system_id=spec.file_system_id,
        port=reservation.port,
        addresses=choose_addresses(candidates, reachability.down),
        check_host=server_name(spec, options),
        ca_file=ca_file,
        hashed_ca_directory=options.hashed_directory(ca_file),
        certificate=certificate,
        checks_revocation=spec.checks_revocation,
    )
    return PlannedTunnel(
        target=target,
        candidates=candidates,
        service=service if certificate else None,
        obstacle="" if certificate else "there is no client certificate for it yet",
        leaving=leaving,
        reservation=reservation,
    )


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
            hashed_ca_directory=options.hashed_directory(options.authorities(options.region)),
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
    if spec.kind.names_zones:
        return _find_by_zone_id(spec, targets.s3_files, options)
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


def _find_by_zone_id(
    spec: TunnelSpec, known: S3FilesTargets, options: TunnelOptions
) -> tuple[Candidate, ...]:
    """The mount targets of a file system of S3 Files: those of the ConfigMap, else the name in DNS."""
    location = options.location
    zone_id = spec.zone or location.zone_id
    if zone_id is None and location.zone is not None and _is_own_region(spec, options):
        zone_id = known.zone_ids.get(location.zone)
    if _is_own_region(spec, options) and (addresses := known.addresses.get(spec.file_system_id)):
        candidates = (
            Candidate(
                address=address,
                subnet_id=SubnetId(""),
                zone=zone,
                nearness=Nearness.OWN_ZONE if zone == zone_id else Nearness.OTHER_ZONE,
            )
            for zone, address in addresses.items()
        )
        return tuple(sorted(candidates, key=lambda one: (one.nearness, one.zone)))
    if zone_id is None:
        raise InvalidSetting(
            "is not set, and neither the instance metadata nor the labels of the Node contain it",
            field="KUBE_EFS_ZONE_ID",
            remedy="for S3 Files set it to the ID of the node's zone, such as use1-az1, or set azid or"
            " mounttargetip in the volume",
        )
    return (_only(f"{zone_id}.{server_name(spec, options)}"),)


def server_name(spec: TunnelSpec, options: TunnelOptions) -> str:
    """The name that the server's certificate must contain, whichever address the tunnel uses."""
    suffix = options.dns_suffix if _is_own_region(spec, options) else None
    return dns_name(spec.file_system_id, spec.region or options.region, suffix, kind=spec.kind)


def _only(address: str) -> Candidate:
    return Candidate(address=address, subnet_id=SubnetId(""), zone=None, nearness=Nearness.OTHER_ZONE)


def _is_own_region(spec: TunnelSpec, options: TunnelOptions) -> bool:
    return spec.region in {None, options.region}
