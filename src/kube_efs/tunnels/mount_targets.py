"""The mount targets of a tunnel, their order, and which of them accept connections.

If an address does not accept a connection, stunnel itself uses the next one. The checks here only prevent
that every new connection tries a dead mount target first. One lost packet must not move a node to another
zone, so several rounds have to agree.
"""

import asyncio
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from kube_efs.event_loop import background
from kube_efs.model.efs.ids import SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget

NFS_PORT = 2049
# With three mount targets for each of a thousand file systems, all unreachable, a round takes 24 s. After
# 70 s, the agent would count as stuck.
_AT_ONCE = 256
# The resolver asks the next name server after 5 s.
_RESOLVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLocation:
    """The location of this node: the subnets of its network interfaces, and its zone, if known."""

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

    Unreachable ones stay in the list: they may be reachable again when stunnel connects.
    """
    return tuple(
        candidate.address for candidate in sorted(candidates, key=lambda one: one.address in unreachable)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """The addresses that count as down, and how many rounds in a row had the other result."""

    down: frozenset[str] = field(default_factory=frozenset)
    contrary_rounds: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def after(
        self, accepted: Mapping[str, bool], *, rounds_until_down: int, rounds_until_up: int
    ) -> "Reachability":
        """The state after one more round; addresses that were not tested are removed."""
        down: set[str] = set()
        contrary_rounds: dict[str, int] = {}
        for address, ok in accepted.items():
            was_down = address in self.down
            rounds = self.contrary_rounds.get(address, 0) + 1 if ok == was_down else 0
            flipped = rounds >= (rounds_until_up if was_down else rounds_until_down)
            if was_down != flipped:
                down.add(address)
            if rounds and not flipped:
                contrary_rounds[address] = rounds
        return Reachability(down=frozenset(down), contrary_rounds=MappingProxyType(contrary_rounds))


async def probe_addresses(
    addresses: Collection[str], *, timeout_seconds: float, port: int = NFS_PORT
) -> Mapping[str, bool]:
    """Which of the addresses accept a TCP connection within the time; hundreds are tried at the same time.

    A name accepts one if any of its addresses does.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def accepts(address: str) -> bool:
        async with slots:
            for family, destination in await _resolve(address, port):
                if await _accepts(family, destination, timeout_seconds):
                    return True
            return False

    ordered = tuple(addresses)
    # The names of one tenant, asked for in each round, must not keep others from being looked up.
    with background():
        results = await asyncio.gather(*map(accepts, ordered))
    return dict(zip(ordered, results, strict=True))


async def _resolve(address: str, port: int) -> Sequence[tuple[int, tuple[Any, ...]]]:
    """The family and destination of each address of a name; none if it cannot be resolved."""
    with suppress(ValueError):
        family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
        return [(family, (address, port))]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return ()
    return [(kind, destination) for kind, _, _, _, destination in found]


async def _accepts(family: int, destination: tuple[Any, ...], timeout_seconds: float) -> bool:
    # A kernel without the family refuses the socket itself.
    with suppress(OSError), socket.socket(family) as connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.get_running_loop().sock_connect(connection, destination)
        except TimeoutError:
            # On a node without free processors, the time can be up before the loop looks, though the kernel
            # has connected.
            connection.getpeername()
        return True
    return False
