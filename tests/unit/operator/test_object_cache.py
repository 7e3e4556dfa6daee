"""The watch and the answers to writes arrive in any order."""

import asyncio

import pytest
from lightkube import AsyncClient

from kube_efs.operator.kinds import ObjectReference
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.object_cache import ObjectCache

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
