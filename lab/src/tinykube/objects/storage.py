"""The one store of objects: revisions, and the history that watches read.

Objects are immutable by convention, so a snapshot is only a list of references, and an object is encoded once
for all its readers. Writers never wait for watchers: a watcher follows the
history at its own pace and learns it when it has fallen out of it.
"""

import asyncio
import json
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from tinykube.objects.resources import GroupResource
from tinykube.objects.values import Json

_HISTORY_CHANGES = 5_000


class ObjectKey(NamedTuple):
    """Where an object is within its resource; cluster-scoped objects have an empty namespace."""

    namespace: str
    name: str


class Stored:
    """An object as it was at one revision."""

    def __init__(self, revision: int, json_object: Json) -> None:
        self.revision = revision
        self.json = json_object
        metadata = json_object["metadata"]
        self.key = ObjectKey(metadata.get("namespace", ""), metadata["name"])

    def at(self, revision: int) -> "Stored":
        """The same object under another revision."""
        metadata = {**self.json["metadata"], "resourceVersion": str(revision)}
        return Stored(revision, {**self.json, "metadata": metadata})

    @cached_property
    def encoded(self) -> bytes:
        """The object as compact JSON, type first."""
        return encode(self.json)


class Change(NamedTuple):
    """One write; for a deletion ``new`` is the object's last state at the revision of the deletion."""

    revision: int
    old: Stored | None
    new: Stored
    deleted: bool


class HistoryGone(Exception):
    """The asked revision is older than what is remembered; ``oldest`` is the first that would do."""

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest)
        self.oldest = oldest


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Collection:
    """The objects of one resource with their latest changes."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, Stored] = {}
        self.changes: list[Change] = []
        self.forgotten = 0
        self.moved = asyncio.Event()

    def append(self, change: Change, limit: int) -> None:
        """Remember a change and wake who waits for it."""
        self.changes.append(change)
        if len(self.changes) > 2 * limit:
            self.forget(self.changes[-limit - 1].revision)
        self.moved.set()
        self.moved = asyncio.Event()

    def forget(self, revision: int) -> None:
        """Drop all changes up to this revision."""
        self.changes = self.changes[self.position_after(revision) :]
        self.forgotten = max(self.forgotten, revision)

    def position_after(self, revision: int) -> int:
        """The index of the first change that is later than the revision."""
        return bisect_right(self.changes, revision, key=lambda change: change.revision)


class Store:
    """Objects by resource and key. All but ``wait`` is synchronous, and so atomic on the event loop."""

    def __init__(self, *, history_changes: int = _HISTORY_CHANGES) -> None:
        self._history_changes = history_changes
        self._collections: dict[GroupResource, _Collection] = {}
        self._listeners: list[Callable[[GroupResource, Change], None]] = []
        self._compacted = 0
        self.closed = False
        self.revision = 1
        """The revision of the latest write, over all resources."""

    def get(self, resource: GroupResource, key: ObjectKey) -> Stored | None:
        """The object as it is now."""
        return self._collection(resource).objects.get(key)

    def snapshot(self, resource: GroupResource, namespace: str = "") -> list[Stored]:
        """The objects in order of namespace and name."""
        objects = self._collection(resource).objects
        chosen = objects if not namespace else [key for key in objects if key.namespace == namespace]
        return [objects[key] for key in sorted(chosen)]

    def put(self, resource: GroupResource, json_object: Json) -> Stored:
        """Store an object under a new revision, which becomes its ``metadata.resourceVersion``."""
        collection = self._collection(resource)
        new = self._at_next_revision(Stored(0, json_object))
        old = collection.objects.get(new.key)
        collection.objects[new.key] = new
        self._record(resource, Change(revision=new.revision, old=old, new=new, deleted=False))
        return new

    def remove(self, resource: GroupResource, key: ObjectKey) -> Stored:
        """Take an object away; gives its last state with the revision of the deletion."""
        collection = self._collection(resource)
        old = collection.objects.pop(key)
        new = self._at_next_revision(old)
        self._record(resource, Change(revision=new.revision, old=old, new=new, deleted=True))
        return new

    def subscribe(self, listener: Callable[[GroupResource, Change], None]) -> None:
        """Call this after every write; it may write in turn."""
        self._listeners.append(listener)

    def changes_after(self, resource: GroupResource, revision: int) -> list[Change]:
        """The changes later than a revision, oldest first; raises HistoryGone."""
        collection = self._collection(resource)
        if revision < collection.forgotten:
            raise HistoryGone(collection.forgotten)
        return collection.changes[collection.position_after(revision) :]

    async def wait(self, resource: GroupResource) -> None:
        """Return at the next change of the resource, or when the store is closed."""
        if not self.closed:
            await self._collection(resource).moved.wait()

    def close(self) -> None:
        """Wake everybody who waits for changes; there will be no more."""
        self.closed = True
        for collection in self._collections.values():
            collection.moved.set()

    def compact(self) -> None:
        """Forget all history, as etcd's compaction does, so that every older revision is too old."""
        self._compacted = self.revision
        for collection in self._collections.values():
            collection.forget(self.revision)

    def _record(self, resource: GroupResource, change: Change) -> None:
        self._collection(resource).append(change, self._history_changes)
        for listener in self._listeners:
            listener(resource, change)

    def _collection(self, resource: GroupResource) -> _Collection:
        found = self._collections.get(resource)
        if found is None:
            found = self._collections[resource] = _Collection()
            found.forgotten = self._compacted
        return found

    def _at_next_revision(self, stored: Stored) -> Stored:
        self.revision += 1
        return stored.at(self.revision)
