"""A scheduler for one node.

It prepares the claims of a pod as the VolumeBinding plugin of kube-scheduler does: claims of a class that
binds at once must be bound; those of a class that waits for a consumer get a volume or a provisioner now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from lightkube import AsyncClient
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, PodBinding
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.types import PatchType
from msgspec import field

from tinykube.client.events import EventRecorder
from tinykube.controllers.binding import ReferClaim, SetClaim, on_top_of
from tinykube.controllers.caches import Caches, Change
from tinykube.controllers.matching import best_match
from tinykube.controllers.values import (
    DEFAULT_SCHEDULER,
    NO_PROVISIONER,
    SELECTED_NODE,
    Claim,
    ClaimPhase,
    ClaimReference,
    Key,
    Node,
    Pod,
    StorageClass,
    Volume,
)
from tinykube.controllers.work_queue import WorkQueue

log = structlog.get_logger(__name__)

_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Run:
    """Every claim is bound: the pod can go to the node."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The claims have their first consumer: reserve these volumes, have those claims provisioned, wait."""

    reserve: tuple[tuple[Claim, Volume], ...]
    provision: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The pod has to wait; ``problem`` in Kubernetes' words."""

    problem: str

    @property
    def message(self) -> str:
        """What ``kubectl describe pod`` shows."""
        return (
            f"0/1 nodes are available: {self.problem}. preemption: 0/1 nodes are available:"
            " 1 Preemption is not helpful for scheduling."
        )


Placement = Run | Prepare | Refuse


class _Binding(PodBinding):
    """A binding that can be made from the answer too: that is a Status, which has no target."""

    target: ObjectReference = field(default_factory=ObjectReference)


class Scheduler:
    """Sends every pod to the one node while ``run`` runs."""

    def __init__(self, client: AsyncClient, caches: Caches, events: EventRecorder, *, node: str) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._node = node
        self._pods: WorkQueue[Key] = WorkQueue("scheduler", self._look_at)
        caches.pods.listen(self._pod_changed)
        caches.claims.listen(self._claim_changed)
        caches.nodes.listen(self._node_changed)

    async def run(self) -> None:
        """Work until cancelled; somebody else fills the caches."""
        await self._caches.ready()
        await self._pods.run(_WORKERS)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.after is not None and _wants_node(change.after):
            self._pods.add(change.after.meta.key)

    def _claim_changed(self, change: Change[Claim]) -> None:
        key = change.known.meta.key
        for pod in self._caches.pods.values.values():
            waits = _wants_node(pod) and key.name in pod.claim_names
            if waits and pod.meta.key.namespace == key.namespace:
                self._pods.add(pod.meta.key)

    def _node_changed(self, change: Change[Node]) -> None:
        if change.before and change.after and change.before.cordoned == change.after.cordoned:
            return
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
        match place(pod, known.claims.values, known.volumes.values, known.classes.values, cordoned=cordoned):
            case Run():
                await self._bind(pod)
            case Prepare(reserve, provision):
                for claim, volume in reserve:
                    await self._reserve(claim, volume)
                for claim in provision:
                    await self._select_node(claim)
            case Refuse() as refusal:
                await self._refuse(pod, refusal.message)

    async def _bind(self, pod: Pod) -> None:
        key = pod.meta.key
        binding = _Binding(
            metadata=ObjectMeta(name=key.name, namespace=key.namespace, uid=pod.meta.uid),
            target=ObjectReference(apiVersion="v1", kind="Node", name=self._node),
        )
        await self._client.create(binding, key.name, namespace=key.namespace)
        self._events.publish(_subject(pod), "Scheduled", f"Successfully assigned {key} to {self._node}")

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
        self._events.publish(_subject(pod), "FailedScheduling", message, warning=True)

    async def _reserve(self, claim: Claim, volume: Volume) -> None:
        """Give a waiting claim this volume; the binder does the rest."""
        reference = ClaimReference(key=claim.meta.key, uid=claim.meta.uid)
        patch: dict[str, Any] = on_top_of(
            volume.meta, {}, ReferClaim(volume=volume, claim=reference, by_controller=True)
        )
        await self._client.patch(PersistentVolume, volume.meta.key.name, patch, patch_type=PatchType.MERGE)

    async def _select_node(self, claim: Claim) -> None:
        """Let the claim's provisioner begin."""
        key = claim.meta.key
        patch = on_top_of(claim.meta, {}, SetClaim(claim=claim, annotations={SELECTED_NODE: self._node}))
        await self._client.patch(
            PersistentVolumeClaim, key.name, patch, namespace=key.namespace, patch_type=PatchType.MERGE
        )


def _wants_node(pod: Pod) -> bool:
    ours = pod.scheduler == DEFAULT_SCHEDULER
    return ours and not (pod.node_name or pod.meta.deleting or pod.finished or pod.gated)


def _subject(pod: Pod) -> ObjectReference:
    key = pod.meta.key
    return ObjectReference(
        apiVersion="v1",
        kind="Pod",
        namespace=key.namespace,
        name=key.name,
        uid=pod.meta.uid,
        resourceVersion=pod.meta.version,
    )


def place(
    pod: Pod,
    claims: Mapping[Key, Claim],
    volumes: Mapping[Key, Volume],
    classes: Mapping[Key, StorageClass],
    *,
    cordoned: bool = False,
) -> Placement:
    """What can be done about a pod that has no node yet; ``cordoned`` is what the node is to this pod."""
    waiting: list[Claim] = []
    for name in pod.claim_names:
        claim = claims.get(Key(pod.meta.key.namespace, name))
        problem = _problem(name, claim)
        if problem or claim is None:
            return Refuse(problem)
        if claim.bind_completed:
            continue
        if not _waits(claim, classes):
            return Refuse("pod has unbound immediate PersistentVolumeClaims")
        waiting.append(claim)
    if cordoned:
        return Refuse("1 node(s) were unschedulable")
    return _prepare(waiting, volumes, classes) if waiting else Run()


def _problem(name: str, claim: Claim | None) -> str:
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if claim.meta.deleting:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if claim.phase is ClaimPhase.LOST:
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume_name}"'
    return ""


def _waits(claim: Claim, classes: Mapping[Key, StorageClass]) -> bool:
    storage_class = classes.get(Key("", claim.class_name or ""))
    return storage_class is not None and storage_class.waits_for_consumer and not claim.volume_name


def _prepare(
    claims: list[Claim], volumes: Mapping[Key, Volume], classes: Mapping[Key, StorageClass]
) -> Placement:
    reserve: list[tuple[Claim, Volume]] = []
    provision: list[Claim] = []
    free = dict(volumes)
    for claim in claims:
        volume = best_match(claim, free.values())
        if volume is not None:
            del free[volume.meta.key]
            if volume.claim is None:
                reserve.append((claim, volume))
        elif classes[Key("", claim.class_name or "")].provisioner == NO_PROVISIONER:
            return Refuse("1 node(s) didn't find available persistent volumes to bind")
        elif SELECTED_NODE not in claim.meta.annotations:
            provision.append(claim)
    return Prepare(tuple(reserve), tuple(provision))
