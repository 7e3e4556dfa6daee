"""Which pods and claims of a StatefulSet come and go, and in which order."""

from collections.abc import Collection
from typing import Any

import pytest
from lightkube.models.core_v1 import PersistentVolumeClaim
from lightkube.models.meta_v1 import ObjectMeta

from tinykube.controllers.stateful_planning import (
    MakeClaim,
    MakePod,
    RemovePod,
    Step,
    plan_stateful_set,
    pods_by_ordinal,
    status_of,
)
from tinykube.controllers.values import Controller, Key, Meta, Pod
from tinykube.controllers.workloads import REVISION_LABEL, Replicas, StatefulSet, StatefulSetStatus

CLAIM = PersistentVolumeClaim(metadata=ObjectMeta(name="efs"))
META = Meta(key=Key("team", "web"), uid="set", version="1")


def stateful_set(replicas: int = 3, **fields: Any) -> StatefulSet:
    return StatefulSet(
        **{"meta": META, "generation": 4, "replicas": replicas, "revision": "web-new", **fields}
    )


def pod(ordinal: int, state: str = "ready", *, revision: str = "web-new", owner: str = "set") -> Pod:
    meta = Meta(
        key=Key("team", f"web-{ordinal}"),
        uid=f"pod-{ordinal}",
        version="1",
        labels={REVISION_LABEL: revision},
        deleting=state == "deleting",
    )
    return Pod(
        meta=meta,
        node_name="" if state == "pending" else "node",
        ready=state in {"ready", "deleting"},
        finished=state == "finished",
        controller=Controller(kind="StatefulSet", name="web", uid=owner),
    )


def plan(found: StatefulSet, *pods: Pod, claims: Collection[str] = ()) -> list[str]:
    return [_shown(step) for step in plan_stateful_set(found, pods_by_ordinal(found, pods), claims)]


def _shown(step: Step) -> str:
    match step:
        case MakePod(ordinal=ordinal):
            return f"make {ordinal}"
        case MakeClaim(ordinal=ordinal):
            return f"claim {ordinal}"
        case RemovePod(pod=found):
            return f"remove {found.meta.key.name[-1]}"


@pytest.mark.parametrize(
    ("pods", "steps"),
    [
        pytest.param([], ["make 0"], id="the first comes first"),
        pytest.param([pod(0, "unready")], [], id="the second waits for the first"),
        pytest.param([pod(0, "deleting")], [], id="one that ends is waited for"),
        pytest.param([pod(0)], ["make 1"], id="the second comes when the first is ready"),
        pytest.param([pod(1), pod(2)], ["make 0"], id="one that is gone comes back"),
        pytest.param([pod(0), pod(1, "finished"), pod(2)], ["remove 1"], id="one that has ended is removed"),
        pytest.param([pod(n) for n in range(3)], [], id="all are there"),
        pytest.param([pod(n) for n in range(5)], ["remove 4"], id="the last goes first"),
        pytest.param(
            [*(pod(n) for n in range(4)), pod(4, "deleting")], [], id="the next goes when the last is gone"
        ),
        pytest.param([pod(1), *(pod(n) for n in range(3, 5))], ["make 0"], id="missing ones before surplus"),
    ],
)
def test_pods_come_and_go_in_order(pods: list[Pod], steps: list[str]) -> None:
    assert plan(stateful_set(), *pods) == steps


def test_claims_are_made_with_their_pods_and_only_once() -> None:
    found = stateful_set(claim_templates=(CLAIM,))
    assert plan(found) == ["claim 0", "make 0"]
    assert plan(found, claims={"efs-web-0"}) == ["make 0"]
    assert plan(found, pod(0, "pending")) == ["claim 0"]
    assert plan(found, *(pod(n) for n in range(4)), claims={"efs-web-3"}) == ["remove 3"]


@pytest.mark.parametrize(
    ("states", "steps"),
    [
        pytest.param(["old", "old", "old"], ["remove 2"], id="the last is updated first"),
        pytest.param(["old", "old", "unready"], [], id="and has to be ready before the next"),
        pytest.param(["old", "old", "ready"], ["remove 1"], id="then the next"),
    ],
)
def test_new_template(states: list[str], steps: list[str]) -> None:
    pods = [
        pod(ordinal, revision="web-old") if state == "old" else pod(ordinal, state)
        for ordinal, state in enumerate(states)
    ]
    assert plan(stateful_set(), *pods) == steps


def test_set_that_is_deleted_makes_nothing_any_more() -> None:
    deleting = Meta(key=META.key, uid="set", version="2", deleting=True)
    assert plan(stateful_set(meta=deleting)) == []


def test_pods_of_others_do_not_count() -> None:
    found = stateful_set()
    foreign = Meta(key=Key("team", "web-x-1"), uid="x", version="1")
    others = [pod(0, owner="another"), Pod(meta=foreign, controller=pod(0).controller)]
    assert pods_by_ordinal(found, others) == {}


def test_status_counts_pods_that_are_ready_and_pods_of_the_template() -> None:
    found = stateful_set()
    pods = [pod(0, revision="web-old"), pod(1, "unready"), pod(2)]
    assert status_of(found, pods_by_ordinal(found, pods)) == StatefulSetStatus(
        observed_generation=4, replicas=Replicas(total=3, ready=2), updated=2
    )
