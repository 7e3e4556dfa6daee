"""The AWS API on this machine: moto's server, calls to it, and the network of its file systems."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Final, Protocol, Self

from aiobotocore.session import get_session
from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from fake_efs.errors import AwsError, AwsNotFound
from fake_efs.process import ChildProcess, Starter, start_module

_CALL_SECONDS = 30.0
ACCOUNT_ID: Final = "123456789012"  # moto's
_MODULE = "fake_efs.aws_server"
_ZONES = 3
_SUBNET_PREFIX = 20  # as the subnets of a default VPC
_READY_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An access key, with a token if it is that of a session."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


# The secret is removed from logs wherever it stands, so it is not a word of other names.
CREDENTIALS: Final = Credentials(access_key_id="embedded", secret_access_key="nobodys-secret")  # noqa: S106


# Those of a CSI driver whose calls a policy restricts.
DRIVER: Final = Credentials(access_key_id="driver", secret_access_key="nobodys-secret-either")  # noqa: S106


class AwsCalls(Protocol):
    """One service of the AWS API."""

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """The answer to a call; raises AwsNotFound and AwsError."""
        ...


class AwsClient:
    """One service of the AWS API, by the library of AWS."""

    def __init__(self, client: Any, call_seconds: float = _CALL_SECONDS) -> None:  # noqa: ANN401 - has no types
        self._client = client
        self._call_seconds = call_seconds

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """The answer to a call; raises AwsNotFound and AwsError."""
        try:
            async with asyncio.timeout(self._call_seconds):
                answer: Mapping[str, Any] = await getattr(self._client, xform_name(operation))(**parameters)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            kind = AwsNotFound if "NotFound" in code else AwsError
            raise kind(str(error), field=operation) from error
        except (BotoCoreError, TimeoutError) as error:
            raise AwsError(f"failed ({error!r})", field=operation) from error
        return answer

    async def list_all(self, operation: str, key: str, **parameters: object) -> list[Mapping[str, Any]]:
        """The items under ``key`` of all pages; raises AwsError."""
        answer = await self.call(operation, **parameters)
        found = list(answer[key])
        while True:
            if marker := answer.get("NextMarker"):
                rest: dict[str, object] = {"Marker": marker}
            elif token := answer.get("nextToken"):
                rest = {"nextToken": token}
            else:
                break
            answer = await self.call(operation, **parameters, **rest)
            found += answer[key]
        return found


class RememberingClient:
    """Remembers answers to calls, and that something is not there, until ``changes`` gives another number.

    To ask at each connection of each probe what nobody has changed would keep a processor busy.
    """

    def __init__(self, calls: AwsCalls, changes: Callable[[], int]) -> None:
        self._calls = calls
        self._changes = changes
        self._changes_seen = -1
        self._answers: dict[object, Mapping[str, Any] | AwsNotFound] = {}

    async def call(self, operation: str, **parameters: object) -> Mapping[str, Any]:
        """The answer to this call since the last change; raises AwsNotFound and AwsError."""
        changes = self._changes()
        if changes != self._changes_seen:
            self._changes_seen, self._answers = changes, {}
        answers, question = self._answers, (operation, *sorted(parameters.items()))
        if question not in answers:
            try:
                answers[question] = await self._calls.call(operation, **parameters)
            except AwsNotFound as error:
                answers[question] = error
        answer = answers[question]
        if isinstance(answer, AwsNotFound):
            raise answer
        return answer


@asynccontextmanager
async def aws_client(
    service: str,
    endpoint_url: str,
    region: str,
    *,
    credentials: Credentials = CREDENTIALS,
    call_seconds: float = _CALL_SECONDS,
) -> AsyncIterator[AwsClient]:
    """A client of a service, by the library's name of it, while the context is open."""
    opening = get_session().create_client(
        service,
        region_name=region,
        endpoint_url=endpoint_url,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
    )
    async with opening as client:
        yield AwsClient(client, call_seconds)


class AwsApi:
    """moto's server in a process of its own; it keeps everything in memory."""

    def __init__(self, process: ChildProcess, endpoint_url: str, changes_file: Path) -> None:
        self._process = process
        self._changes_file = changes_file
        self.endpoint_url = endpoint_url

    @classmethod
    async def start(
        cls,
        log_file: Path,
        starter: Starter = start_module,
        *,
        driver_policy: str | None = None,
        host: str = "127.0.0.1",
    ) -> Self:
        """Run the server on a free port of this address; raises PlatformError.

        ``driver_policy`` is the text of the identity policy of ``DRIVER``, who may do everything without.
        """
        changes_file = log_file.with_suffix(".changes")
        changes_file.write_bytes(b"")
        arguments = [host, str(changes_file)]
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
        return cls(process, f"http://{host}:{port}", changes_file)

    @property
    def changes(self) -> int:
        """How many changes there were of file systems, mount targets, access points and policies.

        To ask the API all the time what there is would keep a processor busy, and cost a laptop its battery.
        """
        return self._changes_file.stat().st_size

    async def stop(self) -> None:
        """End the server; all that it knew is gone."""
        # Nothing must be saved.
        await self._process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """A subnet and where it is; ``zone_id`` is the zone's name that all accounts share (use1-az1)."""

    subnet_id: str
    vpc_id: str
    zone: str
    zone_id: str
    network: IPv4Network

    @property
    def instance_address(self) -> IPv4Address:
        """The address of the machine in it."""
        return self.network[-2]


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


async def run_instance(endpoint_url: str, region: str, subnet: Subnet) -> str:
    """The ID of a new machine of EC2 in this subnet; raises AwsError."""
    async with aws_client("ec2", endpoint_url, region) as ec2:
        answer = await ec2.call(
            "RunInstances",
            ImageId="ami-12345678",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnet.subnet_id,
            PrivateIpAddress=str(subnet.instance_address),
        )
        return str(answer["Instances"][0]["InstanceId"])
