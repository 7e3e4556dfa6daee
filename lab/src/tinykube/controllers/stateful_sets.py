"""The controller of StatefulSets: makes the writes of ``stateful_planning``."""

from lightkube import AsyncClient
from lightkube.resources.apps_v1 import StatefulSet as StatefulSetObject
from lightkube.resources.core_v1 import Pod as PodObject

from tinykube.client.events import EventRecorder
from tinykube.controllers.adoption import concerned
from tinykube.controllers.caches import Cache, Caches, Change
from tinykube.controllers.stateful_planning import (
    MakeClaim,
    MakePod,
    RemovePod,
    Step,
    named_as_its_own,
    plan_stateful_set,
    pods_by_ordinal,
    status_of,
)
from tinykube.controllers.values import Key, Pod
from tinykube.controllers.work_queue import WorkQueue
from tinykube.controllers.workload_objects import build_claim, build_numbered_pod
from tinykube.controllers.workload_reading import render_stateful_set_status
from tinykube.controllers.workload_writing import WorkloadWriter
from tinykube.controllers.workloads import StatefulSet

_WORKERS = 4


class StatefulSets:
    """Looks after every StatefulSet while ``run`` runs; somebody else fills the cache it is given."""

    def __init__(
        self, client: AsyncClient, caches: Caches, sets: Cache[StatefulSet], events: EventRecorder
    ) -> None:
        self._caches = caches
        self._sets = sets
        self._writer = WorkloadWriter(client, events, StatefulSetObject)
        self._queue: WorkQueue[Key] = WorkQueue("stateful-sets", self._look_at)
        sets.listen(lambda change: self._queue.add(change.known.meta.key))
        caches.pods.listen(self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._caches.ready()
        await self._sets.synced.wait()
        await self._queue.run(_WORKERS)

    def _pod_changed(self, change: Change[Pod]) -> None:
        for key in concerned(change, "StatefulSet", self._sets.values):
            self._queue.add(key)

    async def _look_at(self, key: Key) -> None:
        found = self._sets.values.get(key)
        if found is None:
            return
        pods = self._caches.pods
        await self._writer.adopt(found, PodObject, named_as_its_own(found, pods.values.values()), pods)
        claims = {name for namespace, name in self._caches.claims.values if namespace == key.namespace}
        for step in plan_stateful_set(found, self._pods(found), claims):
            await self._take(found, step)
        status = status_of(found, self._pods(found))
        if status != found.status:
            await self._writer.write_status(found.meta, render_stateful_set_status(status), self._sets)

    def _pods(self, found: StatefulSet) -> dict[int, Pod]:
        return pods_by_ordinal(found, self._caches.pods.values.values())

    async def _take(self, found: StatefulSet, step: Step) -> None:
        match step:
            case MakeClaim(template=template, ordinal=ordinal):
                claim = build_claim(found, template, ordinal)
                await self._writer.make(found.meta, claim, self._caches.claims)
            case MakePod(ordinal=ordinal):
                pod = build_numbered_pod(found, ordinal)
                await self._writer.make(found.meta, pod, self._caches.pods)
            case RemovePod(pod=pod):
                await self._writer.remove(found.meta, pod)
