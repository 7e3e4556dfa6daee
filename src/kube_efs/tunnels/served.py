"""What a node serves, as the documents come and go.

A tunnel that somebody still uses is never closed, and its port is never given to another: a mounted
volume would then read somebody else's data. So what leaves the document lingers until nobody uses it any
more, and a newcomer to its port waits that long.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kube_efs.model.errors import InvalidValue
from kube_efs.model.targets import Rejection, TunnelTarget, TunnelTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The last good document, what could not be taken from it, and what outlives it."""

    document: TunnelTargets = field(default_factory=TunnelTargets)
    rejections: tuple[Rejection, ...] = ()
    lingering: tuple[TunnelTarget, ...] = ()

    @property
    def waiting(self) -> tuple[TunnelTarget, ...]:
        """Targets of the document whose port still belongs to a lingering tunnel."""
        held = self.lingering_ports
        return tuple(target for target in self.document.targets.values() if target.port in held)

    @property
    def current(self) -> tuple[TunnelTarget, ...]:
        """Targets of the document that can be served."""
        held = self.lingering_ports
        return tuple(target for target in self.document.targets.values() if target.port not in held)

    @property
    def lingering_ports(self) -> frozenset[int]:
        """The ports that are not given to another yet."""
        return frozenset(target.port for target in self.lingering)


def follow(served: Served, document: TunnelTargets, rejections: Iterable[Rejection]) -> Served:
    """What to serve after a new document."""
    document, rejections = _keep_known(served.document, document, tuple(rejections))
    wanted = {_identity(target) for target in document.targets.values()}
    lingering = (*served.lingering, *served.current)
    return Served(
        document=document,
        rejections=rejections,
        lingering=tuple(target for target in lingering if _identity(target) not in wanted),
    )


def release(served: Served, unused_ports: Collection[int]) -> Served:
    """Without the lingering tunnels of these ports."""
    return replace(
        served, lingering=tuple(target for target in served.lingering if target.port not in unused_ports)
    )


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
