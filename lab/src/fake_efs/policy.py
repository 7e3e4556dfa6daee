"""Policies of file systems: whether one lets a client mount.

A file system without a policy is open to every client that reaches a mount target. With one, anonymous
clients need a statement that allows them ("Using IAM to control access to file systems" of the EFS guide);
identities of the embedded account, all of which are administrators, need only that no statement denies
them. Of the actions only ClientMount is looked at. What is not understood lets nobody in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from fake_efs.aws_api import ACCOUNT_ID
from fake_efs.errors import InvalidValue

_ACTION: Final = "elasticfilesystem:clientmount"
_FIELD: Final = "file system policy"
_ACCOUNT: Final = frozenset({ACCOUNT_ID, f"arn:aws:iam::{ACCOUNT_ID}:root"})
_EVERYBODY: Final = "*"
# Operators whose values may all be compared as text with wildcards.
_OPERATORS: Final = frozenset({"Bool", "StringEquals", "StringLike", "ArnEquals", "ArnLike"})
_STATEMENT_KEYS: Final = frozenset({"Sid", "Effect", "Principal", "Action", "Resource", "Condition"})


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
    def context(self) -> Mapping[str, str]:
        """The values of condition keys; a mount target is the only way in, and speaks TLS only."""
        values = {"aws:securetransport": "true", "elasticfilesystem:accessedviamounttarget": "true"}
        if self.access_point_arn:
            values["elasticfilesystem:accesspointarn"] = self.access_point_arn
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement; ``conditions`` are condition keys with the patterns of which one must fit."""

    allows: bool
    principals: frozenset[str]
    actions: tuple[str, ...]
    conditions: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def applies_to(self, client: Client) -> bool:
        """Whether this statement speaks of this client's mounting."""
        context = client.context
        return (
            not self.principals.isdisjoint(client.principals)
            and any(fnmatchcase(_ACTION, action) for action in self.actions)
            and all(
                key in context and any(fnmatchcase(context[key], pattern) for pattern in patterns)
                for key, patterns in self.conditions
            )
        )


def parse_policy(text: str) -> tuple[Statement, ...]:
    """The statements of a policy; raises InvalidValue for what this evaluation does not know."""
    try:
        statements = json.loads(text)["Statement"]
        entries = statements if isinstance(statements, list) else [statements]
        return tuple(_statement(entry) for entry in entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(f"cannot be read ({type(error).__name__})", field=_FIELD, value=text) from error


def check_policy(statements: tuple[Statement, ...], client: Client) -> None:
    """Raises InvalidValue when a policy of these statements does not let the client mount."""
    applying = [statement for statement in statements if statement.applies_to(client)]
    who = client.arn or "a client without IAM signature"
    if any(not statement.allows for statement in applying):
        raise InvalidValue("is denied ClientMount", field=_FIELD, value=who)
    if client.arn is None and not applying:
        raise InvalidValue(
            "is not allowed ClientMount", field=_FIELD, value=who, remedy="mount with the option iam"
        )


def _statement(entry: Mapping[str, Any]) -> Statement:
    if unknown := entry.keys() - _STATEMENT_KEYS:
        raise _not_known(min(unknown))
    if entry["Effect"] not in {"Allow", "Deny"}:
        raise _not_known(entry["Effect"])
    conditions = [
        (key.lower(), _patterns(operator, values))
        for operator, keys in entry.get("Condition", {}).items()
        for key, values in keys.items()
    ]
    return Statement(
        allows=entry["Effect"] == "Allow",
        principals=_principals(entry["Principal"]),
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
    if operator not in _OPERATORS:
        raise _not_known(operator)
    texts = _texts(values)
    return tuple(text.lower() for text in texts) if operator == "Bool" else texts


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in (value if isinstance(value, list) else [value]))


def _not_known(what: object) -> InvalidValue:
    return InvalidValue("is not known to the embedded EFS", field=_FIELD, value=what)
