"""TLS handshakes with mount targets, verified as stunnel verifies them."""

import asyncio
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Final

from kube_efs.doctor.node_facts import CaFile, ConfiguredTunnel, Handshake, HandshakeOutcome
from kube_efs.tunnels.mount_targets import NFS_PORT

# OpenSSL's X509_V_ERR_*.
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME = 9, 10, 62
_BY_CODE: Final = {
    _NOT_YET_VALID: HandshakeOutcome.EXPIRED,
    _EXPIRED: HandshakeOutcome.EXPIRED,
    _OTHER_NAME: HandshakeOutcome.WRONG_NAME,
}


def check_ca_files(paths: Collection[Path]) -> tuple[CaFile, ...]:
    """Each file, with what is wrong with it. Reads them at once: call it in a thread."""
    return tuple(CaFile(path=path, problem=_problem(path)) for path in sorted(paths))


def _problem(path: Path) -> str:
    try:
        _context(path)
    except (OSError, ssl.SSLError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _context(ca_file: Path) -> ssl.SSLContext:
    # Since Python 3.13, the default context requires extensions that stunnel does not require.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


async def shake_hands(
    address: str, tunnel: ConfiguredTunnel, *, timeout_seconds: float, port: int = NFS_PORT
) -> Handshake:
    """A handshake with that mount target; never raises for what the network or the server does.

    The file of authorities must have been found good.
    """
    context = await asyncio.to_thread(_context, tunnel.ca_file)
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(address, port)
    except OSError as error:  # TimeoutError is one
        reason = error.strerror or f"no connection within {timeout_seconds:g} s"
        return Handshake(address=address, outcome=HandshakeOutcome.NOT_CONNECTED, reason=reason)
    try:
        async with asyncio.timeout(timeout_seconds):
            await writer.start_tls(context, server_hostname=tunnel.check_host)
    except ssl.SSLCertVerificationError as error:
        outcome = _BY_CODE.get(error.verify_code, HandshakeOutcome.NOT_TRUSTED)
        names: tuple[str, ...] = ()
        if outcome is HandshakeOutcome.WRONG_NAME:
            names = await _names(address, tunnel, timeout_seconds=timeout_seconds, port=port)
        return Handshake(address=address, outcome=outcome, reason=error.verify_message, names=names)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error) or f"no handshake within {timeout_seconds:g} s"
        return Handshake(address=address, outcome=HandshakeOutcome.FAILED, reason=reason)
    finally:
        writer.transport.abort()
    return Handshake(address=address, outcome=HandshakeOutcome.DONE)


async def _names(
    address: str, tunnel: ConfiguredTunnel, *, timeout_seconds: float, port: int
) -> tuple[str, ...]:
    """The names in a trusted certificate with a wrong name; none if it cannot be fetched again."""
    context = await asyncio.to_thread(_context, tunnel.ca_file)
    context.check_hostname = False
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(address, port, ssl=context)
    except OSError:
        return ()
    try:
        certificate = writer.get_extra_info("peercert") or {}
        return tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    finally:
        writer.transport.abort()
