"""What OpenShift's TLS profile of a cluster means for what kube-efs serves. No I/O."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_NEWEST: Final = "1.3"
_OLDEST: Final = "1.2"
_NEWEST_ONLY: Final = "VersionTLS13"
# OpenSSL's names of what TLS 1.2 has; those of 1.3 begin with TLS_, and cannot be chosen.
_CIPHER: Final = re.compile(r"(?!TLS_)[A-Z0-9]+(-[A-Z0-9]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsProfile:
    """The oldest version that is spoken, ``1.2`` or ``1.3``, and the ciphers of 1.2; none: the usual ones."""

    version: str = _OLDEST
    ciphers: tuple[str, ...] = ()


def read_tls_profile(api_server: Mapping[str, Any] | None) -> TlsProfile:
    """The terms of the cluster's APIServer; the usual ones without a profile, and for older ones."""
    profile = ((api_server or {}).get("spec") or {}).get("tlsSecurityProfile") or {}
    match profile.get("type"):
        case "Modern":
            return TlsProfile(version=_NEWEST)
        case "Custom":
            custom = profile.get("custom") or {}
            newest = custom.get("minTLSVersion") == _NEWEST_ONLY
            return TlsProfile(
                version=_NEWEST if newest else _OLDEST, ciphers=_chosen(custom.get("ciphers") or ())
            )
    return TlsProfile()


def _chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Rejects text that a reader of cipher lists could take for more than names."""
    return tuple(dict.fromkeys(name for name in names if _CIPHER.fullmatch(name)))
