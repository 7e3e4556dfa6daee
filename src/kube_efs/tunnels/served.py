"""What a node serves, as the documents come and go.

A tunnel that somebody still uses is never closed, and its port is never given to another: a mounted
volume would then read somebody else's data. So what leaves the document lingers until it has had no
connection for several rounds, since a mounted volume may just be connecting again, and a newcomer to
its port waits that long.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kube_efs.model.errors import InvalidValue
from kube_efs.model.targets import Rejection, TunnelTarget, TunnelTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Lingering:
    """A tunnel that is no longer asked for, and for how many rounds it has had no connection."""

    target: TunnelTarget
    idle_rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The last good document, what could not be taken from it, and what outlives it."""

    document: TunnelTargets = field(default_factory=TunnelTargets)
    rejections: tuple[Rejection, ...] = ()
    lingering: tuple[Lingering, ...] = ()

    @property
    def waiting(self) -> tuple[TunnelTarget, ...]:
        """Targets of the document whose port still belongs to a lingering tunnel."""
        held = self._held_ports()
        return tuple(target for target in self.document.targets.values() if target.port in held)

    @property
    def current(self) -> tuple[TunnelTarget, ...]:
        """Targets of the document that can be served."""
        held = self._held_ports()
        return tuple(target for target in self.document.targets.values() if target.port not in held)

    def _held_ports(self) -> frozenset[int]:
        return frozenset(one.target.port for one in self.lingering)


def follow(served: Served, document: TunnelTargets, rejections: Iterable[Rejection]) -> Served:
    """What to serve after a new document."""
    document, rejections = _keep_known(served.document, document, tuple(rejections))
    wanted = {_identity(target) for target in document.targets.values()}
    lingering = (*served.lingering, *(Lingering(target=one) for one in served.current))
    return Served(
        document=document,
        rejections=rejections,
        lingering=tuple(one for one in lingering if _identity(one.target) not in wanted),
    )


def release(served: Served, busy_ports: Collection[int], *, rounds_until_closed: int) -> Served:
    """After one more round: without the lingering tunnels that have been idle for long enough."""
    aged = (
        replace(one, idle_rounds=0 if one.target.port in busy_ports else one.idle_rounds + 1)
        for one in served.lingering
    )
    return replace(served, lingering=tuple(one for one in aged if one.idle_rounds < rounds_until_closed))


def _identity(target: TunnelTarget) -> tuple[str, int]:
    return target.file_system_id, target.port


def _keep_known(
    before: TunnelTargets, document: TunnelTargets, rejections: tuple[Rejection, ...]
) -> tuple[TunnelTargets, tuple[Rejection, ...]]:
    """A document in which an entry that has become unreadable stays as it was, port included."""
    unreadable = {rejection.entry for rejection in rejections}
    kept = {fs: target for fs, target in before.targets.items() if fs in unreadable}
    owners = {target.port: fs for fs, target in kept.items()}
    intruders = {fs: target for fs, target in document.targets.items() if target.port in owners}
    refused = tuple(
        Rejection(
            entry=fs,
            error=InvalidValue(
                f"is the port of {owners[target.port]}", field=f"{fs}.stunnel_port", value=target.port
            ),
        )
        for fs, target in intruders.items()
    )
    targets = {fs: target for fs, target in document.targets.items() if fs not in intruders} | kept
    return replace(document, targets=MappingProxyType(targets)), (*rejections, *refused)
