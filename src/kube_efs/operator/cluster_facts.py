"""What the cluster is like, read from where OpenShift says it and from this process's own environment."""

import os
from collections.abc import Mapping
from typing import Any, Final

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Node

from kube_efs.kube.errors import translated
from kube_efs.model.errors import KubeNotFound
from kube_efs.operator.desired_objects import ClusterFacts
from kube_efs.operator.extras import Extras
from kube_efs.operator.injection import CA_KEY
from kube_efs.operator.kinds import ApiServer, CloudCredential, Infrastructure, Proxy
from kube_efs.operator.object_cache import ObjectCache
from kube_efs.operator.platforms import Platform
from kube_efs.operator.tls_profiles import read_tls_profile
from kube_efs.settings import OperatorSettings

_PROXY: Final = {"HTTP_PROXY": "httpProxy", "HTTPS_PROXY": "httpsProxy", "NO_PROXY": "noProxy"}
_CLUSTER: Final = "cluster"  # the name of each of OpenShift's single objects


async def read_cluster_facts(
    client: AsyncClient,
    cache: ObjectCache,
    platform: Platform,
    settings: OperatorSettings,
    *,
    nodes: int,
) -> ClusterFacts:
    """The same whichever of OpenShift's kinds there are; raises KubeError."""
    proxy = await _single(client, Proxy)
    infrastructure = await _single(client, Infrastructure)
    is_openshift = platform is Platform.OPENSHIFT
    credentials = await _single(client, CloudCredential) if is_openshift else None
    api_server = await _single(client, ApiServer) if is_openshift else None
    return ClusterFacts(
        proxy=_from_environment() if proxy is None else _from_status(proxy),
        ca_version=_ca_version(cache),
        credentials_version=cache.credentials_version,
        credentials_mode=None if credentials is None else _mode(credentials),
        role_arn=settings.role_arn or "",
        tls=read_tls_profile(api_server),
        cluster_id=settings.cluster_id or _cluster_id(infrastructure),
        nodes=nodes,
        extras=Extras.told(settings),
    )


async def _single(client: AsyncClient, resource: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    try:
        with translated(f"{resource.__name__} {_CLUSTER}"):
            found = await client.get(resource, _CLUSTER)
    except KubeNotFound:
        return None
    body: Mapping[str, Any] = found.to_dict()
    return body


def _from_status(proxy: Mapping[str, Any]) -> dict[str, str]:
    status = proxy.get("status") or {}
    return {name: status[key] for name, key in _PROXY.items() if status.get(key)}


def _from_environment() -> dict[str, str]:
    """OLM gives operators the cluster's proxy, and so may an administrator."""
    return {name: os.environ[name] for name in _PROXY if os.environ.get(name)}


def _cluster_id(infrastructure: Mapping[str, Any] | None) -> str:
    return str(((infrastructure or {}).get("status") or {}).get("infrastructureName") or "")


def _mode(credentials: Mapping[str, Any]) -> str:
    return str((credentials.get("spec") or {}).get("credentialsMode") or "")


def _ca_version(cache: ObjectCache) -> str:
    bundle = cache.trusted_ca
    if bundle is None or CA_KEY not in (bundle.get("data") or {}):
        return ""
    return str(bundle["metadata"].get("resourceVersion") or "")


async def count_nodes(client: AsyncClient) -> int:
    """How many nodes are ready and take pods; raises KubeError. All nodes are listed, so ask seldom."""
    with translated("nodes"):
        nodes = [item async for item in client.list(Node)]
    return sum(_takes_pods(node) for node in nodes)


def _takes_pods(node: Node) -> bool:
    conditions = (node.status and node.status.conditions) or ()
    ready = any(one.type == "Ready" and one.status == "True" for one in conditions)
    return ready and not (node.spec and node.spec.unschedulable)
