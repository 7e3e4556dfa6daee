"""Which objects workloads take over and let go of."""

from dataclasses import replace
from typing import Any

import pytest

from tinykube.controllers.adoption import Adopt, Release, concerned, plan_adoption
from tinykube.controllers.caches import Change
from tinykube.controllers.stateful_planning import named_as_its_own
from tinykube.controllers.values import Controller, Key, Meta, Operator, Pod, Requirement
from tinykube.controllers.workloads import DaemonSet, StatefulSet

SELECTOR = (Requirement(label="app", operator=Operator.IN, values=frozenset({"agent"})),)
OURS = Controller(kind="DaemonSet", name="agent", uid="set")
THEIRS = Controller(kind="DaemonSet", name="other", uid="other")


def meta(name: str, *, namespace: str = "team", **fields: Any) -> Meta:
    return Meta(key=Key(namespace, name), uid=name, version="1", **fields)


def daemon_set(**fields: Any) -> DaemonSet:
    owner = replace(meta("agent"), uid="set")
    return DaemonSet(**{"meta": owner, "generation": 1, "selector": SELECTOR, **fields})


def pod(label: str = "agent", controller: Controller | None = None, **fields: Any) -> Pod:
    return Pod(meta=meta("pod", labels={"app": label}, **fields), controller=controller)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pod(), Adopt),
        (pod("other"), None),
        (pod(deleting=True), None),
        (pod(namespace="elsewhere"), None),
        (pod(controller=THEIRS), None),
        (pod(controller=OURS), None),
        (pod("other", OURS), Release),
        (pod("other", THEIRS), None),
    ],
    ids=[
        "orphan",
        "orphan that is not selected",
        "orphan that is being deleted",
        "orphan of another namespace",
        "another one's",
        "its own",
        "its own, not selected any more",
        "another one's, not selected",
    ],
)
def test_what_is_taken_and_let_go(found: Pod, wanted: type[Adopt | Release] | None) -> None:
    steps = list(plan_adoption(daemon_set(), [found]))
    assert steps == ([] if wanted is None else [wanted(found.meta)])


@pytest.mark.parametrize(
    "owner",
    [daemon_set(selector=()), daemon_set(meta=replace(daemon_set().meta, deleting=True))],
    ids=["selects nothing", "being deleted"],
)
def test_owner_that_takes_nothing(owner: DaemonSet) -> None:
    assert not list(plan_adoption(owner, [pod(), pod("other", OURS)]))


def test_stateful_set_takes_pods_of_its_own_name_only() -> None:
    found = StatefulSet(meta=meta("web"), generation=1, replicas=1, selector=SELECTOR)
    pods = [Pod(meta=meta(name)) for name in ("web-0", "web-one", "other-0", "web-a-0")]
    assert [one.meta.key.name for one in named_as_its_own(found, pods)] == ["web-0"]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (pod(controller=THEIRS), pod("other"), {"other"}),
        (None, pod(), {"agent"}),
        (pod(controller=THEIRS), pod(), {"other", "agent"}),
        (pod(controller=replace(OURS, kind="ReplicaSet")), None, set()),
        (pod(controller=OURS), None, {"agent"}),
    ],
    ids=["released", "orphan", "passed on", "of another kind", "gone"],
)
def test_who_hears_of_a_change(before: Pod | None, after: Pod | None, names: set[str]) -> None:
    owners = {Key("team", "agent"): daemon_set()}
    assert {key.name for key in concerned(Change(before, after), "DaemonSet", owners)} == names
