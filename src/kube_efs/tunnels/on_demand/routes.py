"""Where the tunnel of a spec leads to: an address that was given, known mount targets, or the DNS name."""

import asyncio
import ipaddress
import socket
from contextlib import suppress
from dataclasses import replace

from kube_efs.model.errors import InvalidSetting, TunnelNotReady
from kube_efs.model.file_systems import dns_name
from kube_efs.model.ids import Region, SubnetId
from kube_efs.model.targets import TunnelTargets
from kube_efs.tunnels.mount_targets import NFS_PORT, Candidate, Nearness, rank_candidates
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.promises import TunnelSpec

_RESOLVE_SECONDS = 3.0


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
    return (_only(_name_of(spec, options)),)


def server_name(spec: TunnelSpec, options: TunnelOptions) -> str:
    """The name that the certificate of the server must carry, whatever leads there."""
    region: Region = spec.region or options.region
    return dns_name(
        spec.file_system_id, region, options.dns_suffix if _is_own_region(spec, options) else None
    )


async def check_resolves(candidate: Candidate) -> None:
    """Nothing when the candidate is an address or a name that DNS knows, else raises TunnelNotReady."""
    with suppress(ValueError):
        ipaddress.ip_address(candidate.address)
        return
    loop = asyncio.get_running_loop()
    reason = f"is not answered by DNS within {_RESOLVE_SECONDS:g} s"
    with suppress(TimeoutError):
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await loop.getaddrinfo(candidate.address, NFS_PORT, type=socket.SOCK_STREAM)
                return
        except socket.gaierror as error:
            reason = f"is not known to DNS ({error.strerror})"
    raise TunnelNotReady(
        reason,
        field="mount target",
        value=candidate.address,
        remedy="see that the file system has a mount target in this network, or name one by its address",
    )


def _only(address: str) -> Candidate:
    return Candidate(address=address, subnet_id=SubnetId(""), zone=None, nearness=Nearness.OTHER_ZONE)


def _is_own_region(spec: TunnelSpec, options: TunnelOptions) -> bool:
    return spec.region in {None, options.region}


def _name_of(spec: TunnelSpec, options: TunnelOptions) -> str:
    name = server_name(spec, options)
    zone = options.location.zone_id if spec.cross_account else spec.zone
    if spec.cross_account and zone is None:
        raise InvalidSetting(
            "is not set and the instance does not tell",
            field="KUBE_EFS_ZONE_ID",
            remedy="for file systems of other accounts set it to the id of the node's zone, such as use1-az1",
        )
    return f"{zone}.{name}" if zone else name
