"""Facts of a cluster that decide how its objects must look: proxy, trusted CAs, credentials, TLS profile.

They are read from the resources of OpenShift's configuration, where a cluster has these, and from the
operator's own settings and environment.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Node

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.kinds import ApiServer, CloudCredential, Infrastructure, Proxy
from kube_efs.operator.platforms import Platform
from kube_efs.settings import OperatorSettings

CREDENTIALS_SECRET: Final = "aws-efs-cloud-credentials"  # noqa: S105 - the name of one
TRUSTED_CA_CONFIG_MAP: Final = "aws-efs-csi-driver-trusted-ca-bundle"
TRUSTED_CA_KEY: Final = "ca-bundle.crt"

_PROXY: Final = {"HTTP_PROXY": "httpProxy", "HTTPS_PROXY": "httpsProxy", "NO_PROXY": "noProxy"}
_SINGLETON: Final = "cluster"  # the name of each resource of OpenShift's configuration
_MANUAL: Final = "Manual"
# The names of OpenSSL for the ciphers of TLS 1.2. The names of TLS 1.3 begin with TLS_; those ciphers
# cannot be selected.
_CIPHER: Final = re.compile(r"(?!TLS_)[A-Z0-9]+(-[A-Z0-9]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsProfile:
    """The minimum TLS version, ``1.2`` or ``1.3``, and the ciphers of 1.2; empty: the defaults."""

    min_version: str = "1.2"
    ciphers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the objects of an installation depend on in a cluster.

    ``proxy`` has the environment variables of a proxy. ``trusted_ca_version`` and ``credentials_version``
    are the resource versions of the ConfigMap and the Secret, empty if they do not exist.
    ``credentials_mode`` is None if the cluster has no operator that creates credentials. ``tls`` is for
    the endpoints that kube-efs serves. With ``cluster_id``, access points get the ownership tag. ``nodes``
    is the number of nodes on which the controller can run.
    """

    proxy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    trusted_ca_version: str = ""
    credentials_version: str = ""
    credentials_mode: str | None = None
    role_arn: str = ""
    tls: TlsProfile = field(default_factory=TlsProfile)
    cluster_id: str = ""
    nodes: int = 2

    @property
    def requests_credentials(self) -> bool:
        """Whether the cluster must create credentials. In manual mode it does so for a given role only."""
        return self.credentials_mode is not None and (self.credentials_mode != _MANUAL or bool(self.role_arn))


async def read_cluster_facts(
    client: AsyncClient,
    platform: Platform,
    settings: OperatorSettings,
    *,
    trusted_ca_version: str,
    credentials_version: str,
    nodes: int,
) -> ClusterFacts:
    """Read OpenShift's configuration, as far as the cluster has its kinds; raises KubeError."""
    proxy = await _get_singleton(client, Proxy)
    infrastructure = await _get_singleton(client, Infrastructure)
    is_openshift = platform is Platform.OPENSHIFT
    credentials = await _get_singleton(client, CloudCredential) if is_openshift else None
    api_server = await _get_singleton(client, ApiServer) if is_openshift else None
    if proxy is None:
        # OLM sets the cluster's proxy in the environment of operators, and an administrator may do the same.
        variables = {name: os.environ.get(name) for name in _PROXY}
    else:
        variables = {name: _of(proxy, "status").get(key) for name, key in _PROXY.items()}
    return ClusterFacts(
        proxy={name: value for name, value in variables.items() if value},
        trusted_ca_version=trusted_ca_version,
        credentials_version=credentials_version,
        credentials_mode=_credentials_mode(credentials),
        role_arn=settings.role_arn or "",
        tls=read_tls_profile(api_server),
        cluster_id=settings.cluster_id or str(_of(infrastructure, "status").get("infrastructureName") or ""),
        nodes=nodes,
    )


async def _get_singleton(client: AsyncClient, resource: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    try:
        with translated(f"{resource.__name__} {_SINGLETON}"):
            found = await client.get(resource, _SINGLETON)
    except KubeNotFound:
        return None
    body: Mapping[str, Any] = found.to_dict()
    return body


def _of(resource: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return (resource or {}).get(name) or {}


def _credentials_mode(credentials: Mapping[str, Any] | None) -> str | None:
    return None if credentials is None else str(_of(credentials, "spec").get("credentialsMode") or "")


def read_tls_profile(api_server: Mapping[str, Any] | None) -> TlsProfile:
    """The profile of the cluster's APIServer; the default without one, and for profiles older than 1.2."""
    profile = _of(_of(api_server, "spec"), "tlsSecurityProfile")
    match profile.get("type"):
        case "Modern":
            return TlsProfile(min_version="1.3")
        case "Custom":
            custom = _of(profile, "custom")
            version = "1.3" if custom.get("minTLSVersion") == "VersionTLS13" else "1.2"
            return TlsProfile(min_version=version, ciphers=_valid_ciphers(custom.get("ciphers") or ()))
    return TlsProfile()


def _valid_ciphers(names: Iterable[str]) -> tuple[str, ...]:
    """Without names that OpenSSL would read as commands of a cipher list, such as ``!AES``."""
    return tuple(dict.fromkeys(name for name in names if _CIPHER.fullmatch(name)))


async def count_schedulable_nodes(client: AsyncClient) -> int:
    """The number of nodes that are ready and schedulable; raises KubeError. It lists all: call it rarely."""
    with translated("nodes"):
        nodes = [item async for item in client.list(Node)]
    return sum(_is_schedulable(node) for node in nodes)


def _is_schedulable(node: Node) -> bool:
    conditions = (node.status and node.status.conditions) or ()
    ready = any(one.type == "Ready" and one.status == "True" for one in conditions)
    return ready and not (node.spec and node.spec.unschedulable)
