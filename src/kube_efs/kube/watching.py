"""Watches a set of objects without end.

A watch can end at any time: after the server's timeout, a restart, an expired resource version, or on a
half-open connection. ``follow`` lists, watches, and restarts automatically. Its reader keeps a cache: it
replaces everything on ``Listed`` and applies single changes in between.

The server is asked for bookmarks, events that contain only a version. Without them, the version of a reader
whose objects rarely change would expire while others of the kind change, and each watch would begin with a
new list. On a thousand nodes, this is a thousand lists in each round.

A list is read in pages, and each object is converted to the reader's value before the next page. So of ten
thousand objects, only those of two pages are in memory as API objects.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, overload

import httpx2
import msgspec
import structlog
from lightkube import ApiError, AsyncClient
from lightkube.core.decoders import decode_object, decode_status, decode_watch_event
from lightkube.core.resource import Resource
from lightkube.core.selector import build_selector

from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.model.errors import KubeError, KubeExpired

log = structlog.get_logger(__name__)

# The server ends a watch after this time; it varies, so that not all watches restart at the same moment.
_WATCH_SECONDS = (240, 300)
# A broken connection may show no error, so a watch ends if nothing arrives for its timeout and this long.
_GRACE_SECONDS = 30
_FIRST_BACK_OFF_SECONDS = 0.1
_LAST_BACK_OFF_SECONDS = 30.0
# After a watch of this duration, the server counts as available again.
_STABLE_SECONDS = 5.0

T = TypeVar("T", bound=Resource)
V = TypeVar("V")
# The type of an event, its object, None for a bookmark, and the version to continue from.
_Event: TypeAlias = tuple[str, Any, str]


@dataclass(frozen=True, slots=True)
class Listed(Generic[V]):
    """All existing objects; all others were deleted."""

    objects: tuple[V, ...]


@dataclass(frozen=True, slots=True)
class Applied(Generic[V]):
    """An object that is new or has changed."""

    object: V


@dataclass(frozen=True, slots=True)
class Deleted(Generic[V]):
    """A deleted object, in its last state."""

    object: V


Change = Listed[V] | Applied[V] | Deleted[V]


def only_object(change: Change[V]) -> V | None:
    """The object after the change, for a reader of a single object; None when it does not exist."""
    match change:
        case Listed(objects):
            return objects[0] if objects else None
        case Applied(found):
            return found
        case Deleted():
            return None


@overload
def follow(
    client: AsyncClient,
    resource: type[T],
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> AsyncGenerator[Change[T], None]: ...


@overload
def follow(
    client: AsyncClient,
    resource: type[T],
    *,
    read: Callable[[T], V],
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> AsyncGenerator[Change[V], None]: ...


async def follow(
    client: AsyncClient,
    resource: type[Resource],
    *,
    read: Callable[[Any], Any] | None = None,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> AsyncGenerator[Change[Any], None]:
    """All objects, then every change, until the reader stops; never raises KubeError.

    ``read`` converts each object. ``namespace`` is one namespace, ``"*"`` for all namespaces, None for kinds
    without namespaces. Failures are logged. After the end of a watch, the next one starts after 0.1 s; this
    delay doubles up to 30 s while watches fail.
    """
    scope: dict[str, Any] = {"labels": labels, "fields": fields}
    if namespace is not None:
        scope["namespace"] = namespace
    read = read or _as_it_is
    # Each watch continues after the last event of the one before, without a list and without a gap. None
    # requests a list: at the start, and when the server no longer has the changes since that version.
    version: str | None = None
    back_off = _FIRST_BACK_OFF_SECONDS
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        try:
            if version is None:
                listed, version = await _list(client, resource, scope, read)
                yield listed
                del listed  # The reader has the list now; release it.
            async with aclosing(_watch(client, resource, scope, version)) as stream:
                async for kind, found, seen in stream:
                    back_off, version = _FIRST_BACK_OFF_SECONDS, seen
                    # A bookmark has no object, only a newer version for the next watch.
                    if found is not None:
                        yield Deleted(read(found)) if kind == "DELETED" else Applied(read(found))
        except KubeError as error:
            # An expired version is usual. An expired list is not: it took minutes, and begins again.
            if version is None or not isinstance(error, KubeExpired):
                log.warning(
                    "watch-interrupted", resource=resource.__name__, reason=str(error), retry_seconds=back_off
                )
            if isinstance(error, KubeExpired):
                version = None
        if clock() - began > _STABLE_SECONDS:
            back_off = _FIRST_BACK_OFF_SECONDS
        # Also after an expired version: a server that rejects every version must not get continuous requests.
        await asyncio.sleep(back_off * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load, guards nothing
        back_off = min(back_off * 2, _LAST_BACK_OFF_SECONDS)


def _as_it_is(found: Any) -> Any:  # noqa: ANN401 - whatever it is
    return found


async def _list(
    client: AsyncClient, resource: type[Resource], scope: dict[str, Any], read: Callable[[Any], V]
) -> tuple[Listed[V], str]:
    with translated(f"list {resource.__name__}"):
        listing = _untyped(client).list(resource, chunk_size=PAGE_SIZE, **scope)
        objects = tuple([read(item) async for item in listing])
        return Listed(objects), str(listing.resourceVersion)


async def _watch(
    client: AsyncClient, resource: type[Resource], scope: dict[str, Any], version: str
) -> AsyncGenerator[_Event, None]:
    """The events since that version, until the server's timeout, or until nothing arrives for longer.

    AsyncClient.watch() cannot ask for bookmarks, and cannot read those of Pods and other kinds with required
    fields, because they are null.
    """
    library = _untyped(client)._client  # noqa: SLF001
    labels, fields = scope["labels"], scope["fields"]
    seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 - spreads load, guards nothing
    parameters = {
        "allowWatchBookmarks": "true",
        "timeoutSeconds": seconds,
        "resourceVersion": version,
        "labelSelector": build_selector(labels) if labels else None,
        "fieldSelector": build_selector(fields, for_fields=True) if fields else None,
    }
    wanted = library.prepare_request(
        "list", res=resource, namespace=scope.get("namespace"), watch=True, params=parameters
    )
    # The kernel notices a server that is gone, but not a proxy whose server is gone.
    timeout = {**library._watch_timeout.as_dict(), "read": seconds + _GRACE_SECONDS}  # noqa: SLF001
    build = library._client.build_request  # noqa: SLF001
    request = build(wanted.method, wanted.url, params=wanted.params, timeout=httpx2.Timeout(**timeout))
    with translated(f"watch {resource.__name__}"):
        response = await library.send(request, stream=True)
        try:
            response.raise_for_status()
            rest = b""
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield _read_event(line, wanted.response_type)
            if rest:  # It is cut off, which reading it reports.
                yield _read_event(rest, wanted.response_type)
        finally:
            await response.aclose()


def _read_event(line: bytes, kind: type[Resource]) -> _Event:
    event = decode_watch_event(line)
    if event.type == "ERROR":
        raise ApiError(status=decode_status(event.object))
    if event.type == "BOOKMARK":
        return event.type, None, str(msgspec.json.decode(event.object)["metadata"]["resourceVersion"])
    found: Any = decode_object(event.object, kind)
    return event.type, found, str(found.metadata.resourceVersion)


def _untyped(client: AsyncClient) -> Any:  # noqa: ANN401 - the client's overloads want the kind spelt out
    return client
