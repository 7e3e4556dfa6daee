"""The processes of a node: ``kube-efs tunnel`` and ``kube-efs node``.

``__main__`` starts them without the module of the command line, whose memory every node would need for as
long as they run. Each imports only what it needs itself.
"""

import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kube_efs.exit_status import exit_status_of


def run_tunnel_process() -> int:
    """Manage the tunnels of this node; returns the exit status, or raises InvalidSetting."""
    if os.getpid() == 1:  # its end would end all processes of the container, stunnel too
        from kube_efs.tunnels.supervisor import supervise

        return supervise([sys.executable, "-m", "kube_efs", "tunnel"])

    from kube_efs import event_loop
    from kube_efs.telemetry.loading import load_libraries

    load_libraries()
    from kube_efs.settings.loading import load
    from kube_efs.settings.tunnel import TunnelSettings
    from kube_efs.telemetry.logging import configure
    from kube_efs.tunnels.run import run_tunnel

    settings = load(TunnelSettings)
    configure(settings.logging_level)
    event_loop.run(run_tunnel(settings))
    return 0


def run_node_process() -> int:
    """Mount volumes for the kubelet; returns the exit status, or raises InvalidSetting."""
    from kube_efs import event_loop
    from kube_efs.telemetry.loading import load_libraries

    load_libraries()
    from kube_efs.csi.run_node import run_node
    from kube_efs.settings.loading import load
    from kube_efs.settings.node import NodeSettings
    from kube_efs.telemetry.logging import configure

    settings = load(NodeSettings)
    configure(settings.logging_level)
    event_loop.run(run_node(settings))
    return 0


NODE_PROCESSES: Final[Mapping[str, Callable[[], int]]] = MappingProxyType(
    {"tunnel": run_tunnel_process, "node": run_node_process}
)


def main(name: str) -> int:
    """Run one of them by its name; returns the exit status."""
    return exit_status_of(NODE_PROCESSES[name])
