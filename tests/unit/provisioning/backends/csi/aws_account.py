"""An AWS account with EFS and EC2 in memory, as strict as AWS, behind the real gateway.

File systems and mount targets take time to appear and to vanish. Any call can fail before its effect, lose
its answer after the effect, or be the last one of the calling process.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from kube_efs.aws.access_points import AwsAccessPoints
from kube_efs.aws.connection import Service, Value
from kube_efs.aws.errors import translate
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.made_file_systems import AwsMadeFileSystems
from kube_efs.aws.owned import AwsOwned

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
VPC = "vpc-1"
_APPEARS_SECONDS = 3.0


class Fault(Enum):
    """What happens to a call."""

    REFUSED = auto()
    LOST = auto()
    KILLED_BEFORE = auto()
    KILLED_AFTER = auto()


class Killed(BaseException):
    """The calling process ends at this call."""


class AwsAccount:
    """The objects of the account; ``call`` carries out one operation.

    ``access_points`` are stored elsewhere if they are given.
    """

    def __init__(self, access_points: dict[str, dict[str, Any]] | None = None) -> None:
        self.file_systems: dict[str, dict[str, Any]] = {}
        self.mount_targets: dict[str, dict[str, Any]] = {}
        self.access_points = {} if access_points is None else access_points
        self.groups: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, str] = {}
        self.lifecycles: dict[str, list[Mapping[str, str]]] = {}
        # The file systems that are part of a replication.
        self.replicated: set[str] = set()
        # Security groups to which rules of others refer.
        self.referred_groups: set[str] = set()
        self.file_system_quota = 1000
        self._numbers = itertools.count(1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left that a claim could have caused."""
        return not (self.file_systems or self.mount_targets or self.access_points or self.groups)

    def stage(self, file_system_id: str) -> str:
        """The stage in the tags of a file system."""
        return self._tag(file_system_id, "efs.csi.aws.com/stage")

    def owner(self, file_system_id: str) -> str:
        """The volume or namespace in the tags of a file system; empty for a deleted one."""
        is_there = file_system_id in self.file_systems
        return self._tag(file_system_id, "efs.csi.aws.com/created-for") if is_there else ""

    def _tag(self, file_system_id: str, key: str) -> str:
        tags = {one["Key"]: one["Value"] for one in self.file_systems[file_system_id]["Tags"]}
        return str(tags[key])

    def call(self, operation: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer; raises ClientError."""
        self.advance()
        return getattr(self, f"_{operation}")(given)  # type: ignore[no-any-return]

    def advance(self) -> None:
        """Complete what has taken long enough."""
        for kind in (self.file_systems, self.mount_targets):
            for name, one in list(kind.items()):
                if _time() < one["until"]:
                    continue
                if one["LifeCycleState"] == "creating":
                    one["LifeCycleState"] = "available"
                elif one["LifeCycleState"] == "deleting":
                    del kind[name]

    def _appears(self) -> dict[str, Any]:
        return {"LifeCycleState": "creating", "until": _time() + _APPEARS_SECONDS}

    def _existing(self, operation: str, file_system_id: str) -> dict[str, Any]:
        if file_system_id not in self.file_systems:
            raise error(operation, "FileSystemNotFound", 404)
        return self.file_systems[file_system_id]

    def _targets_of(self, file_system_id: str) -> list[dict[str, Any]]:
        return [one for one in self.mount_targets.values() if one["FileSystemId"] == file_system_id]

    def _CreateFileSystem(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if any(one["CreationToken"] == given["CreationToken"] for one in self.file_systems.values()):
            raise error("CreateFileSystem", "FileSystemAlreadyExists", 409)
        if len(self.file_systems) >= self.file_system_quota:
            raise error("CreateFileSystem", "FileSystemLimitExceeded", 403)
        name = f"fs-{next(self._numbers):017x}"
        now = datetime.fromtimestamp(_time(), UTC)
        made = {**given, **self._appears(), "FileSystemId": name, "CreationTime": now}
        self.file_systems[name] = made
        return self._shown(made)

    def _shown(self, one: dict[str, Any]) -> Mapping[str, Any]:
        count = len(self._targets_of(one["FileSystemId"]))
        return {**one, "Tags": list(one["Tags"]), "NumberOfMountTargets": count}

    def _DescribeFileSystems(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if name := given.get("FileSystemId"):
            return {"FileSystems": [self._shown(self._existing("DescribeFileSystems", name))]}
        token = given.get("CreationToken")
        found = [one for one in self.file_systems.values() if token in {None, one["CreationToken"]}]
        if token and not found:
            raise error("DescribeFileSystems", "FileSystemNotFound", 404)
        return {"FileSystems": [self._shown(one) for one in found]}

    def _DeleteFileSystem(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        name = given["FileSystemId"]
        found = self._existing("DeleteFileSystem", name)
        # AWS documents this for mount targets alone, so access points protect nothing.
        if self._targets_of(name) or name in self.replicated:
            raise error("DeleteFileSystem", "FileSystemInUse", 409)
        found |= {"LifeCycleState": "deleting", "until": _time() + _APPEARS_SECONDS}
        return {}

    def _TagResource(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self._existing("TagResource", given["ResourceId"])
        new = {one["Key"]: one["Value"] for one in (*found["Tags"], *given["Tags"])}
        found["Tags"] = [{"Key": key, "Value": value} for key, value in new.items()]
        return {}

    def _PutFileSystemPolicy(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.check_available("PutFileSystemPolicy", given["FileSystemId"])
        self.policies[given["FileSystemId"]] = given["Policy"]
        return {}

    def _PutLifecycleConfiguration(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.check_available("PutLifecycleConfiguration", given["FileSystemId"])
        self.lifecycles[given["FileSystemId"]] = given["LifecyclePolicies"]
        return {}

    def check_available(self, operation: str, file_system_id: str) -> None:
        if self._existing(operation, file_system_id)["LifeCycleState"] != "available":
            raise error(operation, "IncorrectFileSystemLifeCycleState", 409)

    def _DescribeMountTargets(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self._existing("DescribeMountTargets", given["FileSystemId"])
        return {"MountTargets": [dict(one) for one in self._targets_of(given["FileSystemId"])]}

    def _CreateMountTarget(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        name, subnet = given["FileSystemId"], given["SubnetId"]
        self.check_available("CreateMountTarget", name)
        zone = ZONES[int(subnet.rpartition("-")[2])]
        if any(one["AvailabilityZoneName"] == zone for one in self._targets_of(name)):
            raise error("CreateMountTarget", "MountTargetConflict", 409)
        number = next(self._numbers)
        target = {
            **self._appears(),
            "MountTargetId": f"fsmt-{number:017x}",
            "FileSystemId": name,
            "SubnetId": subnet,
            "AvailabilityZoneName": zone,
            "IpAddress": f"10.0.0.{number % 250}",
            "groups": given.get("SecurityGroups", ()),
        }
        self.mount_targets[target["MountTargetId"]] = target
        return dict(target)

    def _DeleteMountTarget(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if given["MountTargetId"] not in self.mount_targets:
            raise error("DeleteMountTarget", "MountTargetNotFound", 404)
        ending = {"LifeCycleState": "deleting", "until": _time() + _APPEARS_SECONDS}
        self.mount_targets[given["MountTargetId"]] |= ending
        return {}

    def _DescribeAccessPoints(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if name := given.get("AccessPointId"):
            if name not in self.access_points:
                raise error("DescribeAccessPoints", "AccessPointNotFound", 404)
            return {"AccessPoints": [self.access_points[name]]}
        self._existing("DescribeAccessPoints", given["FileSystemId"])
        on = given["FileSystemId"]
        return {"AccessPoints": [one for one in self.access_points.values() if one["FileSystemId"] == on]}

    def _CreateAccessPoint(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.check_available("CreateAccessPoint", given["FileSystemId"])
        for one in self.access_points.values():
            if one["ClientToken"] == given["ClientToken"]:
                existing = error("CreateAccessPoint", "AccessPointAlreadyExists", 409)
                existing.response["AccessPointId"] = one["AccessPointId"]
                raise existing
        name = f"fsap-{next(self._numbers):017x}"
        self.access_points[name] = {**given, "AccessPointId": name, "LifeCycleState": "available"}
        return self.access_points[name]

    def _DeleteAccessPoint(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.access_points.pop(given["AccessPointId"], None) is None:
            raise error("DeleteAccessPoint", "AccessPointNotFound", 404)
        return {}

    def _DescribeInstances(self, _given: Mapping[str, Any]) -> Mapping[str, Any]:
        instances = [{"SubnetId": f"subnet-{number}"} for number in range(len(ZONES))]
        return {"Reservations": [{"Instances": instances}]}

    def _DescribeSubnets(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        numbers = [int(one.rpartition("-")[2]) for one in given["SubnetIds"]]
        if max(numbers) >= len(ZONES):
            raise error("DescribeSubnets", "InvalidSubnetID.NotFound", 400)
        subnets = [
            {"SubnetId": f"subnet-{one}", "AvailabilityZone": ZONES[one], "VpcId": VPC} for one in numbers
        ]
        return {"Subnets": subnets}

    def _DescribeVpcs(self, _given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"Vpcs": [{"VpcId": VPC, "CidrBlock": "10.0.0.0/16"}]}

    def _DescribeSecurityGroups(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        filters = {one["Name"]: one["Values"] for one in given["Filters"]}
        wanted = {(name[4:], value) for name, (value,) in filters.items() if name.startswith("tag:")}
        found = [one for one in self.groups.values() if one["GroupName"] in filters["group-name"]]
        return {"SecurityGroups": [one for one in found if wanted <= one["tags"].items()]}

    def _CreateSecurityGroup(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if any(one["GroupName"] == given["GroupName"] for one in self.groups.values()):
            raise error("CreateSecurityGroup", "InvalidGroup.Duplicate", 400)
        name = f"sg-{next(self._numbers):017x}"
        tags = {one["Key"]: one["Value"] for one in given["TagSpecifications"][0]["Tags"]}
        made = {"GroupId": name, "GroupName": given["GroupName"], "rules": set(), "tags": tags}
        self.groups[name] = made
        return {"GroupId": name}

    def _AuthorizeSecurityGroupIngress(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        rules, (rule,) = self.groups[given["GroupId"]]["rules"], given["IpPermissions"]
        source = rule["IpRanges"][0]["CidrIp"]
        if source in rules:
            raise error("AuthorizeSecurityGroupIngress", "InvalidPermission.Duplicate", 400)
        rules.add(source)
        return {}

    def _DeleteSecurityGroup(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        is_used = any(given["GroupId"] in one["groups"] for one in self.mount_targets.values())
        if is_used or given["GroupId"] in self.referred_groups:
            raise error("DeleteSecurityGroup", "DependencyViolation", 400)
        if self.groups.pop(given["GroupId"], None) is None:
            raise error("DeleteSecurityGroup", "InvalidGroup.NotFound", 400)
        return {}


class Connection:
    """The calls of one process, instead of ``AwsConnection``; call number ``fails_at`` has the fault."""

    def __init__(self, account: AwsAccount) -> None:
        self._account = account
        self.fails_at, self.fault = 0, Fault.REFUSED
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _: None

    async def call(
        self, service: Service, operation: str, /, *, subject: object = "", **given: Any
    ) -> Mapping[str, Any]:
        """The answer to one call; raises AwsError."""
        try:
            return await self._call(operation, given)
        except (ClientError, ReadTimeoutError) as failure:
            action = f"{service}:{operation}"
            raise translate(failure, operation=operation, iam_action=action, subject=subject) from failure

    async def _call(self, operation: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.before(operation)
        self.calls.append(operation)
        fault = self.fault if len(self.calls) == self.fails_at else None
        await asyncio.sleep(0.01)
        if fault is Fault.KILLED_BEFORE:
            raise Killed
        if fault is Fault.REFUSED:
            raise error(operation, "InternalServerError", 500)
        try:
            return self._account.call(operation, given)
        finally:
            if fault is Fault.KILLED_AFTER:
                raise Killed
            if fault is Fault.LOST:
                raise ReadTimeoutError(endpoint_url="https://elasticfilesystem")

    async def list_all(
        self, service: Service, operation: str, key: str, /, *, subject: object = "", **given: Any
    ) -> list[Mapping[str, Any]]:
        """All items of the operation."""
        given.pop("page_size", None)
        return list((await self.call(service, operation, subject=subject, **given))[key])

    async def read_all(
        self,
        service: Service,
        operation: str,
        key: str,
        read: Callable[[Iterable[Mapping[str, Any]]], Iterable[Value]],
        /,
        *,
        subject: object = "",
        **given: Any,
    ) -> list[Value]:
        """The values that ``read`` makes of the items."""
        return list(read(await self.list_all(service, operation, key, subject=subject, **given)))


class AccountGateway(AwsGateway):
    """The real gateway of this account."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection  # type: ignore[assignment]
        self.access_points = AwsAccessPoints(connection)  # type: ignore[arg-type]
        self.made_file_systems = AwsMadeFileSystems(connection)  # type: ignore[arg-type]
        self.owned = AwsOwned(connection)  # type: ignore[arg-type]


def error(operation: str, code: str, status: int) -> ClientError:
    """An answer of AWS with that code."""
    response: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)


def _time() -> float:
    return asyncio.get_running_loop().time()
