"""Waits for conditions."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

_PAUSE_SECONDS = 0.05


async def until(
    condition: Callable[[], object | Awaitable[object]], what: str, *, seconds: float = 60
) -> None:
    """Wait until the condition is true; raises AssertionError with the description after the timeout."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
