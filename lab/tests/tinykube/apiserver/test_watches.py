import asyncio
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
        return event.type.value, event.stored.key.name


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


async def test_a_quiet_watch_ends_in_time_without_events(inside: Inside) -> None:
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
