"""Under which names the mounts of this node hold their tunnels."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from kube_efs.tunnels.demand_specs import Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMount:
    """A volume at a target of this node, whose path has no links."""

    volume_id: str
    target: Path

    @property
    def holder(self) -> Holder:
        """The name: the volume, without blanks, and the target."""
        return Holder(f"{quote(self.volume_id, safe=':/')} {self.target}")


def mount_of(holder: Holder) -> NodeMount | None:
    """The mount that has this name; None if it is the name of none."""
    volume_id, _, target = holder.partition(" ")
    mount = NodeMount(volume_id=unquote(volume_id), target=Path(target))
    return mount if mount.holder == holder and mount.target.is_absolute() else None
