"""How much each volume holds and carries, and what uses it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kube_efs.report.options import VolumeOrder
from kube_efs.report.values import ClusterReport, NodeReport, PodReport, VolumeReport
from kube_efs.tunnels.status import TunnelStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeLoad:
    """A volume with the traffic of its tunnels, and the nodes and pods that use it.

    ``sent_bytes`` went to EFS and ``received_bytes`` came back, since the tunnels exist; None is unknown.
    If ``shares_tunnel``, other volumes use the same tunnels, and the figures are those of all of them.
    ``pods`` is None if they could not be read.
    """

    volume: VolumeReport
    sent_bytes: int | None
    received_bytes: int | None
    connections: int
    shares_tunnel: bool
    nodes: tuple[str, ...]
    pods: tuple[PodReport, ...] | None

    def value(self, order: VolumeOrder) -> float:
        """What decides about its place; unknown is least."""
        usage = self.volume.usage
        found: int | None = None
        match order:
            case VolumeOrder.SIZE if usage:
                found = usage.used_bytes
            case VolumeOrder.GROWTH if usage:
                found = usage.growth_bytes_a_day
            case VolumeOrder.TRAFFIC if self.sent_bytes is not None:
                found = self.sent_bytes + (self.received_bytes or 0)
            case VolumeOrder.CONNECTIONS:
                found = self.connections
        return float("-inf") if found is None else found


def volume_loads(report: ClusterReport, order: VolumeOrder = VolumeOrder.SIZE) -> tuple[VolumeLoad, ...]:
    """Each volume of the report, the first ones as ``order`` says."""
    tunnels = [(node, tunnel) for node in report.nodes for tunnel in node.tunnels]
    by_route: dict[_Route, list[tuple[NodeReport, TunnelStatus]]] = {}
    for node, tunnel in tunnels:
        by_route.setdefault(_route_of(tunnel), []).append((node, tunnel))
    volumes_of_route = Counter(map(_route, report.volumes))
    by_claim = _by_claim(report.pods) if report.pods is not None else None
    loads = (
        _load(one, by_route.get(_route(one), ()), volumes_of_route[_route(one)] > 1, by_claim)
        for one in report.volumes
    )
    return tuple(sorted(loads, key=lambda one: (-one.value(order), one.volume.claim, one.volume.name)))


# A tunnel of the ConfigMap is for all volumes with its port. A tunnel on demand is for those with its access
# point, or for those of the file system without one.
_Route = tuple[str, str, int | None]


def _route(volume: VolumeReport) -> _Route:
    return volume.file_system_id, volume.access_point_id, None if volume.access_point_id else volume.port


def _route_of(tunnel: TunnelStatus) -> _Route:
    return tunnel.file_system_id, tunnel.access_point_id, None if tunnel.on_demand else tunnel.port


def _by_claim(pods: Iterable[PodReport]) -> Mapping[str, tuple[PodReport, ...]]:
    ordered = sorted(pods, key=lambda one: (one.claim, one.namespace, one.name))
    return {claim: tuple(group) for claim, group in groupby(ordered, key=lambda one: one.claim)}


def _load(
    volume: VolumeReport,
    tunnels: Sequence[tuple[NodeReport, TunnelStatus]],
    shares_tunnel: bool,
    by_claim: Mapping[str, tuple[PodReport, ...]] | None,
) -> VolumeLoad:
    pods = None if by_claim is None else by_claim.get(volume.claim, ())
    in_use = {node.node for node, tunnel in tunnels if tunnel.holders or tunnel.connections}
    known = [tunnel for _, tunnel in tunnels if tunnel.sent_bytes is not None]
    return VolumeLoad(
        volume=volume,
        sent_bytes=sum(one.sent_bytes or 0 for one in known) if known else None,
        received_bytes=sum(one.received_bytes or 0 for one in known) if known else None,
        connections=sum(tunnel.connections for _, tunnel in tunnels),
        shares_tunnel=shares_tunnel,
        nodes=tuple(sorted(in_use if pods is None else {one.node for one in pods if one.node})),
        pods=pods,
    )
