"""The identity of a node from instance metadata or Node objects, and the startup taint."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from lightkube import AsyncClient
from lightkube.models.core_v1 import NodeSpec, Taint
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node
from structlog.testing import capture_logs
from tests.serving import answering, serving

from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.csi.node_info import NodeInfo, identify_node
from kube_efs.csi.startup_taint import STARTUP_TAINT, remove_startup_taint
from kube_efs.model.errors import InvalidSetting

DOCUMENT = {"region": "eu-west-1", "availabilityZone": "eu-west-1b", "instanceId": "i-0123456789abcdef0"}
ZONE_ID_PATH = "meta-data/placement/availability-zone-id"
LABELS = {"topology.kubernetes.io/zone": "eu-west-1c", "topology.kubernetes.io/region": "eu-west-1"}
NAME = "ip-10-0-0-4.eu-west-1.compute.internal"


@asynccontextmanager
async def instance(*, has_zone_id: bool = True) -> AsyncIterator[InstanceMetadata]:
    """Instance metadata over HTTP."""

    async def answer(request: web.Request) -> web.Response:
        path = request.match_info["path"]
        if path == "dynamic/instance-identity/document":
            return web.json_response(DOCUMENT)
        texts = {"api/token": "token", **({ZONE_ID_PATH: "euw1-az2"} if has_zone_id else {})}
        return web.Response(text=texts[path]) if path in texts else web.Response(status=404)

    async with serving(answering(answer, "/latest/")) as url, InstanceMetadata(url) as metadata:
        yield metadata


@pytest.fixture
async def no_metadata() -> AsyncIterator[InstanceMetadata]:
    async with InstanceMetadata("http://127.0.0.1:9", timeout_seconds=0.2) as metadata:
        yield metadata


async def create_node(kube: AsyncClient, name: str, provider_id: str = "", **spec: Any) -> None:
    node = Node(
        metadata=ObjectMeta(name=name, labels=LABELS), spec=NodeSpec(providerID=provider_id or None, **spec)
    )
    await kube.create(node)


@pytest.mark.parametrize("has_zone_id", [True, False])
async def test_node_is_identified_by_instance_metadata(has_zone_id: bool) -> None:
    async with instance(has_zone_id=has_zone_id) as metadata:
        assert await identify_node(metadata, None, NAME) == NodeInfo(
            node_id="i-0123456789abcdef0",
            region="eu-west-1",  # type: ignore[arg-type]
            zone="eu-west-1b",  # type: ignore[arg-type]
            zone_id="euw1-az2" if has_zone_id else None,
        )


@pytest.mark.parametrize(
    ("name", "provider_id", "node_id"),
    [
        pytest.param(NAME, "aws:///eu-west-1c/i-0a1b2c3d4e5f60718", "i-0a1b2c3d4e5f60718", id="instance"),
        pytest.param(
            NAME,
            "aws:///eu-west-1c/sagemaker/cluster/hyperpod-0123456789abcdefghijklmnopqrstuv-x",
            "0123456789abcdefghijklmnopqrstuv",
            id="node of HyperPod",
        ),
        pytest.param(NAME, "", NAME, id="machine outside of AWS"),
        pytest.param("hybrid", "eks-hybrid:///eu-west-1/cluster/mi-0a1b", "mi-0a1b"[1:], id="hybrid node"),
    ],
)
async def test_node_is_identified_by_its_object_without_metadata(
    no_metadata: InstanceMetadata, kube: AsyncClient, name: str, provider_id: str, node_id: str
) -> None:
    await create_node(kube, name, provider_id)
    node_info = await identify_node(no_metadata, kube, name)
    assert (node_info.node_id, node_info.zone, node_info.region, node_info.zone_id) == (
        node_id,
        "eu-west-1c",
        "eu-west-1",
        None,
    )


async def test_hyperpod_node_is_identified_by_its_object(kube: AsyncClient) -> None:
    await create_node(kube, "hyperpod-i-0aaa", "aws:///x/i-0bbb")
    async with instance() as metadata:
        assert (await identify_node(metadata, kube, "hyperpod-i-0aaa")).node_id == "i-0bbb"


async def test_unidentified_node_is_reported_with_all_reasons(
    no_metadata: InstanceMetadata, kube: AsyncClient
) -> None:
    with pytest.raises(InvalidSetting, match="cannot be identified") as caught:
        await identify_node(no_metadata, kube, NAME)
    assert str(caught.value).count("instance metadata: ") == 1
    assert f"node {NAME}: answered 404" in str(caught.value)

    with pytest.raises(InvalidSetting, match="no kubeconfig and no service account"):
        await identify_node(no_metadata, None, NAME)


def taint(key: str, effect: str) -> Taint:
    return Taint(key=key, effect=effect)


async def taints_of(kube: AsyncClient, name: str) -> list[tuple[str, str]]:
    node = await kube.get(Node, name)
    assert node.spec
    return [(one.key, one.effect) for one in node.spec.taints or []]


async def test_only_the_startup_taint_is_removed(kube: AsyncClient) -> None:
    taints = [
        taint(STARTUP_TAINT, "NoExecute"),
        taint("gpu", "NoSchedule"),
        taint(STARTUP_TAINT, "NoSchedule"),
    ]
    await create_node(kube, NAME, taints=taints)
    for _ in range(2):
        await remove_startup_taint(kube, NAME)
        assert await taints_of(kube, NAME) == [("gpu", "NoSchedule")]


async def test_node_without_taints_or_object_is_not_changed(kube: AsyncClient) -> None:
    await create_node(kube, NAME)
    await remove_startup_taint(kube, NAME)
    assert await taints_of(kube, NAME) == []
    with capture_logs() as logs:
        await remove_startup_taint(kube, "missing")
    assert logs[-1]["reason"] == "there is no such node"


async def test_removal_of_the_taint_is_retried_after_conflicts(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_node(kube, NAME, taints=[taint(STARTUP_TAINT, "NoSchedule")])
    patch, refusals = kube.patch, 3

    async def changed_meanwhile(*arguments: Any, **rest: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            changed = [taint(key, "NoSchedule").to_dict() for key in (STARTUP_TAINT, f"new-{refusals}")]
            await patch(Node, NAME, {"spec": {"taints": changed}})
        return await patch(*arguments, **rest)

    monkeypatch.setattr(kube, "patch", changed_meanwhile)
    async with asyncio.timeout(10):
        await remove_startup_taint(kube, NAME, pause_seconds=0.01)
    assert refusals == 0
    assert await taints_of(kube, NAME) == [("new-0", "NoSchedule")]
