"""Sessions of AWS's client library, without any text of an answer in its logs."""

import logging
from typing import Final

from aiobotocore.session import AioSession, get_session

# The loggers that log exceptions. The filter of a logger does not apply to its children.
_LOGGERS: Final = tuple(
    f"{library}.{module}"
    for library in ("aiobotocore", "botocore")
    for module in ("credentials", "session", "tokens", "utils")
)


class _NamesOnly(logging.Filter):
    """Replaces an exception with its class name: its text may contain parts of an answer or of an output."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{record.getMessage()} ({type(error).__name__})", ()
            record.exc_info = record.exc_text = None
        return True


# One for all sessions, because a logger ignores a filter that it has already.
_NAMES_ONLY: Final = _NamesOnly()


def new_session() -> AioSession:
    """A session without loaded state."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_NAMES_ONLY)
    return get_session()
