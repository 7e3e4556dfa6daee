"""Volumes of files: ConfigMaps, Secrets, fields of the pod, and tokens of its service account.

They are written once, when the pod starts. A token that the API server itself put there outlives any trial;
one that a person asked for with a short life is not renewed.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.environment import field_of
from tinykube.kubelet.pods import (
    AccountToken,
    Files,
    Pod,
    PodFields,
    Projected,
    VolumeSource,
)
from tinykube.kubelet.volume_makers import Mounted, PodObjects, wrong_source


class FileVolumes:
    """configMap, secret, downwardAPI, and any of them and tokens together in one."""

    def __init__(self, cluster: PodObjects) -> None:
        self._cluster = cluster

    async def set_up(self, pod: Pod, source: VolumeSource, directory: Path) -> Mounted:
        """The directory with the files."""
        if not isinstance(source, Files | Projected):
            raise wrong_source(source)
        files: dict[PurePosixPath, bytes] = {}
        for one in (source,) if isinstance(source, Files) else source.sources:
            files |= await self._files(pod, one)
        await asyncio.to_thread(_write_files, directory, files, source.mode, pod.fs_group)
        return Mounted(path=directory, read_only=True)

    async def tear_down(self, directory: Path) -> None:
        """Nothing is mounted."""

    async def _files(
        self, pod: Pod, source: Files | AccountToken | PodFields
    ) -> Mapping[PurePosixPath, bytes]:
        match source:
            case Files():
                contents = await self._cluster.contents(pod.namespace, source.store, source.name)
                if contents is None and not source.optional:
                    raise NotYet(f'{source.store.lower()} "{source.name}" not found')
                return select_files(source, contents or {})
            case AccountToken(path=path):
                return {_checked(path): (await self._cluster.token(pod, source)).encode()}
            case PodFields(paths=paths):
                return {_checked(path): field_of(pod, field).encode() for path, field in paths.items()}


def select_files(source: Files, contents: Mapping[str, bytes]) -> dict[PurePosixPath, bytes]:
    """What to write where, below the volume; raises NotYet for a key that is not there, InvalidValue."""
    wanted = source.paths or {key: key for key in contents}
    found = {}
    for key, text in wanted.items():
        path = _checked(text)
        if key in contents:
            found[path] = contents[key]
        elif not source.optional:
            raise NotYet(f"references non-existent {source.store.lower()} key: {key}")
    return found


def _checked(text: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidValue("leads out of the volume", field="items.path", value=text)
    return path


def _write_files(directory: Path, files: Mapping[PurePosixPath, bytes], mode: int, group: int | None) -> None:
    directory.chmod(0o755)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode if group is None else mode | 0o440)
        if group is not None:
            os.chown(path, -1, group)
