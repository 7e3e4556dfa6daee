"""``kube-efs node`` as it is, except the program ``mount``: it binds a directory and does not mount NFS.

The mount table is the kernel's, with a line for each volume. Each reading of it is counted in a file.
"""

import asyncio
import os

from kube_efs.telemetry.loading import load_libraries

_READINGS = os.environ["BENCH_READINGS"]


def main() -> None:
    """As the command does it, and with no library that it does not load."""
    load_libraries()
    from kube_efs.csi.run_node import run_node  # noqa: PLC0415
    from kube_efs.mounts.mount import SystemMounter  # noqa: PLC0415
    from kube_efs.mounts.mountinfo import read_once  # noqa: PLC0415
    from kube_efs.mounts.table import MountTable  # noqa: PLC0415
    from kube_efs.settings.loading import load  # noqa: PLC0415
    from kube_efs.settings.node import NodeSettings  # noqa: PLC0415
    from kube_efs.telemetry.logging import configure  # noqa: PLC0415

    def read_and_count() -> tuple[bytes, bool]:
        with open(_READINGS, "ab", buffering=0) as counted:  # noqa: PTH123 - as little as can be beside the reading
            counted.write(b"\n")
        return read_once()

    settings = load(NodeSettings)
    configure(settings.logging_level)
    mounter = SystemMounter(program=os.environ["BENCH_MOUNT"], table=MountTable(read=read_and_count))
    asyncio.run(run_node(settings, mounter))


if __name__ == "__main__":
    main()
