"""The controller of DaemonSets: makes the writes of ``daemon_planning``."""

from lightkube import AsyncClient
from lightkube.resources.apps_v1 import DaemonSet as DaemonSetObject
from lightkube.resources.core_v1 import Pod as PodObject

from tinykube.client.events import EventRecorder
from tinykube.controllers.adoption import concerned
from tinykube.controllers.caches import Cache, Change
from tinykube.controllers.daemon_planning import (
    MakeNodePod,
    RemoveNodePod,
    daemon_set_status,
    plan_daemon_set,
    wanted_nodes,
)
from tinykube.controllers.deployments import pods_of
from tinykube.controllers.values import Key, Node, Pod
from tinykube.controllers.work_queue import WorkQueue
from tinykube.controllers.workload_objects import build_node_pod
from tinykube.controllers.workload_reading import render_daemon_set_status
from tinykube.controllers.workload_writing import WorkloadWriter
from tinykube.controllers.workloads import DaemonSet

_WORKERS = 4


class DaemonSets:
    """Keeps a pod of each DaemonSet on every node while ``run`` runs; somebody else fills the caches."""

    def __init__(
        self,
        client: AsyncClient,
        pods: Cache[Pod],
        nodes: Cache[Node],
        sets: Cache[DaemonSet],
        events: EventRecorder,
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._sets = sets
        self._writer = WorkloadWriter(client, events, DaemonSetObject)
        self._queue: WorkQueue[Key] = WorkQueue("daemon-sets", self._look_at)
        sets.listen(lambda change: self._queue.add(change.known.meta.key))
        pods.listen(self._pod_changed)
        nodes.listen(self._node_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        for cache in (self._pods, self._nodes, self._sets):
            await cache.synced.wait()
        await self._queue.run(_WORKERS)

    def _pod_changed(self, change: Change[Pod]) -> None:
        for key in concerned(change, "DaemonSet", self._sets.values):
            self._queue.add(key)

    def _node_changed(self, change: Change[Node]) -> None:
        """Nodes come, go, and get other labels; what else changes of them is of no interest."""
        if change.before and change.after and change.before.meta.labels == change.after.meta.labels:
            return
        for key in self._sets.values:
            self._queue.add(key)

    async def _look_at(self, key: Key) -> None:
        found = self._sets.values.get(key)
        if found is None:
            return
        await self._writer.adopt(found, PodObject, self._pods.values.values(), self._pods)
        wanted = wanted_nodes(found, self._nodes.values.values())
        for step in plan_daemon_set(found, wanted, self._own(found)):
            match step:
                case MakeNodePod(node_name=node):
                    await self._writer.make(found.meta, build_node_pod(found, node), self._pods)
                case RemoveNodePod(pod=pod):
                    await self._writer.remove(found.meta, pod)
        status = daemon_set_status(found, wanted, self._own(found))
        if status != found.status:
            await self._writer.write_status(found.meta, render_daemon_set_status(status), self._sets)

    def _own(self, found: DaemonSet) -> list[Pod]:
        return pods_of({found.meta.uid}, self._pods)
