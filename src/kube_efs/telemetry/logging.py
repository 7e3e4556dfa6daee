"""Logs: one chain for structlog and the standard library, colored for terminals or JSON for machines.

Modules log with ``log = structlog.get_logger()``; the name of the module becomes the field ``logger``.
Libraries that use ``logging`` go through the same chain, so that their lines look the same. At its end,
secrets are removed and values are shortened, so that a line has at most 40 000 characters for any input.
"""

import json
import logging
import os
import sys
from contextlib import suppress
from types import MappingProxyType
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from kube_efs.model.errors import InvalidSetting
from kube_efs.model.secrets import hide_always, is_secret_name
from kube_efs.telemetry.secrets import without_secrets
from kube_efs.telemetry.tracebacks import rendered

_LEVELS: Final = MappingProxyType(
    {
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARNING": logging.WARNING,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "CRITICAL": logging.CRITICAL,
    }
)
# They log every request at INFO, and whole bodies at DEBUG.
_NOISY_LIBRARIES: Final = (
    "aiobotocore",
    "aiohttp.access",
    "asyncio",
    "botocore",
    "h2",
    "hpack",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "urllib3",
)
_HANDLER_NAME: Final = "kube-efs"
_FIRST_KEYS: Final[tuple[str, ...]] = ("timestamp", "level", "logger", "event")
# Shorter values of variables are ordinary words, which would be removed everywhere.
_LEAST_SECRET: Final = 6


def configure(level: str, *, stream: TextIO | None = None) -> None:
    """Send all logs from ``level`` up to ``stream`` (standard error), replacing an earlier configuration.

    A terminal gets aligned text, colored unless NO_COLOR is set; any other stream one JSON object a line.
    Raises InvalidSetting for an unknown level; case does not matter.
    """
    threshold = parse_level(level)
    target = sys.stderr if stream is None else stream
    hide_always(
        value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= _LEAST_SECRET
    )
    structlog.configure(
        processors=[*_shared_chain(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    _replace_root_handler(_handler(target), threshold)
    for name in _NOISY_LIBRARIES:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def parse_level(text: str) -> int:
    """The number of a level's name, as ``logging`` counts them; raises InvalidSetting."""
    try:
        return _LEVELS[text.strip().upper()]
    except KeyError:
        raise InvalidSetting(
            "is not a logging level",
            field="LOGGING_LEVEL",
            value=text,
            remedy=f"use one of {', '.join(_LEVELS)}",
        ) from None


def _shared_chain() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _handler(stream: TextIO) -> logging.Handler:
    handler = _Handler(stream)
    handler.set_name(_HANDLER_NAME)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_shared_chain(),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _render_exception,
                _remove_secrets,
                _renderer(stream),
            ],
        )
    )
    return handler


def _renderer(stream: TextIO) -> Processor:
    if not stream.isatty():
        return structlog.processors.JSONRenderer(ensure_ascii=False)
    return structlog.dev.ConsoleRenderer(
        colors="NO_COLOR" not in os.environ,
        # The other formatters show local variables, which may contain secrets.
        exception_formatter=structlog.dev.plain_traceback,
    )


def _replace_root_handler(handler: logging.Handler, threshold: int) -> None:
    root = logging.getLogger()
    for other in [other for other in root.handlers if other.get_name() == _HANDLER_NAME]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(threshold)


class _Handler(logging.StreamHandler[TextIO]):
    """Reports a lost line without its arguments, which ``logging`` would print."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        error = sys.exc_info()[0]
        line = {
            "level": "error",
            "logger": record.name,
            "event": "line-lost",
            "place": f"{record.pathname}:{record.lineno}",
            "reason": error.__name__ if error else "",
        }
        with suppress(OSError, ValueError):  # a stream that is closed
            self.stream.write(json.dumps(line) + "\n")


def _render_exception(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Replaces ``exc_info``, in the forms of ``logging``, with the text ``exception``."""
    given = event_dict.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else given[1] if isinstance(given, tuple) else None
    if given and error is None:
        error = sys.exception()
    if error is not None:
        event_dict["exception"] = rendered(error)
    return event_dict


def _remove_secrets(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    exception = event_dict.pop("exception", None)
    first = {key: event_dict.pop(key) for key in _FIRST_KEYS if key in event_dict}
    clean = without_secrets({**first, **event_dict})
    # It contains no secrets, and may be longer than other fields.
    return clean if exception is None else {**clean, "exception": exception}
