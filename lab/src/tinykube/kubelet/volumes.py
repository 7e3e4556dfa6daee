"""The volumes of a pod as paths of this machine, one maker for each kind of source."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.csi_volumes import CsiVolumes
from tinykube.kubelet.environment import field_of
from tinykube.kubelet.host_folders import HostFolders
from tinykube.kubelet.nfs import NfsMounter, mount_points
from tinykube.kubelet.pods import (
    AccountToken,
    ClaimSource,
    Csi,
    EmptyDir,
    Files,
    HostPath,
    Nfs,
    Pod,
    PodFields,
    Projected,
    Unsupported,
    Volume,
    VolumeSource,
)
from tinykube.kubelet.volume_makers import Mounted, PodObjects, VolumeMaker, wrong_source


class EmptyDirs:
    """emptyDir."""

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The directory itself, writable for everybody."""
        await asyncio.to_thread(directory.chmod, 0o777)
        return Mounted(path=directory)

    async def tear_down(self, directory: Path) -> None:
        """Nothing is mounted."""


class ProjectedVolumes:
    """Tokens of service accounts, ConfigMaps, Secrets and fields of the pod as files.

    They are written once, when the pod starts. A token that the API server itself put there outlives any
    trial; one that a person asked for with a short life is not renewed.
    """

    def __init__(self, cluster: PodObjects) -> None:
        self._cluster = cluster

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The directory with the files."""
        if not isinstance(source, Projected):
            raise wrong_source(source)
        files: dict[str, bytes] = {}
        for one in source.sources:
            files |= await self._files(pod, one)
        await asyncio.to_thread(_write_files, directory, files, source.mode)
        return Mounted(path=directory, read_only=True)

    async def tear_down(self, directory: Path) -> None:
        """Nothing is mounted."""

    async def _files(self, pod: Pod, source: Files | AccountToken | PodFields) -> Mapping[str, bytes]:
        match source:
            case Files(store=store, name=name, paths=paths, optional=optional):
                contents = await self._cluster.contents(pod.namespace, store, name)
                if contents is None and optional:
                    return {}
                if contents is None or not paths.keys() <= contents.keys():
                    raise NotYet(f'{store} "{name}" is missing or has not all of the keys {", ".join(paths)}')
                return {path: contents[key] for key, path in paths.items()} or contents
            case AccountToken(path=path):
                return {path: (await self._cluster.token(pod, source)).encode()}
            case PodFields(paths=paths):
                return {path: field_of(pod, field).encode() for path, field in paths.items()}


class HostPaths:
    """hostPath."""

    def __init__(self, folders: HostFolders) -> None:
        self._folders = folders

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The path of the machine, made if it is to be made."""
        if not isinstance(source, HostPath):
            raise wrong_source(source)
        path = self._folders.here(source.path)
        await asyncio.to_thread(_check_host_path, path, source.kind)
        return Mounted(path=path)

    async def tear_down(self, directory: Path) -> None:
        """Nothing is mounted."""


class NfsVolumes:
    """nfs."""

    def __init__(self, mounter: NfsMounter) -> None:
        self._mounter = mounter

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The mounted export."""
        if not isinstance(source, Nfs):
            raise wrong_source(source)
        path = await self._mounter.mount(source, directory)
        return Mounted(path=path, read_only=source.read_only)

    async def tear_down(self, directory: Path) -> None:
        """Unmount it."""
        await self._mounter.unmount(directory)


class ClaimVolumes:
    """Claims, bound to what NFS serves or a CSI driver mounts."""

    def __init__(self, cluster: PodObjects, nfs: NfsVolumes, csi: CsiVolumes) -> None:
        self._cluster = cluster
        self._nfs = nfs
        self._csi = csi

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The mounted volume that the claim is bound to."""
        if not isinstance(source, ClaimSource):
            raise wrong_source(source)
        bound = await self._cluster.bound_volume(pod.namespace, source.claim_name)
        match bound.source:
            case Nfs():
                mounted = await self._nfs.set_up(pod, bound.source, directory)
            case Csi():
                path = await self._csi.publish(
                    pod, bound.source, directory.parent, read_only=source.read_only
                )
                mounted = Mounted(path=path)
            case Unsupported():
                raise wrong_source(bound.source)
        groups = () if bound.gid is None else (bound.gid,)
        return replace(mounted, read_only=mounted.read_only or source.read_only, groups=groups)

    async def tear_down(self, directory: Path) -> None:
        """Unmount it, and whatever else drivers have mounted for the pod."""
        await self._nfs.tear_down(directory)
        await self._csi.unpublish_all(directory.parent)


class Volumes:
    """Sets up and tears down all volumes of pods, below one directory a pod."""

    def __init__(self, makers: Mapping[type[VolumeSource], VolumeMaker]) -> None:
        self._makers = makers

    async def set_up(self, pod: Pod, volume: Volume, directory: Path) -> Mounted:
        """One volume, in its own directory below this one; raises one of ERRORS."""
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


def standard_makers(
    cluster: PodObjects, mounter: NfsMounter, csi: CsiVolumes, host: HostFolders
) -> dict[type[VolumeSource], VolumeMaker]:
    """The kinds of volumes that every kubelet has."""
    nfs = NfsVolumes(mounter)
    return {
        EmptyDir: EmptyDirs(),
        Projected: ProjectedVolumes(cluster),
        HostPath: HostPaths(host),
        Nfs: nfs,
        ClaimSource: ClaimVolumes(cluster, nfs, csi),
    }


def remove_tree(directory: Path) -> None:
    """Remove a directory of the kubelet's, unless something is still mounted in it."""
    # As the table has them: a folder that is bound is on the same device, so it does not look mounted.
    if not any(Path(point).is_relative_to(directory.resolve()) for point in mount_points()):
        rmtree(directory, ignore_errors=True)


def _write_files(directory: Path, files: Mapping[str, bytes], mode: int) -> None:
    directory.chmod(0o755)
    for name, content in files.items():
        if "/" in name or name in {".", ".."}:
            raise InvalidValue("is not a name of a file", field="projected, path", value=name)
        path = directory / name
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def _check_host_path(path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate":
        path.mkdir(0o755, parents=True, exist_ok=True)
    if not (path.is_dir() if kind.startswith("Directory") else path.exists()):
        raise NotYet(f"hostPath type check failed: {path} is not a {kind or 'file or directory'}")
