"""Where worker pods can run: on nodes that can mount a file system for them.

Each such node needs the tunnels. So worker pods follow the node selector and the required node affinity of
the tunnels' DaemonSet. They do not have its tolerations: tunnels also run on nodes that take no new pods.
They have those of the pod of this process: where every node has a taint, an administrator had to add some.
Tolerations for nodes that cannot run a pod now are left out: nothing would remove a pod from a node that is
off, and the pod would block its directories.

If the CSI driver mounts for them (``workers/roots.py``), the node must also have the driver. So nodes are
left out whose CSINode does not list it. A node that does not exist yet is not left out: an autoscaler may add
it for the pod. These nodes need no program ``mount.nfs`` of their own, which nodes of Bottlerocket do not
have.
"""

import asyncio
import random
from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import NodeSelectorRequirement, NodeSelectorTerm, Toleration
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import Pod

from kube_efs.kube.csi_nodes import CsiNode, read_drivers
from kube_efs.kube.watching import Applied, Deleted, Listed, follow, only_object
from kube_efs.model.volumes import DRIVER

log = structlog.get_logger(__name__)

# Each name is a condition in each term of the pod's affinity.
_NAMES_MAX: Final = 100
# The first pods wait so long for the first lists. Without the permissions for them, a pod can run on every
# ordinary node, as in earlier versions.
_FIRST_LISTS_SECONDS: Final = 10.0
# Nodes that are off, full, cordoned or new have them.
_TEMPORARY_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", f"{DRIVER}/")
_LINUX: Final[Mapping[str, str]] = MappingProxyType({"kubernetes.io/os": "linux"})
# Where tunnels run if their DaemonSet is not known: elsewhere a pod would wait for its mount in vain.
_ORDINARY: Final = NodeSelectorTerm(
    matchExpressions=[
        NodeSelectorRequirement(
            key="eks.amazonaws.com/compute-type", operator="NotIn", values=["fargate", "hybrid"]
        )
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The nodes on which a worker pod can run.

    A node has all labels of ``node_selector``, and fits one of the ``terms``; without terms, each node fits.
    Its taints are among those of ``tolerations``. Nodes that fit ``preferred`` are used first.
    """

    node_selector: Mapping[str, str] = field(default_factory=lambda: _LINUX)
    terms: tuple[NodeSelectorTerm, ...] = field(default_factory=lambda: (_ORDINARY,))
    preferred: NodeSelectorTerm | None = None
    tolerations: tuple[Toleration, ...] = ()

    def except_nodes(self, names: Collection[str]) -> "Placement":
        """The same without these nodes; of many nodes, without random ones."""
        if not names:
            return self
        left_out = [_is_not(one) for one in sorted(random.sample(sorted(names), min(len(names), _NAMES_MAX)))]
        terms = tuple(
            NodeSelectorTerm(
                matchExpressions=term.matchExpressions, matchFields=[*(term.matchFields or ()), *left_out]
            )
            for term in self.terms or (NodeSelectorTerm(),)
        )
        return replace(self, terms=terms)

    def avoiding(self, names: Collection[str]) -> "Placement":
        """The same, with these nodes only if no other one can run the pod."""
        term = NodeSelectorTerm(matchFields=[_is_not(one) for one in sorted(names)])
        return replace(self, preferred=term if names else None)


def _is_not(name: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key="metadata.name", operator="NotIn", values=[name])


class WorkerPlacement:
    """Follows what decides about the placement of worker pods, while ``watch`` runs.

    ``tunnels`` is the DaemonSet of the tunnels in the namespace, and ``own_pod`` the pod of this process.
    With ``with_driver``, the CSI driver mounts for the pods.
    """

    def __init__(
        self, client: AsyncClient, namespace: str, *, tunnels: str, own_pod: str, with_driver: bool
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._tunnels = tunnels
        self._own_pod = own_pod
        self._with_driver = with_driver
        self._tolerations: tuple[Toleration, ...] = ()
        self._of_tunnels = Placement()
        # Whether each node has the driver.
        self._nodes: dict[str, bool] = {}
        self._own_pod_read = asyncio.Event()
        self._tunnels_listed = asyncio.Event()
        self._nodes_listed = asyncio.Event()
        self._deadline: float | None = None

    async def current(self) -> Placement:
        """The placement of a pod that is created now."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + _FIRST_LISTS_SECONDS
        with suppress(TimeoutError):  # The watches report why.
            async with asyncio.timeout_at(self._deadline):
                await self._own_pod_read.wait()
                await self._tunnels_listed.wait()
                if self._with_driver:
                    await self._nodes_listed.wait()
        without = {name for name, has_driver in self._nodes.items() if not has_driver}
        # While no node has the driver, it is being installed, and may come to each of them.
        placement = self._of_tunnels.except_nodes(without if any(self._nodes.values()) else ())
        return replace(placement, tolerations=self._tolerations)

    def has_nodes_except(self, names: Collection[str]) -> bool:
        """Whether the driver is known to run on any node except these."""
        return any(has_driver and name not in names for name, has_driver in self._nodes.items())

    async def watch(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_own_pod())
            tasks.create_task(self._watch_tunnels())
            if self._with_driver:
                tasks.create_task(self._watch_nodes())

    async def _read_own_pod(self) -> None:
        """Once: people change them in the Deployment, which replaces the pod."""
        fields = {"metadata.name": self._own_pod}
        async with aclosing(follow(self._client, Pod, namespace=self._namespace, fields=fields)) as changes:
            async for change in changes:
                found = only_object(change)
                if found is None:
                    log.info("own-pod-unknown", pod=self._own_pod, reason="worker pods get no tolerations")
                given = (found and found.spec and found.spec.tolerations) or ()
                self._tolerations = tuple(one for one in given if _is_permanent(one))
                self._own_pod_read.set()
                return

    async def _watch_tunnels(self) -> None:
        fields = {"metadata.name": self._tunnels}
        async for change in follow(self._client, DaemonSet, namespace=self._namespace, fields=fields):
            found = only_object(change)
            self._of_tunnels = _placement_of(found) if found else Placement()
            self._tunnels_listed.set()

    async def _watch_nodes(self) -> None:
        async for change in follow(self._client, CsiNode, read=_read_node):
            match change:
                case Listed(nodes):
                    self._nodes = dict(nodes)
                case Applied((name, has_driver)):
                    self._nodes[name] = has_driver
                case Deleted((name, _)):
                    self._nodes.pop(name, None)
            self._nodes_listed.set()


def _is_permanent(toleration: Toleration) -> bool:
    """Whether it is for taints that an administrator gives to usable nodes; without a key, it is for all."""
    key = toleration.key or ""
    return bool(key) and not key.startswith(_TEMPORARY_TAINTS)


def _read_node(found: Any) -> tuple[str, bool]:  # noqa: ANN401 - the generic resource has no fields
    name, drivers = read_drivers(found.to_dict())
    return name, DRIVER in drivers


def _placement_of(tunnels: DaemonSet) -> Placement:
    """The nodes of the tunnels."""
    spec = tunnels.spec and tunnels.spec.template.spec
    affinity = spec and spec.affinity and spec.affinity.nodeAffinity
    required = affinity and affinity.requiredDuringSchedulingIgnoredDuringExecution
    return Placement(
        node_selector={**_LINUX, **((spec and spec.nodeSelector) or {})},
        terms=tuple(required.nodeSelectorTerms) if required else (),
    )
