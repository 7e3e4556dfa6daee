"""The embedded EFS as one thing: started in a directory, asked for file systems, stopped without a trace.

Mount targets differ by address alone, since all of them listen on port 2049. Linux answers on all of
127.0.0.0/8, so each embedded EFS takes a /16 of it, and several can run side by side.
"""

import errno
import ipaddress
import os
import random
import socket
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from fake_efs.access_points import ensure_root
from fake_efs.admission import Admission
from fake_efs.aws_api import (
    ACCOUNT_ID,
    CREDENTIALS,
    DRIVER,
    AwsApi,
    RememberingClient,
    Subnet,
    aws_client,
    create_subnets,
    run_instance,
)
from fake_efs.data_plane import DataPlane
from fake_efs.errors import AwsNotFound, InvalidValue, PlatformError
from fake_efs.file_systems import (
    FileSystem,
    Kind,
    MountTarget,
    is_usable,
    read_mount_target,
    read_s3_files_mount_target,
)
from fake_efs.identities import INSTANCE_ROLE, Identities
from fake_efs.instance_metadata import (
    Instance,
    InstanceMetadata,
    InstanceRole,
    NetworkInterface,
)
from fake_efs.nfs_server import check_platform
from fake_efs.pod_roles import PodRoles
from fake_efs.policy import parse_policy
from fake_efs.process import Starter, start_module
from fake_efs.tls_front import NFS_PORT, Traffic
from tiny_ca.authority import Authority, ServerCertificate

# 127.0.0.0/16 is everybody's; Debian's host name and resolvers are among the next ones.
_SECOND_OCTETS = range(16, 251)
DEFAULT_REGION = "us-east-1"
# A client that waits for an answer is waited for by a pod.
_ADMISSION_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackRange:
    """A /16 that nobody else who asks in the same way gets until it is released."""

    network: IPv4Network
    claim: socket.socket = field(repr=False)

    @classmethod
    def acquire(cls, second_octets: Iterable[int] | None = None) -> Self:
        """Take a free range, by default a random one; raises PlatformError when there is none.

        The mark of it is a socket bound to the range's first address, which no subnet hands out. It also
        finds out whether somebody, such as the system's NFS server, has port 2049 on every address.
        """
        for octet in second_octets or random.sample(_SECOND_OCTETS, len(_SECOND_OCTETS)):
            network = ipaddress.IPv4Network(f"127.{octet}.0.0/16")
            claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                claim.bind((str(network[1]), NFS_PORT))
            except OSError as error:
                claim.close()
                if error.errno != errno.EADDRINUSE:
                    raise PlatformError(
                        f"cannot be bound: {error}", field="address", value=network[1]
                    ) from error
            else:
                return cls(network=network, claim=claim)
        raise PlatformError(
            "is taken on every loopback address",
            field="port",
            value=NFS_PORT,
            remedy="stop the NFS server of this machine",
        )

    def release(self) -> None:
        """Give it back."""
        self.claim.close()


class EmbeddedEfs:
    """An AWS endpoint, instance metadata, and file systems that answer at their mount targets' addresses.

    Serves while its context is open. File systems may also be made and removed by any AWS client; the
    data plane follows within half a second. Everything it writes is below ``work_dir``; what is left
    there after closing is of no further use, since the API forgets its file systems. Opening raises
    PlatformError when this machine lacks something.

    With ``driver_policy``, the text of an identity policy, the credentials of ``environment`` allow these
    calls, and mounts of S3 Files, only; without, they are an administrator's.

    With ``network``, whose addresses must all be this machine's, everything is served there: a /16 for nodes
    that are other machines. Without, it is served on loopback.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        region: str = DEFAULT_REGION,
        starter: Starter = start_module,
        driver_policy: str | None = None,
        network: IPv4Network | None = None,
    ) -> None:
        self._driver_policy = driver_policy
        self._network = network
        self._host = _LOOPBACK if network is None else str(network[1])
        self.region = region
        self.authority = Authority.create()
        self.work_dir = work_dir.absolute()
        self.ca_file = self.work_dir / "ca.pem"
        self._starter = starter
        self._discovered: tuple[int, tuple[FileSystem, ...]] = (-1, ())
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        check_platform()
        try:
            await self._start()
        except BaseException:
            await self._exit_stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exit_stack.__aexit__(kind, error, traceback)

    async def _start(self) -> None:
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.ca_file.write_text(self.authority.pem)
        network = self._network
        if network is None:
            loopback = LoopbackRange.acquire()
            self._exit_stack.callback(loopback.release)
            network = loopback.network
        self._api = api = await AwsApi.start(
            self.work_dir / "aws-api.log", self._starter, driver_policy=self._driver_policy, host=self._host
        )
        self._exit_stack.push_async_callback(api.stop)
        self.endpoint_url = api.endpoint_url
        opening = aws_client("efs", api.endpoint_url, self.region)
        self._efs = await self._exit_stack.enter_async_context(opening)
        opening = aws_client("s3files", api.endpoint_url, self.region)
        self._s3_files = await self._exit_stack.enter_async_context(opening)
        self.subnets = await create_subnets(api.endpoint_url, self.region, network)
        identities = Identities(self.region)
        self.instance_id = await run_instance(api.endpoint_url, self.region, self.subnets[0])
        metadata = InstanceMetadata(
            _instance_in(self.subnets[0], self.region, self.instance_id),
            role=InstanceRole(name=INSTANCE_ROLE, credentials=identities.instance_credentials),
            host=self._host,
        )
        self._exit_stack.push_async_callback(metadata.stop)
        await metadata.start()
        self.metadata_url = metadata.url
        self.pod_roles = PodRoles(identities, host=self._host)
        self._exit_stack.push_async_callback(self.pod_roles.stop)
        await self.pod_roles.start()
        opening = aws_client("efs", api.endpoint_url, self.region, call_seconds=_ADMISSION_SECONDS)
        asking = await self._exit_stack.enter_async_context(opening)
        opening = aws_client("s3files", api.endpoint_url, self.region, call_seconds=_ADMISSION_SECONDS)
        asking_s3 = await self._exit_stack.enter_async_context(opening)
        self._admission = Admission(
            RememberingClient(asking, lambda: api.changes),
            RememberingClient(asking_s3, lambda: api.changes),
            identities,
            None if self._driver_policy is None else parse_policy(self._driver_policy, of_identity=True),
        )
        self.data_plane = DataPlane(
            self._discover,
            authority=self.authority,
            region=self.region,
            work_dir=self.work_dir,
            admission=self._admission,
        )
        self._exit_stack.push_async_callback(self.data_plane.stop)
        self.data_plane.start()
        log.info("embedded_efs_ready", aws=self.endpoint_url, addresses=str(network))

    def environment(self) -> Mapping[str, str]:
        """The environment variables that point an AWS client here, and away from any real account."""
        credentials = CREDENTIALS if self._driver_policy is None else DRIVER
        return {
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata_url,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": f"{self._host},localhost",
            "no_proxy": f"{self._host},localhost",
        }

    async def create_file_system(self, name: str, *, zones: Collection[str] | None = None) -> str:
        """A new file system with a mount target in each of these zones (None: all), ready to be mounted."""
        made = await self._efs.call(
            "CreateFileSystem",
            CreationToken=uuid.uuid4().hex,
            Encrypted=True,
            Tags=[{"Key": "Name", "Value": name}],
        )
        file_system_id = str(made["FileSystemId"])
        for subnet in self.subnets:
            if zones is None or subnet.zone in zones:
                await self._create_mount_target(file_system_id, subnet)
        await self.data_plane.settle()
        return file_system_id

    async def create_s3_file_system(self, bucket: str) -> str:
        """A new file system of S3 Files with a mount target in each zone, ready to be mounted.

        Its data is in a directory of this machine, not in a bucket.
        """
        made = await self._s3_files.call(
            "CreateFileSystem",
            bucket=f"arn:aws:s3:::{bucket}",
            roleArn=f"arn:aws:iam::{ACCOUNT_ID}:role/s3-files",
        )
        file_system_id = str(made["fileSystemId"])
        for subnet in self.subnets:
            await self._s3_files.call(
                "CreateMountTarget", fileSystemId=file_system_id, subnetId=subnet.subnet_id
            )
        await self.data_plane.settle()
        return file_system_id

    async def s3_files_mount_targets(self, file_system_id: str) -> tuple[MountTarget, ...]:
        """The mount targets of a file system of S3 Files, in order of the IDs of their zones."""
        found = await self._s3_files.list_all("ListMountTargets", "mountTargets", fileSystemId=file_system_id)
        return tuple(sorted(map(read_s3_files_mount_target, found), key=lambda target: target.zone))

    async def delete_file_system(self, file_system_id: str) -> None:
        """Remove a file system, its mount targets and its data."""
        for target in await self.mount_targets(file_system_id):
            await self._efs.call("DeleteMountTarget", MountTargetId=target.mount_target_id)
        await self._efs.call("DeleteFileSystem", FileSystemId=file_system_id)
        await self.data_plane.settle()

    async def create_mount_target(
        self, file_system_id: str, zone: str, *, address: str | None = None
    ) -> MountTarget:
        """A new mount target, answering; its address is of the zone's subnet, any free one for None."""
        target = await self._create_mount_target(file_system_id, self._subnet_in(zone), address)
        await self.data_plane.settle()
        return target

    async def delete_mount_target(self, mount_target_id: str) -> None:
        """Remove a mount target; its connections are cut."""
        await self._efs.call("DeleteMountTarget", MountTargetId=mount_target_id)
        await self.data_plane.settle()

    async def mount_targets(self, file_system_id: str) -> tuple[MountTarget, ...]:
        """The mount targets of a file system, in order of their zones; those that accept connections."""
        found = await self._efs.list_all("DescribeMountTargets", "MountTargets", FileSystemId=file_system_id)
        targets = (read_mount_target(one) for one in found if is_usable(one))
        return tuple(sorted(targets, key=lambda target: target.zone))

    def folder(self, file_system_id: str) -> Path:
        """Where the data of a file system lies on this machine; raises InvalidValue when unknown."""
        return self.data_plane.served(file_system_id).folder

    async def access_point_folder(self, access_point_id: str) -> Path:
        """Where the root directory of an access point lies on this machine, made as by a first connection.

        What is done there is not done with the access point's identity. Raises InvalidValue when the
        access point does not exist or its root directory cannot be used, or AwsError.
        """
        try:
            access_point = await self._admission.access_point(access_point_id)
        except InvalidValue:
            access_point = await self._admission.access_point(access_point_id, Kind.S3_FILES)
        root = await ensure_root(self.folder(access_point.file_system_id), access_point)
        return root.path

    def file_system_at(self, server: str) -> str | None:
        """The file system that answers at an address or under a DNS name; None when there is none."""
        return self.data_plane.file_system_at(server)

    def present(self, file_system_id: str, certificate: ServerCertificate | None) -> None:
        """Show another server certificate to new clients of a file system; None: its own again."""
        self.data_plane.served(file_system_id).present(certificate)

    def traffic(self, mount_target_id: str) -> Traffic:
        """What a mount target has seen so far."""
        return self.data_plane.front(mount_target_id).traffic

    def refused_clients(self, file_system_id: str) -> int:
        """How many clients its mount targets have refused; raises InvalidValue when it is not known."""
        return sum(front.traffic.refused for front in self.data_plane.served(file_system_id).fronts.values())

    async def _discover(self) -> tuple[FileSystem, ...]:
        changes = self._api.changes
        if changes != self._discovered[0]:
            self._discovered = changes, await self._read_file_systems()
        return self._discovered[1]

    async def _read_file_systems(self) -> tuple[FileSystem, ...]:
        listed = await self._efs.list_all("DescribeFileSystems", "FileSystems")
        found = []
        for file_system_id in (str(one["FileSystemId"]) for one in listed):
            with suppress(AwsNotFound):  # removed since the file systems were listed
                targets = await self.mount_targets(file_system_id)
                found.append(FileSystem(file_system_id=file_system_id, mount_targets=targets))
        for one in await self._s3_files.list_all("ListFileSystems", "fileSystems"):
            name = str(one["fileSystemId"])
            with suppress(AwsNotFound):
                targets = await self.s3_files_mount_targets(name)
                found.append(FileSystem(file_system_id=name, mount_targets=targets, kind=Kind.S3_FILES))
        return tuple(found)

    async def _create_mount_target(
        self, file_system_id: str, subnet: Subnet, address: str | None = None
    ) -> MountTarget:
        given = {"IpAddress": address} if address else {}
        made = await self._efs.call(
            "CreateMountTarget", FileSystemId=file_system_id, SubnetId=subnet.subnet_id, **given
        )
        return read_mount_target(made)

    def _subnet_in(self, zone: str) -> Subnet:
        for subnet in self.subnets:
            if subnet.zone == zone:
                return subnet
        known = ", ".join(subnet.zone for subnet in self.subnets)
        raise InvalidValue("has no subnet", field="zone", value=zone, remedy=f"use one of {known}")


def _instance_in(subnet: Subnet, region: str, instance_id: str) -> Instance:
    """The machine with one interface, in this subnet."""
    address = subnet.instance_address
    mac = "02:00:" + ":".join(f"{octet:02x}" for octet in address.packed)
    return Instance(
        instance_id=instance_id,
        account_id=ACCOUNT_ID,
        region=region,
        zone=subnet.zone,
        zone_id=subnet.zone_id,
        interfaces=(
            NetworkInterface(mac=mac, subnet_id=subnet.subnet_id, vpc_id=subnet.vpc_id, address=str(address)),
        ),
    )
