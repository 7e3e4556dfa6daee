"""Fakes around the driver's volumes: one AWS account with access points; any call can fail."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.unit.provisioning.copying import CopiedFolders, given_copies

from kube_efs.aws.access_points import AwsAccessPoints
from kube_efs.aws.connection import Service
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.made_file_systems import AwsMadeFileSystems
from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.cluster_reader import ClusterReader
from kube_efs.kube.references import References
from kube_efs.kube.snapshots import SnapshotStore
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.access_point_tags import TagPolicy
from kube_efs.model.csi.access_points import AccessPoint, AccessPointRequest, VolumeRequest
from kube_efs.model.csi.cross_account import CrossAccountRole
from kube_efs.model.csi.parameters import FileSystemReference, parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, Relation
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, MountTargetId, SubnetId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import (
    AwsAlreadyExists,
    AwsNotFound,
    AwsNotPermitted,
    AwsUnavailable,
    KubeEfsError,
    KubeNotFound,
)
from kube_efs.model.snapshots import SnapshotContent
from kube_efs.model.volumes import DRIVER, CsiSource, Location, Volume
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.backends.csi.accounts import Account, Accounts
from kube_efs.provisioning.backends.csi.directories import CsiDirectories
from kube_efs.provisioning.backends.csi.file_systems import FileSystems
from kube_efs.provisioning.backends.csi.volumes import CsiVolumes
from kube_efs.provisioning.guards import Guards
from kube_efs.provisioning.snapshots import Snapshots
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Confirm

FS = FileSystemId("fs-0123456789abcdef0")
OTHER = FileSystemId("fs-0123456789abcdef1")


class Api(AwsAccessPoints):
    """Access points, stored as AWS does; the call of a name in ``faults`` raises its error."""

    def __init__(self) -> None:
        self.points: dict[AccessPointId, AccessPoint] = {}
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, KubeEfsError] = {}
        self.hidden = False  # from listings
        self.omitted: set[AccessPointId] = set()  # likewise, each
        self.lost: set[str] = set()

    def call(self, name: str) -> None:
        """Count a call, and raise the error that the test has set for it."""
        self.calls[name] += 1
        if name in self.faults:
            raise self.faults[name]

    def answer(self, name: str) -> None:
        """Raise the error of a lost answer, if the name is in ``lost``."""
        if name in self.lost:
            raise AwsUnavailable("was not answered in time", field=name)

    async def list(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        self.call("list")
        if self.hidden:
            return ()
        found = (one for point, one in self.points.items() if point not in self.omitted)
        return tuple(one for one in found if one.file_system_id == file_system_id)

    async def get(self, access_point_id: AccessPointId, _file_system_id: FileSystemId) -> AccessPoint:
        self.call("get")
        if access_point_id not in self.points:
            raise AwsNotFound("is not there", field="access point", value=access_point_id)
        return self.points[access_point_id]

    async def create(self, request: AccessPointRequest) -> AccessPoint:
        self.call("create")
        for one in self.points.values():
            if one.client_token == request.client_token:
                error = AwsAlreadyExists("is there", field="access point")
                error.existing = one.access_point_id
                raise error
        made = AccessPoint(
            access_point_id=AccessPointId(f"fsap-{self.calls['create']:017x}"),
            file_system_id=request.file_system_id,
            directory=request.directory,
            user=request.user if request.enforces_user else None,
            client_token=request.client_token,
            tags={tag.key: tag.value for tag in request.tags},
        )
        self.points[made.access_point_id] = made
        self.answer("create")
        return made

    async def delete(self, access_point_id: AccessPointId) -> None:
        self.call("delete")
        if access_point_id not in self.points:
            raise AwsNotFound("is not there", field="access point", value=access_point_id)
        del self.points[access_point_id]
        self.answer("delete")


class S3Api(Api):
    """The same for S3 Files, whose lists contain neither tokens nor tags.

    Without ``may_get``, AWS denies GetAccessPoint, so the product takes an access point from a list.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.may_get = True
        self._listing = AwsS3Files(ManagedPolicy(self), clock)  # type: ignore[arg-type]

    async def list(self, file_system_id: FileSystemId) -> tuple[AccessPoint, ...]:
        return tuple(replace(one, client_token="", tags={}) for one in await super().list(file_system_id))

    async def get(self, access_point_id: AccessPointId, file_system_id: FileSystemId) -> AccessPoint:
        if self.may_get:
            return await super().get(access_point_id, file_system_id)
        self.call("get")
        return await self._listing.get(access_point_id, file_system_id)

    async def delete(self, access_point_id: AccessPointId) -> None:
        await super().delete(access_point_id)
        await self._listing.delete(access_point_id)


class ManagedPolicy:
    """The connection of a role with the managed policy, to the access points of ``api``."""

    def __init__(self, api: S3Api) -> None:
        self._api = api

    async def call(self, service: Service, operation: str, **_: object) -> Mapping[str, Any]:
        if operation == "GetAccessPoint":
            raise AwsNotPermitted("was answered with AccessDeniedException", field=operation)
        return {}

    async def read_all(
        self, service: Service, operation: str, key: str, parse: Callable[..., Any], **given: Any
    ) -> Any:
        found = await self._api.list(given["fileSystemId"])
        return parse(
            [
                {
                    "accessPointId": one.access_point_id,
                    "fileSystemId": one.file_system_id,
                    "rootDirectory": {"path": str(one.directory)},
                    "posixUser": {"uid": one.user.uid, "gid": one.user.gid} if one.user else None,
                    "status": "deleting" if one.leaving else "available",
                }
                for one in found
            ]
        )


class NotMade(AwsMadeFileSystems):
    """No file system was created for claims."""

    def __init__(self) -> None:
        """Without a connection."""

    async def get(self, file_system_id: FileSystemId) -> None:
        """None."""


class NamedCluster(ClusterReader):
    """The cluster ``cluster-uid`` with some nodes; the uid of a namespace contains its name."""

    def __init__(self) -> None:
        self.instances = frozenset({"i-1"})
        self.claim_uids: dict[str, ClaimUid] = {}

    async def instance_ids(self) -> frozenset[str]:
        return self.instances

    async def namespace_uid(self, name: str) -> str:
        return f"uid-of-{name}"

    async def cluster_uid(self) -> str:
        return "cluster-uid"

    async def claim_uid(self, namespace: str, name: str) -> ClaimUid | None:
        return self.claim_uids.get(f"{namespace}/{name}")


class Gateway(AwsGateway):
    """File systems with mount targets in three zones; One Zone file systems if ``zone`` is set."""

    def __init__(self) -> None:
        self.access_points = self.api = Api()
        self.made_file_systems = NotMade()
        self.zone: ZoneName | None = None
        self.states = [LifeCycleState.AVAILABLE] * 3

    async def file_system(self, file_system_id: FileSystemId) -> FileSystem:
        self.api.call("file_system")
        return FileSystem(file_system_id=file_system_id, zone=self.zone)

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        self.api.call("mount_targets")
        return tuple(
            MountTarget(
                mount_target_id=MountTargetId(f"fsmt-{number}"),
                file_system_id=file_system_id,
                subnet_id=SubnetId(f"subnet-{number}"),
                zone=ZoneName(f"us-east-1{'abc'[number]}"),
                zone_id=ZoneName(f"use1-az{3 - number}"),
                address=f"10.0.{number}.1",
                state=state,
            )
            for number, state in enumerate(self.states)
        )


class OneAccount(Accounts):
    """The same account for every role; ``roles`` records the requested ones."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.roles: list[CrossAccountRole | None] = []

    @asynccontextmanager
    async def of(self, role: CrossAccountRole | None) -> AsyncIterator[Account]:
        self.roles.append(role)
        yield self._account

    def known(self) -> Iterator[Account]:
        yield self._account


class Texts(References):
    """The contents of ConfigMaps and Secrets."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.secrets: dict[str, dict[str, str]] = {}

    async def text(self, reference: FileSystemReference) -> str | None:
        return self.texts.get(str(reference))

    async def secret(self, namespace: str, name: str) -> dict[str, str] | None:
        return self.secrets.get(f"{namespace}/{name}")


class Folders(CopiedFolders):
    """Creates and removes directories in memory, in place of worker pods."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, Permissions] = {}
        self.removed: list[str] = []
        self.removed_from: list[Location] = []
        self.listed: list[str] = []
        self.fault: KubeEfsError | None = None
        self.busy: KubeEfsError | None = None
        self.busy_at = Directory()

    async def make(self, location: Location, permissions: Permissions) -> None:
        if self.fault:
            raise self.fault
        self.made[str(location)] = permissions

    async def settled(self, location: Location) -> None:
        """Raise the error of the test, if it has set one for a directory equal, above or below."""
        if self.busy and location.directory.relation_to(self.busy_at) is not Relation.APART:
            raise self.busy

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        if self.fault:
            raise self.fault
        await confirm()
        self.made.pop(str(location), None)
        self.removed.append(f"{location} in {base}")
        self.removed_from.append(location)

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        self.listed.append(str(location))
        prefix = f"{location}".rstrip("/") + "/"
        return [
            FoundDirectory(name=place.removeprefix(prefix), gid=permissions.gid or 0)
            for place, permissions in self.made.items()
            if place.startswith(prefix)
        ]


class Listed(VolumeStore):
    """The API server has the volumes that the index knows, and ``newer`` ones."""

    def __init__(self, index: VolumeIndex) -> None:
        self._index = index
        self.newer: dict[str, Volume] = {}

    async def list(self) -> Sequence[Volume]:
        return tuple({**self._index.volumes, **self.newer}.values())

    async def get(self, name: str) -> Volume:
        found = {**self._index.volumes, **self.newer}
        if name not in found:
            raise KubeNotFound("answered 404", field=f"volume {name}")
        return found[name]


class Contents(SnapshotStore):
    """The VolumeSnapshotContents of the API server."""

    def __init__(self) -> None:
        self.known: list[SnapshotContent] = []

    async def contents(self, driver: str) -> tuple[SnapshotContent, ...]:
        return tuple(one for one in self.known if one.driver == driver)


class KnownClaims(ClaimStore):
    """The claims of the API server; every read raises ``fault`` if it is set."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Claim] = {}
        self.later: Claim | None = None
        self.fault: KubeEfsError | None = None

    def add(self, namespace: str, name: str, *, labels: dict[str, str], annotations: dict[str, str]) -> None:
        uid = ClaimUid(f"uid-of-{name}")
        claim = Claim(namespace=namespace, name=name, uid=uid, labels=labels, annotations=annotations)
        self.known[namespace, name] = claim

    async def get(self, namespace: str, name: str) -> Claim | None:
        if self.fault:
            raise self.fault
        return self.known.get((namespace, name))

    def list_later(self, claim: Claim) -> None:
        """Only the second list contains that claim."""
        self.later = claim

    async def list(self) -> list[Claim]:
        listed = list(self.known.values())
        if self.later is not None:
            self.known[self.later.namespace, self.later.name], self.later = self.later, None
        return listed


class CsiWorld:
    """The driver's volumes on one account."""

    def __init__(
        self,
        *,
        removes_directories: Collection[FileSystemKind] = (),
        has_workers: bool = True,
        quota: int = 10,
        is_alone: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gateway, self.texts, self.folders = Gateway(), Texts(), Folders()
        self.claims = KnownClaims()
        self.api = self.gateway.api
        self.index = VolumeIndex()
        self.store = Listed(self.index)
        tags = TagPolicy(describes_volume=True)
        self.s3_api = S3Api(clock)
        points = {
            kind: AccessPoints(
                api, self.index, quota=quota, kind=kind, tags=tags, is_alone=is_alone, clock=clock
            )
            for kind, api in (
                (FileSystemKind.EFS, self.api),
                (FileSystemKind.S3_FILES, self.s3_api),
            )
        }
        self.accounts = OneAccount(Account(gateway=self.gateway, access_points=points))
        guards = self.guards = Guards(index=self.index, store=self.store, roots=self.roots)
        self.told: list[tuple[str, str]] = []
        self.copies, self.sources = given_copies(
            guards.reservations,
            lambda claim, text: self.told.append((claim.name, text)),
            self.claims.is_gone,
            accepts_earlier_source=False,
        )
        directories = CsiDirectories(
            self.folders,
            copies=self.copies,
            index=self.index,
            reservations=guards.reservations,
            is_alone=is_alone,
            clock=clock,
        )
        file_systems = FileSystems(
            self.gateway, NamedCluster(), self.texts, notice=lambda *_: None, patience_seconds=1
        )
        self.contents = Contents()
        self.snapshots = Snapshots(
            store=self.contents,
            sources=self.sources,
            copies=self.copies,
            directories=self.folders,
            guards=guards,
            check_stays=file_systems.check_stays,
        )
        self.volumes = CsiVolumes(
            accounts=self.accounts,
            file_systems=file_systems,
            directories=directories if has_workers else None,
            index=self.index,
            guards=guards,
            removes_directories=removes_directories,
            clock=clock,
        )

    async def roots(
        self, location: Location, role: CrossAccountRole | None, named: Collection[AccessPointId]
    ) -> Sequence[AccessPoint]:
        """The access points of the file system, as for the guards of the controller."""
        async with self.accounts.of(role) as account:
            return await account.access_points[location.kind].known.roots(location.file_system_id, named)

    @property
    def account_roles(self) -> set[CrossAccountRole | None]:
        """The roles of every account that was used."""
        return set(self.accounts.roles)

    def add_class(self, name: str, **parameters: str) -> None:
        """Add a StorageClass with the parameters of ``request``."""
        given = _parameters(**parameters)
        self.index.classes[name] = StorageClass(name=name, provisioner=DRIVER, parameters=given)

    def note(self, name: str, handle: object, **changes: object) -> None:
        """Add a Kubernetes volume with that handle."""
        volume = Volume(name=name, uid=f"uid-of-{name}", csi=CsiSource(handle=str(handle)))
        self.index.put_volume(replace(volume, **changes))  # type: ignore[arg-type]


def request(name: str = "pvc-1", **parameters: str) -> VolumeRequest:
    """A request with these parameters and the required ones; the value ``-`` omits a parameter."""
    return VolumeRequest(
        name=name,
        parameters=parse_parameters(_parameters(**parameters)),
        origin=VolumeOrigin(claim_name="data", claim_namespace="team", volume_name=name),
    )


def _parameters(**parameters: str) -> dict[str, str]:
    given = {"provisioningMode": "efs-ap", "fileSystemId": FS, "directoryPerms": "700", **parameters}
    return {key: value for key, value in given.items() if value != "-"}
