"""Which tunnels are asked for, by whom, and at which port: a value, and what it becomes.

Equal specs share a tunnel. While it exists its port is the same, and nobody else's. The port is chosen
from the spec, so that a tunnel that was closed and is asked for again mostly gets the port it had.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kube_efs.aws.credential_sources import CredentialSource
from kube_efs.model.errors import NoTunnelPort
from kube_efs.tunnels.on_demand.specs import Holder, TunnelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRange:
    """The ports for tunnels on demand, both ends included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def starting_at(self, key: str) -> Iterator[int]:
        """All ports of the range, from one on that the key determines."""
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])
        return (self.first + (start + step) % len(self) for step in range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A tunnel that was asked for; without holders it stays until nobody is connected.

    ``source`` is where the first credentials of its identity came from, and all later ones come from.
    """

    spec: TunnelSpec
    port: int
    holders: frozenset[Holder] = frozenset()
    source: CredentialSource | None = None

    @property
    def name(self) -> str:
        """The name of the service."""
        return self.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """All tunnels on demand of a node, by name."""

    tunnels: Mapping[str, Promise] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, tunnels: Iterable[Promise]) -> "Promises":
        """These tunnels."""
        return cls(tunnels=MappingProxyType({tunnel.name: tunnel for tunnel in tunnels}))

    @property
    def ports(self) -> frozenset[int]:
        """The ports that are given away."""
        return frozenset(tunnel.port for tunnel in self.tunnels.values())

    @property
    def unheld(self) -> Mapping[int, str]:
        """The names of the tunnels without holders, by their ports."""
        return {tunnel.port: name for name, tunnel in self.tunnels.items() if not tunnel.holders}

    @property
    def holders(self) -> frozenset[Holder]:
        """Everybody who holds a tunnel."""
        return frozenset(holder for tunnel in self.tunnels.values() for holder in tunnel.holders)

    def hold(
        self, spec: TunnelSpec, holder: Holder, *, ports: PortRange, avoid: Collection[int]
    ) -> "Promises":
        """With one more holder, and a tunnel for it at a port not to ``avoid`` if there was none.

        Raises NoTunnelPort.
        """
        name = spec.name
        tunnel = self.tunnels.get(name) or Promise(spec=spec, port=self._free_port(name, ports, avoid))
        return self._with(replace(tunnel, holders=tunnel.holders | {holder}))

    def sign_from(self, name: str, source: CredentialSource | None) -> "Promises":
        """With this source of credentials for a tunnel."""
        return self._with(replace(self.tunnels[name], source=source))

    def release(self, holders: Collection[Holder]) -> "Promises":
        """Without these holders; their tunnels stay."""
        gone = frozenset(holders)
        return Promises.of(replace(one, holders=one.holders - gone) for one in self.tunnels.values())

    def close(self, names: Collection[str]) -> "Promises":
        """Without these tunnels, but for those that are held."""
        return Promises.of(one for name, one in self.tunnels.items() if one.holders or name not in names)

    def _with(self, tunnel: Promise) -> "Promises":
        return Promises(tunnels=MappingProxyType({**self.tunnels, tunnel.name: tunnel}))

    def _free_port(self, name: str, ports: PortRange, avoid: Collection[int]) -> int:
        taken = self.ports.union(avoid)
        for port in ports.starting_at(name):
            if port not in taken:
                return port
        raise NoTunnelPort(
            "has no free port",
            field="KUBE_EFS_TUNNEL_PORTS",
            value=f"{ports.first}-{ports.last}",
            remedy="use a wider range",
        )
