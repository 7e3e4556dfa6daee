"""What an installation has besides what ``kube-efs render`` prints, from the operator's settings. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from kube_efs.operator.conditions import Component
from kube_efs.operator.manifests import Manifest, render_asset
from kube_efs.settings import InstalledSettings

_MONITORS: Final = {"efs-stunnel": Component.TUNNEL, "efs-csi-node": Component.NODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Variables of processes, and what these need then.

    ``observes`` gives the controller the permissions for usage and the status page; the pods of the parts
    that are ``open`` are read by Prometheus, for their metrics can be reached from outside of the node.
    """

    variables: Mapping[Component, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    observes: bool = False
    open: frozenset[Component] = frozenset()

    @classmethod
    def told(cls, settings: InstalledSettings) -> Self:
        """Those that these settings ask for."""
        opened = {Component.TUNNEL: settings.opens_tunnel, Component.NODE: settings.opens_node}
        return cls(
            variables={
                Component.CONTROLLER: settings.controller,
                Component.TUNNEL: settings.tunnel,
                Component.NODE: settings.node,
            },
            observes=settings.observes,
            open=frozenset(component for component, is_open in opened.items() if is_open),
        )


# Because the operator may only grant permissions that it has.
EVERYTHING: Final = Extras(observes=True, open=frozenset({Component.TUNNEL, Component.NODE}))


def optional_objects(extras: Extras, namespace: str) -> Iterator[Manifest]:
    """The objects that are asked for."""
    values = {"namespace": namespace}
    if extras.observes:
        yield from render_asset("observing-rbac", values)
    for monitor in render_asset("pod-monitors", values):
        if _MONITORS[monitor["spec"]["selector"]["matchLabels"]["component"]] in extras.open:
            yield monitor


def unrequested_objects(extras: Extras, namespace: str) -> tuple[Manifest, ...]:
    """Those that are not, and were perhaps before."""
    asked = [one["metadata"]["name"] for one in optional_objects(extras, namespace)]
    everything = optional_objects(EVERYTHING, namespace)
    return tuple(one for one in everything if one["metadata"]["name"] not in asked)
