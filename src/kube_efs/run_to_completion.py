"""Work that must end before its caller continues, also if the caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def run_to_completion(work: Coroutine[Any, Any, _T]) -> _T:
    """Complete the work even if the call is cancelled, also several times; then cancel the call.

    A thread continues when its call is cancelled. It must not change a target that the next call works on,
    or replace a file that a later call has written. A call is cancelled a second time when its caller gives
    up after a timeout of its own.
    """
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        task.exception()  # otherwise asyncio logs that it was never retrieved
        raise cancelled
    return task.result()
