"""The controllers of Deployments and ReplicaSets: make the writes of ``replica_planning``."""

from datetime import UTC, datetime

from lightkube import AsyncClient
from lightkube.resources.apps_v1 import Deployment as DeploymentObject
from lightkube.resources.apps_v1 import ReplicaSet as ReplicaSetObject
from lightkube.resources.core_v1 import Pod as PodObject

from tinykube.client.events import EventRecorder
from tinykube.controllers.adoption import concerned
from tinykube.controllers.caches import Cache, Change
from tinykube.controllers.replica_planning import (
    MakePods,
    MakeReplicaSet,
    RemovePods,
    RemoveReplicaSet,
    Resize,
    RolloutStep,
    deployment_status,
    plan_deployment,
    plan_replica_set,
    replica_set_status,
    scaling,
)
from tinykube.controllers.values import Key, Pod
from tinykube.controllers.work_queue import WorkQueue
from tinykube.controllers.workload_objects import build_replica_pod, build_replica_set
from tinykube.controllers.workload_reading import render_deployment_status, render_replica_set_status
from tinykube.controllers.workload_writing import WorkloadWriter
from tinykube.controllers.workloads import Deployment, ReplicaSet

_WORKERS = 4


class ReplicaSets:
    """Keeps as many pods as each ReplicaSet wants while ``run`` runs; somebody else fills the caches."""

    def __init__(
        self, client: AsyncClient, pods: Cache[Pod], sets: Cache[ReplicaSet], events: EventRecorder
    ) -> None:
        self._pods = pods
        self._sets = sets
        self._writer = WorkloadWriter(client, events, ReplicaSetObject)
        self._queue: WorkQueue[Key] = WorkQueue("replica-sets", self._look_at)
        sets.listen(lambda change: self._queue.add(change.known.meta.key))
        pods.listen(self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._pods.synced.wait()
        await self._sets.synced.wait()
        await self._queue.run(_WORKERS)

    def _pod_changed(self, change: Change[Pod]) -> None:
        for key in concerned(change, "ReplicaSet", self._sets.values):
            self._queue.add(key)

    async def _look_at(self, key: Key) -> None:
        found = self._sets.values.get(key)
        if found is None:
            return
        # What has ended counts no more, so it would be of no use.
        counted = [pod for pod in self._pods.values.values() if not pod.finished]
        await self._writer.adopt(found, PodObject, counted, self._pods)
        match plan_replica_set(found, self._own(found)):
            case MakePods(count=count):
                for _ in range(count):
                    await self._writer.make(found.meta, build_replica_pod(found), self._pods)
            case RemovePods(pods=pods):
                for pod in pods:
                    await self._writer.remove(found.meta, pod)
        status = replica_set_status(found, self._own(found))
        if status != found.status:
            await self._writer.write_status(found.meta, render_replica_set_status(status), self._sets)

    def _own(self, found: ReplicaSet) -> list[Pod]:
        return pods_of({found.meta.uid}, self._pods)


class Deployments:
    """Rolls out every Deployment while ``run`` runs; somebody else fills the caches."""

    def __init__(
        self,
        client: AsyncClient,
        pods: Cache[Pod],
        sets: Cache[ReplicaSet],
        deployments: Cache[Deployment],
        events: EventRecorder,
    ) -> None:
        self._pods = pods
        self._sets = sets
        self._deployments = deployments
        self._writer = WorkloadWriter(client, events, DeploymentObject)
        self._queue: WorkQueue[Key] = WorkQueue("deployments", self._look_at)
        deployments.listen(lambda change: self._queue.add(change.known.meta.key))
        sets.listen(self._set_changed)
        pods.listen(self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        for cache in (self._pods, self._sets, self._deployments):
            await cache.synced.wait()
        await self._queue.run(_WORKERS)

    def _set_changed(self, change: Change[ReplicaSet]) -> None:
        for key in concerned(change, "Deployment", self._deployments.values):
            self._queue.add(key)

    def _pod_changed(self, change: Change[Pod]) -> None:
        """A pod that is gone may be the last one that a rollout has waited for."""
        pod = change.known
        if change.after is None and pod.controller is not None:
            owner = self._sets.values.get(Key(pod.meta.key.namespace, pod.controller.name))
            if owner is not None:
                self._set_changed(Change(owner, owner))

    async def _look_at(self, key: Key) -> None:
        found = self._deployments.values.get(key)
        if found is None:
            return
        await self._writer.adopt(found, ReplicaSetObject, self._sets.values.values(), self._sets)
        sets = self._own(found)
        for step in plan_deployment(found, sets, pods_of({one.meta.uid for one in sets}, self._pods)):
            await self._take(found, step)
        status = deployment_status(found, self._own(found))
        if status != found.status:
            rendered = render_deployment_status(status, found.status, datetime.now(UTC))
            await self._writer.write_status(found.meta, rendered, self._deployments)

    def _own(self, found: Deployment) -> list[ReplicaSet]:
        """The Deployment's own ReplicaSets, in an order that stays."""
        values = self._sets.values
        own = (one for one in values.values() if one.controller and one.controller.uid == found.meta.uid)
        return sorted(own, key=lambda one: one.meta.key)

    async def _take(self, found: Deployment, step: RolloutStep) -> None:
        match step:
            case MakeReplicaSet(replicas=replicas):
                await self._writer.make(found.meta, build_replica_set(found, replicas), self._sets)
            case Resize(target=target, replicas=replicas):
                text = scaling(target, replicas)
                await self._writer.resize(
                    found.meta, ReplicaSetObject, target.meta, replicas, self._sets, text
                )
            case RemoveReplicaSet(target=target):
                await self._writer.discard(ReplicaSetObject, target.meta)


def pods_of(controllers: set[str], pods: Cache[Pod]) -> list[Pod]:
    """The pods of the controllers with these uids."""
    return [pod for pod in pods.values.values() if pod.controller and pod.controller.uid in controllers]
