"""Sessions of AWS's client library, which logs no text of an answer."""

import logging
from typing import Final

from aiobotocore.session import AioSession, get_session

# Those that log the exceptions that they meet. A filter of a logger does not see what its children log.
_LOGGERS: Final = tuple(
    f"{library}.{module}"
    for library in ("aiobotocore", "botocore")
    for module in ("credentials", "session", "tokens", "utils")
)


class _NamesOnly(logging.Filter):
    """Leaves of an exception its class's name: the text may hold what an answer or a program said."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{record.getMessage()} ({type(error).__name__})", ()
            record.exc_info = record.exc_text = None
        return True


_NAMES_ONLY: Final = _NamesOnly()


def new_session() -> AioSession:
    """A session with nothing of its own yet."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_NAMES_ONLY)
    return get_session()
