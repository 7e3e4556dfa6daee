"""The volumes of a pod as paths of this machine."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree

from lightkube import AsyncClient
from lightkube.models import core_v1 as models
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

from tinykube.client.calls import unless_missing
from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.csi import CsiVolumes
from tinykube.kubelet.nfs import Nfs, NfsMounter, mount_points
from tinykube.kubelet.node import HostFolders
from tinykube.kubelet.pod_tokens import PodTokens
from tinykube.kubelet.pods import Pod, field_of, read_config_map, read_secret

_GID = "pv.beta.kubernetes.io/gid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Where a volume's data is on this machine, and which groups its users get."""

    path: Path
    read_only: bool = False
    groups: tuple[int, ...] = ()


class Volumes:
    """Sets up and tears down all volumes of pods, below one directory a pod."""

    def __init__(self, client: AsyncClient, nfs: NfsMounter, csi: CsiVolumes, host: HostFolders) -> None:
        self._client = client
        self._tokens = PodTokens(client)
        self._nfs = nfs
        self._csi = csi
        self._host = host

    async def set_up(self, pod: Pod, volume: models.Volume, directory: Path) -> Mounted:
        """One volume, in its own directory below this one, or elsewhere.

        Called again after NotYet, which it raises for what may come right by itself; InvalidValue otherwise.
        """
        own = directory / volume.name
        await asyncio.to_thread(own.mkdir, 0o750, parents=True, exist_ok=True)
        if volume.emptyDir is not None:
            await asyncio.to_thread(own.chmod, 0o777)
            return Mounted(path=own)
        if volume.hostPath is not None:
            path = self._host.here(volume.hostPath.path)
            await asyncio.to_thread(_check_host_path, path, volume.hostPath.type or "")
            return Mounted(path=path)
        if volume.projected is not None or volume.secret is not None:
            files = await self._projected(pod, volume.projected)
            files |= await self._secret(pod, volume.secret)
            mode = volume.projected.defaultMode if volume.projected else None
            await asyncio.to_thread(_write_files, own, files, mode)
            return Mounted(path=own, read_only=True)
        if volume.nfs is not None:
            return await self._mount(volume.nfs, (), own)
        if volume.persistentVolumeClaim is not None:
            claim = volume.persistentVolumeClaim
            return await self._claim(pod, claim.claimName, own, read_only=bool(claim.readOnly))
        raise InvalidValue("is of no kind that this node has", field="volume", value=volume.name)

    async def publish_again(self, directory: Path) -> None:
        """Publish the volumes below the directory whose drivers want this; raises NotYet."""
        await self._csi.publish_again(directory)

    async def tear_down(self, pod: Pod, directory: Path) -> None:
        """All volumes; what a person's data lies under is never removed, only what the kubelet made."""
        for volume in pod.spec.volumes or ():
            await self._nfs.unmount(directory / volume.name)
        await self._csi.unpublish_all(directory)
        await asyncio.to_thread(remove_tree, directory)

    async def _claim(self, pod: Pod, name: str, own: Path, *, read_only: bool) -> Mounted:
        """What the claim is bound to."""
        volume = await self._bound(pod.namespace, name)
        meta, spec = volume.metadata or ObjectMeta(), volume.spec or models.PersistentVolumeSpec()
        options = tuple(spec.mountOptions or ())
        if spec.csi is not None:
            path = await self._csi.publish(
                meta.name or "",
                spec.csi,
                own.parent,
                access_mode=(spec.accessModes or [""])[0],
                options=options,
                read_only=read_only,
                get_context=partial(self._tokens.context, pod, spec.csi.driver),
            )
            mounted = Mounted(path=path)
        elif spec.nfs is not None:
            mounted = await self._mount(spec.nfs, options, own)
        else:
            raise InvalidValue("is neither NFS nor CSI", field="PersistentVolume", value=meta.name)
        gid = (meta.annotations or {}).get(_GID, "")
        groups = (int(gid),) if gid.isdecimal() else ()
        return replace(mounted, read_only=mounted.read_only or read_only, groups=groups)

    async def _bound(self, namespace: str, name: str) -> PersistentVolume:
        claim = await unless_missing(self._client.get(PersistentVolumeClaim, name, namespace=namespace))
        if claim is None:
            raise NotYet(f'persistentvolumeclaim "{name}" not found')
        if claim.metadata and claim.metadata.deletionTimestamp:
            raise NotYet(f'persistentvolumeclaim "{name}" is being deleted')
        bound = claim.spec and claim.status and claim.status.phase == "Bound" and claim.spec.volumeName
        if not bound:
            raise NotYet(f'persistentvolumeclaim "{name}" is not bound')
        return await self._client.get(PersistentVolume, bound)

    async def _mount(
        self,
        source: models.NFSVolumeSource,
        options: tuple[str, ...],
        own: Path,
    ) -> Mounted:
        read_only = bool(source.readOnly)
        nfs = Nfs(server=source.server, path=source.path, read_only=read_only, options=options)
        return Mounted(path=await self._nfs.mount(nfs, own), read_only=read_only)

    async def _secret(self, pod: Pod, volume: models.SecretVolumeSource | None) -> Mapping[str, str]:
        """All keys of a Secret; none of an optional one that does not exist."""
        if volume is None:
            return {}
        files = await read_secret(self._client, pod.namespace, volume.secretName or "")
        if not files and not volume.optional:
            raise NotYet(f'secret "{volume.secretName}" not found')
        return files

    async def _projected(self, pod: Pod, volume: models.ProjectedVolumeSource | None) -> dict[str, str]:
        """Tokens of the service account, keys of ConfigMaps and fields of the pod, by the paths of the files.

        They are written once, when the pod starts. A token that the API server itself put there outlives any
        trial; one that a person asked for with a short life is not renewed.
        """
        files: dict[str, str] = {}
        for source in (volume and volume.sources) or ():
            if source.serviceAccountToken is not None:
                wanted = source.serviceAccountToken
                issued = await self._tokens.request(pod, wanted.audience, wanted.expirationSeconds)
                files[wanted.path] = issued.token or ""
            if source.configMap is not None:
                data = await read_config_map(self._client, pod.namespace, source.configMap.name or "")
                for item in source.configMap.items or ():
                    if item.key not in data:
                        raise NotYet(f'configmap "{source.configMap.name}" has no key {item.key}')
                    files[item.path] = data[item.key]
            for field in (source.downwardAPI and source.downwardAPI.items) or ():
                if field.fieldRef is not None:
                    files[field.path] = field_of(pod, field.fieldRef.fieldPath)
        return files


def remove_tree(directory: Path) -> None:
    """Remove a directory of the kubelet's, unless something is still mounted in it."""
    # As the table has them: a directory that is bound is on the same device, so it does not look mounted.
    if not any(Path(point).is_relative_to(directory.resolve()) for point in mount_points()):
        rmtree(directory, ignore_errors=True)


def _write_files(directory: Path, files: Mapping[str, str], mode: int | None) -> None:
    directory.chmod(0o755)
    for name, content in files.items():
        if "/" in name or name in {".", ".."}:
            raise InvalidValue("is not a name of a file", field="projected, path", value=name)
        path = directory / name
        path.unlink(missing_ok=True)
        path.write_text(content, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o644 if mode is None else mode)


def _check_host_path(path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate":
        path.mkdir(0o755, parents=True, exist_ok=True)
    if not (path.is_dir() if kind.startswith("Directory") else path.exists()):
        raise NotYet(f"hostPath type check failed: {path} is not a {kind or 'file or directory'}")
