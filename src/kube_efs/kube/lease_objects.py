"""Where a Lease is stored: in its own kind of object, or in the annotation of an Endpoints object.

efs-provisioner leads by an Endpoints object, and its roles allow nothing else. With the same object, an older
process and this one never work at the same time. Clients before the kind Lease existed wrote the record in
the same way (client-go, ``resourcelock``).
"""

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Endpoints

from kube_efs.kube.errors import translated

_RECORD: Final = "control-plane.alpha.kubernetes.io/leader"


class LockKind(StrEnum):
    """The kind of the object that the leader holds."""

    LEASE = "Lease"
    ENDPOINTS = "Endpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseObject:
    """A Lease in the API server; raises KubeError."""

    client: AsyncClient
    kind: LockKind
    namespace: str
    name: str

    async def get(self) -> Lease:
        """The current state; raises KubeNotFound."""
        with translated(self._call):
            if self.kind is LockKind.LEASE:
                return await self.client.get(Lease, self.name, namespace=self.namespace)
            found = await self.client.get(Endpoints, self.name, namespace=self.namespace)
        return _lease_in(found)

    async def create(self, lease: Lease) -> None:
        """Create it with this content; raises KubeAlreadyExists."""
        with translated(self._call):
            await self.client.create(lease if self.kind is LockKind.LEASE else _endpoints_with(lease))

    async def replace(self, lease: Lease) -> Lease:
        """Write the new content; returns the new state. Raises KubeConflict if it has changed since."""
        with translated(self._call):
            if self.kind is LockKind.LEASE:
                return await self.client.replace(lease)
            return _lease_in(await self.client.replace(_endpoints_with(lease)))

    @property
    def _call(self) -> str:
        return f"{self.kind.lower()} {self.name}"


def _lease_in(found: Endpoints) -> Lease:
    annotations = (found.metadata and found.metadata.annotations) or {}
    try:
        record: Any = json.loads(annotations.get(_RECORD, "{}"))
    except ValueError:
        record = {}
    if not isinstance(record, dict):
        record = {}
    spec = LeaseSpec(
        holderIdentity=str(record.get("holderIdentity") or ""),
        leaseDurationSeconds=_number(record.get("leaseDurationSeconds")),
        acquireTime=_time(record.get("acquireTime")),
        leaseTransitions=_number(record.get("leaderTransitions")),
    )
    return Lease(metadata=found.metadata, spec=spec)


def _endpoints_with(lease: Lease) -> Endpoints:
    """The object; an Endpoints object that is a lock has no addresses."""
    spec, metadata = lease.spec or LeaseSpec(), lease.metadata or ObjectMeta()
    record = {
        "holderIdentity": spec.holderIdentity or "",
        "leaseDurationSeconds": spec.leaseDurationSeconds,
        "acquireTime": _text(spec.acquireTime),
        "renewTime": _text(spec.renewTime),
        "leaderTransitions": spec.leaseTransitions or 0,
    }
    metadata.annotations = {**(metadata.annotations or {}), _RECORD: json.dumps(record)}
    return Endpoints(metadata=metadata)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def _text(moment: datetime | None) -> str | None:
    """The time with a precision of seconds, which is all that the older clients read."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
