"""The tunnels a node should have, each with its mount targets in order.

What the plan follows from is written by different tasks: documents by the agent, promises by the tunnels on
demand, certificates by their renewal, verdicts on mount targets by the rounds over them. All of it is in one
``NodePlan``, below all of its writers. After a change its writer calls ``apply``: the plan is
computed again, and stunnel follows. So no task asks another one for its state.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
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
from kube_efs.tunnels.promises import Promise, Promises, TunnelSpec
from kube_efs.tunnels.stunnel.configuration import CertificateFile, TunnelService
from kube_efs.tunnels.stunnel.keeper import StunnelKeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTunnel:
    """A target, its mount targets from the nearest on, and its service unless ``obstacle`` says why not.

    ``promise`` is set for a tunnel on demand, whose name is that of its spec.
    """

    target: TunnelTarget
    candidates: tuple[Candidate, ...]
    service: TunnelService | None = None
    obstacle: str = ""
    leaving: bool = False
    promise: Promise | None = None


class NodePlan:
    """The plan of the moment, and what it follows from; each field has one writer.

    ``served`` is None before there was any document. ``promises`` are on the disk and are served;
    ``wanted`` are those as they will be as soon as the disk lets them. ``certificates`` are those of the
    promises, by name.
    """

    def __init__(self, options: TunnelOptions, metrics: TunnelMetrics, keeper: StunnelKeeper) -> None:
        self._options = options
        self._metrics = metrics
        self._keeper = keeper
        self.served: Served | None = None
        self.promises = Promises()
        self.wanted = Promises()
        self.certificates: Mapping[str, CertificateFile] = MappingProxyType({})
        self.reachability = Reachability()
        self.tunnels: tuple[PlannedTunnel, ...] = ()

    @property
    def targets(self) -> TunnelTargets:
        """The file systems of the ConfigMap."""
        return self.served.document if self.served else TunnelTargets()

    @property
    def reserved_ports(self) -> frozenset[int]:
        """The ports of the ConfigMap's tunnels, those that are about to go included."""
        served = self.served or Served()
        return served.lingering_ports.union(target.port for target in served.document.targets.values())

    @property
    def promised_ports(self) -> frozenset[int]:
        """The ports that are promised, and those that will be as soon as the disk lets them.

        Who asked for the latter is not answered yet, but asking again gives the same port.
        """
        return self.promises.ports | self.wanted.ports

    @property
    def services(self) -> Mapping[str, TunnelService]:
        """What stunnel is to listen for, by name."""
        return {tunnel.service.name: tunnel.service for tunnel in self.tunnels if tunnel.service}

    def apply(self) -> None:
        """Compute the plan again and load it into stunnel."""
        served = self.served or Served()
        self.tunnels = make_plan(served, self.reachability, self._options, self.promised_ports)
        if self.promises.tunnels:
            self.tunnels += plan_promises(
                self.promises, self.certificates, served, self.reachability, self._options
            )
        self._metrics.rejected_entries.set(len(served.rejections))
        self._keeper.want(self.services.values())

    async def listening(self, name: str) -> None:
        """Wait until stunnel listens for this tunnel; raises TunnelError when it cannot."""
        await self._keeper.listening(name)


def plan_promises(
    promises: Promises,
    certificates: Mapping[str, CertificateFile],
    served: Served,
    reachability: Reachability,
    options: TunnelOptions,
) -> tuple[PlannedTunnel, ...]:
    """What to do for each tunnel on demand; one waits until it has a certificate."""

    def planned(tunnel: Promise) -> PlannedTunnel:
        spec = tunnel.spec
        target = TunnelTarget(file_system_id=spec.file_system_id, port=tunnel.port)
        certificate = certificates.get(tunnel.name)
        leaving = not tunnel.holders
        try:
            candidates = find_candidates(spec, served.document, options)
        except InvalidSetting as error:
            return PlannedTunnel(
                target=target, candidates=(), obstacle=str(error), leaving=leaving, promise=tunnel
            )
        service = TunnelService(
            name=tunnel.name,
            file_system_id=spec.file_system_id,
            port=tunnel.port,
            addresses=choose_addresses(candidates, reachability.down),
            check_host=server_name(spec, options),
            certificate=certificate,
            checks_revocation=spec.checks_revocation,
        )
        return PlannedTunnel(
            target=target,
            candidates=candidates,
            service=service if certificate else None,
            obstacle="" if certificate else "there is no client certificate for it yet",
            leaving=leaving,
            promise=tunnel,
        )

    return tuple(planned(tunnel) for _, tunnel in sorted(promises.tunnels.items()))


def make_plan(
    served: Served,
    reachability: Reachability,
    options: TunnelOptions,
    promised_ports: Collection[int] = (),
) -> tuple[PlannedTunnel, ...]:
    """What to do for each target of the document and each lingering one.

    Ports of tunnels on demand are theirs: mounts hold them, and a port twice would make stunnel serve none.
    """

    def planned(
        target: TunnelTarget, *, name: str, obstacle: str = "", leaving: bool = False
    ) -> PlannedTunnel:
        zones = served.document.zone_by_subnet
        candidates = rank_candidates(target, options.location, zones)
        addresses = choose_addresses(candidates, reachability.down)
        obstacle = obstacle if candidates else "the file system has no usable mount target"
        if target.port in promised_ports:
            obstacle = f"port {target.port} belongs to a tunnel on demand"
        service = TunnelService(
            name=name,
            file_system_id=target.file_system_id,
            port=target.port,
            addresses=addresses,
            check_host=dns_name(target.file_system_id, options.region, options.dns_suffix),
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
            # A name of its own: the file system may be back in the document with another port.
            yield planned(target, name=f"{target.file_system_id}-{target.port}", leaving=True)
        owners = {target.port: target.file_system_id for target in served.lingering}
        for target in served.waiting:
            obstacle = f"port {target.port} still belongs to {owners[target.port]}"
            yield planned(target, name=target.file_system_id, obstacle=obstacle)

    return tuple(tunnels())


def find_candidates(
    spec: TunnelSpec, targets: TunnelTargets, options: TunnelOptions
) -> tuple[Candidate, ...]:
    """What could serve the spec, the best first; never none.

    The mount targets that the cluster's controller has found come before DNS, since a tunnel can then turn
    to the next one, in another zone too. Raises InvalidSetting when the id of the node's zone is needed and
    not known.
    """
    if spec.address is not None:
        return (_only(spec.address),)
    known = targets.targets.get(spec.file_system_id)
    if known and known.address_by_subnet and not spec.cross_account and _is_own_region(spec, options):
        place = options.location
        if spec.zone is not None:
            place = replace(place, subnets=frozenset(), zone=spec.zone)
        return rank_candidates(known, place, targets.zone_by_subnet)
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
    """The name that the certificate of the server must carry, whatever leads there."""
    suffix = options.dns_suffix if _is_own_region(spec, options) else None
    return dns_name(spec.file_system_id, spec.region or options.region, suffix)


def _only(address: str) -> Candidate:
    return Candidate(address=address, subnet_id=SubnetId(""), zone=None, nearness=Nearness.OTHER_ZONE)


def _is_own_region(spec: TunnelSpec, options: TunnelOptions) -> bool:
    return spec.region in {None, options.region}
