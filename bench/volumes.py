"""A cluster as it is after years: thousands of claims, their volumes, and access points."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from lightkube import AsyncClient
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolumeClaim
from tests.scenarios import csi_steps, steps
from tests.scenarios.csi_steps import DRIVER, Aws

from kube_efs.aws.connection import Service
from kube_efs.kube.building import build_volume
from kube_efs.kube.reading import read_claim
from kube_efs.local.cluster import EmbeddedCluster
from kube_efs.local.control_plane import EmbeddedControlPlane
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.ids import ClaimUid, FileSystemId
from kube_efs.model.volumes import FINALIZER, ClaimReference, CsiSource, Volume

_AT_ONCE: Final = 16
_FIRST_ID: Final = 50_000
# One holds ten thousand access points and no more.
_SYSTEMS: Final = 2


class PlaneWithoutControllers(EmbeddedControlPlane):
    """Nobody binds here, so that only kube-efs has work with thousands of claims."""

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """Do nothing, until cancelled."""
        await asyncio.Event().wait()


class Existing:
    """Volumes of a class of the CSI driver that are there before the controller starts."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        aws: Aws,
        namespace: str,
        storage_class: str,
        systems: Sequence[FileSystemId],
    ) -> None:
        self._cluster = cluster
        self._aws = aws
        self._namespace = namespace
        self._class = storage_class
        self._systems = systems
        self._number = 0

    @classmethod
    async def of(cls, cluster: EmbeddedCluster, aws: Aws) -> "Existing":
        """None yet, on two file systems, of a class that makes further ones on the first."""
        systems = [await aws.file_system() for _ in range(_SYSTEMS)]
        storage_class = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": systems[0]})
        return cls(cluster, aws, await steps.new_namespace(cluster.client), storage_class, systems)

    async def claim(self, name: str, *, volume: str | None = None) -> ClaimUid:
        """Make a claim, of that volume or of a new one."""
        made = await self._cluster.client.create(
            PersistentVolumeClaim(
                metadata=ObjectMeta(namespace=self._namespace, name=name),
                spec=PersistentVolumeClaimSpec(
                    accessModes=["ReadWriteMany"],
                    resources=VolumeResourceRequirements(requests={"storage": "1Gi"}),
                    storageClassName=self._class,
                    volumeName=volume,
                ),
            )
        )
        return read_claim(made.to_dict()).uid

    async def grow_to(self, number: int) -> None:
        """Make more of them until there are so many."""
        await _all(self._make, range(self._number, number))
        self._number = number

    async def _make(self, number: int) -> None:
        user, system = _FIRST_ID + number, self._systems[number % _SYSTEMS]
        point = await self._aws.connection.call(
            Service.EFS,
            "CreateAccessPoint",
            ClientToken=f"existing-{number}",
            FileSystemId=system,
            PosixUser={"Uid": user, "Gid": user},
            RootDirectory={"Path": f"/existing-{number}"},
        )
        name = f"existing-{number}"
        uid = await self.claim(name, volume=name)
        volume = Volume(
            name=name,
            reclaim_policy=ReclaimPolicy.DELETE,
            storage_class=self._class,
            provisioned_by=DRIVER,
            finalizers=(FINALIZER,),
            claim=ClaimReference(namespace=self._namespace, name=name, uid=uid),
            csi=CsiSource(driver=DRIVER, handle=f"{system}::{point['AccessPointId']}"),
            access_modes=("ReadWriteMany",),
        )
        await self._cluster.client.create(build_volume(volume))


async def _all(work: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
    """Do it for all numbers, some at once."""
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            await work(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(some())
