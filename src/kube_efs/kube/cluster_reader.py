"""Facts about the cluster: its instances, and the uids that distinguish it and its namespaces from others."""

from typing import Final

import msgspec
from lightkube import AsyncClient
from lightkube.core import resource
from lightkube.resources.core_v1 import Namespace, Node

from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.model.efs.ids import ClaimUid

_PROVIDER: Final = "aws:///"
# No cluster is without it, and no two clusters have the same uid of it.
_CLUSTER_NAMESPACE: Final = "kube-system"


class _Spec(msgspec.Struct):
    providerID: str = ""  # noqa: N815 - the name of the field


class _Node(resource.GlobalResource, msgspec.Struct):
    """A node, of which nothing else is decoded: the images of 500 nodes alone take ten megabytes."""

    _api_info = Node._api_info  # noqa: SLF001 - the library has no other way
    spec: _Spec = msgspec.field(default_factory=_Spec)


class ClusterReader:
    """Reads facts about the cluster; every method may raise KubeError."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._cluster = ""

    async def instance_ids(self) -> frozenset[str]:
        """The IDs of the EC2 instances of the nodes."""
        with translated("nodes"):
            nodes = self._client.list(_Node, chunk_size=PAGE_SIZE)
            ids = [one.spec.providerID async for one in nodes]
        names = (one.rpartition("/")[2] for one in ids if one.startswith(_PROVIDER))
        # Nodes of Fargate have other names.
        return frozenset(one for one in names if one.startswith("i-"))

    async def namespace_uid(self, name: str) -> str:
        """The uid of that namespace; another namespace of the same name has another one."""
        with translated(f"namespace {name}"):
            found = await self._client.get(Namespace, name)
        return (found.metadata and found.metadata.uid) or ""

    async def claim_uid(self, namespace: str, name: str) -> ClaimUid | None:
        """The uid of that claim; None without one."""
        found = await ClaimStore(self._client).get(namespace, name)
        return found.uid if found is not None else None

    async def cluster_uid(self) -> str:
        """A text that only this cluster has."""
        if not self._cluster:
            self._cluster = await self.namespace_uid(_CLUSTER_NAMESPACE)
        return self._cluster
