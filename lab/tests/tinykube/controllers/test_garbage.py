from typing import Any

from tinykube.controllers.garbage import FOREGROUND, Graph, Owned, Owner
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


def test_an_owner_ends_when_it_is_gone_or_waits_for_its_dependents() -> None:
    found = graph(
        thing("lives"),
        thing("leaves", deleting=True),
        thing("waits", deleting=True, finalizers=(FOREGROUND,)),
    )
    ending = {uid: found.ends(owner(uid)) for uid in ("lives", "leaves", "waits", "gone")}
    assert ending == {"lives": False, "leaves": False, "waits": True, "gone": True}


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
    assert served <= emptied
