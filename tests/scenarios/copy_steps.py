"""Steps for scenarios of copies: classes, the directories of volumes, and a worker that stands still."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from lightkube.models.core_v1 import TypedLocalObjectReference
from lightkube.resources.core_v1 import PersistentVolumeClaim
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster

from kube_efs.model.volumes import Volume

MANY = 3000


async def new_class(cluster: Cluster, kind: str, **parameters: str) -> str:
    """A class of that kind on the first file system; its volumes have the identity 6000 and higher."""
    system = cluster.file_system_ids[0]
    if kind == "tunnel":
        return await steps.new_class(cluster.client, default_file_system_id=system, **parameters)
    if kind == "directory":
        return await directory_steps.new_class(cluster.client, gidMin="6000", gidMax="6999")
    ids = {"gidRangeStart": "6000", "gidRangeEnd": "6999"}
    return await csi_steps.new_class(
        cluster.client, parameters={"provisioningMode": kind, "fileSystemId": system, **ids, **parameters}
    )


async def folder_of(cluster: Cluster, aws: Aws, volume: Volume) -> Path:
    """The directory of the volume's data on this machine; it may not exist yet."""
    if volume.nfs:
        path = volume.nfs.path
    else:
        handle = csi_steps.handle_of(volume)
        points = {one["AccessPointId"]: one for one in await aws.described(handle.file_system_id)}
        found = points.get(handle.access_point_id)
        path = found["RootDirectory"]["Path"] if found else str(handle.directory)
    return cluster.efs.folder(cluster.file_system_ids[0]) / path.lstrip("/")


async def mounted_once(cluster: Cluster, aws: Aws, volume: Volume) -> Path:
    """The directory of the volume after its first mount: EFS makes the root of an access point then."""
    folder = await folder_of(cluster, aws, volume)
    if not folder.exists():
        folder.mkdir(parents=True)
        points = await aws.described(cluster.file_system_ids[0])
        (user,) = (one["PosixUser"] for one in points if one["ClientToken"] == volume.name)
        os.chown(folder, user["Uid"], user["Gid"])
    return folder


def copy_of(
    claims: Claims, name: str, storage_class: str, source: str, kind: str = "PersistentVolumeClaim"
) -> PersistentVolumeClaim:
    """A claim for a copy of another claim or of a snapshot."""
    body = claims.body(name, storage_class)
    assert body.spec
    group = "snapshot.storage.k8s.io" if kind == "VolumeSnapshot" else None
    body.spec.dataSource = TypedLocalObjectReference(apiGroup=group, kind=kind, name=source)
    return body


async def with_many_files(cluster: Cluster, aws: Aws, claims: Claims, storage_class: str) -> Path:
    """The directory of a claim ``source``, whose copy takes a moment."""
    folder = await mounted_once(cluster, aws, await claims.provisioned(storage_class, "source"))

    def fill() -> None:
        for number in range(MANY):
            (folder / f"file-{number}").write_text(str(number))

    await asyncio.to_thread(fill)
    return folder


def has_all(folder: Path) -> bool:
    """Whether the directory has the many files."""
    return folder.exists() and len(os.listdir(folder)) == MANY  # noqa: PTH208 - only the number counts


@asynccontextmanager
async def stopped_copy(key: str) -> AsyncGenerator[None, None]:
    """The worker that makes the copy with that key stands still, however fast this machine is."""

    async def look() -> list[int]:
        return await asyncio.to_thread(lambda: list(_processes_with(os.fsencode(key))))

    workers = await steps.eventually(look, what="a worker copies", pause_seconds=0.02)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)


def _processes_with(argument: bytes) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # It has ended.
            if argument in (process / "cmdline").read_bytes().split(b"\0"):
                yield int(process.name)


async def volume_name(claims: Claims, name: str = "copy") -> str:
    """The name of the volume of the claim, and the key of its copy."""
    claim = await claims.get(name)
    assert claim.metadata
    return f"pvc-{claim.metadata.uid}"
