"""Creates the clients of the Kubernetes API."""

import os
import ssl
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError
from yarl import URL

from kube_efs.kube.answers import DecodableTransport
from kube_efs.kube.connections import Connections
from kube_efs.kube.credentials import CredentialsTransport
from kube_efs.kube.errors import configured
from kube_efs.kube.kubeconfig import Cluster, User, load_kubeconfig
from kube_efs.kube.measuring import MeasuringTransport
from kube_efs.kube.retrying import RetryingTransport
from kube_efs.kube.server_time import ServerTime, TimeReadingTransport
from kube_efs.model.errors import InvalidSetting
from kube_efs.telemetry.metrics import ApiServerMetrics

FIELD_MANAGER = "kube-efs"
REQUEST_TIMEOUT_SECONDS = 30.0
# A restart of an API server, or a switch of its load balancer, takes less time.
PATIENCE_SECONDS = 30.0

_DEFAULT = "~/.kube/config"


def load_config(kubeconfig: Path | None = None) -> SingleConfig:
    """The current context of that file, or the pod's service account, ``KUBECONFIG`` or ``~/.kube/config``.

    ``KUBECONFIG`` may name several files. Raises InvalidSetting when none of them is usable.
    """
    with configured():
        if kubeconfig:
            return load_kubeconfig([kubeconfig])
        try:
            account = KubeConfig.from_service_account().get()
        except ConfigError:
            names = os.environ.get("KUBECONFIG") or _DEFAULT
            return load_kubeconfig([Path(name) for name in names.split(os.pathsep) if name])
    assert account  # noqa: S101 - it has a current context
    return account


def connect(
    config: SingleConfig,
    *,
    field_manager: str = FIELD_MANAGER,
    patience_seconds: float = PATIENCE_SECONDS,
    metrics: ApiServerMetrics | None = None,
    server_time: ServerTime | None = None,
) -> AsyncClient:
    """A client for that cluster; use as ``async with``. Raises InvalidSetting.

    Requests that the server has not carried out are sent again for ``patience_seconds``. ``server_time`` gets
    the time of the server.
    """
    # A burst of claims must not wait for connections; open watches need some, too.
    timeout = httpx2.Timeout(REQUEST_TIMEOUT_SECONDS, pool=None)
    cluster = msgspec.convert(msgspec.to_builtins(config.cluster), Cluster)
    user = msgspec.convert(msgspec.to_builtins(config.user or User()), User)
    with configured():
        verify = verify_cluster(cluster, user, config.abs_file)
        # Since Python 3.13, contexts also require extensions such as key identifiers. The certificates of
        # many clusters do not have them, those of EKS among them, and kubectl does not require them.
        verify.verify_flags &= ~ssl.VERIFY_X509_STRICT
        inner = Connections(verify, _proxy(cluster), cluster.tls_server_name)
        attempts = MeasuringTransport(inner, metrics) if metrics else inner
        transport: httpx2.AsyncBaseTransport = DecodableTransport(
            RetryingTransport(attempts, patience_seconds)
        )
        if user.exec or user.impersonated_user:
            transport = CredentialsTransport(transport, user, cluster)
            # The client itself would run only programs of old versions.
            config = config._replace(user=msgspec.structs.replace(user, exec=None))
        if server_time:
            transport = TimeReadingTransport(transport, server_time)
        return AsyncClient(config, field_manager=field_manager, timeout=timeout, transport=transport)


def _proxy(cluster: Cluster) -> str | None:
    """The proxy of the cluster, or that of ``HTTPS_PROXY``, ``NO_PROXY`` and similar variables."""
    if cluster.proxy_url:
        if URL(cluster.proxy_url).scheme not in {"http", "https"}:
            # Without the value, which may have a password.
            raise InvalidSetting(
                "is not the address of an HTTP proxy",
                field="KUBECONFIG: clusters.proxy-url",
                remedy="use http://host:port, or kubectl proxy",
            )
        return cluster.proxy_url
    server, proxies = httpx2.URL(cluster.server), getproxies()
    if proxy_bypass(server.host) or _is_in_network(server.host, proxies.get("no", "")):
        return None
    found = proxies.get(server.scheme) or proxies.get("all") or ""
    return f"http://{found}" if found and "://" not in found else found or None


def _is_in_network(host: str, excluded: str) -> bool:
    """Whether ``NO_PROXY`` has a network with that address.

    Python reads only names and single addresses there. But clusters name the network of their Services, with
    the API server in it, and Go reads that.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return False
    for entry in excluded.split(","):
        with suppress(ValueError):
            if address in ip_network(entry.strip(), strict=False):
                return True
    return False
