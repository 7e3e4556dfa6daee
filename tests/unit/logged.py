"""The log lines of the real processors; the previous configuration is restored at the end."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from kube_efs.telemetry.logging import configure


@contextmanager
def logged(level: str = "DEBUG") -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, former = list(root.handlers), root.level
    stream = io.StringIO()
    configure(level, stream=stream)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(former)
        structlog.reset_defaults()
