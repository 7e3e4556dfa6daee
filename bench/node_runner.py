"""``kube-efs node`` without the kernel's mounts: all that it does for a volume but mount(8)."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

from kube_efs.mounts.mountinfo import MountEntry, parse_mountinfo
from kube_efs.telemetry.loading import load_logging


class MounterWithoutKernel:
    """Notes what it is to mount, and says afterwards that it is mounted."""

    def __init__(self) -> None:
        self._mounted: dict[Path, str] = {}
        self._ids = itertools.count(1)

    async def mount(self, source: str, target: Path, options: str) -> None:
        """Note it."""
        self._mounted[target] = f"{next(self._ids)} 0 0:99 / {target} rw,relatime - nfs4 {source} {options}\n"

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        """Forget it; there is nobody to force."""
        del force, lazy
        self._mounted.pop(target, None)

    def mounts(self) -> Sequence[MountEntry]:
        """All that was noted, from lines such as the kernel's."""
        return parse_mountinfo("".join(self._mounted.values()))


def main() -> None:
    """As the command does it, and with all that it has imported."""
    load_logging()
    from kube_efs.csi.run_node import run_node  # noqa: PLC0415
    from kube_efs.settings import NodeSettings, load  # noqa: PLC0415
    from kube_efs.telemetry.logging import configure  # noqa: PLC0415

    settings = load(NodeSettings)
    configure(settings.logging_level)
    asyncio.run(run_node(settings, MounterWithoutKernel()))


if __name__ == "__main__":
    main()
