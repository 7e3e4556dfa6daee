"""SecurityContextConstraints of OpenShift: what they allow to pods, and which accounts may use them. No I/O.

https://docs.openshift.com/container-platform/latest/authentication/managing-security-context-constraints.html
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kube_efs.doctor.grants import AccountName, Grant, Right

_GROUP, _RESOURCE = "security.openshift.io", "securitycontextconstraints"


class HostAccess(StrEnum):
    """A privilege on the node."""

    PRIVILEGED = "privileged containers"
    NETWORK = "the host's network"
    PORTS = "ports of the host"
    FOLDERS = "directories of the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The constraints of one name. ``users`` and ``groups`` may use them without a role."""

    name: str
    allows: frozenset[HostAccess] = frozenset()
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def names(self, account: AccountName) -> bool:
        """Whether the account is among their users, or in one of their groups."""
        return account.user in self.users or not set(self.groups).isdisjoint(account.groups)


def use_of(constraints: Constraints, account: AccountName) -> Grant:
    """The permission by which a role lets an account use them for pods of its namespace."""
    right = Right(
        verb="use", group=_GROUP, resource=_RESOURCE, namespace=account.namespace, name=constraints.name
    )
    return Grant(account=account, right=right)


def read_constraints(body: Mapping[str, Any]) -> Constraints:
    """The constraints in an object of that kind."""
    volumes = set(body.get("volumes") or ())
    allowed = {
        HostAccess.PRIVILEGED: body.get("allowPrivilegedContainer"),
        HostAccess.NETWORK: body.get("allowHostNetwork"),
        HostAccess.PORTS: body.get("allowHostPorts"),
        HostAccess.FOLDERS: body.get("allowHostDirVolumePlugin") and volumes & {"hostPath", "*"},
    }
    return Constraints(
        name=body["metadata"]["name"],
        allows=frozenset(one for one, is_allowed in allowed.items() if is_allowed),
        users=tuple(body.get("users") or ()),
        groups=tuple(body.get("groups") or ()),
    )


def read_needs(pod: Mapping[str, Any]) -> frozenset[HostAccess]:
    """The privileges that pods with this specification need."""
    containers: Sequence[Mapping[str, Any]] = [
        *(pod.get("initContainers") or ()),
        *(pod.get("containers") or ()),
    ]
    return frozenset(_needs(pod, containers))


def _needs(pod: Mapping[str, Any], containers: Sequence[Mapping[str, Any]]) -> Iterator[HostAccess]:
    if any((one.get("securityContext") or {}).get("privileged") for one in containers):
        yield HostAccess.PRIVILEGED
    if pod.get("hostNetwork"):
        yield HostAccess.NETWORK
    if any(port.get("hostPort") for one in containers for port in one.get("ports") or ()):
        yield HostAccess.PORTS
    if any(one.get("hostPath") for one in pod.get("volumes") or ()):
        yield HostAccess.FOLDERS
