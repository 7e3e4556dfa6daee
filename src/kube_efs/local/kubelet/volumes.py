"""The volumes of a pod as paths of this machine, one maker for each kind of source."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree

from kube_efs.local.kubelet.file_volumes import FileVolumes
from kube_efs.local.kubelet.nfs import NfsMounter
from kube_efs.local.kubelet.pods import (
    ClaimSource,
    EmptyDir,
    Files,
    HostPath,
    Nfs,
    Pod,
    Projected,
    Unsupported,
    Volume,
    VolumeSource,
)
from kube_efs.local.kubelet.volume_makers import Mounted, PodObjects, VolumeMaker, wrong_source
from kube_efs.model.errors import NotYet


class EmptyDirs:
    """emptyDir."""

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The directory itself, writable for everybody."""
        await asyncio.to_thread(_open_to_all, directory, pod.fs_group)
        return Mounted(path=directory)

    async def tear_down(self, directory: Path) -> None:
        """Nothing is mounted."""


class HostPaths:
    """hostPath."""

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The path of the machine, made if it is to be made."""
        if not isinstance(source, HostPath):
            raise wrong_source(source)
        await asyncio.to_thread(_check_host_path, Path(source.path), source.kind)
        return Mounted(path=Path(source.path))

    async def tear_down(self, directory: Path) -> None:
        """Nothing is mounted."""


class NfsVolumes:
    """nfs, and claims that are bound to it."""

    def __init__(self, cluster: PodObjects, mounter: NfsMounter) -> None:
        self._cluster = cluster
        self._mounter = mounter

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The mounted export."""
        if isinstance(source, Nfs):
            return await self._mount(source, directory)
        if not isinstance(source, ClaimSource):
            raise wrong_source(source)
        bound = await self._cluster.bound_volume(pod.namespace, source.claim_name)
        if isinstance(bound.source, Unsupported):
            raise wrong_source(bound.source)
        groups = () if bound.gid is None else (bound.gid,)
        return await self._mount(bound.source, directory, read_only=source.read_only, groups=groups)

    async def tear_down(self, directory: Path) -> None:
        """Unmount it."""
        await self._mounter.unmount(directory)

    async def _mount(
        self, export: Nfs, directory: Path, *, read_only: bool = False, groups: tuple[int, ...] = ()
    ) -> Mounted:
        path = await self._mounter.mount(export, directory)
        return Mounted(
            path=path,
            read_only=read_only or export.read_only,
            groups=groups,
            stands_for="" if path == directory else f"{export.server}:{export.path}",
        )


class Volumes:
    """Sets up and tears down all volumes of pods, below one directory a pod."""

    def __init__(self, makers: Mapping[type[VolumeSource], VolumeMaker]) -> None:
        self._makers = makers

    async def set_up(self, pod: Pod, volume: Volume, directory: Path) -> Mounted:
        """One volume, in its own directory below this one; raises NotYet, InvalidValue or KubeError."""
        maker = self._makers.get(type(volume.source))
        if maker is None:
            raise wrong_source(volume.source)
        own = directory / volume.name
        await asyncio.to_thread(own.mkdir, 0o750, parents=True, exist_ok=True)
        return await maker.set_up(pod, volume.source, own)

    async def tear_down(self, pod: Pod, directory: Path) -> None:
        """All volumes; what a person's data lies under is never removed, only what the kubelet made."""
        for volume in pod.volumes:
            maker = self._makers.get(type(volume.source))
            if maker is not None:
                await maker.tear_down(directory / volume.name)
        await asyncio.to_thread(remove_tree, directory)


def standard_makers(cluster: PodObjects, mounter: NfsMounter) -> dict[type[VolumeSource], VolumeMaker]:
    """The kinds of volumes that every kubelet has."""
    nfs, files = NfsVolumes(cluster, mounter), FileVolumes(cluster)
    return {
        EmptyDir: EmptyDirs(),
        Files: files,
        Projected: files,
        HostPath: HostPaths(),
        Nfs: nfs,
        ClaimSource: nfs,
    }


def remove_tree(directory: Path) -> None:
    """Remove a directory of the kubelet's, unless something is still mounted in it."""
    for path, directories, _files in os.walk(directory):
        if any((Path(path) / name).is_mount() for name in directories):
            return
    rmtree(directory, ignore_errors=True)


def _open_to_all(directory: Path, group: int | None) -> None:
    if group is not None:
        os.chown(directory, -1, group)
    # Set-group-id, so that what is made in it belongs to the pod's group too.
    directory.chmod(0o777 if group is None else 0o2777)


def _check_host_path(path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate":
        path.mkdir(0o755, parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(0o644, exist_ok=True)
    good = {
        "": path.exists(),
        "Directory": path.is_dir(),
        "DirectoryOrCreate": path.is_dir(),
        "File": path.is_file(),
        "FileOrCreate": path.is_file(),
        "Socket": path.is_socket(),
        "CharDevice": path.is_char_device(),
        "BlockDevice": path.is_block_device(),
    }
    if not good.get(kind, False):
        wanted = kind.removesuffix("OrCreate").lower() or "file or directory"
        raise NotYet(f"hostPath type check failed: {path} is not a {wanted}")
