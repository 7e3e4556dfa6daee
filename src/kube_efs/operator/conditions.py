"""What is said of the driver in its status, in the form of OpenShift's operators. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from kube_efs.operator.kinds import ObjectReference

AS_EXPECTED: Final = "AsExpected"
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_MESSAGE_MAX_CHARACTERS: Final = 4096


class Component(StrEnum):
    """A part of the installation; the value begins the types of its conditions (library-go's names)."""

    TUNNEL = "AWSEFSDriverTunnelServiceController"
    NODE = "AWSEFSDriverNodeServiceController"
    CONTROLLER = "AWSEFSDriverControllerServiceController"
    STATIC = "CSIStaticResourceController"
    CREDENTIALS = "AWSEFSDriverCredentialsRequestController"
    MONITOR = "AWSEFSDriverServiceMonitorController"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCondition:
    """One of ``status.conditions``; ``since`` is when its status became what it is, None for now."""

    type: str
    status: bool
    reason: str = AS_EXPECTED
    message: str = ""
    since: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One of ``status.generations``: the version of a workload's specification that was written last."""

    group: str
    resource: str
    namespace: str
    name: str
    last: int


def read_conditions(found: Iterable[Mapping[str, Any]]) -> tuple[OperatorCondition, ...]:
    """Conditions as the API has them."""
    return tuple(
        OperatorCondition(
            type=one.get("type") or "",
            status=one.get("status") == "True",
            reason=one.get("reason") or "",
            message=one.get("message") or "",
            since=one.get("lastTransitionTime"),
        )
        for one in found
    )


def render_conditions(
    conditions: Iterable[OperatorCondition], before: Iterable[OperatorCondition], now: datetime
) -> list[dict[str, str]]:
    """As the API wants them; one whose status has not changed since ``before`` keeps its time."""
    since = {(one.type, one.status): one.since for one in before}
    moment = now.astimezone(UTC).strftime(_TIME_FORMAT)
    return [
        {
            "type": one.type,
            "status": str(one.status),
            "reason": one.reason,
            "message": one.message[:_MESSAGE_MAX_CHARACTERS],
            "lastTransitionTime": since.get((one.type, one.status)) or moment,
        }
        for one in conditions
    ]


def read_generations(found: Iterable[Mapping[str, Any]]) -> tuple[Generation, ...]:
    """Generations as the API has them."""
    return tuple(
        Generation(
            group=one.get("group") or "",
            resource=one.get("resource") or "",
            namespace=one.get("namespace") or "",
            name=one.get("name") or "",
            last=one.get("lastGeneration") or 0,
        )
        for one in found
    )


def render_generations(generations: Iterable[Generation]) -> list[dict[str, Any]]:
    """As the API wants them."""
    return [
        {
            "group": one.group,
            "resource": one.resource,
            "namespace": one.namespace,
            "name": one.name,
            "lastGeneration": one.last,
            "hash": "",
        }
        for one in generations
    ]


def generation_of(reference: ObjectReference, generation: int) -> Generation:
    """The entry of a workload or a request for credentials."""
    groups = {"CredentialsRequest": "cloudcredential.openshift.io"}
    return Generation(
        group=groups.get(reference.kind, "apps"),
        resource=f"{reference.kind.lower()}s",
        namespace=reference.namespace,
        name=reference.name,
        last=generation,
    )
