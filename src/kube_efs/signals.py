"""Stops a process on a signal."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from kube_efs.model.errors import KubeEfsError
from kube_efs.telemetry.uncaught import log_uncaught_of_loop

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run the work until it ends, or until SIGTERM or SIGINT cancels it, which is not an error.

    A KubeEfsError is raised without the exception groups around it.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(log_uncaught_of_loop)
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    working, waiting = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if not working.cancelled():
        try:
            working.result()
        except BaseExceptionGroup as group:
            raise _only_fault(group) from group


def _only_fault(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error with a message for users, if the group holds nothing else; otherwise the group."""
    faults, others = group.split(KubeEfsError)
    if faults is None or others is not None:
        return group
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault
