"""Which mount targets accept connections, judged over several rounds.

stunnel itself goes on to the next address when one does not accept; these verdicts only keep a dead one
from being tried first by every new connection. One lost packet must not move a node to another zone.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.tunnels.services import NFS_PORT

_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """The addresses that are held to be down, and how many rounds in a row spoke against each verdict."""

    down: frozenset[str] = field(default_factory=frozenset)
    doubts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def after(
        self, accepted: Mapping[str, bool], *, rounds_until_down: int, rounds_until_up: int
    ) -> "Reachability":
        """The verdicts after one more round; addresses that were not tested are forgotten."""
        down: set[str] = set()
        doubts: dict[str, int] = {}
        for address, ok in accepted.items():
            was_down = address in self.down
            doubt = self.doubts.get(address, 0) + 1 if ok == was_down else 0
            flipped = doubt >= (rounds_until_up if was_down else rounds_until_down)
            if was_down != flipped:
                down.add(address)
            if doubt and not flipped:
                doubts[address] = doubt
        return Reachability(down=frozenset(down), doubts=MappingProxyType(doubts))


async def try_addresses(
    addresses: Collection[str], *, timeout_seconds: float, port: int = NFS_PORT
) -> Mapping[str, bool]:
    """Which of the addresses accept a TCP connection within the time; all are tried at the same time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def accepts(address: str) -> bool:
        async with slots:
            try:
                async with asyncio.timeout(timeout_seconds):
                    _, writer = await asyncio.open_connection(address, port)
            except OSError:  # TimeoutError is one
                return False
            writer.close()
            return True

    ordered = tuple(addresses)
    return dict(zip(ordered, await asyncio.gather(*map(accepts, ordered)), strict=True))
