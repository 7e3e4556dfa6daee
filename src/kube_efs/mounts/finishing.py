"""Work that a cancelled call does not leave half done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Do all of it, however often the call is cancelled meanwhile; then the call is cancelled.

    A thread goes on when its call is cancelled, and must not change a target that the next call works on. A
    call that undoes what it did because its time was over is cancelled again when its caller gives up.
    """
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        task.exception()  # it would be logged as never retrieved
        raise cancelled
    return task.result()
