"""Metrics over TLS, with a certificate that others create and renew, such as OpenShift's service CA."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.health import metrics_page
from kube_efs.telemetry.serving import HttpServer

log = structlog.get_logger(__name__)

_CHECK_SECONDS: Final = 15.0

# Forward secrecy and authenticated encryption, as in Mozilla's and OpenShift's "intermediate".
_USUAL_CIPHERS: Final = "ECDHE+AESGCM,ECDHE+CHACHA20"
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# Times and sizes of the files, which change with a renewal. So the key is not read again without one.
_Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsTerms:
    """The oldest accepted version, ``1.2`` or ``1.3``, and the ciphers of 1.2 with OpenSSL's names."""

    version: str = "1.2"
    ciphers: str = ""


class SecureMetrics(HttpServer):
    """Serves /metrics over TLS while its context is open; use as ``async with``.

    ``folder`` contains ``tls.crt`` and ``tls.key``. Until they exist, connections fail. They are checked
    periodically, so that a renewed certificate is served without a restart. An invalid one is not served. The
    constructor raises InvalidSetting if no cipher is known.
    """

    def __init__(
        self,
        host: str,
        port: int,
        folder: Path,
        registry: CollectorRegistry,
        terms: TlsTerms | None = None,
        *,
        check_seconds: float = _CHECK_SECONDS,
    ) -> None:
        self._files = (folder / "tls.crt", folder / "tls.key")
        self._check_seconds = check_seconds
        self._context = _context(terms or TlsTerms())
        self._loaded: _Stamp | None = None
        app = web.Application()
        app.router.add_get("/metrics", metrics_page(registry))
        super().__init__(app, host, port, field="KUBE_EFS_METRICS_PORT", tls=self._context)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await super().__aexit__(kind, error, traceback)

    async def _follow(self) -> None:
        while True:
            await asyncio.to_thread(self._load)
            await asyncio.sleep(self._check_seconds)

    def _load(self) -> None:
        """Serve the current files of the directory; existing connections keep theirs."""
        certificate, key = self._files
        try:
            stamp = tuple((found.st_mtime_ns, found.st_size) for found in map(Path.stat, self._files))
            if stamp == self._loaded:
                return
            self._context.load_cert_chain(certificate, key)
        except FileNotFoundError:
            return
        except OSError as error:  # ssl.SSLError is one
            log.warning("metrics-certificate-not-loaded", certificate=str(certificate), reason=str(error))
        else:
            self._loaded = stamp
            log.info("metrics-certificate-loaded", certificate=str(certificate))


def _context(terms: TlsTerms) -> ssl.SSLContext:
    """The context without a certificate; raises InvalidSetting if no cipher is known."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[terms.version]
    try:
        context.set_ciphers((terms.ciphers or _USUAL_CIPHERS).replace(",", ":"))
    except ssl.SSLError as error:
        raise InvalidSetting(
            "has no known cipher",
            field="KUBE_EFS_METRICS_TLS_CIPHERS",
            value=terms.ciphers,
            remedy="use OpenSSL's names, such as ECDHE-RSA-AES128-GCM-SHA256",
        ) from error
    return context
