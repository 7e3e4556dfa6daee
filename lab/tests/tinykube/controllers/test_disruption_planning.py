"""How many pods a PodDisruptionBudget allows to be evicted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lightkube.codecs import from_dict

from tinykube.controllers.disruption_planning import (
    Budget,
    BudgetStatus,
    Scale,
    budget_status,
    read_budget,
    render_budget_status,
)
from tinykube.controllers.values import Controller, Key, Meta, Operator, Pod, Requirement

SELECTOR = (Requirement(label="app", operator=Operator.IN, values=frozenset({"web"})),)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCALES = {"new": Scale("app", 4), "old": Scale("app", 4), "web": Scale("web", 3)}


def meta(name: str, **fields: Any) -> Meta:
    return Meta(**{"key": Key("team", name), "uid": name, "version": "1", "labels": {"app": "web"}, **fields})


def budget(**fields: Any) -> Budget:
    return Budget(**{"meta": meta("budget"), "generation": 2, "selector": SELECTOR, **fields})


def pod(name: str, owner: str = "", *, ready: bool = True, **fields: Any) -> Pod:
    controller = Controller(kind="ReplicaSet", name=owner, uid=owner) if owner else None
    return Pod(meta=meta(name, **fields), ready=ready, controller=controller)


@pytest.mark.parametrize(
    ("found", "pods", "wanted", "expected", "allowed"),
    [
        (budget(least=1), [pod("a"), pod("b")], 1, 2, 1),
        (budget(least=3), [pod("a"), pod("b")], 3, 2, 0),
        (budget(least=0), [pod("a")], 0, 1, 1),
        (budget(least="50%"), [pod("a", "new"), pod("b", "old"), pod("c", "old")], 2, 4, 1),
        (budget(most_missing=1), [pod("a", "web"), pod("b", "web"), pod("c", "web")], 2, 3, 1),
        (budget(most_missing=1), [pod("a", "web"), pod("b", "web")], 2, 3, 0),
        (budget(most_missing="50%"), [pod("a", "web"), pod("b", "web"), pod("c", "web")], 1, 3, 2),
        (budget(least=1), [pod("a"), pod("b", ready=False), pod("c", deleting=True)], 1, 3, 0),
        (budget(least=1), [pod("a"), pod("b", labels={"app": "other"})], 1, 1, 0),
        (budget(least=1), [pod("a"), pod("b", key=Key("elsewhere", "b"))], 1, 1, 0),
        (budget(least=0, selector=()), [pod("a", labels={})], 0, 1, 1),
        (budget(least=0, selector=None), [pod("a")], 0, 0, 0),
        (
            budget(least=1, status=BudgetStatus(disrupted=frozenset({"a", "gone"}))),
            [pod("a"), pod("b")],
            1,
            2,
            0,
        ),
    ],
    ids=[
        "more than needed",
        "fewer than needed",
        "none needed",
        "a share of what the Deployment is to have",
        "one may be missing",
        "one is missing already",
        "a share may be missing",
        "some are not well",
        "other pods",
        "pods of other namespaces",
        "all pods",
        "no pods",
        "one was evicted a moment ago",
    ],
)
def test_what_is_allowed(found: Budget, pods: list[Pod], wanted: int, expected: int, allowed: int) -> None:
    status = budget_status(found, pods, SCALES)
    assert (status.wanted, status.expected, status.allowed) == (wanted, expected, allowed)
    assert status.observed_generation == 2


def test_pods_that_end_are_remembered_no_longer() -> None:
    before = BudgetStatus(disrupted=frozenset({"a", "b"}))
    found = budget(least=0, status=before)
    status = budget_status(found, [pod("a", deleting=True), pod("b")], {})
    assert status.disrupted == {"b"}
    assert render_budget_status(status, before, NOW)["disruptedPods"] == {"a": None}


def test_the_condition_keeps_its_time_while_it_says_the_same() -> None:
    before = BudgetStatus(said=True, since=NOW - timedelta(hours=1))
    same, other = BudgetStatus(said=True, allowed=1), BudgetStatus(said=False)
    (kept,) = render_budget_status(same, before, NOW)["conditions"]
    assert (kept["status"], kept["reason"], kept["lastTransitionTime"]) == (
        "True",
        "SufficientPods",
        "2025-12-31T23:00:00Z",
    )
    (changed,) = render_budget_status(other, before, NOW)["conditions"]
    assert (changed["status"], changed["reason"], changed["lastTransitionTime"]) == (
        "False",
        "InsufficientPods",
        "2026-01-01T00:00:00Z",
    )


def test_reading() -> None:
    given: Any = from_dict(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "budget", "namespace": "team", "generation": 3},
            "spec": {"maxUnavailable": "25%", "selector": {}},
            "status": {
                "currentHealthy": 2,
                "desiredHealthy": 1,
                "disruptionsAllowed": 1,
                "expectedPods": 2,
                "disruptedPods": {"a": "2026-01-01T00:00:00Z"},
            },
        }
    )
    found = read_budget(given)
    assert (found.generation, found.selector, found.least, found.most_missing) == (3, (), None, "25%")
    assert found.status == BudgetStatus(
        healthy=2, wanted=1, expected=2, allowed=1, disrupted=frozenset({"a"})
    )
