"""Reads kubeconfig files as kubectl reads them.

The client's own reader takes a single file, and ignores fields. This is not harmless: without ``as``, a
command would have more permissions than the person wants, and without ``proxy-url`` or ``tls-server-name`` it
would ask another server, or none.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from lightkube import KubeConfig
from lightkube.config import models
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class Program(models.UserExec):
    """A program that prints the credentials of a user."""

    provide_cluster_info: bool = msgspec.field(name="provideClusterInfo", default=False)


class User(models.User):
    """A user, and whom it impersonates."""

    exec: Program | None = None
    impersonated_user: str | None = msgspec.field(name="as", default=None)
    impersonated_uid: str | None = msgspec.field(name="as-uid", default=None)
    impersonated_groups: tuple[str, ...] = msgspec.field(name="as-groups", default=())
    impersonated_extra: dict[str, tuple[str, ...]] = msgspec.field(name="as-user-extra", default_factory=dict)


class Cluster(models.Cluster):
    """A cluster, and how to reach it."""

    proxy_url: str | None = msgspec.field(name="proxy-url", default=None)
    tls_server_name: str | None = msgspec.field(name="tls-server-name", default=None)


def load_kubeconfig(paths: Sequence[Path]) -> SingleConfig:
    """The current context of these files; those that are missing are ignored unless all are.

    Raises ConfigError, and further errors for files with another structure.
    """
    found = [path for path in map(Path.expanduser, paths) if path.is_file()]
    if not found:
        raise ConfigError(f"Configuration file {', '.join(map(str, paths))} not found")
    return read_kubeconfig(
        # An empty file has no document.
        (yaml.safe_load(path.read_text(encoding="utf-8")) or {}, path.parent.absolute())
        for path in found
    )


def read_kubeconfig(documents: Iterable[tuple[Mapping[str, Any], Path]]) -> SingleConfig:
    """The current context of these documents, with the absolute directories of their files.

    Of entries with the same name, the first one counts, and the first current context. Raises as
    ``load_kubeconfig``.
    """
    current = ""
    clusters: dict[str, models.Cluster] = {}
    users: dict[str, models.User] = {}
    contexts: dict[str, models.Context] = {}
    for document, folder in documents:
        current = current or document.get("current-context") or ""
        for one in document.get("clusters") or ():
            clusters.setdefault(one["name"], msgspec.convert(_resolved(one["cluster"], folder), Cluster))
        for one in document.get("users") or ():
            users.setdefault(one["name"], msgspec.convert(_resolved(one["user"], folder), User))
        for one in document.get("contexts") or ():
            contexts.setdefault(one["name"], msgspec.convert(one["context"], models.Context))
    config = KubeConfig(clusters=clusters, contexts=contexts, users=users, current_context=current or None)
    context = config.get()
    assert context  # noqa: S101 - without a current context, it raises ConfigError
    # The client requires a user; a cluster behind kubectl proxy needs none.
    return context if context.user else context._replace(user=User())


def _resolved(entry: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The entry with absolute paths; they are relative to the file. Data counts before a file."""
    resolved = {name: value for name, value in entry.items() if value is not None}
    for name in _FILES:
        if resolved.get(f"{name}-data"):
            resolved.pop(name, None)
        elif resolved.get(name):
            resolved[name] = str(folder / resolved[name])
    program = resolved.get("exec")
    if program and "/" in program["command"]:
        resolved["exec"] = {**program, "command": str(folder / program["command"])}
    return resolved
