"""What the operator knows, in whatever order the watch and the answers to its writes tell it."""

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


async def test_an_answer_that_comes_late_hides_nothing_newer(cache: ObjectCache) -> None:
    cache._update(role("10"))
    cache._update(role("9"))
    found = cache.get(REFERENCE)
    assert found
    assert found["metadata"]["resourceVersion"] == "10"


async def test_an_answer_that_comes_late_brings_nothing_back(cache: ObjectCache) -> None:
    cache._update_deleted(role("11"))
    cache._update(role("10"))
    assert cache.get(REFERENCE) is None
    cache._update(role("12"))
    assert cache.get(REFERENCE)


async def test_a_listing_is_the_truth_even_if_it_is_older(cache: ObjectCache) -> None:
    cache._update(role("10"))
    cache._replace("Role", [role("3")])
    cache._update(role("4"))
    found = cache.get(REFERENCE)
    assert found
    assert found["metadata"]["resourceVersion"] == "4"
