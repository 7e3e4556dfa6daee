"""Steps for scenarios of directory volumes: classes, claims, directories, and events."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from lightkube import ApiError, AsyncClient
from lightkube.models.core_v1 import (
    NFSVolumeSource,
    ObjectReference,
    PersistentVolumeSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding
from lightkube.resources.storage_v1 import StorageClass
from lightkube.types import PatchType
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from fake_efs.file_systems import server_names
from kube_efs.kube.reading import read_volume
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.volumes import PROVISIONED_BY, Volume, VolumePhase
from kube_efs_lab.cluster import DIRECTORY_PROVISIONER
from kube_efs_lab.program import Program

PROVISIONER = DIRECTORY_PROVISIONER

_numbers = itertools.count(1)


def file_system(cluster: Cluster) -> FileSystemId:
    """The file system of the embedded cluster's controller."""
    return cluster.file_system_ids[0]


def server(cluster: Cluster, file_system_id: FileSystemId) -> str:
    """The server of its volumes."""
    return server_names(file_system_id, cluster.efs.region)[0]


def folder(cluster: Cluster, volume: Volume) -> Path:
    """The directory of a volume's data on this machine."""
    assert volume.nfs
    return cluster.efs.folder(file_system(cluster)) / volume.nfs.path.lstrip("/")


async def new_class(
    client: AsyncClient,
    *,
    provisioner: str = PROVISIONER,
    reclaim_policy: str = "Delete",
    mount_options: Sequence[str] = (),
    binding_mode: str = "Immediate",
    **parameters: str,
) -> str:
    """A storage class of directory volumes that no other test uses."""
    name = f"directories-{next(_numbers)}"
    await client.create(
        StorageClass(
            metadata=ObjectMeta(name=name),
            provisioner=provisioner,
            parameters=parameters,
            reclaimPolicy=reclaim_policy,
            mountOptions=list(mount_options) or None,
            volumeBindingMode=binding_mode,
        )
    )
    return name


class Claims:
    """Claims in their own namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._client = cluster.client
        self.namespace = namespace

    @classmethod
    async def of(cls, cluster: Cluster) -> Self:
        """A namespace for the claims to come."""
        return cls(cluster, await steps.new_namespace(cluster.client))

    def body(self, name: str, storage_class: str) -> PersistentVolumeClaim:
        """A claim, not made yet."""
        return steps.claim(self.namespace, name, storage_class, None)

    async def create(self, storage_class: str, *names: str) -> None:
        """Make claims of that class, all at once."""
        await asyncio.gather(*(self._client.create(self.body(name, storage_class)) for name in names))

    async def provisioned(self, storage_class: str, name: str) -> Volume:
        """The volume of a claim that is made here."""
        await self.create(storage_class, name)
        return await self.bound(name)

    async def bound(self, name: str) -> Volume:
        """Wait until a claim is Bound; returns its volume."""
        return await steps.bound_volume(self._client, self.namespace, name)

    async def all_bound(self, number: int, *, seconds: float = 120.0) -> list[Volume]:
        """The volumes of all claims, once so many are Bound; fails when there are others."""

        async def look() -> bool:
            phases = [one.status.phase async for one in self._list() if one.status]
            return phases == ["Bound"] * number

        # A list of so many is work, for this process too, in which half of the cluster runs.
        what = f"{number} claims are Bound"
        await steps.eventually(look, what=what, seconds=seconds, pause_seconds=0.2)
        volumes = await self.volumes()
        uids = [one.metadata.uid async for one in self._list() if one.metadata]
        assert sorted(one.claim.uid or "" for one in volumes if one.claim) == sorted(map(str, uids))
        return volumes

    async def volumes(self) -> list[Volume]:
        """Every volume that was made for one of the claims."""
        return await steps.volumes_of(self._client, self.namespace)

    async def no_volumes(self, *, seconds: float = 60.0) -> None:
        """Wait until no volume is left."""

        async def look() -> bool:
            return not await self.volumes()

        what = f"no volume of {self.namespace} is left"
        await steps.eventually(look, what=what, seconds=seconds, pause_seconds=0.2)

    async def get(self, name: str) -> PersistentVolumeClaim:
        """The claim as it is now."""
        return await self._client.get(PersistentVolumeClaim, name, namespace=self.namespace)

    async def delete(self, *names: str) -> None:
        """Delete claims, all at once."""
        await asyncio.gather(
            *(self._client.delete(PersistentVolumeClaim, name, namespace=self.namespace) for name in names)
        )

    async def removed(self, name: str) -> None:
        """Delete a claim and wait until its volume and directory are gone."""
        volume = await self.bound(name)
        await self.delete(name)
        await steps.gone(self._client, volume.name)
        assert not folder(self._cluster, volume).exists()

    async def warning(self, name: str, about: str = "") -> str:
        """Wait for a ProvisioningFailed event of a claim with this text."""

        async def look() -> str | None:
            told = await steps.messages(self._client, self.namespace, name, "ProvisioningFailed")
            return next((text for text in told if about in text), None)

        return await steps.eventually(look, what=f"claim {name} has a ProvisioningFailed event {about}")

    def _list(self) -> Any:
        return self._client.list(PersistentVolumeClaim, namespace=self.namespace)


async def get_volume(cluster: Cluster, name: str) -> Volume | None:
    """The current volume; None if it is deleted."""
    try:
        return read_volume((await cluster.client.get(PersistentVolume, name)).to_dict())
    except ApiError as error:
        if error.status.code == 404:
            return None
        raise


async def reaches_phase(cluster: Cluster, name: str, phase: VolumePhase) -> Volume:
    """Wait until the volume is in that phase."""

    async def look() -> Volume | None:
        volume = await get_volume(cluster, name)
        return volume if volume and volume.phase is phase else None

    return await steps.eventually(look, what=f"volume {name} is {phase}")


async def is_deleting(cluster: Cluster, name: str) -> Volume:
    """Wait until the volume is being deleted and kept by a finalizer."""

    async def look() -> Volume | None:
        volume = await get_volume(cluster, name)
        return volume if volume and volume.deleting else None

    return await steps.eventually(look, what=f"volume {name} is being deleted")


def released_volume(name: str, nfs: NFSVolumeSource | None, **annotations: str) -> PersistentVolume:
    """A manually created volume of the directory provisioner whose claim is deleted."""
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations={PROVISIONED_BY: PROVISIONER, **annotations}),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            persistentVolumeReclaimPolicy="Delete",
            storageClassName="by-hand",
            nfs=nfs,
            claimRef=ObjectReference(
                apiVersion="v1",
                kind="PersistentVolumeClaim",
                namespace="gone",
                name="gone",
                uid="no-such-claim",
            ),
        ),
    )


async def set_finalizers(client: AsyncClient, volume: str, finalizers: Sequence[str]) -> None:
    """Set the finalizers of a volume."""
    patch = {"metadata": {"finalizers": list(finalizers)}}
    await client.patch(PersistentVolume, volume, patch, patch_type=PatchType.MERGE)


@asynccontextmanager
async def switched_off(program: Program) -> AsyncGenerator[None, None]:
    """The program is stopped while the context is open."""
    await program.stop()
    try:
        yield
    finally:
        await program.start()
        await program.ready()


async def restarted(program: Program) -> None:
    """End the program in order and start it again."""
    async with switched_off(program):
        pass


async def log_lines(program: Program, event: str) -> list[Mapping[str, Any]]:
    """All log lines of the program with that event."""
    lines = (await asyncio.to_thread(program.log_file.read_text, encoding="utf-8")).splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in entries if entry.get("event") == event]


async def has_logged(program: Program, event: str, **fields: str) -> None:
    """Wait for a log line of the program with that event and these fields."""

    async def look() -> bool:
        return any(fields.items() <= entry.items() for entry in await log_lines(program, event))

    await steps.eventually(look, what=f"{program.name} has logged {event} {fields}")


async def allow_lease(cluster: Cluster, name: str) -> None:
    """Allow the Lease as efs-provisioner's manifests do; those of kube-efs allow only its own Lease."""
    meta = ObjectMeta(name=name, namespace=cluster.namespace)
    rule = PolicyRule(
        apiGroups=["coordination.k8s.io"],
        resources=["leases"],
        resourceNames=[name],
        verbs=["get", "update"],
    )
    account = Subject(
        kind="ServiceAccount", name=cluster.names.controller_account, namespace=cluster.namespace
    )
    role = RoleRef(apiGroup="rbac.authorization.k8s.io", kind="Role", name=name)
    await cluster.client.create(Role(metadata=meta, rules=[rule]))
    await cluster.client.create(RoleBinding(metadata=meta, roleRef=role, subjects=[account]))


async def bind(folder: Path, mount_point: Path) -> None:
    """Bind-mount the directory at the mount point."""
    process = await asyncio.create_subprocess_exec("mount", "--bind", str(folder), str(mount_point))
    assert await process.wait() == 0
