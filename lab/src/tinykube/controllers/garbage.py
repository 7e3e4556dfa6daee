"""The garbage collector: deletes what is owned by something that is gone, and events that are old."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Event
from lightkube.types import CascadeType, PatchType

from tinykube.client.calls import CALL_ERRORS, unless_missing
from tinykube.client.following import Applied, Deleted, Listed, follow
from tinykube.controllers.kinds import OWNING, Kind, custom_kinds, is_namespaced, kind_name
from tinykube.controllers.ownership import Delete, Disown, Graph, Owned, Owner, Unlock, decide
from tinykube.controllers.values import read_meta
from tinykube.controllers.work_queue import WorkQueue

log = structlog.get_logger(__name__)

_WORKERS = 4
_EVENTS_LIVE = timedelta(hours=1)  # kube-apiserver's --event-ttl
_SWEEP_SECONDS = 300.0


class GarbageCollector:
    """Follows every kind that can own or be owned, custom ones included, while ``run`` runs."""

    def __init__(self, client: AsyncClient, *, kinds: Iterable[Kind] = OWNING) -> None:
        self._client = client
        self._kinds = {kind_name(kind): kind for kind in kinds}
        self._synced: set[str] = set()
        self._graph = Graph()
        self._queue: WorkQueue[str] = WorkQueue("garbage", self._look_at)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in tuple(self._kinds.values()):
                tasks.create_task(self._follow(kind))
            tasks.create_task(self._follow_definitions(tasks))
            tasks.create_task(self._queue.run(_WORKERS))
            tasks.create_task(self._sweep_events())

    async def _follow_definitions(self, tasks: asyncio.TaskGroup) -> None:
        async with aclosing(follow(self._client, CustomResourceDefinition)) as changes:
            async for change in changes:
                match change:
                    case Listed(definitions):
                        found = custom_kinds(definitions)
                    case Applied(definition):
                        found = custom_kinds([definition])
                    case Deleted():
                        continue  # its objects were deleted before it
                for kind in found:
                    if kind_name(kind) not in self._kinds:
                        self._kinds[kind_name(kind)] = kind
                        tasks.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        name = kind_name(kind)
        known: set[str] = set()
        scope = "*" if is_namespaced(kind) else None
        async with aclosing(follow(self._client, kind, namespace=scope)) as changes:
            async for change in changes:
                match change:
                    case Listed(objects):
                        listed = [_read(name, item) for item in objects]
                        for uid in known - {item.meta.uid for item in listed}:
                            self._gone(uid)
                        known = {item.meta.uid for item in listed}
                        for item in listed:
                            self._changed(item)
                        self._synced.add(name)
                    case Applied(found):
                        item = _read(name, found)
                        known.add(item.meta.uid)
                        self._changed(item)
                    case Deleted(found):
                        uid = _read(name, found).meta.uid
                        known.discard(uid)
                        self._gone(uid)

    def _changed(self, item: Owned) -> None:
        before = self._graph.get(item.meta.uid)
        self._graph.put(item)
        self._queue.add(item.meta.uid)
        for owner in before.owners if before else ():
            self._queue.add(owner.uid)  # it may have waited to be disowned
        if item.meta.deleting:
            self._look_at_dependents(item.meta.uid)

    def _gone(self, uid: str) -> None:
        item = self._graph.get(uid)
        self._graph.drop(uid)
        for owner in item.owners if item else ():
            self._queue.add(owner.uid)
        self._look_at_dependents(uid)

    def _look_at_dependents(self, uid: str) -> None:
        for dependent in self._graph.dependents(uid):
            self._queue.add(dependent.meta.uid)

    async def _look_at(self, uid: str) -> None:
        found = self._graph.get(uid)
        if found is None:
            return
        for step in decide(found, self._graph, self._synced):
            match step:
                case Delete(target=target, absent=absent):
                    await self._delete(target, absent)
                case Disown(target=target, owner_uid=owner_uid):
                    reference = {"$patch": "delete", "uid": owner_uid}
                    await self._patch(target, {"ownerReferences": [reference]}, PatchType.STRATEGIC)
                case Unlock(target=target, finalizer=finalizer):
                    kept = [name for name in target.meta.finalizers if name != finalizer]
                    await self._patch(target, {"finalizers": kept}, PatchType.MERGE)

    async def _delete(self, target: Owned, absent: tuple[Owner, ...]) -> None:
        for owner in absent:
            if await self._exists(owner, target.meta.key.namespace):
                return  # its own watch is late; it will bring the owner
        log.info("garbage-deleted", kind=target.kind, name=str(target.meta.key))
        await self._untyped.delete(
            self._kinds[target.kind],
            target.meta.key.name,
            cascade=CascadeType.BACKGROUND,
            **_scope(self._kinds[target.kind], target.meta.key.namespace),
        )

    async def _exists(self, owner: Owner, namespace: str) -> bool:
        kind = self._kinds[f"{owner.api_version}/{owner.kind}"]
        found = await unless_missing(self._untyped.get(kind, owner.name, **_scope(kind, namespace)))
        return found is not None and read_meta(found.metadata).uid == owner.uid

    async def _patch(self, target: Owned, metadata: dict[str, object], how: PatchType) -> None:
        kind, meta = self._kinds[target.kind], target.meta
        body = {"metadata": {**metadata, "resourceVersion": meta.version, "uid": meta.uid}}
        await self._untyped.patch(
            kind, meta.key.name, body, patch_type=how, **_scope(kind, meta.key.namespace)
        )

    async def _sweep_events(self) -> None:
        while True:
            try:
                await self._delete_old_events(datetime.now(UTC) - _EVENTS_LIVE)
            except CALL_ERRORS as error:
                log.warning("events-not-swept", reason=str(error))
            await asyncio.sleep(_SWEEP_SECONDS)

    async def _delete_old_events(self, before: datetime) -> None:
        events = [event async for event in self._client.list(Event, namespace="*")]
        for event in events:
            last = event.lastTimestamp or event.eventTime or event.metadata.creationTimestamp
            if last is not None and last < before:
                await self._client.delete(
                    Event, event.metadata.name or "", namespace=event.metadata.namespace
                )

    @property
    def _untyped(self) -> Any:  # noqa: ANN401 - the client's overloads want the kind spelt out
        return self._client


def _scope(kind: Kind, namespace: str) -> dict[str, str]:
    return {"namespace": namespace} if is_namespaced(kind) else {}


def _read(kind: str, found: Any) -> Owned:  # noqa: ANN401 - any object
    owners = tuple(
        Owner(
            api_version=item.apiVersion,
            kind=item.kind,
            name=item.name,
            uid=item.uid,
            blocks=bool(item.blockOwnerDeletion),
        )
        for item in found.metadata.ownerReferences or ()
    )
    return Owned(meta=read_meta(found.metadata), kind=kind, owners=owners)
