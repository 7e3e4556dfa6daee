"""Watches: the changes of a selection as events, from a resource version on.

The semantics are those of k8s.io/apiserver's watch cache: without a version, or with 0, a watch begins with
an ADDED event for each object there is; a version that is no longer remembered is answered with an ERROR
event that carries a 410.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tinykube.api.lists import Selection
from tinykube.api.requests import Parameters
from tinykube.objects.statuses import expired, invalid_option, version_too_large
from tinykube.objects.storage import Change, HistoryGone, Store, Stored

_MATCH = "resourceVersionMatch"
_BOOKMARK_SECONDS = 60.0
_BOOKMARK_BEFORE_END_SECONDS = 2.0


class EventType(StrEnum):
    """What a watch event tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchEvent(NamedTuple):
    """One event; bookmarks have a revision only, and the one that ends the initial events says so."""

    type: EventType
    revision: int
    stored: Stored | None = None
    initial_events_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuery:
    """A watch: of what, from when, and what is sent besides changes."""

    selection: Selection
    revision: int | None = None
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout_seconds: int | None = None


def parse_watch_query(selection: Selection, parameters: Parameters) -> WatchQuery:
    """The watch that a request asks for; raises 400 or 422."""
    initial_events = parameters.flag("sendInitialEvents") if "sendInitialEvents" in parameters else None
    match = parameters.text(_MATCH)
    if initial_events is None and match:
        raise invalid_option(_MATCH, "needs sendInitialEvents")
    if initial_events is not None and match != "NotOlderThan":
        raise invalid_option(_MATCH, "must be NotOlderThan with sendInitialEvents")
    return WatchQuery(
        selection=selection,
        revision=parameters.resource_version(),
        bookmarks=parameters.flag("allowWatchBookmarks"),
        initial_events=initial_events,
        timeout_seconds=parameters.number("timeoutSeconds"),
    )


async def watch_events(
    store: Store, query: WatchQuery, timeout_seconds: float
) -> AsyncIterator[list[WatchEvent]]:
    """Batches of events, until the time is over or the store is closed.

    Raises ApiError: 410 as soon as the history needed is gone, also in the middle of a watch that is read
    too slowly; 504 when a start with initial events lies in the future.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_seconds
    revision = query.revision or 0
    if _starts_with_objects(query):
        if revision > store.revision:
            raise version_too_large(revision, store.revision)
        revision = store.revision
        yield _initial_events(store, query)
    next_bookmark = _next_bookmark(loop.time(), end)
    while not store.closed:
        changes = _changes(store, query.selection, revision)
        if changes:
            revision = changes[-1].revision
            if events := [event for change in changes if (event := _event(change, query.selection))]:
                yield events
                continue
        if await _moved(store, query.selection, min(next_bookmark, end)):
            continue
        if loop.time() >= end:
            return
        if _changes(store, query.selection, revision):
            continue  # A write may come after the time-out and before this resumes: no bookmark may pass it.
        revision = max(revision, store.revision)
        if query.bookmarks:
            yield [WatchEvent(EventType.BOOKMARK, revision)]
        next_bookmark = _next_bookmark(loop.time(), end)


def _starts_with_objects(query: WatchQuery) -> bool:
    return query.initial_events or (query.initial_events is None and not query.revision)


def _initial_events(store: Store, query: WatchQuery) -> list[WatchEvent]:
    selection = query.selection
    events = [
        WatchEvent(EventType.ADDED, stored.revision, stored)
        for stored in store.snapshot(selection.resource.group_resource, selection.namespace)
        if selection.includes(stored.json)
    ]
    if query.initial_events and query.bookmarks:
        events.append(WatchEvent(EventType.BOOKMARK, store.revision, initial_events_end=True))
    return events


def _changes(store: Store, selection: Selection, revision: int) -> list[Change]:
    try:
        return store.changes_after(selection.resource.group_resource, revision)
    except HistoryGone as error:
        raise expired(f"too old resource version: {revision}, the oldest is {error.oldest}") from error


def _event(change: Change, selection: Selection) -> WatchEvent | None:
    """What a change means for a selection: an object that leaves it is as good as deleted."""
    was_in = change.old is not None and selection.includes(change.old.json)
    is_in = not change.deleted and selection.includes(change.new.json)
    if is_in:
        return WatchEvent(EventType.MODIFIED if was_in else EventType.ADDED, change.revision, change.new)
    if was_in and change.old is not None:
        last = change.new if change.deleted else change.old.at(change.revision)
        return WatchEvent(EventType.DELETED, change.revision, last)
    return None


async def _moved(store: Store, selection: Selection, until: float) -> bool:
    """Wait for a change; false when there was none until that time of the loop."""
    try:
        async with asyncio.timeout_at(until):
            await store.wait(selection.resource.group_resource)
    except TimeoutError:
        return False
    return True


def _next_bookmark(now: float, end: float) -> float:
    """A minute from now, or shortly before the end so that the next watch starts late (cacher.go)."""
    before_end = end - _BOOKMARK_BEFORE_END_SECONDS
    return min(now + _BOOKMARK_SECONDS, before_end if before_end > now else end)
