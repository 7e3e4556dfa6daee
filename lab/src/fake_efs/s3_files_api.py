"""The API of Amazon S3 Files, as a WSGI application beside moto, which does not have it.

Its operations, paths, shapes, patterns, limits and errors are those of botocore's service model, by which
every request and every answer is checked. An operation without a method here is refused. An error has its
name in the header ``x-amzn-errortype``, where botocore reads it.
Not in the model, and so decided here: a repeated client token answers with the first access point if the
request is the same, and with ConflictException if not; a new file system or mount target is available at
once; a mount target gets an address of moto's subnet.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs, unquote

from botocore.loaders import Loader
from botocore.model import ListShape, OperationModel, ServiceModel, Shape, StructureShape
from moto.ec2.models import ec2_backends
from moto.moto_api._internal import mock_random

from fake_efs.aws_api import ACCOUNT_ID, DRIVER
from fake_efs.policy import Context, Statement, is_allowed

SERVICE: Final = "s3files"
ACCESS_POINTS_MAX: Final = 10_000

_SCOPE: Final = re.compile(r"Credential=(?P<key>[^/]+)/[0-9]{8}/(?P<region>[a-z0-9-]+)/s3files/aws4_request")
_TYPES: Final[Mapping[str, type]] = {
    "string": str,
    "integer": int,
    "long": int,
    "boolean": bool,
    "timestamp": int,
    "list": list,
    "structure": dict,
}
_DIGITS: Final = 17
_CLUSTER_TAG: Final = "efs.csi.aws.com/cluster"

Entry = dict[str, Any]
StartResponse = Callable[[str, Sequence[tuple[str, str]]], object]
Wsgi = Callable[[Mapping[str, Any], Any], Iterable[bytes]]


class Refusal(Exception):
    """The name of an error of the model, with its members."""

    def __init__(self, name: str, message: str, **members: str) -> None:
        super().__init__(message)
        self.name = name
        self.members = {"errorCode": name, "message": message, **members}


class S3FilesApi:
    """The state of one account, and the operations on it; each is a method with the operation's name.

    ``changed`` is called before each change is answered. ``statements`` are the policy of ``DRIVER``; None
    allows everything.
    """

    def __init__(self, changed: Callable[[], None], statements: tuple[Statement, ...] | None) -> None:
        self.model = ServiceModel(Loader().load_service_model(SERVICE, "service-2"), SERVICE)
        self._routes = [
            (one.http["method"], _pattern(one.http["requestUri"]), one)
            for one in map(self.model.operation_model, self.model.operation_names)
        ]
        self._changed = changed
        self._statements = statements
        self._lock = threading.Lock()
        self._file_systems: dict[str, Entry] = {}
        self._mount_targets: dict[str, Entry] = {}
        self._groups: dict[str, list[str]] = {}
        self._access_points: dict[str, Entry] = {}

    def beside(self, other: Wsgi) -> Wsgi:
        """An application that answers what is signed for S3 Files, and leaves the rest to the other."""

        def application(environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
            scope = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
            if scope is None:
                return other(environ, start_response)
            status, headers, body = self._answer(environ, scope["key"], scope["region"])
            start_response(status, [*headers, ("x-amzn-requestid", mock_random.get_random_hex(32))])
            return [body]

        return application

    def _answer(
        self, environ: Mapping[str, Any], key: str, region: str
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        headers = [("Content-Type", "application/json")]
        try:
            operation, given = self._read(environ)
            with self._lock:
                if key == DRIVER.access_key_id and self._statements is not None:
                    self._authorize(operation.name, given, self._statements)
                answer = self._call(operation, region, given)
            status = HTTPStatus(operation.http["responseCode"])
        except Refusal as refusal:
            headers.append(("x-amzn-errortype", refusal.name))
            answer, status = refusal.members, HTTPStatus(self._status_of(refusal.name))
        body = b"" if status is HTTPStatus.NO_CONTENT else json.dumps(answer).encode()
        return f"{status.value} {status.phrase}", [*headers, ("Content-Length", str(len(body)))], body

    def _call(self, operation: OperationModel, region: str, given: Entry) -> Entry:
        call = getattr(self, _method(operation.name), None)
        if call is None:
            _invalid(f"{operation.name} is not served")
        answer: Entry = call(region, given)
        if operation.output_shape is not None:
            try:
                check(operation.output_shape, answer, operation.name)
            except Refusal as wrong:  # by this module, not by the request
                raise Refusal("InternalServerException", f"wrong answer: {wrong}") from wrong
        return answer

    def _status_of(self, name: str) -> int:
        if name not in self.model.shape_names:  # AccessDeniedException is in no model
            return HTTPStatus.FORBIDDEN
        return int(self.model.shape_for(name).metadata["error"]["httpStatusCode"])

    def _read(self, environ: Mapping[str, Any]) -> tuple[OperationModel, Entry]:
        """The operation and its checked input."""
        # As it was sent: an ARN in a path is one part, whose slashes are encoded.
        path = environ.get("RAW_URI") or environ.get("REQUEST_URI") or environ["PATH_INFO"]
        path, _, query_string = path.partition("?")
        operation, variables = self._route(environ["REQUEST_METHOD"], path)
        shape = operation.input_shape
        if shape is None:
            return operation, {}
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = json.loads(environ["wsgi.input"].read(length) or b"{}")
        query = {name: values[0] for name, values in parse_qs(query_string).items()}
        given: Entry = {}
        for name, member in shape.members.items():
            wire = member.serialization.get("name", name)
            match member.serialization.get("location"):
                case "uri":
                    given[name] = unquote(variables[wire])
                case "querystring" if wire in query:
                    given[name] = int(query[wire]) if member.type_name == "integer" else query[wire]
                case None if wire in body:
                    given[name] = body[wire]
        check(shape, given, operation.name)
        return operation, given

    def _route(self, method: str, path: str) -> tuple[OperationModel, Mapping[str, str]]:
        for its_method, pattern, operation in self._routes:
            if method == its_method and (found := pattern.fullmatch(path)):
                return operation, found.groupdict()
        raise Refusal("ResourceNotFoundException", f"there is no {method} {path}")

    def _authorize(self, operation: str, given: Entry, statements: tuple[Statement, ...]) -> None:
        for action, context in self._actions(operation, given):
            if not is_allowed(statements, f"{SERVICE}:{action}", context):
                raise Refusal("AccessDeniedException", f"not authorized to perform: {SERVICE}:{action}")

    def _actions(self, operation: str, given: Entry) -> Iterable[tuple[str, Context]]:
        if operation == "CreateAccessPoint":
            tags = {tag["key"]: tag["value"] for tag in given.get("tags", ())}
            context = _of_tags("aws:requesttag", tags) | {"aws:tagkeys": frozenset(tags)}
            yield operation, context
            if tags:
                yield "TagResource", context | {f"{SERVICE}:createaction": frozenset({operation})}
        elif operation == "DeleteAccessPoint":
            known = self._access_points.get(given["accessPointId"].rpartition("/")[2], {})
            tags = {tag["key"]: tag["value"] for tag in known.get("tags", ())}
            yield operation, _of_tags("aws:resourcetag", tags)
        else:
            yield operation, {}

    # --- operations

    def create_file_system(self, region: str, given: Entry) -> Entry:
        """An available file system of a bucket; the bucket is not looked for."""
        file_system_id = f"fs-{mock_random.get_random_hex(_DIGITS)}"
        made: Entry = {
            "creationTime": int(time.time()),
            "fileSystemArn": f"arn:aws:s3files:{region}:{ACCOUNT_ID}:file-system/{file_system_id}",
            "fileSystemId": file_system_id,
            "bucket": given["bucket"],
            "clientToken": given["clientToken"],
            "status": "available",
            "roleArn": given["roleArn"],
            "ownerId": ACCOUNT_ID,
            **({"tags": given["tags"]} if "tags" in given else {}),
        }
        self._file_systems[file_system_id] = made
        self._changed()
        return made

    def get_file_system(self, _region: str, given: Entry) -> Entry:
        """That file system."""
        return self._file_system(given["fileSystemId"])

    def list_file_systems(self, _region: str, given: Entry) -> Entry:
        """All file systems, or those of a bucket."""
        found = [
            {key: value for key, value in one.items() if key not in {"clientToken", "tags"}}
            for one in self._file_systems.values()
            if given.get("bucket") in {None, one["bucket"]}
        ]
        return _page("fileSystems", found, given, most=100)

    def delete_file_system(self, _region: str, given: Entry) -> Entry:
        """Remove it; one with mount targets is refused."""
        file_system_id = self._file_system(given["fileSystemId"])["fileSystemId"]
        if any(one["fileSystemId"] == file_system_id for one in self._mount_targets.values()):
            raise Refusal("ConflictException", "it has mount targets", resourceId=file_system_id)
        del self._file_systems[file_system_id]
        for name in [
            key for key, one in self._access_points.items() if one["fileSystemId"] == file_system_id
        ]:
            del self._access_points[name]
        self._changed()
        return {}

    def create_mount_target(self, region: str, given: Entry) -> Entry:
        """An available mount target; one in each zone."""
        file_system_id = self._file_system(given["fileSystemId"])["fileSystemId"]
        ec2 = ec2_backends[ACCOUNT_ID][region]
        subnet = ec2.get_subnet(given["subnetId"])
        zone_id = subnet.availability_zone_id
        for one in self._mount_targets.values():
            if (one["fileSystemId"], one["availabilityZoneId"]) == (file_system_id, zone_id):
                raise Refusal("ConflictException", "the zone has one", resourceId=one["mountTargetId"])
        interface = ec2.create_network_interface(subnet, given.get("ipv4Address", ""))
        made: Entry = {
            "mountTargetId": f"fsmt-{mock_random.get_random_hex(_DIGITS)}",
            "ownerId": ACCOUNT_ID,
            "subnetId": given["subnetId"],
            "availabilityZoneId": zone_id,
            "fileSystemId": file_system_id,
            "ipv4Address": interface.private_ip_address,
            "status": "available",
            "networkInterfaceId": interface.id,
            "vpcId": subnet.vpc_id,
        }
        self._mount_targets[made["mountTargetId"]] = made
        self._groups[made["mountTargetId"]] = list(given.get("securityGroups") or ())
        self._changed()
        return self.get_mount_target(region, made)

    def get_mount_target(self, _region: str, given: Entry) -> Entry:
        """It, with its security groups, which lists do not contain."""
        name = given["mountTargetId"]
        if name not in self._mount_targets:
            _not_found(name)
        return {**self._mount_targets[name], "securityGroups": self._groups[name]}

    def list_mount_targets(self, _region: str, given: Entry) -> Entry:
        """Those of a file system, those with which an access point can be mounted, or all."""
        wanted: set[str] = set()
        if "fileSystemId" in given:
            wanted.add(self._file_system(given["fileSystemId"])["fileSystemId"])
        if "accessPointId" in given:
            wanted.add(self._access_point(given["accessPointId"])["fileSystemId"])
        found = [one for one in self._mount_targets.values() if wanted <= {one["fileSystemId"]}]
        return _page("mountTargets", found, given, most=100)

    def delete_mount_target(self, _region: str, given: Entry) -> Entry:
        """Remove it."""
        if self._mount_targets.pop(given["mountTargetId"], None) is None:
            _not_found(given["mountTargetId"])
        self._changed()
        return {}

    def create_access_point(self, region: str, given: Entry) -> Entry:
        """A new one, or the one with the token."""
        system = self._file_system(given["fileSystemId"])
        file_system_id = system["fileSystemId"]
        asked: Entry = {key: given[key] for key in ("posixUser", "rootDirectory", "tags") if key in given}
        for one in self._access_points.values():
            if one["clientToken"] == given["clientToken"]:
                same = {key: one[key] for key in ("posixUser", "rootDirectory", "tags") if key in one}
                if same == asked and one["fileSystemId"] == file_system_id:
                    return one
                raise Refusal(
                    "ConflictException",
                    "the token is that of another request",
                    resourceId=one["accessPointId"],
                    resourceType="access-point",
                )
        count = sum(one["fileSystemId"] == file_system_id for one in self._access_points.values())
        if count >= ACCESS_POINTS_MAX:
            raise Refusal("ServiceQuotaExceededException", f"{file_system_id} has {count}")
        access_point_id = f"fsap-{mock_random.get_random_hex(_DIGITS)}"
        made: Entry = {
            "accessPointArn": f"{system['fileSystemArn']}/access-point/{access_point_id}",
            "accessPointId": access_point_id,
            "clientToken": given["clientToken"],
            "fileSystemId": file_system_id,
            "status": "available",
            "ownerId": ACCOUNT_ID,
            **asked,
        }
        self._access_points[access_point_id] = made
        self._changed()
        return made

    def get_access_point(self, _region: str, given: Entry) -> Entry:
        """That access point."""
        return self._access_point(given["accessPointId"])

    def list_access_points(self, _region: str, given: Entry) -> Entry:
        """Those of a file system, without their tokens and tags."""
        wanted = self._file_system(given["fileSystemId"])["fileSystemId"]
        found = [
            {key: value for key, value in one.items() if key not in {"clientToken", "tags"}}
            for one in self._access_points.values()
            if one["fileSystemId"] == wanted
        ]
        return _page("accessPoints", found, given, most=1000)

    def delete_access_point(self, _region: str, given: Entry) -> Entry:
        """Remove it."""
        del self._access_points[self._access_point(given["accessPointId"])["accessPointId"]]
        self._changed()
        return {}

    def _access_point(self, name: str) -> Entry:
        """The access point of an ID or an ARN."""
        return self._access_points.get(name.rpartition("/")[2]) or _not_found(name)

    def _file_system(self, name: str) -> Entry:
        """The file system of an ID or an ARN."""
        return self._file_systems.get(name.rpartition("/")[2]) or _not_found(name)


def check(shape: Shape, value: Any, path: str) -> None:  # noqa: ANN401 - JSON
    """Raise ValidationException unless the value has the shape of the model, patterns and limits included."""
    # bool is an int in Python.
    is_of_type = type(value) is _TYPES[shape.type_name]
    if not is_of_type:
        _invalid(f"{path} is not a {shape.type_name}")
    least, most, pattern = (shape.metadata.get(name) for name in ("min", "max", "pattern"))
    size = value if isinstance(value, int) else len(value)
    if (least is not None and size < least) or (most is not None and size > most):
        _invalid(f"{path} is not within {least} and {most}")
    if pattern is not None and not re.fullmatch(_of_python(pattern), value):
        _invalid(f"{path} does not match {pattern}")
    if isinstance(shape, StructureShape):
        _check_members(shape, value, path)
    elif isinstance(shape, ListShape):
        for number, item in enumerate(value):
            check(shape.member, item, f"{path}[{number}]")


def _check_members(shape: StructureShape, value: Entry, path: str) -> None:
    for name in {*shape.required_members} - value.keys():
        _invalid(f"{path}.{name} is missing")
    for name, member in value.items():
        if name not in shape.members:
            _invalid(f"{path}.{name} is not known")
        check(shape.members[name], member, f"{path}.{name}")


def _of_python(pattern: str) -> str:
    """The pattern without the classes of characters that Python does not know."""
    return pattern.replace(r"\p{L}", r"\w").replace(r"\p{N}", r"\d").replace(r"\p{Z}", " ")


def _invalid(message: str) -> NoReturn:
    raise Refusal("ValidationException", message)


def _pattern(uri: str) -> re.Pattern[str]:
    """The form of a path whose variables are single parts."""
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", uri))


def _method(operation: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


def _page(key: str, found: list[Entry], given: Entry, *, most: int) -> Entry:
    start = int(given.get("nextToken") or 0)
    end = start + min(given.get("maxResults", most), most)
    return {key: found[start:end], **({"nextToken": str(end)} if end < len(found) else {})}


def _not_found(name: str) -> NoReturn:
    raise Refusal("ResourceNotFoundException", f"{name} does not exist")


def _of_tags(prefix: str, tags: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {f"{prefix}/{key.lower()}": frozenset({value}) for key, value in tags.items()}
