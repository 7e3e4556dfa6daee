"""Volumes that stay during the load: published, written to, and compared at the end."""

import asyncio
import itertools
import random
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import grpc.aio
from lightkube import ApiError
from lightkube.resources.core_v1 import PersistentVolume
from tests.chaos.asking import CHANNEL_OPTIONS, persistently
from tests.chaos.planting import planted
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims

from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.csi.publication import NodeMount
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.volumes import Volume
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs_lab.clients import TunnelClient
from kube_efs_lab.cluster import EmbeddedCluster

if TYPE_CHECKING:  # the generated module has this name for type checkers only
    from kube_efs.csi.protocol.csi_pb2_grpc import NodeAsyncStub

_CALL_SECONDS: Final = 60.0
# libnfs 4.0 cannot send a call of more than 4 KiB with NFSv4.
_MOST_BYTES: Final = 3000
_numbers = itertools.count(1)
_Modes = csi.VolumeCapability.AccessMode


@dataclass(slots=True, kw_only=True)
class KeptVolume:
    """A volume of a claim; ``target`` is its target path, if it is one of the CSI driver.

    ``root`` is the directory of its data at the NFS server; ``written`` is the written data by file name.
    """

    claim: str
    volume: Volume
    root: Path
    target: Path | None = None
    written: dict[str, bytes] = field(default_factory=dict)

    @property
    def handle(self) -> str:
        """The CSI handle of the volume; empty for others."""
        return self.volume.csi.handle if self.volume.csi else ""

    @property
    def holder(self) -> str:
        """The name of its tunnel's holder; empty without a tunnel on demand."""
        return NodeMount(volume_id=self.handle, target=self.target).holder if self.target else ""


class KeptVolumes:
    """Volumes of claims in a namespace, created by ``make``. CSI volumes are below ``targets``."""

    def __init__(
        self, cluster: EmbeddedCluster, claims: Claims, targets: Path, chance: random.Random
    ) -> None:
        self.volumes: list[KeptVolume] = []
        self._cluster = cluster
        self._claims = claims
        self._targets = targets
        self._chance = chance

    async def make(self, classes: Mapping[str, str], numbers: Mapping[str, int]) -> None:
        """Create claims, publish and write; ``numbers`` is the number for each kind of class."""
        kinds = {f"kept-{kind}-{one}": kind for kind in classes for one in range(numbers.get(kind, 0))}
        for name, kind in kinds.items():
            labels = {"volume_name": name.replace("-", "_")} if kind == "tunnel" else None
            body = steps.claim(self._claims.namespace, name, classes[kind], labels)
            await self._cluster.client.create(body)
        for name in kinds:
            self.volumes.append(await self._published(name, await self._claims.bound(name)))
        for kept in self.volumes:
            await self._add_file(kept)

    async def write(self) -> None:
        """Write another file in one of them, through its tunnel if it has one."""
        await self._add_file(self._chance.choice(self.volumes))

    async def problems(self) -> list[str]:
        """Missing and changed data."""
        mounted = {entry.mount_point for entry in await asyncio.to_thread(read_mountinfo)}
        found = []
        for kept in self.volumes:
            try:
                found += [f"{kept.claim}: {problem}" for problem in await self._problems(kept, mounted)]
            except (AssertionError, ApiError, OSError, grpc.aio.AioRpcError) as error:
                found.append(f"{kept.claim}: {type(error).__name__} {error}")
        return found

    async def unpublish(self) -> None:
        """Unmount all of them, so that nothing is left when the cluster ends."""
        for kept in self.volumes:
            if kept.target:
                request = csi.NodeUnpublishVolumeRequest(volume_id=kept.handle, target_path=str(kept.target))
                async with self._node() as node:
                    await node.NodeUnpublishVolume(request, timeout=_CALL_SECONDS)

    async def _published(self, claim: str, volume: Volume) -> KeptVolume:
        if volume.csi is None:
            return KeptVolume(claim=claim, volume=volume, root=self._folder(volume))
        access_point_id = csi_steps.handle_of(volume).access_point_id
        assert access_point_id
        root = await self._cluster.efs.access_point_folder(access_point_id)
        kept = KeptVolume(claim=claim, volume=volume, root=root, target=self._targets / claim)
        async with self._node() as node:
            await node.NodePublishVolume(_publish_request(kept), timeout=_CALL_SECONDS)
        return kept

    def _folder(self, volume: Volume) -> Path:
        if volume.port is None:
            return directory_steps.folder(self._cluster, volume)
        assert volume.nfs
        assert volume.file_system_id
        return self._cluster.efs.folder(FileSystemId(volume.file_system_id)) / volume.nfs.path.lstrip("/")

    async def _add_file(self, kept: KeptVolume) -> None:
        content = self._chance.randbytes(self._chance.randrange(_MOST_BYTES))

        async def write() -> str:
            # Of its own for each attempt: nfs-cp does not overwrite what is left of one that was cut off.
            name = f"file-{next(_numbers)}"
            await self._write(kept, name, content)
            return name

        kept.written[await persistently(write)] = content

    async def _write(self, kept: KeptVolume, name: str, content: bytes) -> None:
        port, directory = await self._way(kept)
        if port is None:
            await asyncio.to_thread((kept.root / name).write_bytes, content)
            return
        with tempfile.NamedTemporaryFile() as file:
            await asyncio.to_thread(Path(file.name).write_bytes, content)
            await TunnelClient(port).write(Path(file.name), directory, name)

    async def _read(self, kept: KeptVolume, name: str) -> bytes:
        """Read the file, through the tunnel if there is one."""
        port, directory = await self._way(kept)
        if port is None:
            return await asyncio.to_thread((kept.root / name).read_bytes)
        return await TunnelClient(port).read(directory, name)

    async def _way(self, kept: KeptVolume) -> tuple[int | None, Directory]:
        """The port of its tunnel, None without one, and its directory at the server."""
        if kept.target is None:
            assert kept.volume.nfs
            return kept.volume.port, parse_directory(kept.volume.nfs.path)
        async with connect_tunnels(self._cluster.tunnel_socket) as tunnels:
            held = [one.port for one in await tunnels.tunnels() if kept.holder in one.holders]
        if len(held) != 1:
            raise ConnectionError(f"{kept.holder} holds {len(held)} tunnels, not one")
        return held[0], parse_directory("/")

    async def _problems(self, kept: KeptVolume, mounted: Collection[Path]) -> list[str]:
        found = []
        volume = await self._claims.bound(kept.claim)
        await self._cluster.client.get(PersistentVolume, volume.name)
        if volume.name != kept.volume.name:
            found.append(f"is bound to {volume.name}, not to {kept.volume.name}")
        if kept.target and kept.target not in mounted:
            found.append(f"is not mounted at {kept.target}")
        for name, content in kept.written.items():
            places = {
                "at the server": kept.root,
                **({"where it is mounted": kept.target} if kept.target else {}),
            }
            for place, folder in places.items():
                if await asyncio.to_thread((folder / name).read_bytes) != content:
                    found.append(f"{name} is not what was written, {place}")
            if await persistently(lambda name=name: self._read(kept, name)) != content:  # type: ignore[misc]
                found.append(f"{name} is not what was written, through the tunnel")
        return found

    @asynccontextmanager
    async def _node(self) -> "AsyncIterator[NodeAsyncStub]":
        address = f"unix:{quote(str(self._cluster._folders.driver_socket))}"
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            yield NodeStub(channel)


def _publish_request(kept: KeptVolume) -> csi.NodePublishVolumeRequest:
    """The request of the kubelet, with secrets."""
    tokens = f'{{"sts.amazonaws.com": {{"token": "{planted("pod-token")}"}}}}'
    assert kept.volume.csi
    return csi.NodePublishVolumeRequest(
        volume_id=kept.handle,
        target_path=str(kept.target),
        volume_capability=csi.VolumeCapability(
            mount=csi.VolumeCapability.MountVolume(mount_flags=list(kept.volume.mount_options)),
            access_mode=_Modes(mode=_Modes.MULTI_NODE_MULTI_WRITER),
        ),
        secrets={"phrase": planted("publish-secret")},
        volume_context={
            **kept.volume.csi.attributes,
            "csi.storage.k8s.io/serviceAccount.tokens": tokens,
        },
    )
