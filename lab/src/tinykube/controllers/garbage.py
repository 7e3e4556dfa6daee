"""The garbage collector: deletes objects whose owners are gone, as pkg/controller/garbagecollector does."""

import asyncio
from collections import defaultdict
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.types import CascadeType, PatchType

from tinykube.client.calls import unless_missing
from tinykube.client.following import Applied, Deleted, Listed, follow
from tinykube.controllers.kinds import OWNING, Kind, custom_kinds, is_namespaced, kind_name
from tinykube.controllers.values import Meta, read_meta
from tinykube.controllers.work_queue import WorkQueue

log = structlog.get_logger(__name__)

_WORKERS = 4
# metav1.FinalizerDeleteDependents and metav1.FinalizerOrphanDependents
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One of ``metadata.ownerReferences``; ``kind`` is ``apiVersion/Kind``."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Any object, with its owners; ``kind`` is ``apiVersion/Kind``."""

    meta: Meta
    kind: str
    owners: tuple[Owner, ...] = ()


class Graph:
    """All followed objects by uid, and the dependents of each uid."""

    def __init__(self) -> None:
        self._objects: dict[str, Owned] = {}
        self._dependents: defaultdict[str, set[str]] = defaultdict(set)

    def put(self, found: Owned) -> None:
        """Take over the newest state of an object."""
        self.drop(found.meta.uid)
        self._objects[found.meta.uid] = found
        for owner in found.owners:
            self._dependents[owner.uid].add(found.meta.uid)

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""
        found = self._objects.pop(uid, None)
        for owner in found.owners if found else ():
            self._dependents[owner.uid].discard(uid)
            if not self._dependents[owner.uid]:
                del self._dependents[owner.uid]

    def get(self, uid: str) -> Owned | None:
        """The object of that uid, if there is one."""
        return self._objects.get(uid)

    def dependents(self, uid: str) -> tuple[Owned, ...]:
        """The objects that name this uid as an owner."""
        return tuple(self._objects[dependent] for dependent in sorted(self._dependents.get(uid, ())))

    def ends(self, owner: Owner) -> bool:
        """Whether an owner is gone, or waits for its dependents to be deleted."""
        live = self.get(owner.uid)
        return live is None or (live.meta.deleting and FOREGROUND in live.meta.finalizers)


class GarbageCollector:
    """Follows every kind that can own or be owned, custom ones included, while ``run`` runs."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Any = client  # its overloads want the kind spelt out
        self._kinds = {kind_name(kind): kind for kind in OWNING}
        self._graph = Graph()
        self._queue: WorkQueue[str] = WorkQueue("garbage", self._look_at)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in tuple(self._kinds.values()):
                tasks.create_task(self._follow(kind))
            tasks.create_task(self._follow_definitions(tasks))
            tasks.create_task(self._queue.run(_WORKERS))

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
        dependents = self._graph.dependents(uid)
        finalizers = found.meta.finalizers
        if not found.meta.deleting:
            if found.owners and all(map(self._graph.ends, found.owners)):
                await self._delete(found)
        elif ORPHAN in finalizers and dependents:
            for dependent in dependents:
                reference = {"$patch": "delete", "uid": uid}
                await self._patch(dependent, {"ownerReferences": [reference]}, PatchType.STRATEGIC)
        elif ORPHAN in finalizers or (FOREGROUND in finalizers and not dependents):
            kept = [name for name in finalizers if name not in {ORPHAN, FOREGROUND}]
            await self._patch(found, {"finalizers": kept}, PatchType.MERGE)

    async def _delete(self, target: Owned) -> None:
        for owner in target.owners:
            if self._graph.get(owner.uid) is None and await self._exists(owner, target.meta.key.namespace):
                return  # its own watch is late, or nobody follows its kind
        log.info("garbage-deleted", kind=target.kind, name=str(target.meta.key))
        kind = self._kinds[target.kind]
        scope = _scope(kind, target.meta.key.namespace)
        await self._client.delete(kind, target.meta.key.name, cascade=CascadeType.BACKGROUND, **scope)

    async def _exists(self, owner: Owner, namespace: str) -> bool:
        kind = self._kinds.get(owner.kind)
        if kind is None:
            return True
        found = await unless_missing(self._client.get(kind, owner.name, **_scope(kind, namespace)))
        return found is not None and read_meta(found.metadata).uid == owner.uid

    async def _patch(self, target: Owned, metadata: dict[str, object], patch_type: PatchType) -> None:
        kind, meta = self._kinds[target.kind], target.meta
        body = {"metadata": {**metadata, "resourceVersion": meta.version, "uid": meta.uid}}
        scope = _scope(kind, meta.key.namespace)
        await self._client.patch(kind, meta.key.name, body, patch_type=patch_type, **scope)


def _scope(kind: Kind, namespace: str) -> dict[str, str]:
    return {"namespace": namespace} if is_namespaced(kind) else {}


def _read(kind: str, found: Any) -> Owned:  # noqa: ANN401 - any object
    owners = tuple(
        Owner(kind=f"{item.apiVersion}/{item.kind}", name=item.name, uid=item.uid)
        for item in found.metadata.ownerReferences or ()
    )
    return Owned(meta=read_meta(found.metadata), kind=kind, owners=owners)
