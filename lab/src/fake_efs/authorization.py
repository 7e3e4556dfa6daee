"""What a caller of the embedded AWS API may do, by a policy of its identity.

Only calls by ``DRIVER`` are judged; all others are those of an administrator of the account. The condition
keys are those that policies of the driver use ("Actions, resources, and condition keys for Amazon EFS", and
"for Amazon EC2", in AWS's Service Authorization Reference): tags of the request, tags of what the call is
about, and the action that creates what is tagged.
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
_CREATES: Final = frozenset({"CreateAccessPoint", "CreateFileSystem"})
_CREATES_GROUP: Final = "CreateSecurityGroup"
# The parameters by which calls name what they are about.
_NAMED_BY: Final = ("AccessPointId", "FileSystemId", "ResourceId")


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
    """The actions that the call needs: creation with tags needs an action for the tags as well."""
    given = _given_tags(response)
    context = _of_tags("aws:requesttag", given) | {"aws:tagkeys": frozenset(given)}
    if operation in _CREATES or operation == _CREATES_GROUP:
        yield operation, context
        if given and operation in _CREATES:
            yield "TagResource", context | {f"{_EFS}:createaction": frozenset({operation})}
        elif given:
            yield "CreateTags", context | {"ec2:createaction": frozenset({operation})}
    else:
        yield operation, context | _of_tags("aws:resourcetag", _existing_tags(response))


def _given_tags(response: Any) -> Mapping[str, str]:  # noqa: ANN401 - one of moto's
    """The tags in a call."""
    if response.service_name == "ec2":
        specified = response._parse_tag_specification()  # noqa: SLF001
        return {key: value for tags in specified.values() for key, value in tags.items()}
    return {tag["Key"]: tag["Value"] for tag in response._get_param("Tags") or ()}  # noqa: SLF001


def _existing_tags(response: Any) -> Mapping[str, str]:  # noqa: ANN401 - one of moto's
    """The tags of what a call is about; for a mount target, those of its file system."""
    get = response._get_param  # noqa: SLF001
    if response.service_name == "ec2":
        group = get("GroupId")
        tags = response.ec2_backend.describe_tags({"resource-id": [group]}) if group else ()
        return {tag["key"]: tag["value"] for tag in tags}
    if response.service_name != "efs":
        return {}
    backend = efs_backends[response.current_account][response.region]
    target = backend.mount_targets_by_id.get(get("MountTargetId"))
    named = target.file_system_id if target else next(filter(None, map(get, _NAMED_BY)), None)
    tags = backend.tagging_service.list_tags_for_resource(named)["Tags"] if named else ()
    return {tag["Key"]: tag["Value"] for tag in tags}


def _of_tags(prefix: str, tags: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {f"{prefix}/{key.lower()}": frozenset({value}) for key, value in tags.items()}


def _sentence(action: str) -> str:
    return f"User: {DRIVER_ARN} is not authorized to perform: {action} on the specified resource"
