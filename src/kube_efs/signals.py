"""How a process is told to stop."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_until_told_to_stop(work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it ends, or until SIGTERM or SIGINT cancels it; that is no error."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, told.set)
    working, waiting = asyncio.create_task(work), asyncio.create_task(told.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if not working.cancelled():
        working.result()
