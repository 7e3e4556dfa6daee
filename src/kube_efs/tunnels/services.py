"""Which mount targets serve a tunnel, and in which order."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from kube_efs.model.file_systems import dns_name
from kube_efs.model.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.targets import TunnelTarget

NFS_PORT = 2049


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLocation:
    """Where this node is: the subnets of its network interfaces, its zone and that zone's id where known."""

    subnets: frozenset[SubnetId] = field(default_factory=frozenset)
    zone: ZoneName | None = None
    zone_id: ZoneName | None = None


class Nearness(IntEnum):
    """How far a mount target is from the node; the lower, the cheaper and faster."""

    OWN_SUBNET = 0
    OWN_ZONE = 1
    OTHER_ZONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mount target that could serve a tunnel of this node."""

    address: str
    subnet_id: SubnetId
    zone: ZoneName | None
    nearness: Nearness


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFile:
    """A client certificate with its key in a file; ``serial`` tells it from the next one there."""

    path: Path
    serial: int
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelService:
    """One service of stunnel: a loopback port that leads to the first address that accepts.

    ``name`` is the section's name. ``addresses`` may be names, which stunnel then looks up for each
    connection. ``check_host`` is the name the server's certificate must carry.
    """

    name: str
    file_system_id: FileSystemId
    port: int
    addresses: tuple[str, ...]
    check_host: str
    certificate: CertificateFile | None = None
    checks_revocation: bool = False


def rank_candidates(
    target: TunnelTarget, location: NodeLocation, zone_by_subnet: Mapping[SubnetId, ZoneName]
) -> tuple[Candidate, ...]:
    """The mount targets of a file system, nearest first; equally near ones by subnet id.

    A node that does not know its zone has the zones of its subnets.
    """
    own_zones = (
        {location.zone} if location.zone else {zone_by_subnet.get(subnet) for subnet in location.subnets}
    )

    def nearness(subnet: SubnetId) -> Nearness:
        zone = zone_by_subnet.get(subnet)
        if subnet in location.subnets:
            return Nearness.OWN_SUBNET
        return Nearness.OWN_ZONE if zone is not None and zone in own_zones else Nearness.OTHER_ZONE

    candidates = (
        Candidate(
            address=address, subnet_id=subnet, zone=zone_by_subnet.get(subnet), nearness=nearness(subnet)
        )
        for subnet, address in target.address_by_subnet.items()
    )
    return tuple(sorted(candidates, key=lambda candidate: (candidate.nearness, candidate.subnet_id)))


def choose_addresses(candidates: Collection[Candidate], unreachable: Collection[str]) -> tuple[str, ...]:
    """The addresses in the order to try them: reachable ones first, each group nearest first.

    Unreachable ones stay in the list: the verdict may be out of date when stunnel connects.
    """
    return tuple(
        candidate.address for candidate in sorted(candidates, key=lambda one: one.address in unreachable)
    )


def tunnel_service(
    target: TunnelTarget, addresses: tuple[str, ...], region: Region, dns_suffix: str | None, *, name: str
) -> TunnelService:
    """The service of a target; ``addresses`` are in the order to try them."""
    return TunnelService(
        name=name,
        file_system_id=target.file_system_id,
        port=target.port,
        addresses=addresses,
        check_host=dns_name(target.file_system_id, region, dns_suffix),
    )
