"""Logs of the embedded parts go to a file, so that they do not mix with what is shown to a person."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kube_efs.telemetry.logging import configure


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Meanwhile this process logs into that file, afterwards warnings to standard error."""
    with file.open("w", encoding="utf-8") as log:
        configure("INFO", stream=log)
        try:
            yield
        finally:
            configure("WARNING")
