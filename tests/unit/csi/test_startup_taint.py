"""The startup taint of a node: when it is removed, and how."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from lightkube import AsyncClient
from lightkube.models.apps_v1 import DaemonSetSpec
from lightkube.models.core_v1 import Container, NodeSpec, PodSpec, PodTemplateSpec, Taint
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Namespace, Node
from structlog.testing import capture_logs

from kube_efs.csi.startup_taint import STARTUP_TAINT, remove_startup_taint, wait_for_tunnels
from kube_efs.model.errors import KubeDenied, TunnelAgentUnavailable
from kube_efs.model.names import KUBE_EFS
from kube_efs.tunnels.api.client import TunnelClient

NAME = "ip-10-0-0-4.eu-west-1.compute.internal"
NAMES = replace(KUBE_EFS, namespace="efs")


async def create_node(kube: AsyncClient, name: str, **spec: Any) -> None:
    await kube.create(Node(metadata=ObjectMeta(name=name), spec=NodeSpec(**spec)))


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


# --- when


class Agent:
    """A tunnel agent that does not answer until it has been asked so often."""

    def __init__(self, silent_calls: float) -> None:
        self.calls = 0
        self._silent_calls = silent_calls

    async def tunnels(self) -> tuple[()]:
        self.calls += 1
        if self.calls <= self._silent_calls:
            raise TunnelAgentUnavailable("did not appear", field="tunnel agent")
        return ()


async def waits(kube: AsyncClient, agent: Agent) -> None:
    await wait_for_tunnels(kube, cast("TunnelClient", agent), NAMES, pause_seconds=0.01)


async def install_tunnels(kube: AsyncClient) -> None:
    labels = {"component": NAMES.tunnel}
    spec = PodSpec(containers=[Container(name=NAMES.tunnel, image="kube-efs")])
    await kube.create(Namespace(metadata=ObjectMeta(name=NAMES.namespace)))
    await kube.create(
        DaemonSet(
            metadata=ObjectMeta(name=NAMES.tunnel, namespace=NAMES.namespace),
            spec=DaemonSetSpec(
                selector=LabelSelector(matchLabels=labels),
                template=PodTemplateSpec(metadata=ObjectMeta(labels=labels), spec=spec),
            ),
        )
    )


async def test_taint_waits_for_a_tunnel_agent_that_starts_late(kube: AsyncClient) -> None:
    await install_tunnels(kube)
    agent = Agent(silent_calls=3)
    with capture_logs() as logs:
        await waits(kube, agent)
    assert agent.calls == 4
    assert {one["event"] for one in logs} == {"startup-taint-kept"}
    assert "did not appear" in logs[0]["reason"]


async def test_taint_does_not_wait_where_the_tunnels_are_not_installed(kube: AsyncClient) -> None:
    agent = Agent(silent_calls=float("inf"))
    with capture_logs() as logs:
        await waits(kube, agent)
    assert agent.calls == 1
    assert logs[-1]["event"] == "tunnels-not-expected"


async def test_taint_stays_while_nobody_knows_whether_there_are_tunnels(
    kube: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(*_: Any, **__: Any) -> None:
        raise KubeDenied("answered 403", field="DaemonSet", remedy="check the service account's roles")

    monkeypatch.setattr(kube, "get", denied)
    agent = Agent(silent_calls=3)
    with capture_logs() as logs:
        await waits(kube, agent)
    assert agent.calls == 4
    assert "service account's roles" in logs[0]["reason"]
