"""What the policy of a file system refuses to clients without IAM identity. No I/O.

Nodes mount without one, unless a volume says ``iam``. A file system without a policy is open to all of them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from kube_efs.model.errors import InvalidValue

_PREFIX: Final = "elasticfilesystem:"
# What is true of every mount of kube-efs: through a mount target and, except for directory volumes, with TLS.
_TRUE: Final = frozenset({"aws:securetransport", f"{_PREFIX}accessedviamounttarget"})


class Access(StrEnum):
    """The actions of clients in policies."""

    MOUNT = "ClientMount"
    WRITE = "ClientWrite"
    ROOT = "ClientRootAccess"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRefusal:
    """What is refused; ``by`` names the statement that denies it, and is empty where none allows it."""

    access: Access
    by: str = ""


def refused_without_identity(text: str) -> tuple[PolicyRefusal, ...]:
    """What this policy denies to every client; raises InvalidValue when it is none.

    Where a condition is not understood, or a statement is about those whom it does not name, it is taken to
    be no obstacle: what is reported here is certain.
    """
    try:
        found = json.loads(text)["Statement"]
        statements = found if isinstance(found, list) else [found]
        return tuple(_refusals(statements))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue("cannot be read", field="file system policy", value=text) from error


def _refusals(statements: list[Mapping[str, Any]]) -> Iterator[PolicyRefusal]:
    for access in Access:
        about = [one for one in statements if _is_about(one, access)]
        denying = [one for one in about if one["Effect"] == "Deny" and _holds(one) is True]
        allowing = [one for one in about if one["Effect"] == "Allow" and _holds(one) is not False]
        if denying:
            yield PolicyRefusal(access=access, by=str(denying[0].get("Sid") or "a statement without Sid"))
        elif not allowing:
            yield PolicyRefusal(access=access)


def _is_about(statement: Mapping[str, Any], access: Access) -> bool:
    """Whether it applies to every client and to that access."""
    if "NotPrincipal" in statement or "NotAction" in statement:
        return bool(statement["Effect"] == "Allow")
    principal = statement["Principal"]
    names = _texts(principal.get("AWS", ()) if isinstance(principal, Mapping) else principal)
    action = f"{_PREFIX}{access}".lower()
    return "*" in names and any(fnmatchcase(action, one.lower()) for one in _texts(statement["Action"]))


def _holds(statement: Mapping[str, Any]) -> bool | None:
    """Whether its conditions are fulfilled by a mount of kube-efs; None when that is not known."""
    answers = [
        _is_fulfilled(operator, key.lower(), {one.lower() for one in _texts(values)})
        for operator, keys in (statement.get("Condition") or {}).items()
        for key, values in keys.items()
    ]
    if False in answers:
        return False
    return None if None in answers else True


def _is_fulfilled(operator: str, key: str, values: set[str]) -> bool | None:
    if operator.removesuffix("IfExists") != "Bool" or key not in _TRUE:
        return None
    return "true" in values


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [str(one) for one in values]
