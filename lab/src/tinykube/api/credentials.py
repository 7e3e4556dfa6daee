"""The certificate and the kubeconfig by which clients reach a server."""

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tiny_ca.authority import Authority

# The cluster, user and context in a kubeconfig, as the pages show them.
_NAME = "kube-efs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """A certificate with its key, and the authority that clients check it by, as PEM.

    ``client_pem`` is a certificate of the same authority for the server as a client of kubelets.
    """

    ca_pem: bytes
    secret_pem: bytes = field(repr=False)
    client_pem: bytes = field(repr=False)

    def ssl_context(self) -> ssl.SSLContext:
        """The context to serve with."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # The ssl module loads keys from files only; this one is gone before the first connection.
        with tempfile.TemporaryDirectory(prefix="tinykube-") as folder:
            chain = Path(folder) / "server.pem"
            chain.touch(mode=0o600)
            chain.write_bytes(self.secret_pem)
            context.load_cert_chain(chain)
        return context


def make_identity(host: str) -> ServerIdentity:
    """A new authority and a certificate for this address, ``localhost`` and the service's names."""
    authority = Authority.create("tinykube")
    certificate = authority.issue(("localhost", host, "kubernetes.default.svc"))
    client = authority.issue(("kube-apiserver-kubelet-client",), of_client=True)
    return ServerIdentity(
        ca_pem=authority.pem.encode(), secret_pem=certificate.secret_pem(), client_pem=client.secret_pem()
    )


def render_kubeconfig(*, url: str, ca_pem: bytes, token: str) -> str:
    """The text of a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca_pem).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
        "current-context": _NAME,
    }
    return yaml.safe_dump(document, sort_keys=False)


def write_kubeconfig(path: Path, text: str) -> None:
    """Write the file; nobody else can read it at any moment, and readers see it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
