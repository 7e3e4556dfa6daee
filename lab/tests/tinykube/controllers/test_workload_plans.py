"""Which pods of Deployments, StatefulSets and DaemonSets come and go."""

from dataclasses import replace
from typing import Any

import pytest
from lightkube.models.meta_v1 import LabelSelector
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Node

from tinykube.controllers.caches import Caches
from tinykube.controllers.values import Controller, Key, Meta, Pod
from tinykube.controllers.workloads import (
    REVISION_LABEL,
    Plan,
    Workload,
    plan_daemon_set,
    plan_deployment,
    plan_stateful_set,
    read_workload,
)

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main"}]},
}


def workload(**spec: Any) -> Workload:
    return Workload(
        kind="Any",
        meta=Meta(key=Key("team", "web"), uid="workload", version="1"),
        generation=3,
        selector=LabelSelector(matchLabels={"app": "web"}),
        revision="new",
        spec={"template": TEMPLATE, **spec},
        status={},
    )


def pod(name: str, state: str = "ready", revision: str = "new", node: str = "") -> Pod:
    labels = {REVISION_LABEL: revision}
    deleting = state == "deleting"
    return Pod(
        meta=Meta(key=Key("team", name), uid=name, version="1", labels=labels, deleting=deleting),
        node_name="" if state == "pending" else "node",
        required_node=node,
        ready=state in {"ready", "deleting"},
        finished=state == "finished",
        controller=Controller(kind="Any", name="web", uid="workload"),
    )


def shown(plan: Plan) -> tuple[int, list[str]]:
    """How many pods are created, and the names of those that are deleted."""
    return len(plan.create), [one.meta.key.name for one in plan.delete]


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ([], (2, [])),
        ([pod("a"), pod("b")], (0, [])),
        ([pod("a"), pod("b", "finished"), pod("c", "deleting")], (1, [])),
        ([pod("a"), pod("b"), pod("c", "pending")], (0, ["c"])),
        ([pod("a", revision="old"), pod("b", revision="old")], (2, [])),
        ([pod("a", revision="old"), pod("b", revision="old"), pod("c"), pod("d", "pending")], (0, ["a"])),
        ([pod("a", revision="old"), pod("b"), pod("c")], (0, ["a"])),
    ],
    ids=["none", "all", "ended and ending", "surplus", "update begins", "one is replaced", "update ends"],
)
def test_deployment(pods: list[Pod], wanted: tuple[int, list[str]]) -> None:
    assert shown(plan_deployment(workload(replicas=2), pods, Caches.empty())) == wanted


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ([pod("a", revision="old")], (0, ["a"])),
        ([pod("a", "deleting", revision="old")], (0, [])),
        ([pod("a", "finished", revision="old")], (1, [])),
    ],
    ids=["old runs", "old is ending", "old has ended"],
)
def test_deployment_that_recreates(pods: list[Pod], wanted: tuple[int, list[str]]) -> None:
    found = workload(replicas=1, strategy={"type": "Recreate"})
    assert shown(plan_deployment(found, pods, Caches.empty())) == wanted


def test_status_of_a_deployment() -> None:
    pods = [pod("a"), pod("b", "pending"), pod("c", revision="old"), pod("d", "deleting")]
    assert plan_deployment(workload(replicas=2), pods, Caches.empty()).status == {
        "observedGeneration": 3,
        "replicas": 3,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "updatedReplicas": 2,
        "unavailableReplicas": 0,
    }


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ([], (1, [])),
        ([pod("web-0", "pending")], (0, [])),
        ([pod("web-0", "finished"), pod("web-1")], (0, ["web-0"])),
        ([pod("web-0", "deleting"), pod("web-1")], (0, [])),
        ([pod("web-1")], (1, [])),
        ([pod("web-0"), pod("web-1"), pod("web-10")], (0, ["web-10"])),
        ([pod("web-0", revision="old"), pod("web-1", revision="old")], (0, ["web-1"])),
        ([pod("web-0", revision="old"), pod("web-1")], (0, ["web-0"])),
    ],
    ids=["none", "waits", "ended", "is ending", "a gap", "surplus", "update begins", "update ends"],
)
def test_stateful_set(pods: list[Pod], wanted: tuple[int, list[str]]) -> None:
    assert shown(plan_stateful_set(workload(replicas=2), pods, Caches.empty())) == wanted


def test_pod_of_a_stateful_set_has_its_own_claim() -> None:
    claim = {"metadata": {"name": "data", "annotations": {"a": "b"}}, "spec": {"accessModes": ["x"]}}
    plan = plan_stateful_set(workload(volumeClaimTemplates=[claim]), [], Caches.empty())
    (made,) = (one.to_dict() for one in plan.claims)
    assert (made["metadata"]["name"], made["metadata"]["annotations"]) == ("data-web-0", {"a": "b"})
    assert "ownerReferences" not in made["metadata"]
    (created,) = (one.to_dict() for one in plan.create)
    assert created["metadata"]["name"] == "web-0"
    assert created["metadata"]["labels"] == {"app": "web", REVISION_LABEL: "new"}
    wanted = {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}
    assert created["spec"]["volumes"] == [wanted]


def with_nodes(*names: str) -> Caches:
    caches = Caches.empty()
    for name in names:
        body = {"metadata": {"name": name, "uid": name, "labels": {"disk": name}}}
        caches.nodes.remember(Node.from_dict(body))
    return caches


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ([], (2, [])),
        ([pod("x", node="a"), pod("y", "pending", node="b")], (0, [])),
        ([pod("x", node="a"), pod("y", "finished", node="b")], (0, ["y"])),
        ([pod("x", node="a"), pod("y", node="b"), pod("z", node="c")], (0, ["z"])),
        ([pod("x", revision="old", node="a"), pod("y", revision="old", node="b")], (0, ["x"])),
        ([pod("x", "deleting", "old", node="a"), pod("y", revision="old", node="b")], (0, [])),
        ([pod("x", revision="old", node="a"), pod("y", "pending", "old", node="b")], (0, ["y"])),
    ],
    ids=["none", "not bound yet", "ended", "surplus", "update begins", "one by one", "broken first"],
)
def test_daemon_set(pods: list[Pod], wanted: tuple[int, list[str]]) -> None:
    bound = [replace(one, node_name=one.node_name and one.required_node) for one in pods]
    assert shown(plan_daemon_set(workload(), bound, with_nodes("a", "b"))) == wanted


def test_daemon_set_of_some_nodes() -> None:
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "nodeSelector": {"disk": "b"}}}
    plan = plan_daemon_set(workload(template=template), [], with_nodes("a", "b"))
    (created,) = (one.to_dict() for one in plan.create)
    required = created["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["b"]}]
    assert (plan.status["desiredNumberScheduled"], plan.status["numberUnavailable"]) == (1, 1)


def test_revision_is_that_of_the_template() -> None:
    def revision(image: str, replicas: int) -> str:
        template = {"spec": {"containers": [{"name": "main", "image": image}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        found = Deployment.from_dict({"metadata": {"name": "web", "namespace": "team"}, "spec": spec})
        return read_workload("Deployment", found).revision

    assert revision("a", 1) == revision("a", 2) != revision("b", 1)


@pytest.mark.parametrize(
    ("namespace", "label", "selected"),
    [("team", "web", True), ("team", "other", False), ("elsewhere", "web", False)],
)
def test_what_a_workload_selects(namespace: str, label: str, selected: bool) -> None:
    meta = Meta(key=Key(namespace, "pod"), uid="pod", version="1", labels={"app": label})
    assert workload().selects(Pod(meta=meta)) is selected
