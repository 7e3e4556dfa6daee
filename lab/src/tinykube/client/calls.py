"""Calls of the Kubernetes API: what they raise, and which refusals are ordinary."""

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Final, TypeVar

import httpx2
import msgspec
from lightkube import ApiError

from tinykube.errors import TinykubeError

# HTTPError is the root of lightkube's ApiError too; the others come of answers that break off.
CALL_ERRORS: Final = (httpx2.HTTPError, httpx2.StreamError, msgspec.MsgspecError, OSError)
ERRORS: Final = (TinykubeError, *CALL_ERRORS)

T = TypeVar("T")


async def unless_missing(call: Awaitable[T]) -> T | None:
    """The answer to a call for an object; None when there is no such object."""
    return await _unless(HTTPStatus.NOT_FOUND, call)


async def unless_exists(creation: Awaitable[T]) -> T | None:
    """The new object; None when there was one of that name."""
    return await _unless(HTTPStatus.CONFLICT, creation)


async def _unless(status: HTTPStatus, call: Awaitable[T]) -> T | None:
    try:
        return await call
    except ApiError as error:
        if error.status.code != status:
            raise
        return None
