"""The kubeconfig that lets kubectl and every other client use the embedded cluster."""

import base64
import os
from pathlib import Path

import yaml

_NAME = "kube-efs"


def render_kubeconfig(*, url: str, ca_pem: bytes, token: str, namespace: str = "default") -> str:
    """The text of a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca_pem).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": namespace}}],
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
