"""Which node this is, and where."""

from dataclasses import dataclass

from kube_efs.model.efs.ids import Region, ZoneName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The ID and the location of this node; None for unknown parts.

    ``node_id`` is the instance's id, where there is one. ``dns_suffix`` None is the region's own.
    """

    node_id: str
    region: Region | None = None
    zone: ZoneName | None = None
    zone_id: str | None = None
    dns_suffix: str | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """The names of the zone; the ID, which is the same in all accounts, comes first."""
        return tuple(name for name in (self.zone_id, self.zone) if name)
