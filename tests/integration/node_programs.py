"""The two processes of a node, ``kube-efs tunnel`` and ``kube-efs node``, with an embedded EFS."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import eventually, stunnels_of

from fake_efs.process import ChildProcess
from fake_efs.service import EmbeddedEfs
from kube_efs_lab.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrograms:
    """The addresses and directories of a node's processes."""

    folder: Path

    @property
    def csi_socket(self) -> Path:
        return self.folder / "csi.sock"

    @property
    def tunnel_socket(self) -> Path:
        return self.folder / "tunnel.sock"

    @property
    def stunnel_conf(self) -> Path:
        return self.folder / "stunnel.conf"

    def environment(self, efs: EmbeddedEfs, kubeconfig: Path) -> Mapping[str, str]:
        ports = on_demand_options(self.tunnel_socket).ports
        return {
            **efs.environment(),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HOME": str(self.folder),
            "KUBECONFIG": str(kubeconfig),
            "NODE_NAME": "node-1",
            "POD_NAMESPACE": "default",
            "CSI_ENDPOINT": f"unix://{self.csi_socket}",
            "STUNNEL_CONF_PATH": str(self.stunnel_conf),
            "KUBE_EFS_CA_FILE": str(efs.ca_file),
            "KUBE_EFS_TUNNEL_SOCKET": str(self.tunnel_socket),
            "KUBE_EFS_TUNNEL_PORTS": f"{ports.first}-{ports.last}",
            "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
            "KUBE_EFS_HEALTH_PORT": "0",
            "KUBE_EFS_VOLUME_METRICS": "true",
        }


@asynccontextmanager
async def node_programs(folder: Path, efs: EmbeddedEfs, kubeconfig: Path) -> AsyncIterator[NodePrograms]:
    """Both processes while the context is open; ``folder`` has a short name and may contain mounts."""
    programs = NodePrograms(folder=folder)
    environment = programs.environment(efs, kubeconfig)
    (folder / "exports").mkdir(parents=True)
    tunnel = Program("tunnel", environment, folder / "tunnel.log")
    node: ChildProcess | None = None
    try:
        await tunnel.start()
        runner = str(Path(__file__).with_name("node_runner.py"))
        node = await ChildProcess.start(
            *(sys.executable, runner, str(folder / "exports")),
            log_file=folder / "node.log",
            environment=environment,
        )
        await eventually(programs.csi_socket.is_socket, "the driver's socket")
        yield programs
    finally:
        if node:
            await node.stop(timeout_seconds=5)
        await tunnel.stop()
        for pid in await asyncio.to_thread(stunnels_of, programs.stunnel_conf):
            os.kill(pid, signal.SIGKILL)
