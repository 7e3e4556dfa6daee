"""The findings about the network between nodes and mount targets, with the embedded AWS API."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from tests.serving import answering, serving

from fake_efs.aws_api import AwsApi, Subnet, aws_client, create_subnets
from kube_efs.aws.connection import AwsConnection, AwsOptions, Service
from kube_efs.aws.gateway import AwsGateway
from kube_efs.doctor.diagnosis import diagnose
from kube_efs.doctor.facts import ClusterFacts, Facts, NodeObject, VolumeFacts
from kube_efs.doctor.findings import Finding
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.aws import gather_aws
from kube_efs.model.csi.access_points import AccessPointRequest, PosixUser, volume_request
from kube_efs.model.csi.file_system_templates import FileSystemTemplate, Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, Stage, creation_token, tags_for
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId, SubnetId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.volumes import CsiSource, Volume
from kube_efs_lab.aws import aws_options

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECONDS = 60.0
_NFS = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
_REFUSAL = (
    "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error></Errors>"
    "<RequestID>1</RequestID></Response>"
)
_PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
_BY_PATH = {
    "file-systems": "DescribeFileSystems",
    "mount-targets": "DescribeMountTargets",
    "policy": "DescribeFileSystemPolicy",
    "access-points": "DescribeAccessPoints",
    "security-groups": "DescribeMountTargetSecurityGroups",
}

_S3_FILES_BY_PATH = {
    "/file-systems/?": "ListFileSystems",
    "/mount-targets/?": "ListMountTargets",
    "/mount-targets/[^/]+": "GetMountTarget",
}

_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Two subnets: the first has the mount target of a file system, the second an instance."""

    api: AwsApi
    options: AwsOptions
    ec2: AwsConnection
    subnets: tuple[Subnet, ...]
    system: FileSystemId
    group: str
    nodes_group: str
    node: NodeObject

    async def call(self, operation: str, **parameters: Any) -> Any:
        """A call to EC2."""
        return await self.ec2.call(Service.EC2, operation, **parameters)

    async def let_in(self, **source: Any) -> None:
        """Allow only this source in the security group of the mount target."""
        (found,) = (await self.call("DescribeSecurityGroups", GroupIds=[self.group]))["SecurityGroups"]
        if found["IpPermissions"]:
            await self.call(
                "RevokeSecurityGroupIngress", GroupId=self.group, IpPermissions=found["IpPermissions"]
            )
        rule = [{**_NFS, **source}]
        await self.call("AuthorizeSecurityGroupIngress", GroupId=self.group, IpPermissions=rule)

    async def found(
        self,
        options: AwsOptions | None = None,
        *,
        cluster_uid: str = "",
        s3_files: FileSystemId | None = None,
        handle: str = "",
    ) -> dict[str, Finding]:
        """The findings by kind; a volume has the handle, or is on the file system of S3 Files."""
        attempts, nodes = Attempts(timeout_seconds=SECONDS), (self.node,)
        named = {self.system: FileSystemKind.EFS}
        aws = await gather_aws(
            options or self.options,
            attempts,
            named={**named, s3_files: FileSystemKind.S3_FILES} if s3_files else named,
            nodes=nodes,
            cluster_uid=cluster_uid,
            in_use={self.system} if handle else (),
        )
        on_it = Volume(name="of-a-user", csi=CsiSource(handle=handle or f"s3files:{s3_files}"))
        cluster = ClusterFacts(
            names=OPENSHIFT_EFS_STUNNEL,
            uid=cluster_uid,
            nodes=nodes,
            volumes=(VolumeFacts(volume=on_it, created=_LONG_AGO),) if handle or s3_files else (),
        )
        found = diagnose(Facts(cluster=cluster, aws=aws, gaps=attempts.gaps))
        return {one.kind.id: one for one in found}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Network]:
    api = await AwsApi.start(tmp_path_factory.mktemp("aws") / "log")
    try:
        options = aws_options(api.endpoint_url)
        subnets = await create_subnets(api.endpoint_url, options.region, IPv4Network("10.1.0.0/16"))
        async with AwsConnection(options) as ec2, AwsGateway(options) as gateway:
            group, nodes_group = [await _group(ec2, name, subnets[0]) for name in ("targets", "nodes")]
            system = (await gateway.create_file_system("behind rules")).file_system_id
            await gateway.create_mount_target(system, SubnetId(subnets[0].subnet_id), security_groups=[group])
            node = await _instance(ec2, SubnetId(subnets[1].subnet_id), nodes_group)
            yield Network(
                api=api,
                options=options,
                ec2=ec2,
                subnets=subnets,
                system=system,
                group=group,
                nodes_group=nodes_group,
                node=node,
            )
    finally:
        await api.stop()


async def _group(ec2: AwsConnection, name: str, subnet: Subnet) -> str:
    made = {"GroupName": name, "Description": "for a test", "VpcId": subnet.vpc_id}
    return str((await ec2.call(Service.EC2, "CreateSecurityGroup", **made))["GroupId"])


async def _instance(ec2: AwsConnection, subnet_id: SubnetId, group: str) -> NodeObject:
    (image, *_) = (await ec2.call(Service.EC2, "DescribeImages"))["Images"]
    many: dict[str, Any] = {"MinCount": 1, "MaxCount": 1, "SecurityGroupIds": [group]}
    answer = await ec2.call(Service.EC2, "RunInstances", ImageId=image["ImageId"], SubnetId=subnet_id, **many)
    (instance,) = answer["Instances"]
    return NodeObject(
        name="one", instance_id=instance["InstanceId"], addresses=(instance["PrivateIpAddress"],)
    )


async def _prefix_list(network: Network, cidr: str) -> str:
    listed: dict[str, Any] = {"Entries": [{"Cidr": cidr}], "MaxEntries": 5, "AddressFamily": "IPv4"}
    answer = await network.call("CreateManagedPrefixList", PrefixListName=cidr, **listed)
    return str(answer["PrefixList"]["PrefixListId"])


async def test_security_group_of_the_node_must_be_allowed(network: Network) -> None:
    await network.let_in(UserIdGroupPairs=[{"GroupId": network.nodes_group}])
    assert await network.found() == {}
    await network.let_in(UserIdGroupPairs=[{"GroupId": network.group}])
    closed = (await network.found())["security-group/closed"]
    assert f"node one {network.node.addresses[0]} {network.nodes_group}" in closed.evidence
    assert f"{network.group} allows {network.group} at 2049" in closed.evidence


async def test_entries_of_a_prefix_list_are_evaluated(network: Network) -> None:
    ours, others = [await _prefix_list(network, one) for one in ("10.1.0.0/16", "10.7.0.0/16")]
    await network.let_in(PrefixListIds=[{"PrefixListId": ours}])
    assert await network.found() == {}
    await network.let_in(PrefixListIds=[{"PrefixListId": others}])
    closed = (await network.found())["security-group/closed"]
    assert f"{network.group} allows {others} (10.7.0.0/16) at 2049" in closed.evidence


async def test_unknown_instance_is_not_reported_as_blocked(network: Network) -> None:
    await network.let_in(UserIdGroupPairs=[{"GroupId": network.nodes_group}])
    stranger = replace(network, node=replace(network.node, instance_id="i-0123456789abcdef0"))
    found = await stranger.found()
    assert found.keys() == {"security-group/not-judged"}
    assert "the security groups of node one are not known" in found["security-group/not-judged"].evidence[0]


async def test_network_acl_that_blocks_answers_is_found(network: Network) -> None:
    await network.let_in(IpRanges=[{"CidrIp": "10.1.0.0/16"}])
    subnet = network.subnets[0]
    acl = (await network.call("CreateNetworkAcl", VpcId=subnet.vpc_id))["NetworkAcl"]["NetworkAclId"]
    in_ = {"Protocol": "6", "Egress": False, "CidrBlock": "10.1.0.0/16", "RuleAction": "allow"}
    out = {**in_, "Egress": True}
    await network.call(
        "CreateNetworkAclEntry",
        **{**in_, "NetworkAclId": acl, "RuleNumber": 100, "PortRange": {"From": 2049, "To": 2049}},
    )
    await network.call(
        "CreateNetworkAclEntry",
        **{**out, "NetworkAclId": acl, "RuleNumber": 100, "PortRange": {"From": 40001, "To": 65535}},
    )
    before = await _associate(network, SubnetId(subnet.subnet_id), acl)
    try:
        found = await network.found()
        assert found.keys() == {"network-acl/closed"}
        address = network.node.addresses[0]
        expected = f"{acl} of {subnet.subnet_id}: rule * denies TCP 32768-40000 out to {address}"
        assert expected in found["network-acl/closed"].evidence
    finally:
        await _associate(network, SubnetId(subnet.subnet_id), before)
    assert await network.found() == {}


async def _associate(network: Network, subnet_id: SubnetId, acl: str) -> str:
    """Associate the subnet with an ACL; returns its previous one."""
    wanted = [{"Name": "association.subnet-id", "Values": [subnet_id]}]
    (found,) = (await network.call("DescribeNetworkAcls", Filters=wanted))["NetworkAcls"]
    (association,) = (one for one in found["Associations"] if one["SubnetId"] == subnet_id)
    await network.call(
        "ReplaceNetworkAclAssociation",
        AssociationId=association["NetworkAclAssociationId"],
        NetworkAclId=acl,
    )
    return str(found["NetworkAclId"])


async def test_unreadable_prefix_list_does_not_count_as_open(network: Network) -> None:
    await network.let_in(PrefixListIds=[{"PrefixListId": await _prefix_list(network, "10.1.0.0/16")}])
    async with _refusing(network.api.endpoint_url, "GetManagedPrefixListEntries", set()) as url:
        found = await network.found(replace(network.options, endpoint_url=url))
    assert found.keys() == {"security-group/not-judged", "aws/not-checked"}
    assert found["security-group/not-judged"].evidence[0].startswith("the entries of prefix list pl-")
    assert (
        found["aws/not-checked"].remedy == "allow ec2:GetManagedPrefixListEntries to the role of this process"
    )


@asynccontextmanager
async def _made(network: Network, cluster_uid: str, name: str) -> AsyncIterator[FileSystemId]:
    """A file system that the driver of that cluster has created for a claim."""
    template = FileSystemTemplate()
    owner = FileSystemOwner(scope=Scope.CLAIM, name=name, cluster=cluster_uid)
    parameters = parse_parameters({"provisioningMode": "efs-fs", "directoryPerms": "700"})
    request = volume_request(name, parameters, VolumeOrigin(), 1)
    async with AwsGateway(network.options) as gateway:
        tags = tags_for(owner, request, template, ())
        made = await gateway.made_file_systems.create(creation_token(owner, template), template, tags)
        await gateway.made_file_systems.set_stage(made.file_system_id, Stage.READY)
        try:
            yield made.file_system_id
        finally:
            await gateway.delete_file_system(made.file_system_id)


async def test_file_system_for_a_claim_is_unused_without_an_access_point(network: Network) -> None:
    await network.let_in(IpRanges=[{"CidrIp": "10.1.0.0/16"}])
    async with _made(network, "uid-1", "pvc-1") as system, AwsGateway(network.options) as gateway:
        found = await network.found(cluster_uid="uid-1")
        assert {kind: one.subject.name for kind, one in found.items()} == {"file-system/unused": system}
        assert await network.found(cluster_uid="uid-2") == {}
        request = AccessPointRequest(
            client_token="kept",
            file_system_id=system,
            directory=Directory(parts=("kept",)),
            permissions="700",
            user=PosixUser(uid=1, gid=1),
            tags=(),
        )
        kept = await gateway.access_points.create(request)
        assert await network.found(cluster_uid="uid-1") == {}
        await gateway.access_points.delete(kept.access_point_id)


async def test_deleted_access_point_of_a_volume_is_found(network: Network) -> None:
    await network.let_in(IpRanges=[{"CidrIp": "10.1.0.0/16"}])
    async with AwsGateway(network.options) as gateway:
        request = AccessPointRequest(
            client_token="used",
            file_system_id=network.system,
            directory=Directory(parts=("used",)),
            permissions="700",
            user=PosixUser(uid=1, gid=1),
            tags=(),
        )
        access_point = (await gateway.access_points.create(request)).access_point_id
        handle = f"{network.system}::{access_point}"
        assert await network.found(handle=handle) == {}
        await gateway.access_points.delete(access_point)
    found = await network.found(handle=handle)
    assert {kind: one.subject.name for kind, one in found.items()} == {"access-point/missing": "of-a-user"}


async def test_page_lists_exactly_the_permissions_in_use(network: Network) -> None:
    await network.let_in(PrefixListIds=[{"PrefixListId": await _prefix_list(network, "10.1.0.0/16")}])
    asked: set[str] = set()
    async with _made(network, "uid-1", "pvc-2"), _refusing(network.api.endpoint_url, "nothing", asked) as url:
        found = await network.found(replace(network.options, endpoint_url=url), cluster_uid="uid-1")
        assert found.keys() == {"file-system/unused"}
    (policy,) = re.findall(r"```json\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert sorted(asked) == sorted(json.loads(policy)["Statement"][0]["Action"])


# --- S3 Files


@asynccontextmanager
async def _s3_files(network: Network, group: str) -> AsyncIterator[FileSystemId]:
    """A file system of S3 Files with a mount target in the node's zone, behind that group."""
    async with aws_client("s3files", network.api.endpoint_url, network.options.region) as client:
        bucket, role = "arn:aws:s3:::photos", "arn:aws:iam::123456789012:role/s3files"
        made = await client.call("CreateFileSystem", bucket=bucket, roleArn=role)
        target = await client.call(
            "CreateMountTarget",
            fileSystemId=made["fileSystemId"],
            subnetId=network.subnets[1].subnet_id,
            securityGroups=[group],
        )
        try:
            yield FileSystemId(made["fileSystemId"])
        finally:
            await client.call("DeleteMountTarget", mountTargetId=target["mountTargetId"])
            await client.call("DeleteFileSystem", fileSystemId=made["fileSystemId"])


async def test_way_to_mount_targets_of_s3_files_is_checked(network: Network) -> None:
    await network.let_in(UserIdGroupPairs=[{"GroupId": network.nodes_group}])
    async with _s3_files(network, network.group) as system:
        assert await network.found(s3_files=system) == {}
    async with _s3_files(network, network.nodes_group) as system:
        closed = (await network.found(s3_files=system))["security-group/closed"]
        assert closed.subject.name == system
        assert f"node one {network.node.addresses[0]} {network.nodes_group}" in closed.evidence
    missing = (await network.found(s3_files=system))["file-system/missing"]
    assert str(missing.commands[1]) == f"aws s3files list-file-systems --region {network.options.region}"


async def test_page_lists_exactly_the_permissions_for_s3_files_and_denials_are_no_alarms(
    network: Network,
) -> None:
    await network.let_in(UserIdGroupPairs=[{"GroupId": network.nodes_group}])
    (policy,) = re.findall(r"```json\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    of_efs, of_s3_files = (set(one["Action"]) for one in json.loads(policy)["Statement"])
    asked: set[str] = set()
    async with _s3_files(network, network.group) as system:
        async with _refusing(network.api.endpoint_url, "nothing", asked) as url:
            assert await network.found(replace(network.options, endpoint_url=url), s3_files=system) == {}
        assert asked - of_efs == of_s3_files
        for action in of_s3_files:
            async with _refusing(network.api.endpoint_url, action.partition(":")[2], set()) as url:
                found = await network.found(replace(network.options, endpoint_url=url), s3_files=system)
            assert found.keys() <= {"aws/not-checked", "security-group/not-judged"}, action
            assert found["aws/not-checked"].remedy == f"allow {action} to the role of this process"
    assert not {one for one in asked if one.startswith("s3files:")} - of_s3_files


@pytest.mark.parametrize("action", ["DescribeMountTargetSecurityGroups", "DescribeFileSystemPolicy"])
async def test_what_is_deleted_while_the_doctor_looks_is_no_finding(network: Network, action: str) -> None:
    async with AwsGateway(network.options) as gateway:
        system = (await gateway.create_file_system(f"deleted before {action}")).file_system_id
        await gateway.create_mount_target(
            system, SubnetId(network.subnets[0].subnet_id), security_groups=[network.group]
        )

        async def delete(asked: str) -> None:
            if asked == action and any(one.file_system_id == system for one in await gateway.file_systems()):
                await gateway.delete_mount_targets(system)
                await gateway.delete_file_system(system)

        async with _refusing(network.api.endpoint_url, "nothing", set(), before=delete) as url:
            found = await replace(network, system=system).found(replace(network.options, endpoint_url=url))
        assert found == {}
        assert all(one.file_system_id != system for one in await gateway.file_systems())


async def test_list_that_is_not_found_is_reported(network: Network) -> None:
    async def nothing(_: web.Request) -> web.Response:
        return web.Response(status=404)

    async with serving(answering(nothing)) as url:
        found = await network.found(replace(network.options, endpoint_url=url))
    assert "aws/not-checked" in found


async def test_without_volumes_on_s3_files_nothing_is_asked_about_it(network: Network) -> None:
    await network.let_in(UserIdGroupPairs=[{"GroupId": network.nodes_group}])
    asked: set[str] = set()
    async with _refusing(network.api.endpoint_url, "nothing", asked) as url:
        assert await network.found(replace(network.options, endpoint_url=url)) == {}
    assert not {one for one in asked if one.startswith("s3files:")}


async def _nothing(_action: str) -> None:
    """What most tests do before an action."""


@asynccontextmanager
async def _refusing(
    upstream: str,
    action: str,
    asked: set[str],
    *,
    before: Callable[[str], Awaitable[None]] = _nothing,
) -> AsyncIterator[str]:
    """The same API with an action refused, which moto never does; records all actions.

    ``before`` is awaited before an action of EFS is passed on.
    """

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        if found_action := re.search(rb"\bAction=(\w+)", body):
            name = found_action[1].decode()
            asked.add(f"ec2:{name}")
            if name == action:
                return web.Response(status=403, text=_REFUSAL, content_type="text/xml")
        elif "/s3files/aws4_request" in request.headers["Authorization"]:
            name = next(one for path, one in _S3_FILES_BY_PATH.items() if re.fullmatch(path, request.path))
            asked.add(f"s3files:{name}")
            if name == action:
                kind = {"x-amzn-errortype": "AccessDeniedException"}
                return web.json_response({"message": "no"}, status=403, headers=kind)
        else:
            name = _BY_PATH[request.path.rstrip("/").rpartition("/")[2]]
            asked.add(f"elasticfilesystem:{name}")
            await before(name)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, upstream + request.path_qs, headers=headers, data=body) as found,
        ):
            kept = {name: value for name, value in found.headers.items() if name.lower().startswith("x-")}
            return web.Response(
                status=found.status, body=await found.read(), content_type=found.content_type, headers=kept
            )

    async with serving(answering(answer)) as url:
        yield url
