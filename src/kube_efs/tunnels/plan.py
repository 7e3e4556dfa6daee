"""The tunnels a node should have, each with its mount targets in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from kube_efs.model.targets import TunnelTarget
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reachability import Reachability
from kube_efs.tunnels.served import Served
from kube_efs.tunnels.services import (
    Candidate,
    TunnelService,
    choose_addresses,
    rank_candidates,
    tunnel_service,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTunnel:
    """A target, its mount targets from the nearest on, and its service unless ``obstacle`` says why not."""

    target: TunnelTarget
    candidates: tuple[Candidate, ...]
    service: TunnelService | None = None
    obstacle: str = ""
    leaving: bool = False


def make_plan(
    served: Served, reachability: Reachability, options: TunnelOptions
) -> tuple[PlannedTunnel, ...]:
    """What to do for each target of the document and each lingering one."""

    def planned(
        target: TunnelTarget, *, name: str, obstacle: str = "", leaving: bool = False
    ) -> PlannedTunnel:
        zones = served.document.zone_by_subnet
        candidates = rank_candidates(target, options.location, zones)
        addresses = choose_addresses(candidates, reachability.down)
        obstacle = obstacle if candidates else "the file system has no usable mount target"
        service = tunnel_service(target, addresses, options.region, options.dns_suffix, name=name)
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
        for one in served.lingering:
            # A name of its own: the file system may be back in the document with another port.
            name = f"{one.target.file_system_id}-{one.target.port}"
            yield planned(one.target, name=name, leaving=True)
        owners = {one.target.port: one.target.file_system_id for one in served.lingering}
        for target in served.waiting:
            obstacle = f"port {target.port} is still that of {owners[target.port]}"
            yield planned(target, name=target.file_system_id, obstacle=obstacle)

    return tuple(tunnels())
