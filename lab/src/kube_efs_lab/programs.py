"""The processes of kube-efs on an embedded cluster, and the ordinary settings of each."""

import os
import random
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fake_efs.errors import PlatformError
from fake_efs.process import Starter
from fake_efs.service import EmbeddedEfs
from kube_efs.model.names import NEW_INSTALLATION, Names
from kube_efs.tunnels.stunnel.assignment import shard_number
from kube_efs.tunnels.stunnel.process import StunnelProcess, find_running
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.node import IMAGE
from kube_efs_lab.program import Program
from tinykube.kubelet.node import HostFolders

NODE = "embedded"
NAMES: Names = NEW_INSTALLATION.names

_INHERITED = frozenset({"HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "TMPDIR"})
# What people would wait for is made faster than it is at AWS's prices and scale.
QUICK_SETTINGS = {
    "EFS_POLLING_INTERVAL": "2",
    "PROVISION_BACKOFF_INTERVAL": "2",
    "KUBE_EFS_PROBE_INTERVAL_SECONDS": "3",
}
_SETTINGS = {
    **QUICK_SETTINGS,
    "LOGGING_LEVEL": "INFO",
    "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
    "KUBE_EFS_HEALTH_PORT": "0",
    "POD_NAMESPACE": NAMES.namespace,
    "KUBE_EFS_NAMES": NAMES.name_set.value,
    "NODE_NAME": NODE,
    "WORKER_IMAGE": IMAGE,
    "KUBE_EFS_BACKENDS": "tunnel,directory,csi",
    "KUBE_EFS_SHARED_VOLUMES": "true",
}
# Where no other embedded cluster looks for ports, nor the kernel for outgoing connections.
_ON_DEMAND_PORTS = 128
ON_DEMAND_BLOCKS = range(10_000, 20_000, _ON_DEMAND_PORTS)
_STUNNEL = Path("stunnel")  # wherever it is
_STUNNEL_SECONDS = 2.0
# Up to here a cluster may have file systems without meeting its neighbour's ports.
_BLOCK = 32
# The usual first port, then blocks below the range that the kernel gives to outgoing connections.
_USUAL = 20490
BLOCKS = range(26000, 32000, _BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where the processes and the kubelet have their files and sockets.

    ``sockets`` is its own directory, with a short name: the kernel allows 107 bytes for all of it.
    """

    root: Path
    sockets: Path

    @property
    def kubelet(self) -> Path:
        """The kubelet's ``--root-dir``."""
        return self.root / "kubelet"

    @property
    def registry(self) -> Path:
        """Where drivers make themselves known to the kubelet."""
        return self.sockets / "registry"

    @property
    def driver_socket(self) -> Path:
        """Where the kubelet calls the CSI driver."""
        return self.sockets / "csi.sock"

    @property
    def stunnel_conf(self) -> Path:
        """The configuration of the first stunnel; those of others are beside it."""
        return self.root / "tunnel" / "stunnel.conf"

    @property
    def tunnel_socket(self) -> Path:
        """Where the driver asks for tunnels."""
        return self.sockets / "run" / "tunnel.sock"

    @property
    def host(self) -> HostFolders:
        """Where directories of the node are that pods of kube-efs use, and the kubelet's own."""
        return HostFolders(
            {
                "/var/lib/kubelet": self.kubelet,
                "/var/lib/kube-efs": self.root / "state",
                "/run/kube-efs": self.tunnel_socket.parent,
            }
        )

    def make(self) -> None:
        """Make those that a process expects."""
        plugins = self.sockets / "plugins"
        for folder in (self.registry, plugins, self.tunnel_socket.parent, self.stunnel_conf.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.kubelet.mkdir(exist_ok=True)
        (self.kubelet / "plugins_registry").symlink_to(self.registry)
        (self.kubelet / "plugins").symlink_to(plugins)


@contextmanager
def reserved_ports() -> Iterator[Mapping[str, str]]:
    """Settings of the loopback ports that no other embedded cluster uses meanwhile; raises PlatformError."""
    with (
        reserved_base_port() as base,
        reserved_base_port(random.sample(ON_DEMAND_BLOCKS, len(ON_DEMAND_BLOCKS))) as first,
    ):
        yield {
            "BASE_STUNNEL_PORT": str(base),
            "KUBE_EFS_TUNNEL_PORTS": f"{first}-{first + _ON_DEMAND_PORTS - 2}",
        }


async def make_programs(
    folders: Folders,
    plane: ControlPlane,
    efs: EmbeddedEfs,
    *,
    mounting: Path | None,
    settings: Mapping[str, str],
    starter: Starter,
) -> tuple[Program, Program, Program]:
    """The controller, the tunnels' agent and the node driver, not started; ``settings`` go over all else.

    ``mounting`` is a directory whose programs the node finds before those of the machine.
    """
    common = {
        # Nothing of the person's own AWS account, cluster or settings may reach these processes.
        **{name: value for name, value in os.environ.items() if name in _INHERITED},
        **efs.environment(),
        **_SETTINGS,
        "KUBE_EFS_TUNNEL_SOCKET": str(folders.tunnel_socket),
    }
    tunnel = {
        "POD_NAME": f"{NAMES.tunnel}-0",
        "STUNNEL_CONF_PATH": str(folders.stunnel_conf),
        "KUBE_EFS_CA_FILE": str(efs.ca_file),
        "AWS_ENDPOINT_URL_STS": efs.pod_roles.url,
        "KUBE_EFS_POD_IDENTITY_ENDPOINT": efs.pod_roles.url,
    }
    path = common.get("PATH", os.defpath)
    node = {
        "PATH": f"{mounting}:{path}" if mounting else path,
        "CSI_ENDPOINT": f"unix://{folders.driver_socket}",
        "DRIVER_REG_SOCK_PATH": str(folders.driver_socket),
        "KUBE_EFS_REGISTRATION_FOLDER": str(folders.registry),
    }

    async def program(name: str, account: str, own: Mapping[str, str]) -> Program:
        kubeconfig = {"KUBECONFIG": str(await plane.kubeconfig_of(account))}
        environment = {**common, **kubeconfig, **own, **settings}
        return Program(name, environment, folders.root / f"{name}.log", starter=starter)

    return (
        await program("controller", NAMES.controller_account, {"POD_NAME": f"{NAMES.controller}-0"}),
        await program("tunnel", NAMES.tunnel_account, tunnel),
        await program("node", NAMES.node_account, node),
    )


async def end_stunnel(folders: Folders) -> None:
    """End the stunnels that an agent has left running for mounts, which nobody has any more."""
    for pid, path in tuple(find_running(_STUNNEL)):
        if shard_number(folders.stunnel_conf, path) is not None:
            stunnel = StunnelProcess.adopt(pid, _STUNNEL, path, lambda: None)
            if stunnel is not None:
                await stunnel.stop(timeout_seconds=_STUNNEL_SECONDS)


@contextmanager
def reserved_base_port(candidates: Iterable[int] | None = None) -> Iterator[int]:
    """A base port that nobody else who asks in the same way gets meanwhile; raises PlatformError.

    The mark of it is a socket bound to the port before it. The port itself must be free as well.
    """
    for base in candidates or chain([_USUAL], random.sample(BLOCKS, len(BLOCKS))):
        with socket.socket() as mark, socket.socket() as probe:
            try:
                mark.bind(("127.0.0.1", base - 1))
                probe.bind(("127.0.0.1", base))
            except OSError:
                continue
            probe.close()
            yield base
            return
    raise PlatformError(
        "is free for tunnels", field="no loopback port", remedy="stop other embedded clusters"
    )
