"""The AWS API on this machine: moto's server, and the network that file systems get their addresses from."""

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, Self

from fake_efs.process import ChildProcess, Starter, start_module
from kube_efs.aws.connection import AwsConnection, AwsCredentials, AwsOptions, Service
from kube_efs.aws.network import AwsNetwork, VpcId
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName

ACCOUNT_ID: Final = "123456789012"  # moto's
# The secret is removed from logs wherever it stands, so it is not a word of other names.
CREDENTIALS: Final = AwsCredentials(access_key_id="embedded", secret_access_key="nobodys-secret")  # noqa: S106

_MODULE = "fake_efs.aws_server"
_ZONES = 3
_SUBNET_PREFIX = 20  # as the subnets of a default VPC
_READY_SECONDS = 30.0


class AwsApi:
    """moto's server in a process of its own; it keeps everything in memory."""

    def __init__(
        self,
        process: ChildProcess,
        endpoint_url: str,
        *,
        changes_file: Path | None = None,
        access_changes_file: Path | None = None,
    ) -> None:
        self._process = process
        self._changes_file = changes_file
        self._access_changes_file = access_changes_file
        self.endpoint_url = endpoint_url

    @classmethod
    async def start(cls, log_file: Path, starter: Starter = start_module) -> Self:
        """Run the server on a free loopback port; raises PlatformError."""
        changes_files = log_file.with_suffix(".changes"), log_file.with_suffix(".access-changes")
        for file in changes_files:
            file.write_bytes(b"")
        process = await starter(_MODULE, *map(str, changes_files), environment=os.environ, log_file=log_file)
        try:
            port = await process.listening_port(timeout_seconds=_READY_SECONDS)
        except BaseException:
            await process.kill()
            raise
        changes_file, access_changes_file = changes_files
        return cls(
            process,
            f"http://127.0.0.1:{port}",
            changes_file=changes_file,
            access_changes_file=access_changes_file,
        )

    @property
    def changes(self) -> int | None:
        """How many changes of file systems and mount targets there were; None when that is not counted.

        To ask the API all the time what there is would keep a processor busy, and cost a laptop its battery.
        """
        return _size(self._changes_file)

    @property
    def access_changes(self) -> int | None:
        """The same for changes of what says who may connect: access points and policies."""
        return _size(self._access_changes_file)

    async def stop(self) -> None:
        """End the server; all that it knew is gone."""
        # Nothing is to be saved, and when asked it waits for clients that keep their connections.
        await self._process.kill()

    def options(self, region: Region) -> AwsOptions:
        """How to call it."""
        return AwsOptions(region=region, endpoint_url=self.endpoint_url, credentials=CREDENTIALS)


def _size(file: Path | None) -> int | None:
    return file.stat().st_size if file else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """A subnet and where it is; ``zone_id`` is the zone's name that all accounts share (use1-az1)."""

    subnet_id: SubnetId
    vpc_id: VpcId
    zone: ZoneName
    zone_id: str
    network: IPv4Network


async def create_subnets(options: AwsOptions, network: IPv4Network) -> tuple[Subnet, ...]:
    """A new VPC of this range with a subnet in each of the region's first three zones; raises AwsError.

    The connection is closed afterwards, since the description of EC2 that it loads takes 22 MB.
    """
    async with AwsConnection(options) as connection:
        ec2 = AwsNetwork(connection)
        answer = await connection.call(Service.EC2, "DescribeAvailabilityZones")
        zones = sorted((zone["ZoneName"], zone["ZoneId"]) for zone in answer["AvailabilityZones"])[:_ZONES]
        vpc_id = await ec2.create_vpc(str(network))
        return tuple(
            [
                Subnet(
                    subnet_id=await ec2.create_subnet(vpc_id, str(part), ZoneName(zone)),
                    vpc_id=vpc_id,
                    zone=ZoneName(zone),
                    zone_id=zone_id,
                    network=part,
                )
                for (zone, zone_id), part in zip(
                    zones, network.subnets(new_prefix=_SUBNET_PREFIX), strict=False
                )
            ]
        )
