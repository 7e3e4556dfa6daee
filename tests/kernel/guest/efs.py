"""An EFS for a guest: the embedded data plane, configured by scenarios instead of an AWS API."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from fake_efs.admission import Admission
from fake_efs.aws_api import ACCOUNT_ID, Credentials
from fake_efs.data_plane import DataPlane
from fake_efs.errors import AwsNotFound
from fake_efs.file_systems import FileSystem, Kind, MountTarget
from fake_efs.identities import INSTANCE_ROLE, Identities
from fake_efs.instance_metadata import (
    Instance,
    InstanceMetadata,
    InstanceRole,
    NetworkInterface,
)
from fake_efs.tls_front import TlsFront
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import S3FilesTargets, TunnelTarget, TunnelTargets
from tiny_ca.authority import Authority

REGION = Region("us-east-1")
# The node is in the first.
ZONES = (ZoneName("us-east-1a"), ZoneName("us-east-1b"))

_INSTANCE = Instance(
    instance_id="i-0123456789abcdef0",
    account_id=ACCOUNT_ID,
    region=REGION,
    zone=ZONES[0],
    zone_id="use1-az1",
    interfaces=(
        NetworkInterface(
            mac="02:00:7f:10:00:01", subnet_id=SubnetId("subnet-a"), vpc_id="vpc-1", address="192.0.2.1"
        ),
    ),
)
_ZONE_IDS = {zone: ZoneName(f"use1-az{number}") for number, zone in enumerate(ZONES, start=1)}
_FIRST_PORT = 20490


class GuestEfs:
    """File systems with a mount target in each zone, and the instance metadata of the node.

    Serves while its context is open. ``credentials_last`` is the lifetime of the next credentials of the
    instance's role. Without ``has_credentials``, there are none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_file = folder / "ca.pem"
        self.credentials_last = timedelta(hours=6)
        self.has_credentials = True
        self._time_gone = timedelta()
        authority = Authority.create()
        self._identities = Identities(REGION, clock=lambda: datetime.now(UTC) + self._time_gone)
        self.metadata = InstanceMetadata(
            _INSTANCE, role=InstanceRole(name=INSTANCE_ROLE, credentials=self._credentials)
        )
        self._systems: dict[FileSystemId, FileSystem] = {}
        self._access_points = _AccessPoints()
        self._numbers = itertools.count(1)
        self._authority = authority
        self._data_plane = DataPlane(
            self._discover,
            authority=authority,
            region=REGION,
            work_dir=folder,
            admission=Admission(self._access_points, self._access_points, self._identities),
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        self.ca_file.write_text(self._authority.pem)
        await self.metadata.start()
        self._stack.push_async_callback(self.metadata.stop)
        self._data_plane.start()
        self._stack.push_async_callback(self._data_plane.stop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def create_file_system(self, kind: Kind = Kind.EFS) -> FileSystemId:
        """Create a file system with its mount targets."""
        number = next(self._numbers)
        fs = FileSystemId(f"fs-{number:017x}")
        self._systems[fs] = FileSystem(
            file_system_id=fs,
            kind=kind,
            mount_targets=tuple(
                MountTarget(
                    mount_target_id=f"fsmt-{number:08x}{index:09x}",
                    subnet_id=SubnetId(f"subnet-{zone[-1]}"),
                    zone=zone,
                    address=f"127.60.{index}.{number}",
                )
                for index, zone in enumerate(ZONES, start=1)
            ),
        )
        await self._data_plane.settle()
        return fs

    def create_access_point(
        self, fs: FileSystemId, path: str, *, uid: int | None = None, mode: str = "0750"
    ) -> VolumeHandle:
        """Create an access point with this root directory and user; returns the volume."""
        access_point = AccessPointId(f"fsap-{next(self._numbers):017x}")
        owner = uid or 0
        if self._systems[fs].kind is Kind.S3_FILES:
            self._access_points.known[access_point] = {
                "accessPointId": access_point,
                "accessPointArn": f"arn:aws:s3files:::file-system/{fs}/access-point/{access_point}",
                "fileSystemId": fs,
                "posixUser": {"uid": uid, "gid": uid} if uid is not None else None,
                "rootDirectory": {
                    "path": path,
                    "creationPermissions": {"ownerUid": owner, "ownerGid": owner, "permissions": mode},
                },
            }
            return VolumeHandle(kind=FileSystemKind.S3_FILES, file_system_id=fs, access_point_id=access_point)
        self._access_points.known[access_point] = {
            "AccessPointId": access_point,
            "AccessPointArn": f"arn:aws:elasticfilesystem:{REGION}:{ACCOUNT_ID}:access-point/{access_point}",
            "FileSystemId": fs,
            "PosixUser": {"Uid": uid, "Gid": uid} if uid is not None else None,
            "RootDirectory": {
                "Path": path,
                "CreationInfo": {"OwnerUid": owner, "OwnerGid": owner, "Permissions": mode},
            },
        }
        return VolumeHandle(file_system_id=fs, access_point_id=access_point)

    def targets(self) -> TunnelTargets:
        """The targets that a controller would publish to its nodes."""
        targets = {
            fs: TunnelTarget(
                file_system_id=fs,
                port=_FIRST_PORT + index,
                address_by_subnet={SubnetId(one.subnet_id): one.address for one in system.mount_targets},
            )
            for index, (fs, system) in enumerate(self._systems.items())
            if system.kind is Kind.EFS
        }
        zones = {SubnetId(f"subnet-{zone[-1]}"): zone for zone in ZONES}
        addresses = {
            fs: {_ZONE_IDS[ZoneName(one.zone)]: one.address for one in system.mount_targets}
            for fs, system in self._systems.items()
            if system.kind is Kind.S3_FILES
        }
        return TunnelTargets(
            targets=targets, zone_by_subnet=zones, s3_files=S3FilesTargets(addresses=addresses)
        )

    def fronts(self, fs: FileSystemId) -> tuple[TlsFront, ...]:
        """The mount targets of a file system in the order of their zones."""
        return tuple(self._data_plane.front(one.mount_target_id) for one in self._systems[fs].mount_targets)

    def path(self, fs: FileSystemId, directory: str = "/") -> Path:
        """The path of that directory on this machine."""
        return self._data_plane.served(fs).folder / directory.lstrip("/")

    def logs(self) -> Iterator[Path]:
        """The logs of the NFS servers."""
        return self.folder.rglob("*.log")

    async def _discover(self) -> tuple[FileSystem, ...]:
        return tuple(self._systems.values())

    def expire_credentials(self) -> None:
        """From now on, refuse signatures with the previous credentials."""
        self._time_gone += timedelta(hours=7)

    def _credentials(self) -> tuple[Credentials, datetime]:
        if not self.has_credentials:
            raise web.HTTPServiceUnavailable
        credentials, _ = self._identities.instance_credentials()
        return credentials, datetime.now(UTC) + self.credentials_last


class _AccessPoints:
    """The parts of the APIs of EFS and S3 Files that the data plane uses."""

    def __init__(self) -> None:
        self.known: dict[object, Mapping[str, Any]] = {}

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        subject = parameters.get("AccessPointId")
        if operation == "DescribeAccessPoints" and subject in self.known:
            return {"AccessPoints": [self.known[subject]]}
        subject = parameters.get("accessPointId")
        if operation == "GetAccessPoint" and subject in self.known:
            return self.known[subject]
        raise AwsNotFound("does not exist", field=operation)
