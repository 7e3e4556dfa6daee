from typing import Any

import pytest

from tinykube.controllers.garbage import (
    FOREGROUND,
    ORPHAN,
    Delete,
    Disown,
    Graph,
    Owned,
    Owner,
    Unlock,
)
from tinykube.controllers.kinds import NAMESPACED, kind_name
from tinykube.controllers.values import Key, Meta
from tinykube.kinds.builtin_types import builtin_types

KIND = "v1/ConfigMap"


def thing(uid: str, *owners: Owner, **meta: Any) -> Owned:
    return Owned(meta=Meta(key=Key("team", uid), uid=uid, version="1", **meta), kind=KIND, owners=owners)


def owner(uid: str, *, kind: str = KIND) -> Owner:
    return Owner(kind=kind, name=uid, uid=uid)


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
    assert graph(child, *(thing(uid) for uid in others)).decide(child, {KIND}) is None


def test_goes_when_every_owner_is_gone() -> None:
    child = thing("child", owner("a"), owner("b"))
    assert graph(child).decide(child, {KIND}) == Delete()


def test_nothing_is_decided_before_the_owners_kind_was_listed() -> None:
    child = thing("child", owner("a", kind="v1/Mystery"))
    assert graph(child).decide(child, {KIND}) is None


def test_goes_before_an_owner_that_is_deleted_in_the_foreground() -> None:
    leaving = thing("a", deleting=True, finalizers=(FOREGROUND,))
    child = thing("child", owner("a"))
    assert graph(leaving, child).decide(child, {KIND}) == Delete()


def test_foreground_owner_waits_for_its_dependents() -> None:
    leaving = thing("a", deleting=True, finalizers=(FOREGROUND, "other"))
    assert graph(leaving, thing("child", owner("a"))).decide(leaving, {KIND}) is None
    assert graph(leaving, thing("child")).decide(leaving, {KIND}) == Unlock(FOREGROUND)


def test_orphaning_owner_disowns_and_only_then_goes() -> None:
    leaving = thing("a", deleting=True, finalizers=(ORPHAN,))
    child = thing("child", owner("a"))
    assert graph(leaving, child).decide(leaving, {KIND}) == Disown((child,))
    assert graph(leaving, thing("child")).decide(leaving, {KIND}) == Unlock(ORPHAN)


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
