"""The node of an embedded cluster: a kubelet whose NFS mounts end in the embedded EFS."""

import asyncio
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap

import kube_efs
from fake_efs.errors import EfsError
from fake_efs.service import EmbeddedEfs
from kube_efs.kube.errors import translated
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, parse_targets
from kube_efs.model.errors import InvalidValue, KubeError
from kube_efs.model.names import Names
from kube_efs.model.volumes import LOOPBACK
from kube_efs.settings.base import own_image
from kube_efs.tunnels.probe import probe
from kube_efs_lab.csi_calls import CsiCalls
from kube_efs_lab.mounts_without_kernel import CallsWithoutKernel
from tinykube.errors import NotYet
from tinykube.kubelet.containers import STANDARD_PATH, Image, repository
from tinykube.kubelet.kubelet import Kubelet, Mounters
from tinykube.kubelet.launch import Bind
from tinykube.kubelet.nfs import FolderNfs, KernelNfs, Nfs, NfsMounter, NoNfs, kernel_has_nfs
from tinykube.kubelet.node import HostFolders, NodeDescription

# Images are not pulled: this one is the program of this installation.
IMAGE = "kube-efs:embedded"
_EFS_PROVISIONER = "quay.io/external_storage/efs-provisioner:latest"
_PROGRAM = (sys.executable, "-m", "kube_efs")
_OURS = (kube_efs.__file__, __file__)
# An installation below /tmp would vanish from a pod that has a volume there; below /usr nothing does.
_PROGRAM_FILES = tuple(
    Bind(source=str(path), target=str(path), read_only=True, for_all=True)
    for path in (Path(sys.prefix), Path(sys.base_prefix), *(Path(one).parents[1] for one in _OURS))
    if not path.is_relative_to("/usr")
)
_CA_FILE = "/run/amazon/efs-utils.crt"
# Pods have the machine's own network here, and so have other clusters on it.
_LOOPBACK = {"KUBE_EFS_HEALTH_HOST": LOOPBACK, "KUBE_EFS_STATUS_PAGE_PORT": "0"}
_PORT = "KUBE_EFS_HEALTH_PORT"
_REGION = frozenset({"AWS_REGION", "AWS_DEFAULT_REGION"})
_CONNECT_SECONDS = 1.0
_PROBE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDefaults:
    """What pods of kube-efs get on the node.

    ``programs`` is a directory whose programs precede those of the machine, ``settings`` are those that
    they have unless their manifests say otherwise. With ``host`` they may hand mounts to the node.
    """

    host: HostFolders | None = None
    programs: Path | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def make_kubelet(
    client: AsyncClient,
    efs: EmbeddedEfs,
    *,
    name: str,
    names: Names,
    root: Path,
    defaults: PodDefaults | None = None,
    has_nfs: bool = True,
) -> Kubelet:
    """The kubelet of the node of that name; ``names`` are those of kube-efs.

    Unless ``has_nfs``, the node itself has no NFS client. The CSI driver brings its own.
    """
    defaults = defaults or PodDefaults()
    image = _image(efs, defaults)
    folders = TunnelledFolders(client, efs, names)
    nfs: NfsMounter = FolderNfs(folders) if has_nfs else NoNfs()
    calls: CsiCalls = CallsWithoutKernel()
    if kernel_has_nfs():
        calls = CsiCalls()
        nfs = TunnelsByKernel(nfs) if has_nfs else nfs
    return Kubelet(
        client,
        node=NodeDescription(
            name=name,
            zone=efs.subnets[0].zone,
            region=efs.region,
            provider_id=f"aws:///{efs.subnets[0].zone}/{efs.instance_id}",
        ),
        root=root,
        mounters=Mounters(nfs=nfs, csi=calls),
        images={
            IMAGE: image,
            repository(own_image()): image,  # of any version
            _EFS_PROVISIONER: image,
        },
        host=defaults.host,
        # What an instance of the cloud has without any setting: where its services are, and a role.
        environment={
            **{name: text for name, text in efs.environment().items() if name not in _REGION},
            **_LOOPBACK,
        },
    )


def _image(efs: EmbeddedEfs, defaults: PodDefaults) -> Image:
    """The program of this installation, with the authority of this EFS."""
    files = [*_PROGRAM_FILES, Bind(source=str(efs.ca_file), target=_CA_FILE, read_only=True, for_all=True)]
    path = f"{Path(sys.executable).parent}:{STANDARD_PATH}"  # kubectl exec finds kube-efs, as in the image
    if defaults.programs is not None:
        shown = (defaults.programs.parent, efs.work_dir)
        files += (Bind(source=str(one), target=str(one)) for one in shown)
        path = f"{defaults.programs}:{path}"
    environment = {"KUBE_EFS_CA_FILE": _CA_FILE, **defaults.settings, "PATH": path}
    return Image(command=_PROGRAM, files=tuple(files), environment=environment, port_variable=_PORT)


class TunnelsByKernel:
    """Mounts what goes through a tunnel of this machine with the kernel, and nothing else.

    The embedded mount targets speak TLS alone, and no resolver knows their names.
    """

    def __init__(self, others: NfsMounter) -> None:
        self._kernel = KernelNfs()
        self._others = others

    async def mount(self, volume: Nfs, target: Path) -> Path:
        """The target, or where the other mounter has it; raises NotYet."""
        mounter = self._kernel if volume.server == LOOPBACK else self._others
        return await mounter.mount(volume, target)

    async def unmount(self, target: Path) -> None:
        """Undo either."""
        await self._kernel.unmount(target)


class TunnelledFolders:
    """Where a mount would end up, through a tunnel of this machine or at a mount target, could it be made."""

    def __init__(self, client: AsyncClient, efs: EmbeddedEfs, names: Names) -> None:
        self._client = client
        self._efs = efs
        self._names = names

    async def folder(self, server: str, port: int | None, path: str) -> Path | None:
        """The directory of an export's path; None when nobody answers at that address, NotYet if denied."""
        file_system_id = await self._file_system(server, port)
        if file_system_id is None:
            return None
        try:
            return self._efs.folder(file_system_id).joinpath(*parse_directory(path).parts)
        except (EfsError, InvalidValue):
            return None

    async def _file_system(self, server: str, port: int | None) -> str | None:
        if server != LOOPBACK:
            return self._efs.file_system_at(server)
        if port is None or not await _accepts(port):
            return None
        answer = await probe(port, timeout_seconds=_PROBE_SECONDS, xid=random.getrandbits(32))
        if answer.is_denied:
            raise NotYet("mount.nfs4: access denied by server while mounting")
        try:
            with translated(f"ConfigMap {self._names.config_map}"):
                found = await self._client.get(
                    ConfigMap, self._names.config_map, namespace=self._names.namespace
                )
            targets, _ = parse_targets((found.data or {}).get(CONFIG_MAP_KEY, ""))
        except (KubeError, InvalidValue):
            return None
        return targets.file_system_at(port)


async def _accepts(port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
