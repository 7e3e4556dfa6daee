"""The server's own certificate authority and certificate, made anew at every start."""

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tiny_ca.authority import Authority


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """A certificate with its key, and the authority that clients check it by, as PEM."""

    ca_pem: bytes
    secret_pem: bytes = field(repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """The context to serve with."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # The ssl module loads keys from files only; this one is gone before the first connection.
        with tempfile.TemporaryDirectory(prefix="kube-efs-apiserver-") as folder:
            chain = Path(folder) / "server.pem"
            chain.touch(mode=0o600)
            chain.write_bytes(self.secret_pem)
            context.load_cert_chain(chain)
        return context


def make_identity(host: str) -> ServerIdentity:
    """A new authority and a certificate for this address, ``localhost`` and the service's names."""
    authority = Authority.create("kube-efs embedded cluster")
    certificate = authority.issue(("localhost", host, "kubernetes.default.svc"))
    return ServerIdentity(ca_pem=authority.pem.encode(), secret_pem=certificate.secret_pem())
