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
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.model.csi.access_point_tags import Tag
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.kinds import ApiServer, CloudCredential, Infrastructure, Proxy
from kube_efs.operator.platforms import Platform
from kube_efs.settings.operator import OperatorSettings

CREDENTIALS_SECRET: Final = "aws-efs-cloud-credentials"  # noqa: S105 - the name of one
TRUSTED_CA_CONFIG_MAP: Final = "aws-efs-csi-driver-trusted-ca-bundle"
TRUSTED_CA_KEY: Final = "ca-bundle.crt"

_PROXY: Final = {"HTTP_PROXY": "httpProxy", "HTTPS_PROXY": "httpsProxy", "NO_PROXY": "noProxy"}
PROXY_VARIABLES: Final = frozenset(_PROXY)
_SINGLETON: Final = "cluster"  # the name of each resource of OpenShift's configuration
_MANUAL: Final = "Manual"
# The names of OpenSSL for the ciphers of TLS 1.2. The names of TLS 1.3 begin with TLS_; those ciphers
# cannot be selected.
_CIPHER: Final = re.compile(r"(?!TLS_)[A-Z0-9]+(-[A-Z0-9]+)+")
_OS_LABEL: Final = "kubernetes.io/os"
_LINUX: Final = "linux"
_EXCLUDING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_TEMPORARY_TAINTS: Final = "node.kubernetes.io/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsProfile:
    """The minimum TLS version, ``1.2`` or ``1.3``, and the ciphers of 1.2; empty: the defaults."""

    min_version: str = "1.2"
    ciphers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationFacts:
    """What the objects of an installation depend on in a cluster.

    ``proxy`` has the environment variables of a proxy. ``trusted_ca_version`` is the digest of the bundle in
    the ConfigMap and ``credentials_version`` the resource version of the Secret, empty if they do not exist.
    ``credentials_mode`` is None if the cluster has no operator that creates credentials. ``tls`` is for
    the endpoints that kube-efs serves. With ``cluster_id``, access points get the ownership tag, and
    ``resource_tags`` are the other tags of the cluster's resources in AWS. ``has_single_control_plane``: the
    API server has one replica, and is unavailable during its updates.
    """

    proxy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    trusted_ca_version: str = ""
    credentials_version: str = ""
    credentials_mode: str | None = None
    role_arn: str = ""
    tls: TlsProfile = field(default_factory=TlsProfile)
    cluster_id: str = ""
    resource_tags: tuple[Tag, ...] = ()
    has_single_control_plane: bool = False
    controller_replicas: int = 2

    @property
    def requests_credentials(self) -> bool:
        """Whether the cluster must create credentials. In manual mode it does so for a given role only."""
        return self.credentials_mode is not None and (self.credentials_mode != _MANUAL or bool(self.role_arn))


async def read_cluster_facts(
    client: AsyncClient, platform: Platform, settings: OperatorSettings
) -> InstallationFacts:
    """Read OpenShift's configuration, as far as the cluster has its kinds; raises KubeError.

    The versions and the number of replicas are not known here.
    """
    proxy = await _get_singleton(client, Proxy)
    infrastructure = await read_infrastructure(client)
    is_openshift = platform is Platform.OPENSHIFT
    credentials = await _get_singleton(client, CloudCredential) if is_openshift else None
    api_server = await _get_singleton(client, ApiServer) if is_openshift else None
    if proxy is None:
        # OLM sets the cluster's proxy in the environment of operators, and an administrator may do the same.
        variables = {name: os.environ.get(name) for name in _PROXY}
    else:
        variables = {name: _of(proxy, "status").get(key) for name, key in _PROXY.items()}
    return InstallationFacts(
        proxy={name: value for name, value in variables.items() if value},
        credentials_mode=_credentials_mode(credentials),
        role_arn=settings.role_arn or "",
        tls=read_tls_profile(api_server),
        cluster_id=settings.cluster_id or str(_of(infrastructure, "status").get("infrastructureName") or ""),
        resource_tags=read_resource_tags(infrastructure),
        has_single_control_plane=has_single_control_plane(infrastructure),
    )


async def read_infrastructure(client: AsyncClient) -> Mapping[str, Any] | None:
    """OpenShift's Infrastructure; None in other clusters; raises KubeError."""
    return await _get_singleton(client, Infrastructure)


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


def read_resource_tags(infrastructure: Mapping[str, Any] | None) -> tuple[Tag, ...]:
    """The tags that the administrator chose for the cluster's resources in AWS, except incomplete ones."""
    aws = _of(_of(_of(infrastructure, "status"), "platformStatus"), "aws")
    tags = [
        Tag(key=one.get("key") or "", value=one.get("value") or "") for one in aws.get("resourceTags") or ()
    ]
    return tuple(tag for tag in tags if tag.key and tag.value)


def has_single_control_plane(infrastructure: Mapping[str, Any] | None) -> bool:
    """Whether the cluster has one node for its control plane."""
    return _of(infrastructure, "status").get("controlPlaneTopology") == "SingleReplica"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCounts:
    """The nodes that can run the controller: those that are ready and schedulable, and all."""

    ready: int
    existing: int


def controller_replicas(nodes: NodeCounts, current: int) -> int:
    """The number of pods of the controller: one for each node that can run it, at most two, at least one.

    A node that is rebooted or drained does not reduce the number: its pod waits for it. Two pods on a single
    node would block its drain, because the PodDisruptionBudget keeps the second one.
    """
    return max(1, min(2, max(nodes.ready, min(current, nodes.existing))))


async def count_nodes(client: AsyncClient) -> NodeCounts:
    """Count the nodes that can run the controller; raises KubeError. It lists all: call it rarely."""
    with translated("nodes"):
        found = client.list(Node, chunk_size=PAGE_SIZE)
        are_ready = [_is_schedulable(node) async for node in found if _admits_controller(node)]
    return NodeCounts(ready=sum(are_ready), existing=len(are_ready))


def _admits_controller(node: Node) -> bool:
    """Whether the controller can run on the node: it needs Linux, and tolerates no taint.

    The taints of Kubernetes itself, ``node.kubernetes.io/...``, say that a node is not ready, drained or
    short of memory, and disappear again.
    """
    labels = (node.metadata and node.metadata.labels) or {}
    taints = (node.spec and node.spec.taints) or ()
    return labels.get(_OS_LABEL, _LINUX) == _LINUX and not any(
        one.effect in _EXCLUDING_EFFECTS and not one.key.startswith(_TEMPORARY_TAINTS) for one in taints
    )


def _is_schedulable(node: Node) -> bool:
    conditions = (node.status and node.status.conditions) or ()
    taints = (node.spec and node.spec.taints) or ()
    ready = any(one.type == "Ready" and one.status == "True" for one in conditions)
    excluded = any(one.effect in _EXCLUDING_EFFECTS for one in taints)
    return ready and not excluded and not (node.spec and node.spec.unschedulable)
