"""Under which names the mounts of this node hold their tunnels."""

from pathlib import Path
from urllib.parse import quote, unquote

from kube_efs.tunnels.demand_specs import Holder


def holder_of(volume_id: str, target: Path) -> Holder:
    """The name of one mount: its volume, without blanks, and its target."""
    return Holder(f"{quote(volume_id, safe=':/')} {target}")


def target_of(holder: Holder) -> Path | None:
    """The target in the name of a mount; None in the name of somebody else."""
    volume_id, _, target = holder.partition(" ")
    is_ours = target.startswith("/") and quote(unquote(volume_id), safe=":/") == volume_id
    return Path(target) if is_ours else None
