"""What the controllers last saw of each kind, and who wants to hear of changes."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog
from lightkube import AsyncClient
from lightkube.core.resource import Resource
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.storage_v1 import StorageClass as StorageClassObject

from tinykube.client.following import Applied, Deleted, Listed, follow
from tinykube.controllers.values import (
    Claim,
    Key,
    Meta,
    Node,
    Pod,
    StorageClass,
    Volume,
    read_claim,
    read_node,
    read_pod,
    read_storage_class,
    read_volume,
)
from tinykube.errors import InvalidValue

log = structlog.get_logger(__name__)


# Answers are late by moments, so not many objects can be deleted meanwhile.
_GONE_MAX = 200


class HasMeta(Protocol):
    """Every value that can be cached."""

    @property
    def meta(self) -> Meta:
        """Its metadata."""


V = TypeVar("V", bound=HasMeta)


@dataclass(frozen=True, slots=True)
class Change(Generic[V]):
    """An object before and after; ``before`` is None for a new one, ``after`` for one that is gone."""

    before: V | None
    after: V | None

    @property
    def known(self) -> V:
        """The newest state there was."""
        found = self.after if self.after is not None else self.before
        if found is None:
            raise ValueError("a change of nothing")
        return found


class Cache(Generic[V]):
    """All objects of one kind as values, kept up to date by ``run``."""

    def __init__(
        self, kind: type[Resource], read: Callable[[Any], V], *, namespace: str | None = None
    ) -> None:
        self.synced = asyncio.Event()
        self._kind = kind
        self._read = read
        self._namespace = namespace
        self._values: dict[Key, V] = {}
        self._gone: deque[str] = deque(maxlen=_GONE_MAX)
        self._listeners: list[Callable[[Change[V]], None]] = []

    @property
    def values(self) -> Mapping[Key, V]:
        """Everything there is."""
        return self._values

    def listen(self, listener: Callable[[Change[V]], None]) -> None:
        """Call this with every change from now on, in order and from the event loop."""
        self._listeners.append(listener)

    async def run(self, client: AsyncClient) -> None:
        """Follow the cluster until cancelled."""
        async with aclosing(follow(client, self._kind, namespace=self._namespace)) as changes:
            async for change in changes:
                match change:
                    case Listed(objects):
                        self._replace(objects)
                        self.synced.set()
                    case Applied(found):
                        self.remember(found)
                    case Deleted(found):
                        self._forget(_key(found))

    def remember(self, found: object) -> V | None:
        """Take over an object from a watch or from the answer to a write, unless a newer one is known.

        The answer to the write that removes the last finalizer may come after the watch has said that the
        object is gone, and must not bring it back.
        """
        try:
            value = self._read(found)
        except (InvalidValue, ValueError) as error:
            log.warning("object-unreadable", kind=self._kind.__name__, reason=str(error))
            return None
        before = self._values.get(value.meta.key)
        if value.meta.uid not in self._gone and (before is None or _is_newer(value, before)):
            self._values[value.meta.key] = value
            self._notify(Change(before, value))
        return value

    def _replace(self, objects: Iterable[object]) -> None:
        """Make a new listing the truth; it may even be older than what a restarted server once said."""
        gone = dict(self._values)
        for found in objects:
            value = self.remember(found)
            if value is not None:
                gone.pop(value.meta.key, None)
        for key in gone:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        before = self._values.pop(key, None)
        if before is not None:
            self._gone.append(before.meta.uid)
            self._notify(Change(before, None))

    def _notify(self, change: Change[V]) -> None:
        for listener in self._listeners:
            listener(change)


def _key(found: Any) -> Key:  # noqa: ANN401 - every kind has metadata, which the client does not say
    return Key(found.metadata.namespace or "", found.metadata.name or "")


def _is_newer(value: HasMeta, before: HasMeta) -> bool:
    if value.meta.uid != before.meta.uid:
        return True
    old, new = before.meta.version, value.meta.version
    # Versions of one object can be compared as numbers (KEP-5504).
    return int(new) > int(old) if new.isdigit() and old.isdigit() else new != old


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """The kinds that more than one controller looks at."""

    claims: Cache[Claim]
    volumes: Cache[Volume]
    classes: Cache[StorageClass]
    pods: Cache[Pod]
    nodes: Cache[Node]

    @classmethod
    def empty(cls) -> "Caches":
        """Caches that nobody fills yet."""
        return cls(
            claims=Cache(PersistentVolumeClaim, read_claim, namespace="*"),
            volumes=Cache(PersistentVolume, read_volume),
            classes=Cache(StorageClassObject, read_storage_class),
            pods=Cache(PodObject, read_pod, namespace="*"),
            nodes=Cache(NodeObject, read_node),
        )

    async def run(self, client: AsyncClient) -> None:
        """Fill all of them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for cache in self._all:
                tasks.create_task(cache.run(client))

    async def ready(self) -> None:
        """Wait until each has seen everything once: before that, what is missing may only be unseen."""
        for cache in self._all:
            await cache.synced.wait()

    @property
    def _all(self) -> tuple[Cache[Any], ...]:
        return self.claims, self.volumes, self.classes, self.pods, self.nodes
