"""AWS below the controller's gateway: calls by operation, with the faults of a run."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from zlib import crc32

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from tests.simulation.efs import Efs
from tests.simulation.history import History
from tests.simulation.request_faults import Fault, RequestFaults
from tests.simulation.virtual import Process, State, VirtualLoop, settle

from kube_efs.aws.access_points import AwsAccessPoints
from kube_efs.aws.connection import Service, Value
from kube_efs.aws.errors import translate
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.made_file_systems import AwsMadeFileSystems
from kube_efs.aws.network import AwsNetwork
from kube_efs.aws.owned import AwsOwned
from kube_efs.aws.s3_files import AwsS3Files
from kube_efs.model.efs.ids import ZoneName
from kube_efs.model.efs.kinds import FileSystemKind

# The total timeout of the client library.
_TIMEOUT_SECONDS = 30.0
# Each process is refused at times, as between the end of its credentials and their renewal.
_EXPIRED = ("ExpiredTokenException", 403)
# For so long after a pause, a leader does not know that another one leads.
_UNAWARE_SECONDS = 2.0


class OneZone(AwsNetwork):
    """EC2 with one zone."""

    def __init__(self) -> None:
        """Without a connection."""

    async def zone_ids(self) -> Mapping[ZoneName, ZoneName]:
        """The ID of the zone."""
        return {ZoneName("eu-west-1a"): ZoneName("euw1-az1")}


class SimulatedGateway(AwsGateway):
    """The real gateway, with simulated calls."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection  # type: ignore[assignment]
        self.access_points = AwsAccessPoints(connection)  # type: ignore[arg-type]
        self.s3_files = AwsS3Files(connection)  # type: ignore[arg-type]
        self.made_file_systems = AwsMadeFileSystems(connection)  # type: ignore[arg-type]
        self.owned = AwsOwned(connection)  # type: ignore[arg-type]
        self.network = OneZone()


class Connection:
    """The calls of one process, instead of ``AwsConnection``."""

    def __init__(
        self,
        loop: VirtualLoop,
        process: Process,
        efs: Efs,
        request_faults: RequestFaults,
        history: History,
        *,
        quota: int,
    ) -> None:
        self._loop = loop
        self._process = process
        self._efs = efs
        self._request_faults = request_faults
        self._history = history
        self._quota = quota
        self.lists_nothing: Callable[[], bool] = lambda: False
        # By token and group ID: the time at which the process first requested an access point with them.
        self._requested_at: dict[tuple[str, int], float] = {}

    async def call(
        self, service: Service, operation: str, /, *, subject: object = "", **parameters: Any
    ) -> Mapping[str, Any]:
        """The answer to one call; raises AwsError."""
        is_s3 = service is Service.S3_FILES
        given = _with_case(str.upper, parameters) if is_s3 else parameters
        if operation == "CreateAccessPoint":
            self._requested_at.setdefault(_identity(given), self._loop.time())
        try:
            return await self._call(operation, given, is_s3=is_s3)
        except (ClientError, EndpointConnectionError, ReadTimeoutError) as error:
            action = f"{service}:{operation}"
            raise translate(error, operation=operation, iam_action=action, subject=subject) from error

    async def list_all(
        self,
        service: Service,
        operation: str,
        key: str,
        /,
        *,
        subject: object = "",
        page_size: int | None = None,
        **parameters: Any,
    ) -> list[Mapping[str, Any]]:
        """All items of the operation."""
        return await self.read_all(service, operation, key, list, subject=subject, **parameters)

    async def read_all(
        self,
        service: Service,
        operation: str,
        key: str,
        read: Callable[[Iterable[Mapping[str, Any]]], Iterable[Value]],
        /,
        *,
        subject: object = "",
        page_size: int | None = None,
        **parameters: Any,
    ) -> list[Value]:
        """The values that ``read`` makes of the items."""
        answer = await self.call(service, operation, subject=subject, **parameters)
        return list(read(answer[key]))

    async def _call(self, operation: str, parameters: Mapping[str, Any], *, is_s3: bool) -> Mapping[str, Any]:
        delivery = self._request_faults.delivery(operation)
        if delivery.fault:
            self._history.note("{}: {} {} is {}", self._process.name, operation, dict(parameters), delivery)
        future: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()

        def arrive(*, is_answered: bool) -> None:
            before = set(self._efs.access_points)
            outcome = self._outcome(operation, parameters, is_s3=is_s3)
            if not is_answered or self._is_late():
                self._efs.strays |= self._efs.access_points.keys() - before
            if is_answered and delivery.code is not None:
                outcome = _error(operation, "InternalServerError", delivery.code)
            if is_answered and delivery.answers is not None:
                self._loop.after(delivery.answers, settle, future, outcome)

        if delivery.arrives is not None:
            self._loop.after(delivery.arrives, lambda: arrive(is_answered=True))
            if delivery.again is not None:
                self._loop.after(delivery.arrives + delivery.again, lambda: arrive(is_answered=False))
        elif delivery.fault is Fault.BUSY:
            refusal = ("ThrottlingException", 429) if delivery.code == 429 else _EXPIRED
            self._loop.after(delivery.answers or 0.0, settle, future, _error(operation, *refusal))
        # An answer that arrives during a pause of the process is received after it.
        await asyncio.wait({future}, timeout=_TIMEOUT_SECONDS)
        if not future.done():
            raise ReadTimeoutError(endpoint_url="https://elasticfilesystem")
        return future.result()

    def _is_late(self) -> bool:
        """Whether the calling process has ended, or has just resumed while another one leads."""
        process = self._process
        is_unaware = self._loop.time() < process.resumed_at + _UNAWARE_SECONDS
        return process.state is State.DEAD or (is_unaware and process.name != self._efs.leader)

    def _outcome(self, operation: str, given: Mapping[str, Any], *, is_s3: bool) -> Any:
        try:
            if is_s3:
                return _with_case(str.lower, self._carry_out_on_s3_files(operation, given))
            return self._carry_out(operation, given)
        except ClientError as error:
            return error

    def _carry_out(self, operation: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        match operation:
            case "DescribeFileSystems" if "CreationToken" not in given:
                return {"FileSystems": self._file_systems(given.get("FileSystemId"))}
            case "DescribeMountTargets" if given["FileSystemId"] not in self._efs.account.file_systems:
                return {"MountTargets": self._mount_targets(given["FileSystemId"])}
            case "DescribeAccessPoints":
                return {"AccessPoints": self._access_points(given)}
            case "CreateAccessPoint":
                return self._create_access_point(given)
            case "DeleteAccessPoint":
                if given["AccessPointId"] not in self._points(FileSystemKind.EFS):
                    raise _error(operation, "AccessPointNotFound", 404)
                self._delete_access_point(given["AccessPointId"])
                return {}
        answer = self._efs.account.call(operation, given)
        self._follow(operation, given, answer)
        return answer

    def _follow(self, operation: str, given: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """What else a call to the account changes."""
        match operation:
            case "DeleteMountTarget":
                target = self._efs.account.mount_targets[given["MountTargetId"]]
                self._efs.mount_target_goes(target["FileSystemId"])
            case "CreateFileSystem":
                made = self._efs.add(answer["FileSystemId"])
                made.made_by, made.since = self._process.name, self._loop.time()
                self._history.note("AWS makes {} for {}", made.file_system_id, given["CreationToken"])
            case "DeleteFileSystem":
                self._history.note("AWS deletes {}", given["FileSystemId"])
                self._efs.delete(given["FileSystemId"])
            case "TagResource":
                self._history.note("AWS tags {} with {}", given["ResourceId"], given["Tags"][0]["Value"])

    def _carry_out_on_s3_files(self, operation: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The same for S3 Files, with the names of members as for EFS.

        Lists of access points contain neither tokens nor tags. A token that was used before gives the first
        access point or a conflict: the description of the service allows both.
        """
        points, on = self._points(FileSystemKind.S3_FILES), given.get("FileSystemId")
        if on is not None and self._efs.file_systems[on].kind is not FileSystemKind.S3_FILES:
            raise _error(operation, "ResourceNotFoundException", 404)
        if operation in {"GetAccessPoint", "DeleteAccessPoint"} and given["AccessPointId"] not in points:
            raise _error(operation, "ResourceNotFoundException", 404)
        match operation:
            case "GetAccessPoint" if not self._efs.allows_get:
                raise _error(operation, "AccessDeniedException", 403)
            case "GetAccessPoint":
                return _of_s3_files(points[given["AccessPointId"]])
            case "ListAccessPoints":
                found = [_of_s3_files(one) for one in points.values() if one["FileSystemId"] == on]
                hidden = {"ClientToken", "Tags"}
                return {"AccessPoints": [{k: v for k, v in one.items() if k not in hidden} for one in found]}
            case "CreateAccessPoint":
                earlier = [one for one in points.values() if one["ClientToken"] == given["ClientToken"]]
                if earlier and crc32(given["ClientToken"].encode()) % 2:
                    error = _error(operation, "ConflictException", 409)
                    error.response["resourceId"] = earlier[0]["AccessPointId"]
                    raise error
                return _of_s3_files(earlier[0] if earlier else self._create_access_point(given))
            case "DeleteAccessPoint":
                self._delete_access_point(given["AccessPointId"])
                return {}
            case "ListMountTargets":
                address = self._efs.file_systems[given["FileSystemId"]].address
                known = {"MountTargetId": "fsmt-1", "FileSystemId": on, "SubnetId": "subnet-0000000a"}
                known |= {"AvailabilityZoneId": "euw1-az1", "Ipv4Address": address, "Status": "available"}
                return {"MountTargets": [known]}
        raise NotImplementedError(operation)

    def _file_systems(self, wanted: str | None) -> list[Mapping[str, Any]]:
        if wanted is None and self.lists_nothing():
            self._history.note("AWS lists no file systems to {}", self._process.name)
            return []
        found = [one for one in self._efs.file_systems.values() if wanted in {None, one.file_system_id}]
        found = [one for one in found if one.listed and not one.made_by]
        entries: list[Mapping[str, Any]] = [
            {"FileSystemId": one.file_system_id, "LifeCycleState": "available"} for one in found
        ]
        made = self._efs.account.call("DescribeFileSystems", {})["FileSystems"]
        entries += [one for one in made if wanted in {None, one["FileSystemId"]}]
        if wanted and not entries:
            raise _error("DescribeFileSystems", "FileSystemNotFound", 404)
        return entries

    def _mount_targets(self, file_system_id: str) -> list[Mapping[str, Any]]:
        found = self._efs.file_systems.get(file_system_id)
        if found is None or not found.listed:
            raise _error("DescribeMountTargets", "FileSystemNotFound", 404)
        return [
            {
                "MountTargetId": f"fsmt-{found.address.replace('.', '')}",
                "FileSystemId": file_system_id,
                "SubnetId": "subnet-0000000a",
                "AvailabilityZoneName": "eu-west-1a",
                "IpAddress": found.address,
                "LifeCycleState": "available",
            }
        ]

    def _points(self, kind: FileSystemKind) -> Mapping[str, dict[str, Any]]:
        """The access points on file systems of that kind, by ID."""
        systems = self._efs.file_systems
        return {
            name: one
            for name, one in self._efs.access_points.items()
            if systems[one["FileSystemId"]].kind is kind
        }

    def _access_points(self, given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        points = self._points(FileSystemKind.EFS)
        if "AccessPointId" in given:
            if given["AccessPointId"] not in points:
                raise _error("DescribeAccessPoints", "AccessPointNotFound", 404)
            return [points[given["AccessPointId"]]]
        if self._efs.file_systems[given["FileSystemId"]].kind is not FileSystemKind.EFS:
            raise _error("DescribeAccessPoints", "FileSystemNotFound", 404)
        return [one for one in points.values() if one["FileSystemId"] == given["FileSystemId"]]

    def _delete_access_point(self, access_point_id: str) -> None:
        self._efs.delete_access_point(access_point_id)
        self._history.note("AWS deletes {}", access_point_id)

    def _create_access_point(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        points = self._efs.access_points.values()
        for one in points:
            if one["ClientToken"] == given["ClientToken"]:
                error = _error("CreateAccessPoint", "AccessPointAlreadyExists", 409)
                error.response["AccessPointId"] = one["AccessPointId"]
                raise error
        on = self._efs.file_systems.get(given["FileSystemId"])
        if on is None or not on.listed:
            raise _error("CreateAccessPoint", "FileSystemNotFound", 404)
        if on.made_by:
            self._efs.account.check_available("CreateAccessPoint", on.file_system_id)
        if sum(one["FileSystemId"] == given["FileSystemId"] for one in points) >= self._quota:
            raise _error("CreateAccessPoint", "AccessPointLimitExceeded", 403)
        made = self._efs.add_access_point(self._process.name, self._requested_at[_identity(given)], **given)
        self._history.note(
            "AWS makes {} with root {} and gid {} for {}",
            made["AccessPointId"],
            made["RootDirectory"]["Path"],
            made["PosixUser"]["Gid"],
            made["ClientToken"],
        )
        return made


def _with_case(change: Callable[[str], str], value: Any) -> Any:
    """The value whose members begin as in the other API."""
    match value:
        case Mapping():
            return {change(name[0]) + name[1:]: _with_case(change, one) for name, one in value.items()}
        case list():
            return [_with_case(change, one) for one in value]
    return value


def _of_s3_files(point: Mapping[str, Any]) -> Mapping[str, Any]:
    """The access point as S3 Files describes it."""
    return {**point, "Status": point["LifeCycleState"]}


def _identity(given: Mapping[str, Any]) -> tuple[str, int]:
    """The token and the group ID of an access point."""
    return given["ClientToken"], given["PosixUser"]["Gid"]


def _error(operation: str, code: str, status: int) -> ClientError:
    response: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)
