"""A scheduler for one node.

It prepares the claims of a pod as the VolumeBinding plugin of kube-scheduler does: claims of a class that
binds at once must be bound; those of a class that waits for a consumer get a volume or a provisioner now.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lightkube import AsyncClient
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.core_v1 import PodBinding
from lightkube.types import PatchType
from msgspec import field

from tinykube.controllers.binder import write_all
from tinykube.controllers.binding import Write, Writes, best_match, refer_claim, set_claim
from tinykube.controllers.caches import Caches, Change
from tinykube.controllers.values import (
    DEFAULT_SCHEDULER,
    NO_PROVISIONER,
    SELECTED_NODE,
    Claim,
    ClaimReference,
    Key,
    Pod,
    StorageClass,
    Volume,
)
from tinykube.controllers.work_queue import WorkQueue

_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What can be done about a pod: it can go to the node, or has to wait.

    ``problem`` is what it waits for, in Kubernetes' words; empty while its claims, which have their first
    consumer, are being prepared. ``writes`` reserve volumes for them, or let their provisioner begin.
    """

    runs: bool = False
    problem: str = ""
    writes: Writes = ()


class _Binding(PodBinding):
    """A binding that can be made from the answer too: that is a Status, which has no target."""

    target: ObjectReference = field(default_factory=ObjectReference)


class Scheduler:
    """Sends every pod to the one node while ``run`` runs."""

    def __init__(self, client: AsyncClient, caches: Caches, *, node: str) -> None:
        self._client = client
        self._caches = caches
        self._node = node
        self._pods: WorkQueue[Key] = WorkQueue("scheduler", self._look_at)
        caches.pods.listen(self._pod_changed)
        caches.claims.listen(self._look_at_waiting)
        caches.nodes.listen(self._look_at_waiting)

    async def run(self) -> None:
        """Work until cancelled; somebody else fills the caches."""
        await self._caches.ready()
        await self._pods.run(_WORKERS)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.after is not None and _wants_node(change.after):
            self._pods.add(change.after.meta.key)

    def _look_at_waiting(self, _: object) -> None:
        for pod in self._caches.pods.values.values():
            if _wants_node(pod):
                self._pods.add(pod.meta.key)

    async def _look_at(self, key: Key) -> None:
        pod = self._caches.pods.values.get(key)
        if pod is None or not _wants_node(pod):
            return
        known = self._caches
        node = known.nodes.values.get(Key("", self._node))
        # As in Kubernetes, the pods of DaemonSets go to cordoned nodes as well.
        of_daemon_set = pod.controller is not None and pod.controller.kind == "DaemonSet"
        cordoned = node is not None and node.cordoned and not of_daemon_set
        placement = place(
            pod,
            known.claims.values,
            known.volumes.values,
            known.classes.values,
            node=self._node,
            cordoned=cordoned,
        )
        if placement.runs:
            await self._bind(pod)
        elif placement.problem:
            await self._refuse(pod, f"0/1 nodes are available: {placement.problem}.")
        await write_all(self._client, known, placement.writes)

    async def _bind(self, pod: Pod) -> None:
        key = pod.meta.key
        binding = _Binding(
            metadata=ObjectMeta(name=key.name, namespace=key.namespace, uid=pod.meta.uid),
            target=ObjectReference(apiVersion="v1", kind="Node", name=self._node),
        )
        await self._client.create(binding, key.name, namespace=key.namespace)

    async def _refuse(self, pod: Pod, message: str) -> None:
        if pod.unschedulable_message == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        written = await self._client.patch(
            PodObject.Status,
            pod.meta.key.name,
            {"metadata": {"uid": pod.meta.uid}, "status": {"conditions": [condition]}},
            namespace=pod.meta.key.namespace,
            patch_type=PatchType.STRATEGIC,
        )
        self._caches.pods.remember(written)


def _wants_node(pod: Pod) -> bool:
    ours = pod.scheduler == DEFAULT_SCHEDULER
    return ours and not (pod.node_name or pod.meta.deleting or pod.finished or pod.gated)


def place(
    pod: Pod,
    claims: Mapping[Key, Claim],
    volumes: Mapping[Key, Volume],
    classes: Mapping[Key, StorageClass],
    *,
    node: str,
    cordoned: bool = False,
) -> Placement:
    """What can be done about a pod that has no node yet; ``cordoned`` is what the node is to this pod."""
    waiting: list[Claim] = []
    for name in pod.claim_names:
        claim = claims.get(Key(pod.meta.key.namespace, name))
        problem = _problem(name, claim)
        if problem or claim is None:
            return Placement(problem=problem)
        if claim.bind_completed:
            continue
        if not _waits(claim, classes):
            return Placement(problem="pod has unbound immediate PersistentVolumeClaims")
        waiting.append(claim)
    if cordoned:
        return Placement(problem="1 node(s) were unschedulable")
    return _prepare(waiting, volumes, classes, node) if waiting else Placement(runs=True)


def _problem(name: str, claim: Claim | None) -> str:
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if claim.meta.deleting:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if claim.phase == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume_name}"'
    return ""


def _waits(claim: Claim, classes: Mapping[Key, StorageClass]) -> bool:
    storage_class = classes.get(Key("", claim.class_name or ""))
    return storage_class is not None and storage_class.waits_for_consumer and not claim.volume_name


def _prepare(
    claims: list[Claim], volumes: Mapping[Key, Volume], classes: Mapping[Key, StorageClass], node: str
) -> Placement:
    writes: list[Write] = []
    free = dict(volumes)
    for claim in claims:
        volume = best_match(claim, free.values())
        if volume is not None:
            del free[volume.meta.key]
            if volume.claim is None:  # else the binder does the rest
                reference = ClaimReference(key=claim.meta.key, uid=claim.meta.uid)
                writes.append(refer_claim(volume, reference, by_controller=True))
        elif classes[Key("", claim.class_name or "")].provisioner == NO_PROVISIONER:
            return Placement(problem="1 node(s) didn't find available persistent volumes to bind")
        elif SELECTED_NODE not in claim.meta.annotations:
            writes.append(set_claim(claim, {SELECTED_NODE: node}))
    return Placement(writes=tuple(writes))
