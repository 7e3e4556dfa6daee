"""Policies: those of file systems, for mounts, and those of identities, for calls of the API.

A file system without a policy is open to every client that reaches a mount target. With one, anonymous
clients need a statement that allows them ("Using IAM to control access to file systems" of the EFS guide).
An identity of the embedded account needs only that no statement denies it: its own policy is not checked for
mounts of EFS. S3 Files is open to no one: the identity's own policy must allow ``ClientMount``. What it says
about ``ClientWrite`` and ``ClientRootAccess`` is not enforced.

The driver's credentials are checked against the policy that they were given, for calls of the API
(``authorization``) and mounts of S3 Files; without one, and for all other identities, everything is allowed.
A policy that is not understood is an error, and allows nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any, Final

from fake_efs.aws_api import ACCOUNT_ID
from fake_efs.errors import InvalidValue, MountDenied

_MOUNT: Final = "elasticfilesystem:clientmount"
_S3_FILES_MOUNT: Final = "s3files:ClientMount"
_FIELD: Final = "policy"
_ACCOUNT: Final = frozenset({ACCOUNT_ID, f"arn:aws:iam::{ACCOUNT_ID}:root"})
_EVERYBODY: Final = "*"
_NULL: Final = "Null"
_FOR_ALL: Final = "ForAllValues:"
# Operators whose values may all be compared as text with wildcards.
_TEXT_OPERATORS: Final = frozenset({"Bool", "StringEquals", "StringLike", "ArnEquals", "ArnLike"})
_STATEMENT_KEYS: Final = frozenset({"Sid", "Effect", "Principal", "Action", "Resource", "Condition"})

# The values of each condition key, whose name is in lower case.
Context = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who wants to mount; ``arn`` None is somebody without a signature."""

    arn: str | None = None
    access_point_arn: str | None = None

    @property
    def principals(self) -> frozenset[str]:
        """The names under which a policy may mean this client."""
        return frozenset({_EVERYBODY} if self.arn is None else {_EVERYBODY, self.arn, *_ACCOUNT})

    @property
    def context(self) -> Context:
        """The values of condition keys; a mount target is the only way in, and speaks TLS only."""
        values = {"aws:securetransport": "true", "elasticfilesystem:accessedviamounttarget": "true"}
        if self.access_point_arn:
            values["elasticfilesystem:accesspointarn"] = self.access_point_arn
        return {key: frozenset({value}) for key, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCondition:
    """An operator, and the patterns of which the values of a condition key must fit one."""

    operator: str
    key: str
    patterns: tuple[str, ...]

    def holds(self, context: Context) -> bool:
        """Whether it holds; ForAllValues holds without a value, too."""
        values = context.get(self.key, frozenset())
        if self.operator == _NULL:
            return (not values) is (self.patterns == ("true",))
        fitting = [any(fnmatchcase(value, pattern) for pattern in self.patterns) for value in values]
        return all(fitting) if self.operator.startswith(_FOR_ALL) else any(fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement; ``principals`` are empty in the policy of an identity."""

    allows: bool
    principals: frozenset[str]
    actions: tuple[str, ...]
    conditions: tuple[PolicyCondition, ...] = ()

    def covers(self, action: str, context: Context) -> bool:
        """Whether it is about this action, in lower case, under these circumstances."""
        return any(fnmatchcase(action, pattern) for pattern in self.actions) and all(
            condition.holds(context) for condition in self.conditions
        )


def parse_policy(text: str, *, of_identity: bool = False) -> tuple[Statement, ...]:
    """The statements of a file system's policy, or of an identity's, which names no principals.

    Raises InvalidValue for what this evaluation does not know.
    """
    try:
        statements = json.loads(text)["Statement"]
        entries = statements if isinstance(statements, list) else [statements]
        return tuple(_statement(entry, of_identity=of_identity) for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(f"cannot be read ({type(error).__name__})", field=_FIELD, value=text) from error


def check_policy(statements: tuple[Statement, ...], client: Client) -> None:
    """Raises MountDenied when a policy of these statements does not let the client mount."""
    applying = [
        statement
        for statement in statements
        if not statement.principals.isdisjoint(client.principals) and statement.covers(_MOUNT, client.context)
    ]
    who = client.arn or "a client without IAM signature"
    if any(not statement.allows for statement in applying):
        raise MountDenied("is denied ClientMount", field=_FIELD, value=who)
    if client.arn is None and not applying:
        raise MountDenied(
            "is not allowed ClientMount", field=_FIELD, value=who, remedy="mount with the option iam"
        )


def check_identity(statements: tuple[Statement, ...], arn: str) -> None:
    """Raises MountDenied when the policy of this identity does not let it mount file systems of S3 Files."""
    if not is_allowed(statements, _S3_FILES_MOUNT, {}):
        raise MountDenied(f"is not allowed {_S3_FILES_MOUNT}", field=_FIELD, value=arn)


def managed_policy() -> str:
    """The policies that AWS manages for a driver and its nodes, in one."""
    names = ("AmazonEFSCSIDriverPolicy", "AmazonS3FilesCSIDriverPolicy", "AmazonS3FilesClientFullAccess")
    texts = [files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8") for name in names]
    statements = [statement for text in texts for statement in json.loads(text)["Statement"]]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def is_allowed(statements: tuple[Statement, ...], action: str, context: Context) -> bool:
    """Whether an identity with this policy may call an action, such as ``efs:CreateAccessPoint``."""
    covering = [statement.allows for statement in statements if statement.covers(action.lower(), context)]
    return bool(covering) and all(covering)


def _statement(entry: Mapping[str, Any], *, of_identity: bool) -> Statement:
    if unknown := entry.keys() - _STATEMENT_KEYS:
        raise _not_known(min(unknown))
    if entry["Effect"] not in {"Allow", "Deny"}:
        raise _not_known(entry["Effect"])
    if of_identity and ("Principal" in entry or entry["Resource"] != "*"):
        raise _not_known(entry.get("Principal", entry["Resource"]))
    conditions = [
        PolicyCondition(operator=operator, key=key.lower(), patterns=_patterns(operator, values))
        for operator, keys in entry.get("Condition", {}).items()
        for key, values in keys.items()
    ]
    return Statement(
        allows=entry["Effect"] == "Allow",
        principals=frozenset() if of_identity else _principals(entry["Principal"]),
        actions=tuple(action.lower() for action in _texts(entry["Action"])),
        conditions=tuple(conditions),
    )


def _principals(value: object) -> frozenset[str]:
    match value:
        case str():
            return frozenset({value})
        case {"AWS": names, **others} if not others:
            return frozenset(_texts(names))
        case _:
            raise _not_known(value)


def _patterns(operator: str, values: object) -> tuple[str, ...]:
    if operator != _NULL and operator.removeprefix(_FOR_ALL) not in _TEXT_OPERATORS:
        raise _not_known(operator)
    texts = _texts(values)
    return tuple(text.lower() for text in texts) if operator in {"Bool", _NULL} else texts


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in (value if isinstance(value, list) else [value]))


def _not_known(what: object) -> InvalidValue:
    return InvalidValue("is not known to the embedded EFS", field=_FIELD, value=what)
