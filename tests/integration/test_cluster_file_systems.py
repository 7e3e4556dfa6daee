"""``kube-efs create-file-system`` and ``destroy`` against the embedded AWS API."""

import asyncio
import os
import sys
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio
from tests.unit.provisioning.backends.csi.csi_world import NamedCluster, Texts

from fake_efs.aws_api import AwsApi
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.owned import one_of_each_zone
from kube_efs.model.csi.access_point_tags import Tag
from kube_efs.model.csi.access_points import VolumeRequest
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId
from kube_efs.model.errors import InvalidValue
from kube_efs.operator.file_systems import FileSystemRequest, create_file_system, destroy
from kube_efs.provisioning.backends.csi.file_systems import FileSystems
from kube_efs_lab.aws import aws_options

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGION = Region("us-east-1")


@dataclass(frozen=True, slots=True)
class World:
    """The API, the ID of a cluster, and its subnets: two in the first zone, one in the second."""

    api: AwsApi
    gateway: AwsGateway
    infra_id: str
    subnets: tuple[SubnetId, ...]

    def request(self, *, dry_run: bool = False) -> FileSystemRequest:
        return FileSystemRequest(infra_id=self.infra_id, name="shared", subnets=self.subnets, dry_run=dry_run)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AwsApi]:
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "aws.log")
    yield api
    await api.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(api: AwsApi) -> AsyncIterator[AwsConnection]:
    async with AwsConnection(aws_options(api.endpoint_url, REGION)) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(api: AwsApi) -> AsyncIterator[AwsGateway]:
    async with AwsGateway(aws_options(api.endpoint_url, REGION)) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def world(
    api: AwsApi, gateway: AwsGateway, connection: AwsConnection, request: pytest.FixtureRequest
) -> World:
    vpc_id = await _vpc(connection, "10.0.0.0/16")
    await connection.call(Service.EC2, "AssociateVpcCidrBlock", VpcId=vpc_id, CidrBlock="10.9.0.0/16")
    zones = ("us-east-1a", "us-east-1a", "us-east-1b")
    subnets = [
        await _subnet(connection, vpc_id, f"10.0.{number}.0/24", zone) for number, zone in enumerate(zones)
    ]
    infra_id = f"c-{zlib.crc32(request.node.name.encode()):x}"
    return World(api, gateway, infra_id, tuple(subnets))


async def test_file_system_is_created_once_with_its_mount_targets_and_security_group(
    world: World, gateway: AwsGateway, connection: AwsConnection
) -> None:
    messages = list[str]()
    first = await create_file_system(gateway, world.request(), messages.append)
    assert first
    assert await create_file_system(gateway, world.request(), messages.append) == first
    targets = await gateway.mount_targets(first)
    assert sorted(one.zone or "" for one in targets) == ["us-east-1a", "us-east-1b"]
    (group,) = await connection.list_all(
        Service.EC2,
        "DescribeSecurityGroups",
        "SecurityGroups",
        Filters=[{"Name": "group-name", "Values": [f"{world.infra_id}-sg"]}],
    )
    (rule,) = group["IpPermissions"]
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 2049, 2049)
    assert {one["CidrIp"] for one in rule["IpRanges"]} == {"10.0.0.0/16", "10.9.0.0/16"}
    assert messages[-1] == "all mount targets are available"


async def test_two_commands_at_the_same_time_create_one_file_system(
    world: World, gateway: AwsGateway
) -> None:
    made = await asyncio.gather(
        *(create_file_system(gateway, world.request(), lambda _: None) for _ in range(2))
    )
    assert made[0]
    assert made[0] == made[1]
    targets = await gateway.mount_targets(made[0])
    assert sorted(one.zone or "" for one in targets) == ["us-east-1a", "us-east-1b"]


async def test_dry_run_creates_nothing(world: World, gateway: AwsGateway) -> None:
    messages = list[str]()
    assert await create_file_system(gateway, world.request(dry_run=True), messages.append) is None
    assert messages[-1] == "nothing was created"
    assert (await gateway.owned.find(world.infra_id)).empty


async def test_only_resources_of_the_cluster_are_removed(
    world: World, gateway: AwsGateway, connection: AwsConnection
) -> None:
    mine = await create_file_system(gateway, world.request(), lambda _: None)
    key = f"kubernetes.io/cluster/{world.infra_id}"
    others = (await gateway.create_file_system("others", tags={key: "shared"})).file_system_id
    points: list[str] = []
    for system, tags in ((mine, []), (others, [{"Key": key, "Value": "owned"}]), (others, [])):
        point = await connection.call(
            Service.EFS,
            "CreateAccessPoint",
            ClientToken=f"token-{len(points)}",
            FileSystemId=system,
            Tags=tags,
        )
        points.append(point["AccessPointId"])
    owned = await gateway.owned.find(world.infra_id)
    assert owned.file_systems == (mine,)
    assert {point for point, _ in owned.access_points} == set(points[:2])

    await destroy(gateway, owned, lambda _: None)
    await destroy(gateway, owned, lambda _: None)  # one that was interrupted is repeated

    assert (await gateway.owned.find(world.infra_id)).empty
    there = {one.file_system_id for one in await gateway.file_systems()}
    assert (others in there, mine in there) == (True, False)
    assert [one.access_point_id for one in await gateway.access_points.list(others)] == points[2:]


async def test_file_systems_for_claims_are_removed_with_the_cluster(
    world: World, gateway: AwsGateway
) -> None:
    """On OpenShift, the driver's own tags contain that of the cluster."""
    file_systems = FileSystems(
        gateway,
        NamedCluster(),
        Texts(),
        tags=[Tag(key=f"kubernetes.io/cluster/{world.infra_id}", value="owned")],
        notice=lambda *_: None,
        patience_seconds=30,
    )
    request = request_for("efs-fs", subnetIds=",".join(world.subnets))
    assert request.parameters.template
    made = await file_systems.ensure(request, request.parameters.template, None, is_leaving=_never)
    owned = await gateway.owned.find(world.infra_id)
    assert owned.file_systems == (made,)
    assert len(owned.security_groups) == 1

    await destroy(gateway, owned, lambda _: None)

    assert (await gateway.owned.find(world.infra_id)).empty
    assert made not in {one.file_system_id for one in await gateway.file_systems()}


_KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize(
    ("parameters", "described", "lifecycle"),
    [
        pytest.param(
            {},
            {"Encrypted": True, "ThroughputMode": "elastic", "PerformanceMode": "generalPurpose"},
            [],
            id="default",
        ),
        pytest.param(
            {"throughputMode": "provisioned", "provisionedThroughputInMibps": "12.5"},
            {"ThroughputMode": "provisioned", "ProvisionedThroughputInMibps": 12.5},
            [],
            id="provisioned throughput",
        ),
        pytest.param(
            {"performanceMode": "maxIO"},
            {"PerformanceMode": "maxIO", "ThroughputMode": "bursting"},
            [],
            id="maximum I/O",
        ),
        pytest.param({"kmsKeyId": _KEY}, {"KmsKeyId": _KEY, "Encrypted": True}, [], id="key"),
        pytest.param(
            {"availabilityZoneName": "us-east-1b"}, {"AvailabilityZoneName": "us-east-1b"}, [], id="one zone"
        ),
        pytest.param(
            {
                "transitionToIA": "AFTER_30_DAYS",
                "transitionToArchive": "AFTER_90_DAYS",
                "transitionToPrimaryStorageClass": "AFTER_1_ACCESS",
            },
            {},
            [
                {"TransitionToIA": "AFTER_30_DAYS"},
                {"TransitionToArchive": "AFTER_90_DAYS"},
                {"TransitionToPrimaryStorageClass": "AFTER_1_ACCESS"},
            ],
            id="lifecycle with archive",
        ),
    ],
)
async def test_parameters_of_a_class_reach_aws(
    world: World,
    gateway: AwsGateway,
    connection: AwsConnection,
    parameters: dict[str, str],
    described: dict[str, object],
    lifecycle: list[dict[str, str]],
) -> None:
    made = await created_for_claim(world, gateway, **parameters)
    answer = await connection.call(Service.EFS, "DescribeFileSystems", FileSystemId=made)
    assert described.items() <= answer["FileSystems"][0].items()
    answer = await connection.call(Service.EFS, "DescribeLifecycleConfiguration", FileSystemId=made)
    assert answer["LifecyclePolicies"] == lifecycle


async def test_class_can_have_backups(world: World, gateway: AwsGateway, connection: AwsConnection) -> None:
    made = await created_for_claim(world, gateway, backup="true")
    answer = await connection.call(Service.EFS, "DescribeBackupPolicy", FileSystemId=made)
    assert answer["BackupPolicy"]["Status"] == "ENABLED"


async def test_mount_targets_have_the_security_groups_of_the_class(
    world: World, gateway: AwsGateway, connection: AwsConnection
) -> None:
    subnets = await gateway.owned.subnets(world.subnets)
    group = await gateway.owned.ensure_security_group(
        f"{world.infra_id}-own", subnets[0].vpc_id, ["10.0.0.0/16"], {}
    )
    made = await created_for_claim(world, gateway, securityGroupIds=group)
    for target in await gateway.mount_targets(made):
        answer = await connection.call(
            Service.EFS, "DescribeMountTargetSecurityGroups", MountTargetId=target.mount_target_id
        )
        assert answer["SecurityGroups"] == [group]


async def created_for_claim(world: World, gateway: AwsGateway, **parameters: str) -> FileSystemId:
    """A new file system for a claim of a class with these parameters."""
    file_systems = FileSystems(gateway, NamedCluster(), Texts(), notice=lambda *_: None, patience_seconds=30)
    request = request_for("efs-fs", subnetIds=",".join(world.subnets), **parameters)
    request = replace(request, name=world.infra_id)
    assert request.parameters.template
    return await file_systems.ensure(request, request.parameters.template, None, is_leaving=_never)


def request_for(mode: str, **parameters: str) -> VolumeRequest:
    """The request of csi-sanity or another caller without a claim."""
    given = {"provisioningMode": mode, "directoryPerms": "700", **parameters}
    return VolumeRequest(name="volume-1", parameters=parse_parameters(given))


async def _never(_: FileSystemId) -> bool:
    return False


async def test_commands_show_their_actions_and_remove_only_with_yes(world: World) -> None:
    flags = [flag for subnet in world.subnets for flag in ("--subnet", subnet)]
    status, output = await _run(world, "create-file-system", *flags)
    assert status == 0, output
    made = output.splitlines()[-1]
    assert made.startswith("fs-")
    status, output = await _run(world, "destroy")
    assert status == 1
    assert f"file system {made} with its mount targets and ALL DATA in it" in output
    assert "nothing was removed; add --yes to remove all of this" in output
    status, output = await _run(world, "destroy", "--yes")
    assert (status, f"file system {made} is removed" in output) == (0, True)


async def test_subnets_of_two_vpcs_are_rejected(
    world: World, gateway: AwsGateway, connection: AwsConnection
) -> None:
    other = await _subnet(connection, await _vpc(connection, "10.1.0.0/16"), "10.1.0.0/24", "us-east-1c")
    found = await gateway.owned.subnets([*world.subnets, other])
    with pytest.raises(InvalidValue, match=r"^subnets: 'vpc-.*, vpc-.*' are in more than one VPC"):
        one_of_each_zone(found)


async def _vpc(connection: AwsConnection, addresses: str) -> str:
    return str((await connection.call(Service.EC2, "CreateVpc", CidrBlock=addresses))["Vpc"]["VpcId"])


async def _subnet(connection: AwsConnection, vpc_id: str, addresses: str, zone: str) -> SubnetId:
    made = await connection.call(
        Service.EC2, "CreateSubnet", VpcId=vpc_id, CidrBlock=addresses, AvailabilityZone=zone
    )
    return SubnetId(made["Subnet"]["SubnetId"])


async def _run(world: World, command: str, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kube_efs",
        command,
        "--infra-id",
        world.infra_id,
        *arguments,
        "--region",
        REGION,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            **os.environ,
            "AWS_ENDPOINT_URL": world.api.endpoint_url,
            "AWS_ACCESS_KEY_ID": "embedded",
            "AWS_SECRET_ACCESS_KEY": "embedded",
        },
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()
