"""The permissions that service accounts need, from the roles of an installation's manifests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Manifest: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class AccountName:
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        """Its user name."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of every service account of its namespace."""
        return ("system:serviceaccounts", "system:authenticated", f"system:serviceaccounts:{self.namespace}")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Right:
    """One request that is allowed; ``resource`` may have a subresource.

    An empty ``namespace`` means all of them, an empty ``name`` any.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{' ' if self.name else ''}{self.name}{where}"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Grant:
    """An account with a permission that it needs."""

    account: AccountName
    right: Right


def grants_of(manifests: Sequence[Manifest]) -> tuple[Grant, ...]:
    """All permissions that the bindings among these manifests grant, in order."""
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in manifests
        if one["kind"] in {"Role", "ClusterRole"}
    }
    return tuple(
        sorted(
            {
                Grant(account=AccountName(namespace=subject["namespace"], name=subject["name"]), right=right)
                for one in manifests
                if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}
                for right in _rights(one, roles)
                for subject in one["subjects"]
            }
        )
    )


def _rights(binding: Manifest, roles: Mapping[tuple[str, str, str], Any]) -> Iterator[Right]:
    namespace = binding["metadata"].get("namespace", "")
    reference = binding["roleRef"]
    of_role = namespace if reference["kind"] == "Role" else ""
    for rule in roles.get((reference["kind"], of_role, reference["name"]), ()):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or ("",):
                    for verb in rule["verbs"]:
                        yield Right(verb=verb, group=group, resource=resource, namespace=namespace, name=name)
