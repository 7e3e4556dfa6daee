"""Sessions of AWS's client library: they share their memory, log no text of an answer, and say who calls."""

import logging
from importlib.metadata import version
from typing import Final
from weakref import WeakValueDictionary

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from botocore.loaders import Loader, create_loader

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
# By the path of additional descriptions. A loader keeps each description of a service that it has read, which
# needs 8 MB for EFS alone. It is released with its last session.
_LOADERS: Final = WeakValueDictionary[str | None, Loader]()
# CloudTrail shows it. Without it, the library composes one for each request: 4 % of the cost of a claim.
_USER_AGENT: Final = f"kube-efs/{version('kube-efs')}"


def new_session() -> AioSession:
    """A session without loaded state, except the descriptions of services that other sessions use."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_NAMES_ONLY)
    session = get_session()

    def loader() -> Loader:
        path = session.get_config_variable("data_path")
        return _LOADERS.setdefault(path, create_loader(path))

    # Its configuration is read only when it is needed, because callers change that first.
    session.lazy_register_component("data_loader", loader)
    session.set_default_client_config(AioConfig(user_agent=_USER_AGENT))
    return session
