"""Connections to the collector of traces. Only ``traces`` imports this, and only if there is a collector."""

import ssl
from typing import Any

from requests import Session
from requests.adapters import HTTPAdapter


def collector_session() -> Session:
    """A session for HTTPS that does not require the extensions of certificates that Python 3.13 requires.

    Chain, name and validity are verified, as the exporter specifies it.
    """
    session = Session()
    session.mount("https://", _Adapter())
    return session


class _Adapter(HTTPAdapter):
    """The library's own contexts would be strict. The authorities are added to these ones later."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - the library's
        super().init_poolmanager(*arguments, **options, ssl_context=_context())

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:  # noqa: ANN401 - the library's
        return super().proxy_manager_for(proxy, **options, ssl_context=_context())


def _context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
