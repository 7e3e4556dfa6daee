"""What the operator knows, in whatever order the watch and the answers to its writes tell it."""

import asyncio

import pytest
from lightkube import AsyncClient

from kube_efs.operator.kinds import Reference
from kube_efs.operator.manifests import Manifest
from kube_efs.operator.observing import Observed

REFERENCE = Reference("Role", "storage", "r")


def role(version: str, **fields: str) -> Manifest:
    metadata = {"name": "r", "namespace": "storage", "resourceVersion": version}
    return {"kind": "Role", "metadata": metadata, **fields}


@pytest.fixture
async def observed(kube: AsyncClient) -> Observed:
    return Observed(kube, "storage", asyncio.TaskGroup(), lambda: None)


async def test_an_answer_that_comes_late_hides_nothing_newer(observed: Observed) -> None:
    observed._see(role("10"))
    observed._see(role("9"))
    found = observed.find(REFERENCE)
    assert found
    assert found["metadata"]["resourceVersion"] == "10"


async def test_an_answer_that_comes_late_brings_nothing_back(observed: Observed) -> None:
    observed._see_gone(role("11"))
    observed._see(role("10"))
    assert observed.find(REFERENCE) is None
    observed._see(role("12"))
    assert observed.find(REFERENCE)


async def test_a_listing_is_the_truth_even_if_it_is_older(observed: Observed) -> None:
    observed._see(role("10"))
    observed._replace("Role", [role("3")])
    observed._see(role("4"))
    found = observed.find(REFERENCE)
    assert found
    assert found["metadata"]["resourceVersion"] == "4"
