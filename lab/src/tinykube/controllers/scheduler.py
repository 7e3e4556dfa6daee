"""A scheduler for one node."""

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
from tinykube.controllers.binding import ReferClaim, SetClaim
from tinykube.controllers.caches import Caches, Change
from tinykube.controllers.patches import on_top_of
from tinykube.controllers.scheduling import Prepare, Refuse, Run, place
from tinykube.controllers.values import SELECTED_NODE, Claim, ClaimReference, Key, Node, Pod, Volume
from tinykube.controllers.work_queue import WorkQueue

log = structlog.get_logger(__name__)

_WORKERS = 4


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
        cordoned = node is not None and node.cordoned and not pod.tolerates_cordon
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
    ours = pod.scheduler_name == "default-scheduler"
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
