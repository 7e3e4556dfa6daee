"""The watch and the answers to writes arrive in any order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

from kube_efs.model.volumes import DRIVER
from kube_efs.operator.cluster_facts import TRUSTED_CA_CONFIG_MAP, TRUSTED_CA_KEY
from kube_efs.operator.kinds import ClusterCSIDriver, ObjectReference
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.object_client import ObjectClient
from kube_efs.operator.operator_manifests import ensure_driver_crd

REFERENCE = ObjectReference("Role", "storage", "r")


def role(version: str, **fields: str) -> Manifest:
    metadata = {"name": "r", "namespace": "storage", "resourceVersion": version}
    return {"kind": "Role", "metadata": metadata, **fields}


@pytest.fixture
async def cache(kube: AsyncClient) -> ObjectCache:
    return ObjectCache(kube, "storage", asyncio.TaskGroup(), lambda: None)


async def test_late_answer_does_not_hide_a_newer_object(cache: ObjectCache) -> None:
    cache._update(role("10"))
    cache._update(role("9"))
    found = cache.get(REFERENCE)
    assert found
    assert found["metadata"]["resourceVersion"] == "10"


async def test_late_answer_does_not_restore_a_deleted_object(cache: ObjectCache) -> None:
    cache._update_deleted(role("11"))
    cache._update(role("10"))
    assert cache.get(REFERENCE) is None
    cache._update(role("12"))
    assert cache.get(REFERENCE)


async def test_new_list_replaces_objects_with_higher_versions(cache: ObjectCache) -> None:
    cache._update(role("10"))
    cache._replace("Role", [role("3")])
    cache._update(role("4"))
    found = cache.get(REFERENCE)
    assert found
    assert found["metadata"]["resourceVersion"] == "4"


async def test_status_of_the_driver_alone_starts_no_reconciliation(
    kube: AsyncClient, eventually: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
) -> None:
    """The operator writes it: with an error whose text differs each time, each pass would start another."""
    await ensure_driver_crd(ObjectClient(kube))
    body = {"metadata": {"name": DRIVER}, "spec": {"managementState": "Managed"}}
    await kube.create(ClusterCSIDriver.from_dict(body))
    changes: list[Manifest | None] = []
    tasks = asyncio.TaskGroup()
    watched = ObjectCache(kube, "storage", tasks, lambda: changes.append(watched.driver))

    def patch(resource: Any, changed: dict[str, Any]) -> Awaitable[object]:
        return cast("Awaitable[object]", kube.patch(resource, DRIVER, changed, patch_type=PatchType.MERGE))

    async def shows(key: str, value: object) -> bool:
        found = {**(watched.driver or {}).get("spec", {}), **(watched.driver or {}).get("status", {})}
        return found.get(key) == value

    async with tasks:
        watch = tasks.create_task(watched._watch_driver())
        await eventually(lambda: shows("managementState", "Managed"))
        await patch(ClusterCSIDriver.Status, {"status": {"readyReplicas": 1}})
        await eventually(lambda: shows("readyReplicas", 1))
        assert len(changes) == 1
        await patch(ClusterCSIDriver, {"spec": {"managementState": "Removed"}})
        await eventually(lambda: shows("managementState", "Removed"))
        assert len(changes) == 2
        watch.cancel()


async def test_only_another_bundle_is_a_new_version_of_the_trusted_ca(kube: AsyncClient) -> None:
    seen: asyncio.Queue[str | None] = asyncio.Queue()
    body = ConfigMap(metadata=ObjectMeta(name=TRUSTED_CA_CONFIG_MAP, namespace="default"))

    async def version_with(bundle: str, owner: str) -> str | None:
        body.data = {TRUSTED_CA_KEY: bundle}
        assert body.metadata
        body.metadata.labels = {"owner": owner}
        await kube.apply(body, field_manager="test", force=True)
        return await seen.get()

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        objects = ObjectCache(kube, "default", tasks, lambda: seen.put_nowait(objects.trusted_ca_version))
        # Before the list, a pass must not take the bundle for missing: this would replace all tunnels.
        assert objects.trusted_ca_version is None
        watch = tasks.create_task(objects._watch_trusted_ca())
        assert await seen.get() == ""
        first = await version_with("one", "a")
        assert first
        assert await version_with("one", "b") == first
        assert await version_with("two", "b") not in ("", None, first)
        assert not objects.complete.is_set()  # the Secret has not been read
        watch.cancel()
