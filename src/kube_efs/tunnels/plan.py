"""The tunnels a node should have, each with its mount targets in order."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from kube_efs.model.errors import InvalidSetting
from kube_efs.model.file_systems import dns_name
from kube_efs.model.targets import TunnelTarget
from kube_efs.tunnels.config_map import Served
from kube_efs.tunnels.mount_targets import Candidate, Reachability, choose_addresses, rank_candidates
from kube_efs.tunnels.on_demand.routes import find_candidates, server_name
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.promises import Promise, Promises
from kube_efs.tunnels.stunnel.configuration import CertificateFile, TunnelService


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
            obstacle = f"port {target.port} is that of a tunnel on demand"
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
            obstacle = f"port {target.port} is still that of {owners[target.port]}"
            yield planned(target, name=target.file_system_id, obstacle=obstacle)

    return tuple(tunnels())
