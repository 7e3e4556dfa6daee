"""The writes of the controllers of workloads, each with the event that people look for."""

from collections.abc import Iterable
from typing import Any

from lightkube import AsyncClient
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.types import CascadeType, PatchType

from tinykube.client.calls import CALL_ERRORS, unless_missing
from tinykube.client.events import EventRecorder
from tinykube.controllers.adoption import Adopt, Controlled, Release, Selecting, plan_adoption
from tinykube.controllers.caches import Cache
from tinykube.controllers.kinds import Kind
from tinykube.controllers.reading import read_meta
from tinykube.controllers.values import Meta, Pod
from tinykube.controllers.workload_objects import controlled_by


class WorkloadWriter:
    """Writes on behalf of the workloads of one kind."""

    def __init__(self, client: AsyncClient, events: EventRecorder, kind: Kind) -> None:
        self._client: Any = client  # its overloads want the kind spelt out
        self._events = events
        self._kind: Any = kind

    async def make(self, owner: Meta, found: Any, cache: Cache[Any]) -> None:  # noqa: ANN401 - any object
        """Create an object of the workload's, and know it before its watch does."""
        what = f"{type(found).__name__} {found.metadata.name or found.metadata.generateName}"
        try:
            made = await self._client.create(found)
        except CALL_ERRORS as error:
            self._say(owner, "FailedCreate", f"create {what} failed: {error}", warning=True)
            raise
        cache.remember(made)
        self._say(owner, "SuccessfulCreate", f"create {type(found).__name__} {made.metadata.name} successful")

    async def adopt(
        self, owner: Selecting, kind: Kind, found: Iterable[Controlled], cache: Cache[Any]
    ) -> None:
        """Take over and let go of objects of a kind, as the workload's selector says."""
        steps = tuple(plan_adoption(owner, found))
        # What nobody controls may have been left behind by the very deletion that is not heard of yet.
        if not steps or not await self._lives(owner.meta):
            return
        for step in steps:
            match step:
                case Adopt(target=target):
                    reference = controlled_by(owner.meta, self._kind.__name__).to_dict()
                case Release(target=target):
                    reference = {"$patch": "delete", "uid": owner.meta.uid}
            await self._write_owner(kind, target, reference, cache)

    async def remove(self, owner: Meta, pod: Pod) -> None:
        """Delete a pod, with its grace."""
        key = pod.meta.key
        await self._client.delete(PodObject, key.name, namespace=key.namespace)
        self._say(owner, "SuccessfulDelete", f"delete Pod {key.name} successful")

    async def resize(
        self, owner: Meta, kind: Kind, target: Meta, replicas: int, cache: Cache[Any], told: str
    ) -> None:
        """Give another workload that many replicas, and tell so."""
        body = {
            "metadata": {"uid": target.uid, "resourceVersion": target.version},
            "spec": {"replicas": replicas},
        }
        key = target.key
        cache.remember(
            await self._client.patch(
                kind, key.name, body, namespace=key.namespace, patch_type=PatchType.MERGE
            )
        )
        self._say(owner, "ScalingReplicaSet", told)

    async def discard(self, kind: Kind, target: Meta) -> None:
        """Delete another workload with all that is its own, if it is there."""
        key = target.key
        await unless_missing(
            self._client.delete(kind, key.name, namespace=key.namespace, cascade=CascadeType.BACKGROUND)
        )

    async def write_status(self, owner: Meta, status: dict[str, Any], cache: Cache[Any]) -> None:
        """Write the workload's own status."""
        key = owner.key
        written = await self._client.patch(
            self._kind.Status,
            key.name,
            {"metadata": {"uid": owner.uid}, "status": status},
            namespace=key.namespace,
            patch_type=PatchType.MERGE,
        )
        cache.remember(written)

    async def _lives(self, owner: Meta) -> bool:
        key = owner.key
        found = read_meta((await self._client.get(self._kind, key.name, namespace=key.namespace)).metadata)
        return found.uid == owner.uid and not found.deleting

    async def _write_owner(
        self, kind: Kind, target: Meta, reference: dict[str, Any], cache: Cache[Any]
    ) -> None:
        """Change one of an object's owners, unless it is another object by now, or has changed."""
        metadata = {"uid": target.uid, "resourceVersion": target.version, "ownerReferences": [reference]}
        key = target.key
        written = await self._client.patch(
            kind,
            key.name,
            {"metadata": metadata},
            namespace=key.namespace,
            patch_type=PatchType.STRATEGIC,
        )
        cache.remember(written)

    def _say(self, owner: Meta, reason: str, message: str, *, warning: bool = False) -> None:
        about = ObjectReference(
            apiVersion="apps/v1",
            kind=self._kind.__name__,
            namespace=owner.key.namespace,
            name=owner.key.name,
            uid=owner.uid,
            resourceVersion=owner.version,
        )
        self._events.publish(about, reason, message, warning=warning)
