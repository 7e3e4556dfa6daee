"""Watches: the changes of a selection as events, from a resource version on.

The semantics are those of k8s.io/apiserver's watch cache: without a version, or with 0, a watch begins with
an ADDED event for each object there is; a version that is no longer remembered is answered with an ERROR
event that carries a 410. There are no bookmarks: servers may leave them out.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tinykube.api.lists import Selection
from tinykube.api.requests import Parameters
from tinykube.objects.statuses import expired, invalid_option
from tinykube.objects.storage import Change, HistoryGone, Store, Stored


class EventType(StrEnum):
    """What a watch event reports."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    ERROR = "ERROR"


class WatchEvent(NamedTuple):
    """One event, with the object as it is shown."""

    type: EventType
    stored: Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchQuery:
    """A watch: of what, from when, and for how long."""

    selection: Selection
    revision: int | None = None
    timeout_seconds: int | None = None


def parse_watch_query(selection: Selection, parameters: Parameters) -> WatchQuery:
    """The watch that a request asks for; raises 400 or 422."""
    # As from a server before these options: client-go then lists first.
    for option in ("sendInitialEvents", "resourceVersionMatch"):
        if option in parameters:
            raise invalid_option(option, "is not supported for a watch")
    return WatchQuery(
        selection=selection,
        revision=parameters.resource_version(),
        timeout_seconds=parameters.number("timeoutSeconds"),
    )


async def watch_events(
    store: Store, query: WatchQuery, timeout_seconds: float
) -> AsyncIterator[list[WatchEvent]]:
    """Batches of events, until the time is over or the store is closed.

    Raises ApiError: 410 as soon as the history needed is gone, also in the middle of a watch that is read
    too slowly.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_seconds
    revision = query.revision or 0
    if not revision:
        revision = store.revision
        yield _initial_events(store, query.selection)
    while not store.closed:
        changes = _changes(store, query.selection, revision)
        if changes:
            revision = changes[-1].revision
            if events := [event for change in changes if (event := _event(change, query.selection))]:
                yield events
                continue
        if not await _moved(store, query.selection, end):
            return


def _initial_events(store: Store, selection: Selection) -> list[WatchEvent]:
    return [
        WatchEvent(EventType.ADDED, stored)
        for stored in store.snapshot(selection.resource.group_resource, selection.namespace)
        if selection.includes(stored.json)
    ]


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
        return WatchEvent(EventType.MODIFIED if was_in else EventType.ADDED, change.new)
    if was_in and change.old is not None:
        last = change.new if change.deleted else change.old.at(change.revision)
        return WatchEvent(EventType.DELETED, last)
    return None


async def _moved(store: Store, selection: Selection, until: float) -> bool:
    """Wait for a change; false when there was none until that time of the loop."""
    try:
        async with asyncio.timeout_at(until):
            await store.wait(selection.resource.group_resource)
    except TimeoutError:
        return False
    return True
