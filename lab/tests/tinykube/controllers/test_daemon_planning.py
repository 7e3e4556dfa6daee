"""Which pods of a DaemonSet come and go, and what is said of it."""

from typing import Any

import pytest

from tinykube.controllers.daemon_planning import (
    MakeNodePod,
    RemoveNodePod,
    daemon_set_status,
    plan_daemon_set,
    wanted_nodes,
)
from tinykube.controllers.values import Controller, Key, Meta, Node, Pod
from tinykube.controllers.workloads import REVISION_LABEL, DaemonSet, DaemonSetStatus


def daemon_set(**fields: Any) -> DaemonSet:
    meta = Meta(key=Key("team", "agent"), uid="set", version="1", deleting=fields.pop("deleting", False))
    return DaemonSet(**{"meta": meta, "generation": 3, "revision": "new", **fields})


def pod(node: str, state: str = "ready", *, revision: str = "new", name: str = "") -> Pod:
    meta = Meta(
        key=Key("team", name or f"agent-{node}"),
        uid=f"pod-{node}",
        version="1",
        labels={REVISION_LABEL: revision},
        deleting=state == "deleting",
    )
    return Pod(
        meta=meta,
        node_name="" if state == "pending" else node,
        required_node=node,
        ready=state in {"ready", "deleting"},
        finished=state == "finished",
        controller=Controller(kind="DaemonSet", name="agent", uid="set"),
    )


def plan(found: DaemonSet, *pods: Pod, nodes: tuple[str, ...] = ("a", "b")) -> list[str]:
    shown = []
    for step in plan_daemon_set(found, nodes, pods):
        match step:
            case MakeNodePod(node_name=node):
                shown.append(f"make {node}")
            case RemoveNodePod(pod=one):
                shown.append(f"remove {one.meta.key.name}")
    return shown


@pytest.mark.parametrize(
    ("pods", "steps"),
    [
        pytest.param([], ["make a", "make b"], id="none yet"),
        pytest.param([pod("a"), pod("b")], [], id="all well"),
        pytest.param([pod("a"), pod("b", "pending")], [], id="one has no node yet"),
        pytest.param([pod("a"), pod("b", "deleting")], [], id="one is going"),
        pytest.param([pod("a"), pod("b", "finished")], ["remove agent-b"], id="one has ended"),
        pytest.param([pod("a"), pod("b"), pod("c")], ["remove agent-c"], id="a node is not wanted any more"),
        pytest.param(
            [pod("a"), pod("b"), pod("b", name="agent-x")], ["remove agent-x"], id="two on one node"
        ),
    ],
)
def test_every_node_has_one_pod(pods: list[Pod], steps: list[str]) -> None:
    assert plan(daemon_set(), *pods) == steps


@pytest.mark.parametrize(
    ("unavailable", "pods", "steps"),
    [
        pytest.param(
            1, [pod("a", revision="old"), pod("b", revision="old")], ["remove agent-a"], id="begins"
        ),
        pytest.param(1, [pod("a", "pending"), pod("b", revision="old")], [], id="waits for the new one"),
        pytest.param(1, [pod("a"), pod("b", revision="old")], ["remove agent-b"], id="goes on"),
        pytest.param(
            2,
            [pod("a", revision="old"), pod("b", revision="old")],
            ["remove agent-a", "remove agent-b"],
            id="two at a time",
        ),
        pytest.param(
            1,
            [pod("a", "pending", revision="old"), pod("b", revision="old")],
            ["remove agent-a"],
            id="one that is not in order goes first",
        ),
        pytest.param(None, [pod("a", revision="old"), pod("b", revision="old")], [], id="by people"),
    ],
)
def test_an_update_leaves_enough_nodes_alone(
    unavailable: int | None, pods: list[Pod], steps: list[str]
) -> None:
    assert plan(daemon_set(unavailable=unavailable), *pods) == steps


def test_nothing_is_made_for_one_that_goes() -> None:
    assert plan(daemon_set(deleting=True)) == []


def test_nodes_are_selected_by_their_labels() -> None:
    labels = {"linux": {"os": "linux", "zone": "1"}, "windows": {"os": "windows"}}
    nodes = [
        Node(meta=Meta(key=Key("", name), uid=name, version="1", labels=labels[name])) for name in labels
    ]
    assert wanted_nodes(daemon_set(node_selector={"os": "linux"}), nodes) == ("linux",)
    assert wanted_nodes(daemon_set(), nodes) == ("linux", "windows")


def test_the_status_counts_nodes() -> None:
    pods = [pod("a", revision="old"), pod("b", "pending"), pod("gone")]
    assert daemon_set_status(daemon_set(), ("a", "b", "c"), pods) == DaemonSetStatus(
        observed_generation=3, desired=3, current=2, misscheduled=1, ready=1, updated=1
    )
