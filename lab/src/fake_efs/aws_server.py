"""The program behind the embedded AWS API: S3 Files, and moto's server, as strict about access points as EFS.

A client token gives one access point, ids have 17 digits, a file system must be there and have room, and long
listings come in pages. Source: https://docs.aws.amazon.com/efs/latest/ug/API_CreateAccessPoint.html and
API_DescribeAccessPoints.html there.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from moto.efs.exceptions import AccessPointNotFound, EFSError, FileSystemNotFound
from moto.efs.models import AccessPoint, EFSBackend
from moto.efs.responses import EFSResponse
from moto.moto_api._internal import mock_random
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from waitress import serve

from fake_efs.authorization import enforce
from fake_efs.policy import Statement, parse_policy
from fake_efs.s3_files_api import S3FilesApi

ACCESS_POINTS_MAX = 10_000

# moto is not safe for threads: two requests for addresses of a subnet failed, with half a mount target left.
_THREADS = 1
_CONNECTIONS_MAX = 1000
_DIGITS = 17
_PAGE, _PAGE_MAX = 100, 1000

_CHANGES = (
    *("create_file_system", "delete_file_system", "create_mount_target", "delete_mount_target"),
    *("create_access_point", "delete_access_point", "put_file_system_policy"),
)

_create = EFSBackend.create_access_point
_delete = EFSBackend.delete_access_point
_policy_of = EFSBackend.describe_file_system_policy


class AccessPointAlreadyExists(EFSError):
    """409: the token is that of this access point."""

    code = 409

    def __init__(self, access_point_id: str) -> None:
        name = "AccessPointAlreadyExists"
        super().__init__(name, f"Access point {access_point_id} has this token.")
        body = {"ErrorCode": name, "Message": self.message, "AccessPointId": access_point_id}
        self.description = json.dumps(body)


class AccessPointLimitExceeded(EFSError):
    """403: the file system has as many access points as it may have."""

    code = 403

    def __init__(self, file_system_id: str) -> None:
        super().__init__("AccessPointLimitExceeded", f"{file_system_id} has {ACCESS_POINTS_MAX} of them.")


class StrictEfs(EFSBackend):
    """The replacements of moto's methods; each calls the one that it replaces."""

    def create_access_point(
        self,
        client_token: str,
        tags: list[dict[str, str]],
        file_system_id: str,
        posix_user: dict[str, Any],
        root_directory: dict[str, Any],
    ) -> AccessPoint:
        """A new access point; a token that was used is refused with what it gave."""
        if file_system_id not in self.file_systems_by_id:
            raise FileSystemNotFound(file_system_id)
        by_token, numbers = _indexes(self)
        if client_token in by_token:
            raise AccessPointAlreadyExists(by_token[client_token].access_point_id)
        if numbers[file_system_id] >= ACCESS_POINTS_MAX:
            raise AccessPointLimitExceeded(file_system_id)
        made = _create(self, client_token, [], file_system_id, posix_user, root_directory)
        del self.access_points[made.access_point_id]
        made.access_point_id = f"fsap-{mock_random.get_random_hex(_DIGITS)}"
        made.access_point_arn = f"{made.access_point_arn.rpartition('/')[0]}/{made.access_point_id}"
        self.tagging_service.tag_resource(made.access_point_id, tags)
        self.access_points[made.access_point_id] = by_token[client_token] = made
        numbers[file_system_id] += 1
        return made

    def delete_access_point(self, access_point_id: str) -> None:
        """Remove it; one that is not there is an error."""
        if access_point_id not in self.access_points:
            raise AccessPointNotFound(access_point_id)
        gone = self.access_points[access_point_id]
        _delete(self, access_point_id)
        by_token, numbers = _indexes(self)
        by_token.pop(gone.client_token, None)
        numbers[gone.file_system_id] -= 1

    def describe_file_system_policy(self, file_system_id: str) -> str:
        """Its policy; a file system that is not there is an error, not a defect of the server."""
        if file_system_id not in self.file_systems_by_id:
            raise FileSystemNotFound(file_system_id)
        return _policy_of(self, file_system_id)


def _indexes(backend: EFSBackend) -> tuple[dict[str, AccessPoint], Counter[str]]:
    """Its access points by their client tokens, and their number on each file system.

    moto looks through all of them, which takes longer with each.
    """
    found: tuple[dict[str, AccessPoint], Counter[str]] = vars(backend).setdefault("indexes", ({}, Counter()))
    return found


class PagedAnswers(EFSResponse):
    """The replacement of moto's answer."""

    def describe_access_points(self) -> tuple[str, dict[str, str | int]]:
        """As many access points as asked for, from where the token says."""
        found = self.efs_backend.describe_access_points(
            self._get_param("AccessPointId"), self._get_param("FileSystemId")
        )
        start = int(self._get_param("NextToken") or 0)
        end = start + min(self._get_int_param("MaxResults", _PAGE), _PAGE_MAX)
        answer: dict[str, Any] = {"AccessPoints": [one.info_json() for one in found[start:end]]}
        if end < len(found):
            answer["NextToken"] = str(end)
        return json.dumps(answer), {"Content-Type": "application/json"}


def note_changes(file: Path) -> None:
    """Add a byte to the file at each call of moto's that changes something, before it is answered."""
    for name in _CHANGES:
        setattr(EFSBackend, name, _noted(getattr(EFSBackend, name), file))


def _noted(change: Callable[..., Any], file: Path) -> Callable[..., Any]:
    @wraps(change)
    def noted(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever moto passes
        try:
            return change(*given, **named)
        finally:
            _note(file)

    return noted


def _note(file: Path) -> None:
    with file.open("ab") as changes:
        changes.write(b".")


def add_s3_files(api: S3FilesApi) -> None:
    """Let moto's server answer calls to S3 Files with this."""
    moto = DomainDispatcherApplication.__call__

    def application(self: DomainDispatcherApplication, environ: Any, start_response: Any) -> Any:  # noqa: ANN401 - WSGI
        return api.beside(partial(moto, self))(environ, start_response)

    DomainDispatcherApplication.__call__ = application  # type: ignore[method-assign]


def main() -> None:
    """Serve on a free port, without a line for each request: a cluster may run for days.

    The arguments are the address to listen on, the file that grows with each change, see ``note_changes``,
    and the file of the driver's policy if it has one.
    """
    logging.getLogger("waitress").setLevel(logging.WARNING)
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    # moto finds a service by the module of its class, so a class of our own cannot take its place.
    for ours, theirs in ((StrictEfs, EFSBackend), (PagedAnswers, EFSResponse)):
        for name, method in vars(ours).items():
            if not name.startswith("_"):
                setattr(theirs, name, method)
    host = sys.argv[1]
    changes_file, *policy_file = map(Path, sys.argv[2:])
    note_changes(changes_file)
    statements: tuple[Statement, ...] | None = None
    if policy_file:
        statements = parse_policy(policy_file[0].read_text(), of_identity=True)
        enforce(statements)
    add_s3_files(S3FilesApi(partial(_note, changes_file), statements))
    # moto's own server closes each connection, which AWS does not.
    application = DomainDispatcherApplication(create_backend_app)
    serve(application, host=host, port=0, threads=_THREADS, connection_limit=_CONNECTIONS_MAX)


if __name__ == "__main__":
    main()
