"""Which CSI drivers the node has, written where the cluster reads it: the CSINode, and notes on the Node.

As pkg/volume/csi/nodeinfomanager does it.
"""

import json
from typing import Any

from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from tinykube.client.calls import unless_exists
from tinykube.errors import InvalidValue
from tinykube.kubelet.drivers import Driver

# The library's own class takes no null for a list, which the API server gives for an empty one.
_CsiNode = create_global_resource("storage.k8s.io", "v1", "CSINode", "csinodes")
_NODE_IDS = "csi.volume.kubernetes.io/nodeid"


class NodeDriverBook:
    """The book of the node of that name, which must be there."""

    def __init__(self, client: AsyncClient, node: str) -> None:
        self._client = client
        self._node = node

    async def add(self, driver: Driver) -> None:
        """Enter the driver in CSINode, and its ids and topology on the Node."""
        node = await self._read_node()
        labels = (node.metadata and node.metadata.labels) or {}
        for label, value in driver.node.topology.items():
            if labels.get(label, value) != value:
                raise InvalidValue(
                    f"collides with the node's own value {labels[label]}",
                    field=f"topology {label}",
                    value=value,
                )
        ids = {**_node_ids(node), driver.name: driver.node.node_id}
        await self._patch_node({"labels": dict(driver.node.topology), "annotations": {_NODE_IDS: _text(ids)}})
        await self._create(node)
        await self._patch_drivers(_entry(driver))

    async def remove(self, name: str) -> None:
        """Take it out of both; labels of its topology stay."""
        await self._patch_drivers({"name": name, "$patch": "delete"})
        ids = _node_ids(await self._read_node())
        ids.pop(name, None)
        await self._patch_node({"annotations": {_NODE_IDS: _text(ids) if ids else None}})

    async def _read_node(self) -> Node:
        return await self._client.get(Node, self._node)

    async def _patch_node(self, metadata: dict[str, Any]) -> None:
        await self._client.patch(Node, self._node, {"metadata": metadata}, patch_type=PatchType.MERGE)

    async def _create(self, node: Node) -> None:
        """Make the CSINode unless it is there; it goes with its Node."""
        uid = (node.metadata and node.metadata.uid) or ""
        owner = OwnerReference(apiVersion="v1", kind="Node", name=self._node, uid=uid)
        metadata = ObjectMeta(name=self._node, ownerReferences=[owner])
        await unless_exists(self._client.create(_CsiNode(metadata=metadata, spec={"drivers": []})))

    async def _patch_drivers(self, entry: dict[str, Any]) -> None:
        await self._client.patch(
            _CsiNode, self._node, {"spec": {"drivers": [entry]}}, patch_type=PatchType.STRATEGIC
        )


def _entry(driver: Driver) -> dict[str, Any]:
    node = driver.node
    limit = {"allocatable": {"count": node.most_volumes}} if node.most_volumes else {}
    return {
        "name": driver.name,
        "nodeID": node.node_id,
        "topologyKeys": sorted(node.topology) or None,
        **limit,
    }


def _node_ids(node: Node) -> dict[str, str]:
    annotations = (node.metadata and node.metadata.annotations) or {}
    found: dict[str, str] = json.loads(annotations.get(_NODE_IDS, "{}"))
    return found


def _text(ids: dict[str, str]) -> str:
    return json.dumps(ids, separators=(",", ":"), sort_keys=True)
