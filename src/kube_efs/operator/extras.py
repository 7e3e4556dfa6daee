"""What an installation has besides what ``kube-efs render`` prints, from the operator's settings. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from kube_efs.operator.conditions import Part
from kube_efs.operator.manifests import Manifest, render_asset
from kube_efs.settings import InstalledSettings

_MONITORS: Final = {"efs-stunnel": Part.TUNNEL, "efs-csi-node": Part.NODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Variables of processes, and what these need then.

    ``observes`` gives the controller the permissions for usage and the status page; the pods of the parts
    that are ``open`` are read by Prometheus, for their metrics can be reached from outside of the node.
    """

    variables: Mapping[Part, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    observes: bool = False
    open: frozenset[Part] = frozenset()

    @classmethod
    def told(cls, settings: InstalledSettings) -> Self:
        """Those that these settings ask for."""
        opened = {Part.TUNNEL: settings.opens_tunnel, Part.NODE: settings.opens_node}
        return cls(
            variables={
                Part.CONTROLLER: settings.controller,
                Part.TUNNEL: settings.tunnel,
                Part.NODE: settings.node,
            },
            observes=settings.observes,
            open=frozenset(part for part, is_open in opened.items() if is_open),
        )


# Because the operator may only grant permissions that it has.
EVERYTHING: Final = Extras(observes=True, open=frozenset({Part.TUNNEL, Part.NODE}))


def extra_objects(extras: Extras, namespace: str) -> Iterator[Manifest]:
    """The objects that are asked for."""
    values = {"namespace": namespace}
    if extras.observes:
        yield from render_asset("observing-rbac", values)
    for monitor in render_asset("pod-monitors", values):
        if _MONITORS[monitor["spec"]["selector"]["matchLabels"]["component"]] in extras.open:
            yield monitor


def unasked_objects(extras: Extras, namespace: str) -> tuple[Manifest, ...]:
    """Those that are not, and were perhaps before."""
    asked = [one["metadata"]["name"] for one in extra_objects(extras, namespace)]
    everything = extra_objects(EVERYTHING, namespace)
    return tuple(one for one in everything if one["metadata"]["name"] not in asked)
