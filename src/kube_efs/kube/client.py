"""The one way to a Kubernetes API."""

from pathlib import Path

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

from kube_efs.kube.errors import configured
from kube_efs.model.errors import InvalidSetting

FIELD_MANAGER = "kube-efs"
REQUEST_TIMEOUT_SECONDS = 30.0


def load_config(kubeconfig: Path | None = None) -> SingleConfig:
    """The current context of that file; else the pod's service account, ``KUBECONFIG`` or ``~/.kube/config``.

    Raises InvalidSetting when none of them can be used.
    """
    with configured():
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        context = found.get()
    if context is None:
        remedy = "set its current-context"
        raise InvalidSetting(
            "has no current context", field="KUBECONFIG", value=str(kubeconfig or ""), remedy=remedy
        )
    # The client insists on a user; a cluster behind kubectl proxy needs none.
    return context if context.user else context._replace(user=User())


def connect(config: SingleConfig, *, field_manager: str = FIELD_MANAGER) -> AsyncClient:
    """A client for that cluster, to be closed with ``async with``; raises InvalidSetting."""
    # A burst of claims must not wait for the pool of connections, which counts open watches too.
    timeout = httpx2.Timeout(REQUEST_TIMEOUT_SECONDS, pool=None)
    with configured():
        return AsyncClient(config, field_manager=field_manager, timeout=timeout)
