from typing import Any

import pytest

from tinykube.controllers.kinds import NAMESPACED, kind_name
from tinykube.controllers.ownership import (
    FOREGROUND,
    ORPHAN,
    Delete,
    Disown,
    Graph,
    Owned,
    Owner,
    Unlock,
    decide,
)
from tinykube.controllers.values import Key, Meta
from tinykube.kinds.builtin_types import builtin_types

KIND = "v1/ConfigMap"


def thing(uid: str, *owners: Owner, **meta: Any) -> Owned:
    return Owned(meta=Meta(key=Key("team", uid), uid=uid, version="1", **meta), kind=KIND, owners=owners)


def owner(uid: str, *, kind: str = "ConfigMap", blocks: bool = False) -> Owner:
    return Owner(api_version="v1", kind=kind, name=uid, uid=uid, blocks=blocks)


def graph(*found: Owned) -> Graph:
    made = Graph()
    for item in found:
        made.put(item)
    return made


@pytest.mark.parametrize(
    ("owners", "others"),
    [
        pytest.param((), (), id="nobody's"),
        pytest.param(("a",), ("a",), id="owner lives"),
        pytest.param(("a", "b"), ("b",), id="one of two owners lives"),
    ],
)
def test_stays(owners: tuple[str, ...], others: tuple[str, ...]) -> None:
    child = thing("child", *(owner(uid) for uid in owners))
    assert decide(child, graph(child, *(thing(uid) for uid in others)), [KIND]) == ()


def test_goes_when_every_owner_is_gone() -> None:
    child = thing("child", owner("a"), owner("b"))
    assert decide(child, graph(child), [KIND]) == (Delete(target=child, absent=(owner("a"), owner("b"))),)


def test_owner_of_an_unknown_kind_is_taken_to_live() -> None:
    child = thing("child", owner("a", kind="Mystery"))
    assert decide(child, graph(child), [KIND]) == ()


def test_nothing_is_decided_before_the_owners_kind_was_listed() -> None:
    child = thing("child", owner("a"))
    assert decide(child, graph(child), []) == ()


def test_goes_before_an_owner_that_is_deleted_in_the_foreground() -> None:
    leaving = thing("a", deleting=True, finalizers=(FOREGROUND,))
    child = thing("child", owner("a"))
    assert decide(child, graph(leaving, child), [KIND]) == (Delete(target=child),)


@pytest.mark.parametrize(
    ("blocks", "unlocked"), [(True, False), (False, True)], ids=["blocking", "not blocking"]
)
def test_foreground_owner_waits_for_dependents_that_block(blocks: bool, unlocked: bool) -> None:
    leaving = thing("a", deleting=True, finalizers=(FOREGROUND, "other"))
    steps = decide(leaving, graph(leaving, thing("child", owner("a", blocks=blocks))), [KIND])
    assert steps == ((Unlock(target=leaving, finalizer=FOREGROUND),) if unlocked else ())


def test_orphaning_owner_disowns_and_only_then_goes() -> None:
    leaving = thing("a", deleting=True, finalizers=(ORPHAN,))
    child = thing("child", owner("a"))
    assert decide(leaving, graph(leaving, child), [KIND]) == (Disown(target=child, owner_uid="a"),)
    assert decide(leaving, graph(leaving, thing("child")), [KIND]) == (
        Unlock(target=leaving, finalizer=ORPHAN),
    )


def test_graph_forgets_the_owners_an_object_had() -> None:
    found = graph(thing("a"), thing("child", owner("a")))
    assert [item.meta.uid for item in found.dependents("a")] == ["child"]
    found.put(thing("child", owner("b")))
    assert found.dependents("a") == ()
    found.drop("child")
    assert found.dependents("b") == ()
    assert found.get("child") is None


def test_a_namespace_is_emptied_of_every_kind_that_is_served() -> None:
    emptied = {kind_name(kind) for kind in NAMESPACED}
    served = {
        f"{resource.api_version}/{resource.kind}"
        for resource in builtin_types()
        if resource.namespaced and "list" in resource.verbs
    }
    # Another version of what is there anyhow.
    assert served - emptied == {"apps/v1beta1/StatefulSet"}
