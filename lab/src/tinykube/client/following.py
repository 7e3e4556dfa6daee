"""Following a set of objects for as long as it takes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from lightkube import AsyncClient
from lightkube.core.resource import Resource

from tinykube.client.calls import CALL_ERRORS

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 0.2
# What client-go's reflectors ask for.
_PAGE_SIZE = 500

T = TypeVar("T", bound=Resource)


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """Everything there is now; what is not in here is gone."""

    objects: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """An object that is new or has changed."""

    object: T


@dataclass(frozen=True, slots=True)
class Deleted(Generic[T]):
    """An object that is gone, in its last state."""

    object: T


async def follow(
    client: AsyncClient,
    kind: type[T],
    *,
    namespace: str | None = None,
    fields: Mapping[str, str] | None = None,
) -> AsyncGenerator[Listed[T] | Applied[T] | Deleted[T], None]:
    """What there is, then every change, until the reader stops; lists again when a watch fails.

    ``namespace`` is one namespace, ``"*"`` for all of them, None for kinds without namespaces.
    """
    untyped: Any = client  # its overloads want the kind spelt out
    scope: dict[str, Any] = {"fields": fields, **({"namespace": namespace} if namespace else {})}
    while True:
        try:
            listing = untyped.list(kind, chunk_size=_PAGE_SIZE, **scope)
            yield Listed(tuple([item async for item in listing]))
            stream = untyped.watch(kind, resource_version=listing.resourceVersion, **scope)
            async with aclosing(stream):
                async for event, found in stream:
                    yield Deleted(found) if event == "DELETED" else Applied(found)
        except CALL_ERRORS as error:
            log.warning("watch-interrupted", kind=kind.__name__, reason=str(error))
        await asyncio.sleep(_AGAIN_SECONDS)
