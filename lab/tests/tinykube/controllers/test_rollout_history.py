"""Numbers of a Deployment's templates."""

from dataclasses import replace

import pytest

from tinykube.controllers.rollout_history import plan_history
from tinykube.controllers.values import Key, Meta
from tinykube.controllers.workloads import TEMPLATE_LABEL, Deployment, ReplicaSet

REVISION = "deployment.kubernetes.io/revision"
CAUSE = "kubernetes.io/change-cause"


def meta(name: str, number: int = 0, cause: str = "", **labels: str) -> Meta:
    annotations = {**({REVISION: str(number)} if number else {}), **({CAUSE: cause} if cause else {})}
    return Meta(key=Key("team", name), uid=name, version="1", labels=labels, annotations=annotations)


def replica_set(template: str, number: int = 0, cause: str = "") -> ReplicaSet:
    return ReplicaSet(
        meta=meta(template, number, cause, **{TEMPLATE_LABEL: template}), generation=1, replicas=0
    )


def deployment(number: int = 0, cause: str = "") -> Deployment:
    return Deployment(meta=meta("app", number, cause), generation=1, replicas=1, revision="new")


@pytest.mark.parametrize(
    ("found", "sets", "notes"),
    [
        (deployment(), [], {}),
        (deployment(), [replica_set("old", 1)], {}),
        (deployment(), [replica_set("new")], {"new": {REVISION: "1", CAUSE: None}, "app": {REVISION: "1"}}),
        (deployment(1), [replica_set("new", 1)], {}),
        (
            deployment(4),
            [replica_set("old", 4), replica_set("new", 2), replica_set("older", 3)],
            {"new": {REVISION: "5", CAUSE: None}, "app": {REVISION: "5"}},
        ),
        (deployment(7), [replica_set("old", 2), replica_set("new", 7)], {}),
        (deployment(1, "why"), [replica_set("new", 1)], {"new": {REVISION: "1", CAUSE: "why"}}),
        (deployment(1), [replica_set("new", 1, "why")], {"new": {REVISION: "1", CAUSE: None}}),
    ],
    ids=[
        "no set",
        "no set of the present template",
        "the first",
        "noted",
        "gone back to one of old",
        "numbers with gaps",
        "a cause",
        "no cause any more",
    ],
)
def test_what_is_noted(
    found: Deployment, sets: list[ReplicaSet], notes: dict[str, dict[str, str | None]]
) -> None:
    assert {one.target.meta.key.name: one.annotations for one in plan_history(found, sets)} == notes


def test_nothing_is_noted_of_what_is_being_deleted() -> None:
    found = replace(deployment(), meta=replace(meta("app"), deleting=True))
    assert list(plan_history(found, [replica_set("new")])) == []
