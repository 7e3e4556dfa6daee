"""What the operator knows of the cluster: its objects, and the events that start a comparison."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from lightkube import AsyncClient
from lightkube.core.resource import Resource
from lightkube.resources.core_v1 import ConfigMap, Secret

from kube_efs.kube.watching import Applied, Deleted, Listed, follow, only_object
from kube_efs.operator.cluster_csi_driver import DRIVER_NAME
from kube_efs.operator.injection import CREDENTIALS_SECRET, MANAGED_BY, TRUSTED_CA
from kube_efs.operator.kinds import KINDS, ClusterCSIDriver, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_client import manifest_of


class ObjectCache:
    """Objects as they were seen last, while ``tasks`` run; ``changed`` is called after each change.

    ``driver`` is the administrator's resource, None when there is none; ``ready`` is set once that is known.
    """

    def __init__(
        self, client: AsyncClient, namespace: str, tasks: asyncio.TaskGroup, changed: Callable[[], None]
    ) -> None:
        self.driver: Manifest | None = None
        self.credentials_version = ""
        self.trusted_ca: Manifest | None = None
        self.ready = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._tasks = tasks
        self._changed = changed
        self._objects: dict[ObjectReference, Manifest] = {}
        self._newest: dict[ObjectReference, int] = {}
        self._kinds: set[str] = set()

    def start(self) -> None:
        """Follow what there is exactly one of."""
        self._tasks.create_task(self._follow_driver())
        self._tasks.create_task(self._follow_secret())
        self._tasks.create_task(self._follow_trusted_ca())

    def find(self, reference: ObjectReference) -> Manifest | None:
        """What is known of an object that the operator keeps."""
        return self._objects.get(reference)

    def of_kind(self, kind: str) -> list[Manifest]:
        """All that is known of one kind."""
        return [live for reference, live in self._objects.items() if reference.kind == kind]

    def note(self, live: Manifest) -> None:
        """Take over the answer to a write, and follow objects of its kind from now on."""
        kind = live["kind"]
        self._see(live)
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._tasks.create_task(self._follow_kind(kind))

    def forget(self, reference: ObjectReference) -> None:
        """The object is gone, or will be."""
        self._objects.pop(reference, None)

    async def _follow_kind(self, kind: str) -> None:
        """Objects that lose the label count as gone, and therefore get it again."""
        resource: type[Resource] = KINDS[kind].resource
        stream = follow(
            self._client,
            resource,
            labels=MANAGED_BY,
            namespace=KINDS[kind].namespace(self._namespace),
        )
        async with aclosing(stream) as changes:
            async for change in changes:
                match change:
                    case Listed(objects):
                        self._replace(kind, [manifest_of(item, kind) for item in objects])
                    case Applied(found):
                        self._see(manifest_of(found, kind))
                    case Deleted(found):
                        self._see_gone(manifest_of(found, kind))
                self._changed()

    def _see(self, live: Manifest) -> None:
        """Keep the newest state: the watch may have reported it before the answer to a write is read."""
        reference, version = reference_of(live), _version(live)
        if version >= self._newest.get(reference, 0):
            self._newest[reference] = version
            self._objects[reference] = live

    def _see_gone(self, last: Manifest) -> None:
        reference, version = reference_of(last), _version(last)
        if version >= self._newest.get(reference, 0):
            self._newest[reference] = version
            self._objects.pop(reference, None)

    def _replace(self, kind: str, found: list[Manifest]) -> None:
        """A listing is the truth, also after the server has restarted its count."""
        listed = {reference_of(live): live for live in found}
        others = {key: live for key, live in self._objects.items() if key.kind != kind}
        self._objects = {**others, **listed}
        kept = {key: version for key, version in self._newest.items() if key.kind != kind}
        self._newest = {**kept, **{key: _version(live) for key, live in listed.items()}}

    async def _follow_driver(self) -> None:
        async for found in self._one(ClusterCSIDriver, name=DRIVER_NAME):
            self.driver = None if found is None else manifest_of(found, "ClusterCSIDriver")
            self.ready.set()
            self._changed()

    async def _follow_secret(self) -> None:
        async for found in self._one(Secret, name=CREDENTIALS_SECRET, namespace=self._namespace):
            self.credentials_version = found.metadata.resourceVersion or "" if found else ""
            self._changed()

    async def _follow_trusted_ca(self) -> None:
        async for found in self._one(ConfigMap, name=TRUSTED_CA, namespace=self._namespace):
            self.trusted_ca = manifest_of(found, "ConfigMap") if found else None
            self._changed()

    async def _one(
        self, resource: type[Resource], *, name: str, namespace: str | None = None
    ) -> AsyncGenerator[Any, None]:
        stream = follow(self._client, resource, namespace=namespace, fields={"metadata.name": name})
        async with aclosing(stream) as changes:
            async for change in changes:
                yield only_object(change)


def _version(live: Manifest) -> int:
    """The resource version, by which states of one object can be ordered (Kubernetes 1.35, KEP 5504)."""
    text = str(live["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0
