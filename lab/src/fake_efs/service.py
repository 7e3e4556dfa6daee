"""The embedded EFS as one thing: started in a folder, asked for file systems, stopped without a trace."""

import asyncio
import os
import uuid
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from fake_efs.access_points import ensure_root
from fake_efs.admission import Admission
from fake_efs.aws_api import ACCOUNT_ID, CREDENTIALS, AwsApi, Subnet, create_subnets
from fake_efs.data_plane import POLL_SECONDS, DataPlane
from fake_efs.identities import INSTANCE_ROLE, Identities
from fake_efs.instance_metadata import (
    Instance,
    InstanceMetadata,
    InstanceRole,
    NetworkInterface,
)
from fake_efs.loopback import LoopbackRange
from fake_efs.nfs_server import check_platform
from fake_efs.process import Starter, start_module
from fake_efs.remembering import RememberingConnection
from fake_efs.tls_front import Condition, Traffic
from kube_efs.aws.gateway import AwsGateway
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import FileSystem, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, Region, ZoneName
from kube_efs.model.errors import AwsNotFound, InvalidValue
from tiny_ca.authority import Authority, ServerCertificate

DEFAULT_REGION = Region("us-east-1")
# A client that waits for an answer is waited for by a pod.
_ADMISSION_SECONDS = 5.0
_LOOPBACK = "127.0.0.1,localhost"

log = structlog.get_logger()


class EmbeddedEfs:
    """An AWS endpoint, instance metadata, and file systems that answer at their mount targets' addresses.

    Serves while its context is open. File systems may also be made and removed by any AWS client; the
    data plane follows within ``poll_seconds``. Everything it writes is below ``work_dir``; what is left
    there after closing is of no further use, since the API forgets its file systems. Opening raises
    PlatformError when this machine lacks something.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        region: Region = DEFAULT_REGION,
        poll_seconds: float = POLL_SECONDS,
        starter: Starter = start_module,
    ) -> None:
        self.region = region
        self.authority = Authority.create()
        self.work_dir = work_dir.absolute()
        self.ca_file = self.work_dir / "ca.pem"
        self._poll_seconds = poll_seconds
        self._starter = starter
        self._discovered: tuple[int | None, tuple[FileSystem, ...]] = (None, ())
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
        addresses = LoopbackRange.acquire()
        self._exit_stack.callback(addresses.release)
        self._api = api = await AwsApi.start(self.work_dir / "aws-api.log", self._starter)
        self._exit_stack.push_async_callback(api.stop)
        self.endpoint_url = api.endpoint_url
        options = api.options(self.region)
        self._gateway = await self._exit_stack.enter_async_context(AwsGateway(options))
        self.subnets = await create_subnets(options, addresses.network)
        identities = Identities(self.region)
        self._metadata = InstanceMetadata(
            _instance_in(self.subnets[0], self.region),
            role=InstanceRole(name=INSTANCE_ROLE, credentials=identities.instance_credentials),
        )
        self._exit_stack.push_async_callback(self._metadata.stop)
        await self._metadata.start()
        self.metadata_url = self._metadata.url
        connection = RememberingConnection(
            replace(options, call_timeout_seconds=_ADMISSION_SECONDS), lambda: api.access_changes
        )
        await self._exit_stack.enter_async_context(connection)
        self._admission = Admission(connection, identities)
        self.data_plane = DataPlane(
            self._discover,
            authority=self.authority,
            region=self.region,
            work_dir=self.work_dir,
            admission=self._admission,
            poll_seconds=self._poll_seconds,
        )
        self._exit_stack.push_async_callback(self.data_plane.stop)
        self.data_plane.start()
        log.info("embedded_efs_ready", aws=self.endpoint_url, addresses=str(addresses.network))

    def environment(self) -> Mapping[str, str]:
        """The environment variables that point an AWS client here, and away from any real account."""
        return {
            "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata_url,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": _LOOPBACK,
            "no_proxy": _LOOPBACK,
        }

    async def create_file_system(
        self, name: str, *, zones: Collection[ZoneName] | None = None
    ) -> FileSystemId:
        """A new file system with a mount target in each of these zones (None: all), ready to be mounted."""
        system = await self._gateway.create_file_system(uuid.uuid4().hex, name=name)
        for subnet in self.subnets:
            if zones is None or subnet.zone in zones:
                await self._gateway.create_mount_target(system.file_system_id, subnet.subnet_id)
        await self.data_plane.settle()
        return system.file_system_id

    async def delete_file_system(self, file_system_id: FileSystemId) -> None:
        """Remove a file system, its mount targets and its data."""
        for target in await self._gateway.mount_targets(file_system_id):
            await self._gateway.delete_mount_target(target.mount_target_id)
        await self._gateway.delete_file_system(file_system_id)
        await self.data_plane.settle()

    async def create_mount_target(
        self, file_system_id: FileSystemId, zone: ZoneName, *, address: str | None = None
    ) -> MountTarget:
        """A new mount target, answering; its address is of the zone's subnet, any free one for None."""
        target = await self._gateway.create_mount_target(
            file_system_id, self._subnet_in(zone).subnet_id, address=address
        )
        await self.data_plane.settle()
        return target

    async def delete_mount_target(self, mount_target_id: MountTargetId) -> None:
        """Remove a mount target; its connections are cut."""
        await self._gateway.delete_mount_target(mount_target_id)
        await self.data_plane.settle()

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        """The mount targets of a file system, in order of their zones."""
        targets = await self._gateway.mount_targets(file_system_id)
        return tuple(sorted(targets, key=lambda target: target.zone or ""))

    def folder(self, file_system_id: FileSystemId) -> Path:
        """Where the data of a file system lies on this machine; raises InvalidValue when unknown."""
        return self.data_plane.served(file_system_id).folder

    async def access_point_folder(self, access_point_id: AccessPointId) -> Path:
        """Where the root directory of an access point lies on this machine, made as by a first connection.

        What is done there is not done with the access point's identity. Raises InvalidValue when the
        access point does not exist or its root directory cannot be used, or AwsError.
        """
        access_point = await self._admission.access_point(access_point_id)
        root = await ensure_root(self.folder(access_point.file_system_id), access_point)
        return root.path

    def file_system_at(self, server: str) -> FileSystemId | None:
        """The file system that answers at an address or under a DNS name; None when there is none."""
        return self.data_plane.file_system_at(server)

    def place_node(self, zone: ZoneName) -> None:
        """Say in the instance metadata that this machine is in that zone; at first it is in the first."""
        self._metadata.instance = _instance_in(self._subnet_in(zone), self.region)

    async def set_condition(self, mount_target_id: MountTargetId, condition: Condition) -> None:
        """Make a mount target fail in some way, or serve again."""
        await self.data_plane.front(mount_target_id).become(condition)

    def present(self, file_system_id: FileSystemId, certificate: ServerCertificate | None) -> None:
        """Show another server certificate to new clients of a file system; None: its own again."""
        self.data_plane.served(file_system_id).present(certificate)

    def traffic(self, mount_target_id: MountTargetId) -> Traffic:
        """What a mount target has seen so far."""
        return self.data_plane.front(mount_target_id).traffic

    async def _discover(self) -> tuple[FileSystem, ...]:
        changes = self._api.changes
        if changes is None or changes != self._discovered[0]:
            self._discovered = changes, await self._read_file_systems()
        return self._discovered[1]

    async def _read_file_systems(self) -> tuple[FileSystem, ...]:
        systems = await self._gateway.file_systems()
        targets = await asyncio.gather(*(self._mount_targets_if_any(s.file_system_id) for s in systems))
        return tuple(
            replace(system, mount_targets=found) for system, found in zip(systems, targets, strict=True)
        )

    async def _mount_targets_if_any(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        try:
            return await self._gateway.mount_targets(file_system_id)
        except AwsNotFound:  # removed since the file systems were listed
            return ()

    def _subnet_in(self, zone: ZoneName) -> Subnet:
        for subnet in self.subnets:
            if subnet.zone == zone:
                return subnet
        known = ", ".join(subnet.zone for subnet in self.subnets)
        raise InvalidValue("has no subnet", field="zone", value=zone, remedy=f"use one of {known}")


def _instance_in(subnet: Subnet, region: Region) -> Instance:
    """A machine with one interface, in this subnet."""
    address = subnet.network[-2]
    mac = "02:00:" + ":".join(f"{octet:02x}" for octet in address.packed)
    return Instance(
        instance_id="i-0123456789abcdef0",
        account_id=ACCOUNT_ID,
        region=region,
        zone=subnet.zone,
        zone_id=subnet.zone_id,
        interfaces=(
            NetworkInterface(mac=mac, subnet_id=subnet.subnet_id, vpc_id=subnet.vpc_id, address=str(address)),
        ),
    )
