"""How many pods a ReplicaSet makes, and how a Deployment goes from one template to the next."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykube.controllers.replica_planning import (
    MakePods,
    MakeReplicaSet,
    RemovePods,
    RemoveReplicaSet,
    Resize,
    deployment_status,
    plan_deployment,
    plan_replica_set,
    replica_set_status,
    scaling,
    share_of,
)
from tinykube.controllers.values import Controller, Key, Meta, Pod
from tinykube.controllers.workloads import (
    TEMPLATE_LABEL,
    Deployment,
    Replicas,
    ReplicaSet,
    ReplicaSetStatus,
)


def meta(name: str, **labels: str) -> Meta:
    return Meta(key=Key("team", name), uid=name, version="1", labels=labels)


def replica_set(revision: str, replicas: int, ready: int | None = None) -> ReplicaSet:
    ready = replicas if ready is None else ready
    return ReplicaSet(
        meta=meta(f"app-{revision}", **{TEMPLATE_LABEL: revision}),
        generation=1,
        replicas=replicas,
        status=ReplicaSetStatus(observed_generation=1, replicas=Replicas(total=replicas, ready=ready)),
    )


def deployment(replicas: int = 3, **fields: Any) -> Deployment:
    return Deployment(
        **{
            "meta": meta("app"),
            "generation": 2,
            "replicas": replicas,
            "revision": "new",
            "surge": 1,
            **fields,
        }
    )


def pod(name: str, owner: str = "app-old", **fields: Any) -> Pod:
    controller = Controller(kind="ReplicaSet", name=owner, uid=owner)
    return Pod(**{"meta": meta(name), "controller": controller, "node_name": "node", "ready": True, **fields})


def sizes(steps: Any) -> dict[str, int]:
    return {step.target.meta.key.name: step.replicas for step in steps if isinstance(step, Resize)}


def test_replica_set_makes_what_is_missing() -> None:
    ended = pod("b", finished=True)
    leaving = pod("c", meta=replace(meta("c"), deleting=True))
    assert plan_replica_set(replica_set("new", 3), [pod("a"), ended, leaving]) == MakePods(count=2)
    assert plan_replica_set(replica_set("new", 1), [pod("a"), ended, leaving]) is None
    assert replica_set_status(replica_set("new", 3), [pod("a"), ended, leaving]) == ReplicaSetStatus(
        observed_generation=1, replicas=Replicas(total=1, ready=1)
    )


def test_replica_set_removes_those_of_least_use_first() -> None:
    ready, unready, waiting = pod("a"), pod("z", ready=False), pod("b", node_name="", ready=False)
    found = plan_replica_set(replica_set("new", 1), [ready, unready, waiting])
    assert found == RemovePods(pods=(waiting, unready))


def test_first_rollout_makes_a_replica_set_of_full_size() -> None:
    assert plan_deployment(deployment(), [], []) == (MakeReplicaSet(replicas=3),)


def test_rolling_update_goes_step_by_step() -> None:
    old = replica_set("old", 3)
    assert plan_deployment(deployment(), [old], []) == (MakeReplicaSet(replicas=1),)
    assert plan_deployment(deployment(), [old, replica_set("new", 1, ready=0)], []) == ()
    assert sizes(plan_deployment(deployment(), [old, replica_set("new", 1)], [])) == {"app-old": 2}
    between = [replica_set("old", 2), replica_set("new", 1)]
    assert sizes(plan_deployment(deployment(), between, [])) == {"app-new": 2}


def test_old_pods_that_are_not_ready_go_without_a_replacement() -> None:
    stuck = [replica_set("old", 3, ready=2), replica_set("new", 1, ready=0)]
    assert sizes(plan_deployment(deployment(unavailable=1, surge=0), stuck, [])) == {"app-old": 2}


def test_recreate_waits_until_every_old_pod_is_gone() -> None:
    found = deployment(recreates=True, surge=0)
    assert sizes(plan_deployment(found, [replica_set("old", 3)], [pod("a")])) == {"app-old": 0}
    leaving = pod("a", meta=replace(meta("a"), deleting=True))
    assert plan_deployment(found, [replica_set("old", 0)], [leaving]) == ()
    gone = plan_deployment(found, [replica_set("old", 0)], [])
    assert gone == (MakeReplicaSet(replicas=3), RemoveReplicaSet(target=replica_set("old", 0)))


def test_what_is_told_of_scaling() -> None:
    assert scaling(replica_set("new", 1), 3) == "Scaled up replica set app-new from 1 to 3"
    assert scaling(replica_set("old", 2), 0) == "Scaled down replica set app-old from 2 to 0"


@pytest.mark.parametrize("replicas", [0, 1, 5])
def test_scaling_resizes_the_present_set(replicas: int) -> None:
    assert sizes(plan_deployment(deployment(replicas), [replica_set("new", 3)], [])) == {"app-new": replicas}


def test_paused_and_deleted_deployments_are_left_alone() -> None:
    assert plan_deployment(deployment(paused=True), [], []) == ()
    assert plan_deployment(deployment(meta=replace(meta("app"), deleting=True)), [], []) == ()


@given(
    replicas=st.integers(0, 6),
    surge=st.integers(0, 3),
    unavailable=st.integers(0, 3),
    start=st.integers(0, 6),
)
def test_rollouts_end_and_keep_their_bounds(replicas: int, surge: int, unavailable: int, start: int) -> None:
    unavailable = unavailable or int(not surge)
    found = deployment(replicas, surge=surge, unavailable=unavailable)
    sets = {"app-old": replica_set("old", start)}
    for _ in range(50):
        steps = plan_deployment(found, list(sets.values()), [])
        ready_before = sum(one.ready for one in sets.values())
        for step in steps:
            match step:
                case MakeReplicaSet(replicas=count):
                    sets["app-new"] = replica_set("new", count)
                case Resize(target=target, replicas=count):
                    sets[target.meta.key.name] = replica_set(target.meta.labels[TEMPLATE_LABEL], count)
                case RemoveReplicaSet(target=target):
                    del sets[target.meta.key.name]
        total = sum(one.replicas for one in sets.values())
        assert total <= max(replicas + surge, start)
        shrunk = [
            step for step in steps if isinstance(step, Resize) and step.target.meta.key.name == "app-old"
        ]
        left = ready_before - sum(step.target.ready - step.replicas for step in shrunk)
        assert not shrunk or left >= replicas - unavailable
        if not steps:
            break
    assert {name: one.replicas for name, one in sets.items()} == {"app-new": replicas}


def test_status_says_when_a_rollout_is_over() -> None:
    halfway = deployment_status(deployment(), [replica_set("old", 2), replica_set("new", 2, ready=1)])
    assert (halfway.replicas, halfway.updated) == (Replicas(total=4, ready=3), 2)
    assert [(one.type, one.status, one.reason) for one in halfway.conditions] == [
        ("Available", True, "MinimumReplicasAvailable"),
        ("Progressing", True, "ReplicaSetUpdated"),
    ]
    over = deployment_status(deployment(), [replica_set("new", 3)])
    assert over.conditions[1].message == 'ReplicaSet "app-new" has successfully progressed.'
    short = deployment_status(deployment(), [replica_set("new", 3, ready=2)])
    assert [one.reason for one in short.conditions] == ["MinimumReplicasUnavailable", "ReplicaSetUpdated"]


@pytest.mark.parametrize(
    ("text", "up", "down"), [(2, 2, 2), ("25%", 1, 0), ("100%", 3, 3), ("0%", 0, 0)], ids=str
)
def test_share(text: int | str, up: int, down: int) -> None:
    assert (share_of(text, 3, up=True), share_of(text, 3, up=False)) == (up, down)
