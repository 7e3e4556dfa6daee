import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lab.tests.tinykube.apiserver.inside import Inside, refused

from tinykube.api.lists import Selection, parse_selection
from tinykube.api.requests import Parameters
from tinykube.api.watches import WatchEvent, WatchQuery, watch_events
from tinykube.objects.values import Json


def config_map(name: str, colour: str = "red") -> Json:
    return {"metadata": {"name": name, "labels": {"colour": colour}}}


def selection(inside: Inside, **query: str) -> Selection:
    return parse_selection(inside.type_of("configmaps"), "default", "", Parameters(query))


class Reader:
    """Reads the events of a watch one by one."""

    def __init__(self, batches: AsyncIterator[list[WatchEvent]]) -> None:
        self._batches = batches
        self._ready: list[WatchEvent] = []

    async def next(self) -> WatchEvent:
        async with asyncio.timeout(5):
            while not self._ready:
                self._ready = list(await anext(self._batches))
        return self._ready.pop(0)

    async def seen(self) -> tuple[str, str]:
        event = await self.next()
        return event.type.value, event.stored.key.name if event.stored else ""


@asynccontextmanager
async def watching(inside: Inside, query: WatchQuery, seconds: float = 5) -> AsyncIterator[Reader]:
    batches = watch_events(inside.store, query, seconds)
    try:
        yield Reader(batches)
    finally:
        await batches.aclose()  # type: ignore[attr-defined]


async def test_without_a_version_a_watch_begins_with_what_is_there(inside: Inside) -> None:
    inside.create("configmaps", config_map("a"))
    async with watching(inside, WatchQuery(selection=selection(inside))) as reader:
        assert await reader.seen() == ("ADDED", "a")
        inside.update("configmaps", config_map("a", "blue"))
        assert await reader.seen() == ("MODIFIED", "a")
        inside.delete("configmaps", "a")
        assert await reader.seen() == ("DELETED", "a")


async def test_from_a_version_a_watch_tells_what_came_later(inside: Inside) -> None:
    inside.create("configmaps", config_map("a"))
    query = WatchQuery(selection=selection(inside), revision=inside.store.revision)
    inside.create("configmaps", config_map("b"))
    async with watching(inside, query) as reader:
        assert await reader.seen() == ("ADDED", "b")


async def test_an_object_that_leaves_the_selection_is_deleted_for_its_watcher(inside: Inside) -> None:
    inside.create("configmaps", config_map("a"))
    inside.create("configmaps", config_map("b", "blue"))
    query = WatchQuery(selection=selection(inside, labelSelector="colour=red"))
    async with watching(inside, query) as reader:
        assert await reader.seen() == ("ADDED", "a")
        inside.update("configmaps", config_map("a", "blue"))
        event = await reader.next()
        assert event.type == "DELETED"
        assert event.stored is not None
        assert event.stored.json["metadata"]["labels"] == {"colour": "red"}, "as the watcher knew it"
        assert event.stored.json["metadata"]["resourceVersion"] == str(inside.store.revision)
        inside.update("configmaps", config_map("b", "red"))
        assert await reader.seen() == ("ADDED", "b")


async def test_a_forgotten_version_is_too_old(inside: Inside) -> None:
    revision = inside.store.revision
    inside.create("configmaps", config_map("a"))
    inside.store.compact()
    query = WatchQuery(selection=selection(inside), revision=revision)
    async with watching(inside, query) as reader:
        with refused(410, f"too old resource version: {revision}"):
            await reader.next()


async def test_the_initial_events_end_with_a_bookmark(inside: Inside) -> None:
    inside.create("configmaps", config_map("a"))
    query = WatchQuery(selection=selection(inside), initial_events=True, bookmarks=True)
    async with watching(inside, query) as reader:
        assert await reader.seen() == ("ADDED", "a")
        end = await reader.next()
        assert (end.type, end.initial_events_end, end.revision) == ("BOOKMARK", True, inside.store.revision)


async def test_initial_events_of_the_future_are_refused(inside: Inside) -> None:
    query = WatchQuery(selection=selection(inside), initial_events=True, revision=10_000)
    async with watching(inside, query) as reader:
        with refused(504, "Too large resource version: 10000"):
            await reader.next()


async def test_a_quiet_watch_is_told_the_version_before_it_ends(inside: Inside) -> None:
    query = WatchQuery(selection=selection(inside), revision=inside.store.revision, bookmarks=True)
    inside.create("secrets", {"metadata": {"name": "elsewhere"}})
    async with watching(inside, query, seconds=2.1) as reader:
        bookmark = await reader.next()
        assert (bookmark.type, bookmark.revision) == ("BOOKMARK", inside.store.revision)


async def test_no_bookmark_passes_a_write_that_comes_as_it_is_due(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinykube.api.watches._BOOKMARK_SECONDS", 0.01)
    query = WatchQuery(selection=selection(inside), revision=inside.store.revision, bookmarks=True)
    async with watching(inside, query, 60) as reader:
        reading = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        # Both timers are due when the loop goes on: the watch's, then the write, before the watch resumes.
        asyncio.get_running_loop().call_later(0.02, inside.create, "configmaps", config_map("late"))
        time.sleep(0.05)  # noqa: ASYNC251 - the loop is to be late
        event = await reading
        while event.type == "BOOKMARK":
            event = await reader.next()
        assert event.stored
        assert event.stored.key.name == "late"


async def test_nobody_gets_bookmarks_without_asking(inside: Inside) -> None:
    query = WatchQuery(selection=selection(inside), revision=inside.store.revision)
    batches = [batch async for batch in watch_events(inside.store, query, 0.05)]
    assert batches == []


async def test_closing_the_store_ends_watches(inside: Inside) -> None:
    query = WatchQuery(selection=selection(inside), revision=inside.store.revision)

    async def drain() -> None:
        async for _ in watch_events(inside.store, query, 60):
            pytest.fail("nothing happened")

    reading = asyncio.create_task(drain())
    await asyncio.sleep(0)
    inside.store.close()
    async with asyncio.timeout(5):
        await reading


async def test_one_object_can_be_watched(inside: Inside) -> None:
    only = replace(selection(inside), name="b")
    async with watching(inside, WatchQuery(selection=only)) as reader:
        inside.create("configmaps", config_map("a"))
        inside.create("configmaps", config_map("b"))
        assert await reader.seen() == ("ADDED", "b")
