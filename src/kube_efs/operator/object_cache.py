"""The objects of the installation as the watches showed them last. Each change starts a reconciliation.

The operator also writes to these objects, and the answer to a write and the watch may arrive in any order.
The cache therefore keeps the object with the highest resource version, also for a deleted object, so that a
late answer neither hides a newer change nor brings a deleted object back. A new list replaces everything,
because the resource versions of an API server that was restored from a backup start again at a lower number.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from lightkube import AsyncClient
from lightkube.core.resource import Resource
from lightkube.resources.core_v1 import ConfigMap, Secret

from kube_efs.kube.watching import Applied, Deleted, Listed, follow, only_object
from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_facts import CREDENTIALS_SECRET, TRUSTED_CA_CONFIG_MAP, TRUSTED_CA_KEY
from kube_efs.operator.kinds import KINDS, MANAGED_BY, ClusterCSIDriver, ObjectReference, reference_of
from kube_efs.operator.manifests import Manifest, digest
from kube_efs.operator.object_client import manifest_of


class ObjectCache:
    """Watches objects while ``tasks`` run; calls ``changed`` after each change.

    ``driver`` is the resource ClusterCSIDriver, None if there is none. It is known when ``ready`` is set.
    ``credentials_version`` is the resource version of the Secret, and ``trusted_ca_version`` the digest of
    the bundle in the ConfigMap. They are empty if these do not exist, and None before that is known. When
    ``complete`` is set, all three are known.
    """

    def __init__(
        self, client: AsyncClient, namespace: str, tasks: asyncio.TaskGroup, changed: Callable[[], None]
    ) -> None:
        self.driver: Manifest | None = None
        self.credentials_version: str | None = None
        self.trusted_ca_version: str | None = None
        self.ready = asyncio.Event()
        self.complete = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._tasks = tasks
        self._changed = changed
        self._objects: dict[ObjectReference, Manifest] = {}
        self._newest: dict[ObjectReference, int] = {}
        self._kinds: set[str] = set()

    def start(self) -> None:
        """Watch the ClusterCSIDriver, the Secret and the ConfigMap; other kinds follow with ``add``."""
        self._tasks.create_task(self._watch_driver())
        self._tasks.create_task(self._watch_credentials())
        self._tasks.create_task(self._watch_trusted_ca())

    def get(self, reference: ObjectReference) -> Manifest | None:
        """The object; None if the operator has not written it yet, or if it was deleted."""
        return self._objects.get(reference)

    def add(self, live: Manifest) -> None:
        """Add the answer to a write. The first object of a kind starts the watch of that kind."""
        kind = live["kind"]
        self._update(live)
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._tasks.create_task(self._watch_kind(kind))

    def remove(self, reference: ObjectReference) -> None:
        """The operator has deleted the object."""
        self._objects.pop(reference, None)

    async def _watch_kind(self, kind: str) -> None:
        # An object that loses the label counts as deleted. The operator therefore applies it again.
        resource, namespace = KINDS[kind].resource, KINDS[kind].namespace(self._namespace)
        stream = follow(self._client, resource, labels=MANAGED_BY, namespace=namespace)
        async with aclosing(stream) as changes:
            async for change in changes:
                match change:
                    case Listed(objects):
                        self._replace(kind, [manifest_of(item, kind) for item in objects])
                    case Applied(found):
                        self._update(manifest_of(found, kind))
                    case Deleted(found):
                        self._update_deleted(manifest_of(found, kind))
                self._changed()

    def _update(self, live: Manifest) -> None:
        if self._is_newest(live):
            self._objects[reference_of(live)] = live

    def _update_deleted(self, last: Manifest) -> None:
        if self._is_newest(last):
            self._objects.pop(reference_of(last), None)

    def _is_newest(self, live: Manifest) -> bool:
        reference, version = reference_of(live), _version(live)
        if version < self._newest.get(reference, 0):
            return False
        self._newest[reference] = version
        return True

    def _replace(self, kind: str, found: list[Manifest]) -> None:
        listed = {reference_of(live): live for live in found}
        others = {key: live for key, live in self._objects.items() if key.kind != kind}
        self._objects = {**others, **listed}
        kept = {key: version for key, version in self._newest.items() if key.kind != kind}
        self._newest = {**kept, **{key: _version(live) for key, live in listed.items()}}

    async def _watch_driver(self) -> None:
        async for found in self._watch_single(ClusterCSIDriver, name=DRIVER):
            before, was_ready = self.driver, self.ready.is_set()
            self.driver = None if found is None else manifest_of(found, "ClusterCSIDriver")
            self.ready.set()
            # The operator itself writes the status. A pass for each would be a loop without pauses, if the
            # text of an error differs each time.
            if not was_ready or _inputs(before) != _inputs(self.driver):
                self._notify()

    async def _watch_credentials(self) -> None:
        stream = self._watch_single(Secret, name=CREDENTIALS_SECRET, namespace=self._namespace)
        async for found in stream:
            self.credentials_version = found.metadata.resourceVersion or "" if found else ""
            self._notify()

    async def _watch_trusted_ca(self) -> None:
        stream = self._watch_single(ConfigMap, name=TRUSTED_CA_CONFIG_MAP, namespace=self._namespace)
        async for found in stream:
            # OpenShift adds the key some time after the operator creates the ConfigMap. A new version
            # replaces the tunnels of all nodes, so a change of the metadata alone must not look like one.
            bundle = ((found and found.data) or {}).get(TRUSTED_CA_KEY)
            self.trusted_ca_version = digest(bundle) if bundle else ""
            self._notify()

    def _notify(self) -> None:
        if self.ready.is_set() and None not in (self.credentials_version, self.trusted_ca_version):
            self.complete.set()
        self._changed()

    async def _watch_single(
        self, resource: type[Resource], *, name: str, namespace: str | None = None
    ) -> AsyncGenerator[Any, None]:
        stream = follow(self._client, resource, namespace=namespace, fields={"metadata.name": name})
        async with aclosing(stream) as changes:
            async for change in changes:
                yield only_object(change)


def _inputs(driver: Manifest | None) -> Manifest | None:
    """The resource without what a change of the status alone changes."""
    if driver is None:
        return None
    written = {"resourceVersion", "managedFields"}
    metadata = {key: value for key, value in driver["metadata"].items() if key not in written}
    return {**driver, "metadata": metadata, "status": None}


def _version(live: Manifest) -> int:
    """The resource version, by which states of one object can be ordered (Kubernetes 1.35, KEP 5504)."""
    text = str(live["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0
