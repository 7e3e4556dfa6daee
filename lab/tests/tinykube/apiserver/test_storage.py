import asyncio

import pytest

from tinykube.objects.resources import GroupResource
from tinykube.objects.storage import HistoryGone, Store
from tinykube.objects.values import Json

THINGS = GroupResource("example.com", "things")
OTHERS = GroupResource("example.com", "others")


def thing(name: str, namespace: str = "default", **fields: object) -> Json:
    return {"kind": "Thing", "metadata": {"name": name, "namespace": namespace}, **fields}


def test_every_write_has_a_revision_of_its_own() -> None:
    store = Store()
    first = store.put(THINGS, thing("a"))
    second = store.put(OTHERS, thing("b"))
    assert first.revision < second.revision == store.revision
    assert first.json["metadata"]["resourceVersion"] == str(first.revision)


def test_the_object_that_was_given_is_left_alone() -> None:
    given = thing("a")
    Store().put(THINGS, given)
    assert given == thing("a")


def test_snapshots_are_ordered_by_namespace_and_name() -> None:
    store = Store()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        store.put(THINGS, thing(name, namespace))
    assert [tuple(stored.key) for stored in store.snapshot(THINGS)] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert [stored.key.name for stored in store.snapshot(THINGS, "a")] == ["y", "z"]


def test_a_removal_carries_the_last_state_at_its_own_revision() -> None:
    store = Store()
    put = store.put(THINGS, thing("a", size=3))
    removed = store.remove(THINGS, put.key)
    (change,) = store.changes_after(THINGS, put.revision)
    assert change.deleted
    assert change.new is removed
    assert removed.json["size"] == 3
    assert removed.json["metadata"]["resourceVersion"] == str(store.revision)


def test_changes_of_other_resources_are_not_mixed_in() -> None:
    store = Store()
    store.put(THINGS, thing("a"))
    store.put(OTHERS, thing("b"))
    assert [change.new.key.name for change in store.changes_after(THINGS, 0)] == ["a"]


def test_forgotten_history_is_refused_with_the_oldest_revision_that_would_do() -> None:
    store = Store(history_changes=2)
    revisions = [store.put(THINGS, thing("a", size=size)).revision for size in range(6)]
    with pytest.raises(HistoryGone) as gone:
        store.changes_after(THINGS, revisions[0])
    assert len(store.changes_after(THINGS, gone.value.oldest)) <= 4


def test_compaction_forgets_also_for_resources_that_nobody_has_used_yet() -> None:
    store = Store()
    before = store.put(THINGS, thing("a")).revision
    store.put(THINGS, thing("b"))
    store.compact()
    for resource in (THINGS, OTHERS):
        with pytest.raises(HistoryGone):
            store.changes_after(resource, before)
    assert store.changes_after(THINGS, store.revision) == []


async def test_waiters_wake_for_their_resource_only() -> None:
    store = Store()
    waiting = asyncio.create_task(store.wait(THINGS))
    await asyncio.sleep(0)
    store.put(OTHERS, thing("a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    store.put(THINGS, thing("a"))
    async with asyncio.timeout(5):
        await waiting


async def test_closing_wakes_all_waiters() -> None:
    store = Store()
    waiting = asyncio.create_task(store.wait(THINGS))
    await asyncio.sleep(0)
    store.close()
    async with asyncio.timeout(5):
        await waiting
        await store.wait(OTHERS)


def test_listeners_hear_of_every_write_and_may_write() -> None:
    store, heard = Store(), []

    def listen(resource: GroupResource, _change: object) -> None:
        heard.append(resource)
        if resource == THINGS:
            store.put(OTHERS, thing("follow-up"))

    store.subscribe(listen)
    store.put(THINGS, thing("a"))
    assert heard == [THINGS, OTHERS]
