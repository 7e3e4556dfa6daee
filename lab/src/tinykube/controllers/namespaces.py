"""Furnishes new namespaces, empties those that are being deleted, and then lets them go.

As pkg/controller/namespace and the root-ca-cert-publisher of Kubernetes do.
"""

import asyncio
import base64
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import NamespaceSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import ConfigMap, Namespace

from tinykube.client.calls import unless_exists, unless_missing
from tinykube.controllers.caches import Cache, Change
from tinykube.controllers.garbage import Owned
from tinykube.controllers.kinds import NAMESPACED, Kind, custom_kinds, is_namespaced
from tinykube.controllers.values import Key, read_meta
from tinykube.controllers.work_queue import WorkQueue
from tinykube.errors import NotYet

log = structlog.get_logger(__name__)

_WORKERS = 2
_ROOT_CA = "kube-root-ca.crt"


class NamespaceKeeper:
    """Looks after namespaces from their creation to their end while ``run`` runs."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Any = client  # its overloads want the kind spelt out
        self._certificate = base64.b64decode(client.config.cluster.certificate_auth_data or "").decode()
        self._namespaces = Cache(Namespace, _read)
        self._namespaces.listen(self._changed)
        self._queue: WorkQueue[Key] = WorkQueue("namespaces", self._look_at)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._namespaces.run(self._client))
            tasks.create_task(self._queue.run(_WORKERS))

    def _changed(self, change: Change[Owned]) -> None:
        if change.after is not None and (change.before is None or change.after.meta.deleting):
            self._queue.add(change.after.meta.key)

    async def _look_at(self, key: Key) -> None:
        found = self._namespaces.values.get(key)
        if found is None:
            return
        if found.meta.deleting:
            await self._finish(key)
        else:
            await self._furnish(key)

    async def _furnish(self, key: Key) -> None:
        """Make what the namespace's pods know the API server by."""
        data = {"ca.crt": self._certificate}
        wanted = ConfigMap(metadata=ObjectMeta(namespace=key.name, name=_ROOT_CA), data=data)
        await unless_exists(self._client.create(wanted))

    async def _finish(self, key: Key) -> None:
        for kind in (*await self._custom_kinds(), *NAMESPACED):
            await self._empty(kind, key.name)
        body = await self._client.get(Namespace, key.name)
        body.spec = NamespaceSpec(finalizers=[])
        await self._client.replace(Namespace.Finalize(metadata=body.metadata, spec=body.spec), key.name)
        log.info("namespace-deleted", namespace=key.name)

    async def _custom_kinds(self) -> list[Kind]:
        definitions = [item async for item in self._client.list(CustomResourceDefinition)]
        return [kind for kind in custom_kinds(definitions) if is_namespaced(kind)]

    async def _empty(self, kind: Kind, namespace: str) -> None:
        """Delete everything of that kind; raises NotYet while something needs time to end."""
        left = await unless_missing(self._list(kind, namespace))
        if left:
            await self._client.deletecollection(kind, namespace=namespace)
            left = await self._list(kind, namespace)
        if left:
            raise NotYet(f"still has {len(left)} {kind.__name__}", field=f"namespace {namespace}")

    async def _list(self, kind: Kind, namespace: str) -> list[Any]:
        return [item async for item in self._client.list(kind, namespace=namespace)]


def _read(found: Any) -> Owned:  # noqa: ANN401 - any object
    return Owned(meta=read_meta(found.metadata), kind="v1/Namespace")
