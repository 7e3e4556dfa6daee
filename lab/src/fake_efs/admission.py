"""Who may connect, and through which access point, by what the EFS API says at that moment.

A file system without a policy is open to every client that reaches a mount target. With one, anonymous
clients need a statement that allows them ("Using IAM to control access to file systems" of the EFS guide);
identities of the embedded account, all of which are administrators, need only that no statement denies
them. Of the actions only ClientMount is looked at. What is not understood lets nobody in.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from fake_efs.access_points import EmbeddedAccessPoint, parse_access_point
from fake_efs.aws_api import ACCOUNT_ID, AwsCalls
from fake_efs.client_certificate import ClientCertificate
from fake_efs.errors import AwsNotFound, InvalidValue
from fake_efs.identities import Identities

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


class Admission:
    """Asks the API anew for every connection, so that what is deleted or forbidden is so at once.

    Every method may raise AwsError.
    """

    def __init__(self, efs: AwsCalls, identities: Identities) -> None:
        self._efs = efs
        self._identities = identities

    async def admit(self, client: ClientCertificate, file_system_id: str) -> EmbeddedAccessPoint | None:
        """What a client of this file system gets: an access point, or None for all of the file system.

        Raises InvalidValue when it is to get nothing.
        """
        if client.file_system_id not in {None, file_system_id}:
            raise InvalidValue(
                f"is not {file_system_id}",
                field="file system of the client certificate",
                value=client.file_system_id,
            )
        arn = self._identities.verify(client.iam, file_system_id) if client.iam else None
        access_point, policy = await asyncio.gather(
            self._access_point_of(client, file_system_id), self._policy(file_system_id)
        )
        if policy is not None:
            access_point_arn = access_point.arn if access_point else None
            check_policy(policy, Client(arn=arn, access_point_arn=access_point_arn))
        return access_point

    async def access_point(self, access_point_id: str) -> EmbeddedAccessPoint:
        """That access point; raises InvalidValue when there is none."""
        try:
            answer = await self._efs.call("DescribeAccessPoints", AccessPointId=access_point_id)
        except AwsNotFound as error:
            raise InvalidValue("does not exist", field="access point", value=access_point_id) from error
        return parse_access_point(answer["AccessPoints"][0])

    async def _access_point_of(
        self, client: ClientCertificate, file_system_id: str
    ) -> EmbeddedAccessPoint | None:
        if client.access_point_id is None:
            return None
        access_point = await self.access_point(client.access_point_id)
        if access_point.file_system_id != file_system_id:
            raise InvalidValue(
                f"is no access point of {file_system_id}",
                field="access point of the client certificate",
                value=client.access_point_id,
            )
        return access_point

    async def _policy(self, file_system_id: str) -> tuple[Statement, ...] | None:
        try:
            answer = await self._efs.call("DescribeFileSystemPolicy", FileSystemId=file_system_id)
        except AwsNotFound:
            return None
        return parse_policy(answer["Policy"])
