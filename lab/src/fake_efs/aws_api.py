"""The AWS API on this machine: moto's server, and the network that file systems get their addresses from."""

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final, Self

from fake_efs.aws_client import aws_client
from fake_efs.process import ChildProcess, Starter, start_module

ACCOUNT_ID: Final = "123456789012"  # moto's

_MODULE = "fake_efs.aws_server"
_ZONES = 3
_SUBNET_PREFIX = 20  # as the subnets of a default VPC
_READY_SECONDS = 30.0


class AwsApi:
    """moto's server in a process of its own; it keeps everything in memory."""

    def __init__(self, process: ChildProcess, endpoint_url: str, changes_file: Path) -> None:
        self._process = process
        self._changes_file = changes_file
        self.endpoint_url = endpoint_url

    @classmethod
    async def start(
        cls, log_file: Path, starter: Starter = start_module, *, driver_policy: str | None = None
    ) -> Self:
        """Run the server on a free loopback port; raises PlatformError.

        ``driver_policy`` is the text of the identity policy of ``DRIVER``, who may do everything without.
        """
        changes_file = log_file.with_suffix(".changes")
        changes_file.write_bytes(b"")
        arguments = [str(changes_file)]
        if driver_policy is not None:
            policy_file = log_file.with_suffix(".policy.json")
            policy_file.write_text(driver_policy)
            arguments.append(str(policy_file))
        process = await starter(_MODULE, *arguments, environment=os.environ, log_file=log_file)
        try:
            port = await process.listening_port(timeout_seconds=_READY_SECONDS)
        except BaseException:
            await process.kill()
            raise
        return cls(process, f"http://127.0.0.1:{port}", changes_file)

    @property
    def changes(self) -> int:
        """How many changes there were of file systems, mount targets, access points and policies.

        To ask the API all the time what there is would keep a processor busy, and cost a laptop its battery.
        """
        return self._changes_file.stat().st_size

    async def stop(self) -> None:
        """End the server; all that it knew is gone."""
        # Nothing is to be saved, and when asked it waits for clients that keep their connections.
        await self._process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """A subnet and where it is; ``zone_id`` is the zone's name that all accounts share (use1-az1)."""

    subnet_id: str
    vpc_id: str
    zone: str
    zone_id: str
    network: IPv4Network


async def create_subnets(endpoint_url: str, region: str, network: IPv4Network) -> tuple[Subnet, ...]:
    """A new VPC of this range with a subnet in each of the region's first three zones; raises AwsError.

    The client is closed afterwards, since the description of EC2 that it loads takes 22 MB.
    """
    async with aws_client("ec2", endpoint_url, region) as ec2:
        answer = await ec2.call("DescribeAvailabilityZones")
        zones = sorted((zone["ZoneName"], zone["ZoneId"]) for zone in answer["AvailabilityZones"])[:_ZONES]
        vpc_id = (await ec2.call("CreateVpc", CidrBlock=str(network)))["Vpc"]["VpcId"]
        subnets = []
        parts = network.subnets(new_prefix=_SUBNET_PREFIX)
        for (zone, zone_id), part in zip(zones, parts, strict=False):
            made = await ec2.call("CreateSubnet", VpcId=vpc_id, CidrBlock=str(part), AvailabilityZone=zone)
            subnet_id = made["Subnet"]["SubnetId"]
            subnets.append(
                Subnet(subnet_id=subnet_id, vpc_id=vpc_id, zone=zone, zone_id=zone_id, network=part)
            )
        return tuple(subnets)
