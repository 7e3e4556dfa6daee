"""The controllers of Deployments, StatefulSets and DaemonSets.

All three work in the same way. From a workload and its pods, a plan says which pods to create and to delete
next, and what the status is. Each change of a workload, of its pods or of the nodes leads to a new plan.
Unlike in Kubernetes, a Deployment has no ReplicaSets: it owns its pods.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from lightkube import AsyncClient
from lightkube.models.meta_v1 import LabelSelector
from lightkube.resources import apps_v1, core_v1
from lightkube.types import PatchType
from msgspec import convert

from tinykube.controllers.caches import Cache, Caches, Change
from tinykube.controllers.kinds import Kind
from tinykube.controllers.values import Key, Meta, Node, Pod, read_meta, selects
from tinykube.controllers.work_queue import WorkQueue

REVISION_LABEL = "controller-revision-hash"
_REVISION_DIGITS = 10
_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload; ``revision`` differs between its templates, ``spec`` and ``status`` are as in the API."""

    kind: str
    meta: Meta
    generation: int
    selector: LabelSelector
    revision: str
    spec: Mapping[str, Any]
    status: Mapping[str, Any]

    @property
    def replicas(self) -> int:
        """How many pods a Deployment or StatefulSet has."""
        return int(self.spec.get("replicas", 1))

    def selects(self, pod: Pod) -> bool:
        """Whether the pod has the labels of this workload."""
        here = pod.meta.key.namespace == self.meta.key.namespace
        return here and selects(self.selector, pod.meta.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next steps for a workload, and its status as a merge patch."""

    claims: Sequence[core_v1.PersistentVolumeClaim] = ()
    create: Sequence[core_v1.Pod] = ()
    delete: Sequence[Pod] = ()
    status: Mapping[str, int]


Planner: TypeAlias = Callable[[Workload, Sequence[Pod], Caches], Plan]


def read_workload(kind: str, found: Any) -> Workload:  # noqa: ANN401 - one of three kinds
    """The workload of that kind."""
    body = found.to_dict()
    template = json.dumps(body["spec"]["template"], sort_keys=True, default=str)
    return Workload(
        kind=kind,
        meta=read_meta(found.metadata),
        generation=found.metadata.generation or 0,
        selector=found.spec.selector,
        revision=hashlib.sha256(template.encode()).hexdigest()[:_REVISION_DIGITS],
        spec=body["spec"],
        status=body.get("status") or {},
    )


def plan_deployment(found: Workload, pods: Sequence[Pod], _: Caches) -> Plan:
    """All new pods start at once, and an old pod ends for each new one that is ready.

    With Recreate, all old pods end first.
    """
    recreates = found.spec.get("strategy", {}).get("type") == "Recreate"
    live = [pod for pod in pods if not (pod.meta.deleting or pod.finished)]
    new = [pod for pod in live if _revision(pod) == found.revision]
    old = [pod for pod in live if pod not in new]
    ready = sum(pod.ready for pod in live)
    new_ready = sum(pod.ready for pod in new)
    kept = 0 if recreates else max(0, found.replicas - new_ready)
    old_runs = any(_revision(pod) != found.revision and not pod.finished for pod in pods)
    missing = 0 if recreates and old_runs else found.replicas - len(new)
    name = {"generateName": f"{found.meta.key.name}-{found.revision}-"}
    return Plan(
        create=[_build_pod(found, name) for _ in range(missing)],
        delete=[*_least_useful(new, len(new) - found.replicas), *_least_useful(old, len(old) - kept)],
        status={
            **_counts(found, total=len(live), ready=ready),
            "updatedReplicas": len(new),
            "unavailableReplicas": max(0, found.replicas - ready),
        },
    )


def plan_stateful_set(found: Workload, pods: Sequence[Pod], caches: Caches) -> Plan:
    """Pods start in the order of their numbers, each after the one before is ready.

    When all are ready, the last pod that is surplus or of an old template ends. Claims are never deleted.
    """
    numbered = {int(pod.meta.key.name.rpartition("-")[2]): pod for pod in pods}
    claims: list[core_v1.PersistentVolumeClaim] = []
    create: list[core_v1.Pod] = []
    delete: list[Pod] = []
    unready = next((n for n in range(found.replicas) if not _is_well(numbered.get(n))), None)
    if unready is None:
        surplus = (
            pod
            for number, pod in sorted(numbered.items(), reverse=True)
            if number >= found.replicas or _revision(pod) != found.revision
        )
        delete = list(surplus)[:1]
    elif unready not in numbered:
        known = caches.claims.values
        claims = [one for one in _build_claims(found, unready) if read_meta(one.metadata).key not in known]
        create = [_build_numbered_pod(found, unready)]
    elif numbered[unready].finished:
        delete = [numbered[unready]]
    updated = sum(_revision(pod) == found.revision for pod in pods if not pod.meta.deleting)
    counts = _counts(found, total=len(pods), ready=sum(_is_well(pod) for pod in pods))
    return Plan(
        claims=claims,
        create=create,
        delete=[pod for pod in delete if not pod.meta.deleting],
        status={**counts, "updatedReplicas": updated},
    )


def plan_daemon_set(found: Workload, pods: Sequence[Pod], caches: Caches) -> Plan:
    """One pod on each node that the ``nodeSelector`` of the template selects.

    An update replaces pods that are not ready at once, and then the others one at a time.
    """
    selector = (found.spec["template"]["spec"].get("nodeSelector") or {}).items()
    nodes = caches.nodes.values.values()
    wanted = sorted(node.meta.key.name for node in nodes if selector <= node.meta.labels.items())
    by_node: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda one: one.meta.key):
        by_node.setdefault(pod.node_name or pod.required_node, []).append(pod)
    first = [by_node[node][0] for node in wanted if node in by_node]
    delete = [pod for node, there in by_node.items() for pod in there[node in wanted :]]
    delete += [pod for pod in first if pod.finished]
    old = [pod for pod in first if _revision(pod) != found.revision]
    broken = [pod for pod in first if not _is_well(pod)]
    delete += [pod for pod in old if pod in broken and pod not in delete]
    if not broken and len(first) == len(wanted):
        delete += old[:1]
    ready = len(first) - len(broken)
    return Plan(
        create=[_build_node_pod(found, node) for node in wanted if node not in by_node],
        delete=[pod for pod in delete if not pod.meta.deleting],
        status={
            "observedGeneration": found.generation,
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(first),
            "numberMisscheduled": sum(node not in wanted for node in by_node),
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": len(wanted) - ready,
            "updatedNumberScheduled": len(first) - len(old),
        },
    )


class Workloads:
    """Keeps the pods of all workloads of one kind while ``run`` runs; another task fills ``caches``.

    With ``adopts``, a workload takes over pods that have its labels and no controller.
    """

    def __init__(
        self, client: AsyncClient, caches: Caches, kind: Kind, plan: Planner, *, adopts: bool = False
    ) -> None:
        self._client: Any = client  # its overloads want the kind spelt out
        self._caches = caches
        self._kind: Any = kind
        self._plan = plan
        self._adopts = adopts
        self._workloads = Cache(kind, partial(read_workload, kind.__name__), namespace="*")
        self._queue: WorkQueue[Key] = WorkQueue(kind.__name__, self._look_at)
        self._workloads.listen(lambda change: self._queue.add(change.known.meta.key))
        caches.pods.listen(self._pod_changed)
        caches.nodes.listen(self._node_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._workloads.run(self._client))
            await self._caches.ready()
            await self._workloads.synced.wait()
            tasks.create_task(self._queue.run(_WORKERS))

    def _pod_changed(self, change: Change[Pod]) -> None:
        for state in (change.before, change.after):
            if state and state.controller and state.controller.kind == self._kind.__name__:
                self._queue.add(Key(state.meta.key.namespace, state.controller.name))
        if change.after and self._adopts and change.after.controller is None:
            for key, workload in self._workloads.values.items():
                if workload.selects(change.after):
                    self._queue.add(key)

    def _node_changed(self, change: Change[Node]) -> None:
        if change.before and change.after and change.before.meta.labels == change.after.meta.labels:
            return
        for key in self._workloads.values:
            self._queue.add(key)

    async def _look_at(self, key: Key) -> None:
        found = self._workloads.values.get(key)
        if found is None or found.meta.deleting:
            return
        if self._adopts:
            await self._adopt(found)
        pods = self._caches.pods
        own = [one for one in pods.values.values() if one.controller and one.controller.uid == found.meta.uid]
        plan = self._plan(found, own, self._caches)
        # The caches know what was created before its watch reports it, so nothing is created twice.
        for claim in plan.claims:
            self._caches.claims.remember(await self._client.create(claim))
        for pod in plan.create:
            pods.remember(await self._client.create(pod))
        for surplus in plan.delete:
            await self._client.delete(core_v1.Pod, surplus.meta.key.name, namespace=key.namespace)
        if any(found.status.get(field, 0) != count for field, count in plan.status.items()):
            body = {"metadata": {"uid": found.meta.uid}, "status": dict(plan.status)}
            await self._patch(self._workloads, self._kind.Status, key, body, PatchType.MERGE)

    async def _adopt(self, owner: Workload) -> None:
        found = self._caches.pods.values.values()
        orphans = [pod for pod in found if not (pod.controller or pod.meta.deleting) and owner.selects(pod)]
        # The deletion of this very workload, which its cache may not know of yet, leaves pods behind as well.
        if not orphans or not await self._lives(owner):
            return
        for pod in orphans:
            metadata = {
                "uid": pod.meta.uid,
                "resourceVersion": pod.meta.version,
                "ownerReferences": [_reference(owner)],
            }
            body = {"metadata": metadata}
            await self._patch(self._caches.pods, core_v1.Pod, pod.meta.key, body, PatchType.STRATEGIC)

    async def _lives(self, owner: Workload) -> bool:
        key = owner.meta.key
        found = read_meta((await self._client.get(self._kind, key.name, namespace=key.namespace)).metadata)
        return found.uid == owner.meta.uid and not found.deleting

    async def _patch(
        self, cache: Cache[Any], kind: Kind, key: Key, body: Mapping[str, Any], patch_type: PatchType
    ) -> None:
        written = await self._client.patch(
            kind, key.name, body, namespace=key.namespace, patch_type=patch_type
        )
        cache.remember(written)


async def run_workloads(client: AsyncClient, caches: Caches) -> None:
    """Run the controllers of all three kinds until cancelled; another task fills the caches."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Workloads(client, caches, apps_v1.Deployment, plan_deployment).run())
        tasks.create_task(Workloads(client, caches, apps_v1.StatefulSet, plan_stateful_set).run())
        tasks.create_task(Workloads(client, caches, apps_v1.DaemonSet, plan_daemon_set, adopts=True).run())


def _counts(found: Workload, *, total: int, ready: int) -> dict[str, int]:
    return {
        "observedGeneration": found.generation,
        "replicas": total,
        "readyReplicas": ready,
        "availableReplicas": ready,
    }


def _build_pod(
    owner: Workload, name: Mapping[str, str], spec: Mapping[str, Any] | None = None
) -> core_v1.Pod:
    """A pod of the template with this name, and with these fields instead of those of the template."""
    template = owner.spec["template"]
    metadata = template.get("metadata") or {}
    return convert(
        {
            "metadata": {
                **name,
                "namespace": owner.meta.key.namespace,
                "labels": {**(metadata.get("labels") or {}), REVISION_LABEL: owner.revision},
                "annotations": metadata.get("annotations"),
                "ownerReferences": [_reference(owner)],
            },
            "spec": {**template["spec"], **(spec or {})},
        },
        core_v1.Pod,
    )


def _build_numbered_pod(owner: Workload, number: int) -> core_v1.Pod:
    """The pod of that number, with its claims as volumes of the names of their templates."""
    claims = {
        template["metadata"]["name"]: {"claimName": _claim_name(owner, template, number)}
        for template in owner.spec.get("volumeClaimTemplates") or ()
    }
    others = owner.spec["template"]["spec"].get("volumes") or ()
    volumes = [
        *(one for one in others if one["name"] not in claims),
        *({"name": name, "persistentVolumeClaim": claim} for name, claim in claims.items()),
    ]
    return _build_pod(owner, {"name": f"{owner.meta.key.name}-{number}"}, {"volumes": volumes})


def _build_claims(owner: Workload, number: int) -> Iterable[core_v1.PersistentVolumeClaim]:
    """The claims of that number; they have no owner, and so outlive the workload."""
    for template in owner.spec.get("volumeClaimTemplates") or ():
        metadata = {
            **template["metadata"],
            "namespace": owner.meta.key.namespace,
            "name": _claim_name(owner, template, number),
        }
        body = {"metadata": metadata, "spec": template["spec"]}
        yield convert(body, core_v1.PersistentVolumeClaim)


def _claim_name(owner: Workload, template: Mapping[str, Any], number: int) -> str:
    return f"{template['metadata']['name']}-{owner.meta.key.name}-{number}"


def _build_node_pod(owner: Workload, node: str) -> core_v1.Pod:
    """The pod of that node; its affinity keeps it from all other nodes."""
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    others = owner.spec["template"]["spec"].get("affinity") or {}
    affinity = {**others, "nodeAffinity": required}
    return _build_pod(owner, {"generateName": f"{owner.meta.key.name}-"}, {"affinity": affinity})


def _reference(owner: Workload) -> dict[str, Any]:
    """The reference of an object to the workload that controls it."""
    return {
        "apiVersion": "apps/v1",
        "kind": owner.kind,
        "name": owner.meta.key.name,
        "uid": owner.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _least_useful(pods: Iterable[Pod], count: int) -> list[Pod]:
    """So many of the pods, first those that run nowhere and those that are not ready."""
    worst_first = sorted(pods, key=lambda pod: (bool(pod.node_name), pod.ready, pod.meta.key))
    return worst_first[: max(0, count)]


def _is_well(pod: Pod | None) -> bool:
    return pod is not None and pod.ready and not pod.finished and not pod.meta.deleting


def _revision(pod: Pod) -> str:
    return pod.meta.labels.get(REVISION_LABEL, "")
