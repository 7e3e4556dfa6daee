"""What a caller of the embedded AWS API may do, by a policy of its identity.

Only calls by ``DRIVER`` are judged; all others are those of an administrator of the account. The condition
keys are those that policies of the AWS driver use ("Actions, resources, and condition keys for Amazon EFS" in
AWS's Service Authorization Reference): tags of the request, tags of the access point, and the action that
creates what is tagged.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from moto.core.exceptions import AccessDeniedError
from moto.core.responses import BaseResponse
from moto.efs.exceptions import EFSError
from moto.efs.models import efs_backends

from fake_efs.aws_api import DRIVER
from fake_efs.identities import DRIVER_ARN
from fake_efs.policy import Context, Statement, is_allowed

_EFS: Final = "elasticfilesystem"
_CREATE: Final = "CreateAccessPoint"
_DELETE: Final = "DeleteAccessPoint"


class _EfsDenied(EFSError):
    code = 403

    def __init__(self, action: str) -> None:
        super().__init__("AccessDeniedException", _sentence(action))


class _Ec2Denied(AccessDeniedError):
    """In the form of EC2, which moto does not have."""

    def __init__(self, action: str) -> None:
        super().__init__(DRIVER_ARN, action)
        error = f"<Code>UnauthorizedOperation</Code><Message>{_sentence(action)}</Message>"
        self.description = f"<Response><Errors><Error>{error}</Error></Errors></Response>"


def enforce(statements: tuple[Statement, ...]) -> None:
    """Refuse from now on every call by ``DRIVER`` that these statements do not allow, in this process."""

    def authorize(response: Any, resource: str = "*") -> None:  # noqa: ANN401 - as moto calls it
        # moto's own way takes only keys of 20 characters.
        if f"Credential={DRIVER.access_key_id}/" not in response.headers.get("Authorization", ""):
            return
        service = _EFS if response.service_name == "efs" else response.service_name
        operation = response._get_action()  # noqa: SLF001 - moto has no other way
        for action, context in _actions(response, operation):
            if not is_allowed(statements, f"{service}:{action}", context):
                refusal = _EfsDenied if service == _EFS else _Ec2Denied
                raise refusal(f"{service}:{action}")

    BaseResponse._authenticate_and_authorize_normal_action = authorize  # type: ignore[method-assign, assignment]  # noqa: SLF001


def _actions(response: Any, operation: str) -> Iterable[tuple[str, Context]]:  # noqa: ANN401 - one of moto's
    """The actions that the call needs: creation with tags needs TagResource as well."""
    if operation == _CREATE:
        given = {tag["Key"]: tag["Value"] for tag in response._get_param("Tags") or ()}  # noqa: SLF001
        context = _of_tags("aws:requesttag", given) | {"aws:tagkeys": frozenset(given)}
        yield operation, context
        if given:
            yield "TagResource", context | {f"{_EFS}:createaction": frozenset({_CREATE})}
    elif operation == _DELETE:
        backend = efs_backends[response.current_account][response.region]
        access_point_id = response._get_param("AccessPointId")  # noqa: SLF001
        tags = backend.tagging_service.list_tags_for_resource(access_point_id)["Tags"]
        yield operation, _of_tags("aws:resourcetag", {tag["Key"]: tag["Value"] for tag in tags})
    else:
        yield operation, {}


def _of_tags(prefix: str, tags: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {f"{prefix}/{key.lower()}": frozenset({value}) for key, value in tags.items()}


def _sentence(action: str) -> str:
    return f"User: {DRIVER_ARN} is not authorized to perform: {action} on the specified resource"
