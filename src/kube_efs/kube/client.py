"""Creates the clients of the Kubernetes API."""

from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

from kube_efs.kube.connections import Connections
from kube_efs.kube.errors import configured
from kube_efs.kube.measuring import MeasuringTransport
from kube_efs.kube.retrying import RetryingTransport
from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.metrics import ApiServerMetrics

FIELD_MANAGER = "kube-efs"
REQUEST_TIMEOUT_SECONDS = 30.0
# A restart of an API server, or a switch of its load balancer, takes less time.
PATIENCE_SECONDS = 30.0


def load_config(kubeconfig: Path | None = None) -> SingleConfig:
    """The current context of that file, or the pod's service account, ``KUBECONFIG`` or ``~/.kube/config``.

    Raises InvalidSetting when none of them is usable.
    """
    with configured():
        found = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        context = found.get()
    if context is None:
        remedy = "set its current-context"
        raise InvalidSetting(
            "has no current context", field="KUBECONFIG", value=str(kubeconfig or ""), remedy=remedy
        )
    # The client requires a user; a cluster behind kubectl proxy needs none.
    return context if context.user else context._replace(user=User())


def connect(
    config: SingleConfig,
    *,
    field_manager: str = FIELD_MANAGER,
    patience_seconds: float = PATIENCE_SECONDS,
    metrics: ApiServerMetrics | None = None,
) -> AsyncClient:
    """A client for that cluster; use as ``async with``. Raises InvalidSetting.

    Requests that the server has not carried out are sent again for ``patience_seconds``.
    """
    # A burst of claims must not wait for connections; open watches need some, too.
    timeout = httpx2.Timeout(REQUEST_TIMEOUT_SECONDS, pool=None)
    with configured():
        verify = verify_cluster(config.cluster, config.user or User(), config.abs_file)
        inner = Connections(verify, _proxy(httpx2.URL(config.cluster.server)))
        attempts = MeasuringTransport(inner, metrics) if metrics else inner
        transport = RetryingTransport(attempts, patience_seconds)
        return AsyncClient(config, field_manager=field_manager, timeout=timeout, transport=transport)


def _proxy(server: httpx2.URL) -> str | None:
    """The proxy for the server from ``HTTPS_PROXY``, ``NO_PROXY`` and similar variables."""
    if proxy_bypass(server.host):
        return None
    proxies = getproxies()
    found = proxies.get(server.scheme) or proxies.get("all") or ""
    return f"http://{found}" if found and "://" not in found else found or None
