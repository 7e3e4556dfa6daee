"""Uncaught exceptions go through the log, which removes secrets: Python prints no traceback.

They occur in one of four places: the main thread, another thread, a destructor or a callback of C code, and
asyncio's event loop, which gets those of callbacks and of tasks that are not awaited.
"""

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these take longer to load than a worker runs
    import asyncio

_LOGGER = "kube_efs.uncaught"


def catch_uncaught() -> None:
    """Log every exception that ends the main thread, another thread or a destructor of this process."""
    sys.excepthook = lambda _kind, error, _trace: log_uncaught(error)
    threading.excepthook = _of_thread
    sys.unraisablehook = _of_destructor


def log_uncaught(error: BaseException, *, place: str = "the main thread") -> None:
    """Log an uncaught exception, also when logs have not been set up yet."""
    if isinstance(error, KeyboardInterrupt):
        return
    _log(f"uncaught exception in {place}", error)


def log_uncaught_of_loop(_loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
    """An exception handler of asyncio, for callbacks and for tasks that are not awaited."""
    # The other values of the context are futures and transports, whose texts repeat the exception's.
    error = context.get("exception")
    task = context.get("task") or context.get("future")
    name = f" ({task.get_name()})" if task and hasattr(task, "get_name") else ""
    _log(f"event loop: {context.get('message', 'an error')}{name}", error)


def _of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not isinstance(found.exc_value, SystemExit):
        log_uncaught(found.exc_value, place=f"thread {found.thread.name if found.thread else 'unknown'}")


def _of_destructor(found: "sys.UnraisableHookArgs") -> None:
    if found.exc_value is not None:
        place = getattr(found.object, "__qualname__", type(found.object).__name__)
        log_uncaught(found.exc_value, place=place)


def _log(event: str, error: BaseException | None) -> None:
    try:
        import logging  # noqa: PLC0415

        if not logging.getLogger().handlers:  # the process failed before it read its settings
            from kube_efs.telemetry.logging import configure  # noqa: PLC0415

            configure("INFO")
        logging.getLogger(_LOGGER).error(event, exc_info=error)
    except Exception as failure:  # noqa: BLE001 - nothing else can report it
        kinds = type(error).__name__, type(failure).__name__
        sys.stderr.write("{}: {}; it cannot be logged: {}\n".format(event.partition(":")[0], *kinds))
