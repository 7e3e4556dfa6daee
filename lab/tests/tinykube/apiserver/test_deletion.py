from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tinykube.objects.deletion import DeleteOptions, DeletionRules, begin_deletion, removed_by_update
from tinykube.objects.values import Json

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN = DeletionRules()
GRACEFUL = DeletionRules(grace=lambda _, asked: 30 if asked is None else asked)


def existing(**metadata: Any) -> Json:
    return {"metadata": {"name": "a", **metadata}}


def test_what_nobody_holds_is_removed_at_once() -> None:
    assert begin_deletion(existing(), DeleteOptions(), PLAIN, NOW) == (None, True)


def test_what_has_a_finalizer_is_only_marked() -> None:
    marked, removed = begin_deletion(existing(finalizers=["x/y"], generation=4), DeleteOptions(), PLAIN, NOW)
    assert not removed
    assert marked is not None
    assert marked["metadata"] == {
        "name": "a",
        "finalizers": ["x/y"],
        "generation": 5,
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
    }


def test_deleting_again_changes_nothing() -> None:
    first = begin_deletion(existing(finalizers=["x/y"], generation=4), DeleteOptions(), PLAIN, NOW).marked
    assert first is not None
    later = NOW + timedelta(minutes=1)
    assert begin_deletion(first, DeleteOptions(), PLAIN, later).marked == first


def test_a_grace_period_is_granted_and_then_only_shortened() -> None:
    marked, removed = begin_deletion(existing(), DeleteOptions(), GRACEFUL, NOW)
    assert marked is not None
    assert not removed
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    longer = begin_deletion(marked, DeleteOptions(grace_period_seconds=60), GRACEFUL, NOW)
    assert longer == (None, False)
    shorter, removed = begin_deletion(marked, DeleteOptions(grace_period_seconds=5), GRACEFUL, NOW)
    assert shorter is not None
    assert not removed
    assert shorter["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:05Z"
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5


def test_no_grace_ends_a_graceful_deletion() -> None:
    marked = begin_deletion(existing(), DeleteOptions(), GRACEFUL, NOW).marked
    assert marked is not None
    assert begin_deletion(marked, DeleteOptions(grace_period_seconds=0), GRACEFUL, NOW).remove


def test_finalizers_outlast_the_grace_period() -> None:
    held = existing(finalizers=["x/y"])
    assert not begin_deletion(held, DeleteOptions(grace_period_seconds=0), GRACEFUL, NOW).remove


@pytest.mark.parametrize(
    ("policy", "finalizer"),
    [
        pytest.param("Foreground", "foregroundDeletion", id="dependents first"),
        pytest.param("Orphan", "orphan", id="dependents stay"),
    ],
)
def test_propagation_adds_the_garbage_collectors_finalizer(policy: str, finalizer: str) -> None:
    marked, removed = begin_deletion(existing(), DeleteOptions(propagation=policy), PLAIN, NOW)
    assert marked is not None
    assert not removed
    assert marked["metadata"]["finalizers"] == [finalizer]


def test_propagation_is_nothing_to_kinds_without_dependents() -> None:
    rules = DeletionRules(collects_dependents=False)
    assert begin_deletion(existing(), DeleteOptions(propagation="Orphan"), rules, NOW) == (None, True)


@pytest.mark.parametrize(
    ("old", "new", "removed"),
    [
        pytest.param(existing(finalizers=["a"]), existing(), False, id="not being deleted"),
        pytest.param(
            existing(finalizers=["a"], deletionTimestamp="t"), existing(), True, id="last finalizer taken"
        ),
        pytest.param(
            existing(finalizers=["a", "b"], deletionTimestamp="t"),
            existing(finalizers=["b"]),
            False,
            id="one finalizer left",
        ),
        pytest.param(
            existing(deletionTimestamp="t", deletionGracePeriodSeconds=30), existing(), False, id="grace left"
        ),
    ],
)
def test_an_update_that_takes_the_last_hold_removes(old: Json, new: Json, removed: bool) -> None:
    assert removed_by_update(new, old, PLAIN) is removed
