"""Fakes around the engine: a store of volumes and a file system; both can fail at any step."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from prometheus_client import CollectorRegistry
from tests.unit.provisioning.copying import CopiedFolders, given_copies

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.access_points import AccessPoint
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.directory_volumes import DirectoryProvisioner
from kube_efs.model.efs.directories import (
    Directory,
    FoundDirectory,
    Permissions,
    Relation,
    parse_directory,
)
from kube_efs.model.efs.file_systems import Discovery, FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, MountTargetId, SubnetId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import (
    GidTaken,
    KubeAlreadyExists,
    KubeConflict,
    KubeNotFound,
    KubeUnavailable,
    WorkerFailed,
)
from kube_efs.model.volumes import FINALIZER, Location, Volume, VolumePhase
from kube_efs.provisioning.backends.directory import DirectoryBackend, ScanPace
from kube_efs.provisioning.backends.tunnel import TunnelBackend
from kube_efs.provisioning.engine import Engine
from kube_efs.provisioning.guards import Guards
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Confirm
from kube_efs.telemetry.metrics import ControllerMetrics

PROVISIONER = "gnuthought.com/efs-stunnel"
FILE_SYSTEMS = tuple(FileSystemId(f"fs-{number}") for number in (1, 2))
EFS = StorageClass(name="efs", provisioner=PROVISIONER, parameters={"default_file_system_id": "auto"})

DIRECTORY_PROVISIONER = DirectoryProvisioner(
    name="example.com/aws-efs",
    file_system_id=FILE_SYSTEMS[0],
    server="efs.example.com",
    base=parse_directory("/pvs"),
)
AWS_EFS = StorageClass(
    name="aws-efs", provisioner=DIRECTORY_PROVISIONER.name, parameters={"gidMin": "2000", "gidMax": "2002"}
)


def reachable(file_system_id: FileSystemId) -> FileSystem:
    """A file system with a mount target."""
    target = MountTarget(
        mount_target_id=MountTargetId(f"fsmt-{file_system_id}"),
        file_system_id=file_system_id,
        subnet_id=SubnetId("subnet-a"),
        zone=None,
        address="10.0.0.4",
        state=LifeCycleState.AVAILABLE,
    )
    return FileSystem(file_system_id=file_system_id, mount_targets=(target,))


class Moments:
    """The moments between two effects; a test can fail or pause at each."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.on_moment: Callable[[str], int] = lambda _: 0

    async def __call__(self, name: str) -> None:
        self.passed.append(name)
        for _ in range(self.on_moment(name)):
            await asyncio.sleep(0)


class Store(VolumeStore):
    """Volumes, stored as an API server does."""

    def __init__(self, moment: Moments) -> None:
        self.volumes: dict[str, Volume] = {}
        self.on_change: Callable[[Volume], None] = lambda _: None
        self._moment = moment
        self._made = 0

    async def create(self, volume: Volume) -> Volume:
        try:
            await self._moment("before create")
            if volume.name in self.volumes:
                raise KubeAlreadyExists("answered 409", field=f"volume {volume.name}")
            self._made += 1
            self.volumes[volume.name] = replace(volume, uid=f"pv-{self._made}")
            await self._moment("after create")
        except KubeUnavailable as error:
            error.outcome_unknown = True
            raise
        return self.volumes[volume.name]

    async def get(self, name: str) -> Volume:
        await self._moment("before get")
        if name not in self.volumes:
            raise KubeNotFound("answered 404", field=f"volume {name}")
        found = self.volumes[name]
        await self._moment("after get")
        return found

    async def terminate(self, volume: Volume) -> None:
        await self._moment("before delete")
        found = self.volumes.get(volume.name)
        if found is None:
            raise KubeNotFound("answered 404", field=f"volume {volume.name}")
        if replace(found, finalizers=volume.finalizers) != volume:
            raise KubeConflict("answered 409", field=f"volume {volume.name}")
        assert FINALIZER in found.finalizers
        self.write(replace(found, deleting=True))
        await self._moment("after delete")

    async def delete(self, volume: Volume) -> None:
        assert volume.deleting is (FINALIZER in volume.finalizers)
        await self.release(volume)

    async def list(self) -> list[Volume]:
        return list(self.volumes.values())

    async def release(self, volume: Volume) -> None:
        await self._moment("before release")
        self.volumes.pop(volume.name, None)

    async def protect(self, volume: Volume) -> None:
        await self._moment("before protect")
        self.write(replace(self.volumes[volume.name], finalizers=(FINALIZER,)))

    def write(self, volume: Volume) -> None:
        """Store a changed volume; the watch shows it at once."""
        self.volumes[volume.name] = volume
        self.on_change(volume)


class Folders(CopiedFolders):
    """Directories of file systems; records each removal of an existing directory."""

    def __init__(self, moment: Moments) -> None:
        super().__init__()
        self.there: set[Location] = set()
        self.permissions: dict[Location, Permissions] = {}
        # The directories that each group ID was claimed for, as their marks say.
        self.marks: defaultdict[int, set[Location]] = defaultdict(set)
        self.removed: list[Location] = []
        self.busy: WorkerFailed | None = None
        self._moment = moment

    async def make(self, location: Location, permissions: Permissions) -> None:
        await self._moment("before make")
        if permissions.own_group and permissions.gid is not None:
            self._claim(location, permissions.gid)
        if location not in self.there or permissions.enforced:
            self.permissions[location] = permissions
        self.there.add(location)
        await self._moment("after make")

    def _claim(self, location: Location, gid: int) -> None:
        others = (self.marks[gid] & self.there) - {location}
        if others:
            raise GidTaken(f"belongs to {others.pop()}", field="group ID", value=gid)
        self.marks[gid] = {location}

    async def children(self, location: Location) -> list[FoundDirectory]:
        await self._moment("before children")
        return [
            FoundDirectory(
                name=each.directory.parts[-1], gid=self.permissions.get(each, Permissions()).gid or 0
            )
            for each in self.there
            if each.is_child_of(location)
        ]

    async def settled(self, location: Location) -> None:
        """Raise the error of the test, if it has set one."""
        if self.busy:
            raise self.busy

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        assert location.directory.relation_to(base) is Relation.BELOW
        await self._moment("before confirm")
        await confirm()
        await self._moment("before remove")
        if location in self.there:
            self.there.remove(location)
            self.removed.append(location)
        await self._moment("after remove")


class World:
    """A cluster with file systems, and controllers that start one after the other or concurrently."""

    def __init__(self) -> None:
        self.moment = Moments()
        self.store = Store(self.moment)
        self.folders = Folders(self.moment)
        self.classes = {EFS.name: EFS, AWS_EFS.name: AWS_EFS}
        self.access_points: list[AccessPoint] = []
        self.pace = ScanPace(retry_seconds=0, least_seconds=0)
        self.now = 0.0
        self.choices: dict[ClaimUid, FileSystemId] = {}
        self.start()

    def start(self) -> Engine:
        """Start a controller that has read the state of the cluster."""
        self.index = VolumeIndex({DIRECTORY_PROVISIONER.server: DIRECTORY_PROVISIONER.file_system_id})
        self.index.classes = dict(self.classes)
        self.index.discovery = Discovery(
            file_systems={fs: reachable(fs) for fs in FILE_SYSTEMS}, complete=True
        )
        self.index.targets = TunnelTargets(
            targets={
                fs: TunnelTarget(file_system_id=fs, port=20490 + place)
                for place, fs in enumerate(FILE_SYSTEMS)
            }
        )
        self.index.replace_volumes(self.store.volumes.values())
        self.store.on_change = self.index.put_volume
        self.guards = Guards(index=self.index, store=self.store, roots=self.roots)
        self.copies, self.sources = given_copies(self.guards.reservations)
        tunnel = TunnelBackend(
            provisioner=PROVISIONER,
            index=self.index,
            directories=self.folders,
            copies=self.copies,
            record_choice=self.record_choice,
        )
        self.registry = CollectorRegistry()
        self.directory = DirectoryBackend(
            DIRECTORY_PROVISIONER,
            index=self.index,
            directories=self.folders,
            copies=self.copies,
            metrics=ControllerMetrics(self.registry),
            pace=self.pace,
        )
        self.engine = Engine(
            index=self.index,
            backends=[tunnel, self.directory],
            store=self.store,
            guards=self.guards,
            clock=lambda: self.now,
        )
        return self.engine

    async def record_choice(self, claim: Claim, file_system_id: FileSystemId) -> None:
        """Record the file system that was chosen for the claim."""
        self.choices[claim.uid] = file_system_id

    async def roots(
        self, location: Location, role: CrossAccountRole | None, named: Collection[AccessPointId]
    ) -> list[AccessPoint]:
        """The access points of the file system, as AWS lists them."""
        await self.moment("before roots")
        return [one for one in self.access_points if one.file_system_id == location.file_system_id]

    async def scan(self) -> None:
        """Scan the directories, again if they were scanned before."""
        self.directory.scanned.clear()
        scanning = asyncio.create_task(self.directory.run())
        await self.directory.scanned.wait()
        scanning.cancel()
        with suppress(asyncio.CancelledError):
            await scanning

    def add(self, *volumes: Volume) -> None:
        """Add volumes to the API server and to the index."""
        for volume in volumes:
            self.store.volumes[volume.name] = volume
            self.index.put_volume(volume)

    async def provision(self, wanted: Claim) -> Volume:
        plan = self.engine.plan(wanted)
        assert plan is not None
        return await self.engine.provision(plan)

    async def released(self, claims: Iterable[Claim]) -> list[Volume]:
        """Serve the claims, and return their volumes in phase Released."""
        found = []
        for each in claims:
            volume = await self.provision(each)
            found.append(replace(volume, phase=VolumePhase.RELEASED))
        self.add(*found)
        return found


def claim(
    uid: str = "u1", *, volume_name: str = "example", namespace: str = "team", policy: str | None = None
) -> Claim:
    labels = {"volume_name": volume_name} | ({"reclaim_policy": policy} if policy else {})
    return Claim(
        namespace=namespace,
        name=f"claim-{uid}",
        uid=ClaimUid(uid),
        storage_class=EFS.name,
        storage_provisioner=EFS.provisioner,
        match_labels=labels,
        access_modes=("ReadWriteMany",),
    )


def directory_claim(number: int = 1, **changes: object) -> Claim:
    """A claim for a directory volume."""
    made = Claim(
        namespace="team",
        name="data",
        uid=ClaimUid(f"{number:08x}-0000-4000-8000-000000000000"),
        storage_class=AWS_EFS.name,
        storage_provisioner=AWS_EFS.provisioner,
        access_modes=("ReadWriteMany",),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name
