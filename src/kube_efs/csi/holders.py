"""Under which names the mounts of this node hold their tunnels."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, unquote

from kube_efs.model.csi_errors import InvalidArgument
from kube_efs.model.volume_handles import parse_volume_handle
from kube_efs.tunnels.on_demand.specs import Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMount:
    """A volume at a target of this node, whose path has no links."""

    volume_id: str
    target: Path

    @property
    def volume(self) -> str:
        """What the id means, whichever of its spellings it has: the same for what is one volume."""
        return _volume(self.volume_id)

    @property
    def holder(self) -> Holder:
        """The name: the volume, without blanks, and the target."""
        return Holder(f"{quote(self.volume_id, safe=':/')} {self.target}")


@lru_cache(maxsize=2048)
def _volume(volume_id: str) -> str:
    try:
        return str(replace(parse_volume_handle(volume_id), base=None))
    except InvalidArgument:
        return volume_id


def mount_of(holder: Holder) -> NodeMount | None:
    """The mount that has this name; None if it is the name of none."""
    volume_id, _, target = holder.partition(" ")
    mount = NodeMount(volume_id=unquote(volume_id), target=Path(target))
    return mount if mount.holder == holder and mount.target.is_absolute() else None
