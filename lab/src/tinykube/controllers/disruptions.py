"""The controller of PodDisruptionBudgets: says how many of their pods may be evicted."""

from collections.abc import Iterator
from datetime import UTC, datetime

from lightkube import AsyncClient
from lightkube.resources.policy_v1 import PodDisruptionBudget
from lightkube.types import PatchType

from kube_efs.kube.errors import translated
from tinykube.controllers.caches import Cache, Change
from tinykube.controllers.disruption_planning import (
    Budget,
    Scale,
    budget_status,
    read_budget,
    render_budget_status,
)
from tinykube.controllers.values import Key, Pod
from tinykube.controllers.work_queue import WorkQueue
from tinykube.controllers.workloads import Deployment, ReplicaSet, StatefulSet


class Disruptions:
    """Keeps the status of every budget while ``run`` runs; somebody else fills the caches."""

    def __init__(
        self,
        client: AsyncClient,
        pods: Cache[Pod],
        sets: Cache[ReplicaSet],
        deployments: Cache[Deployment],
        numbered: Cache[StatefulSet],
    ) -> None:
        self._client = client
        self._pods = pods
        self._sets = sets
        self._deployments = deployments
        self._numbered = numbered
        self.budgets = Cache(PodDisruptionBudget, read_budget, namespace="*")
        self._queue: WorkQueue[Key] = WorkQueue("disruptions", self._look_at)
        self.budgets.listen(lambda change: self._queue.add(change.known.meta.key))
        pods.listen(self._pod_changed)
        for workloads in (deployments, numbered):
            workloads.listen(lambda change: self._look_at_all_in(change.known.meta.key.namespace))

    async def run(self) -> None:
        """Work until cancelled."""
        for cache in (self._pods, self._sets, self._deployments, self._numbered, self.budgets):
            await cache.synced.wait()
        await self._queue.run(1)

    def _pod_changed(self, change: Change[Pod]) -> None:
        for budget in self.budgets.values.values():
            if any(pod is not None and budget.covers(pod) for pod in (change.before, change.after)):
                self._queue.add(budget.meta.key)

    def _look_at_all_in(self, namespace: str) -> None:
        for key in self.budgets.values:
            if key.namespace == namespace:
                self._queue.add(key)

    async def _look_at(self, key: Key) -> None:
        found = self.budgets.values.get(key)
        if found is None:
            return
        status = budget_status(found, tuple(self._pods.values.values()), dict(self._scales()))
        if status != found.status:
            await self._write(found, render_budget_status(status, found.status, datetime.now(UTC)))

    async def _write(self, found: Budget, status: dict[str, object]) -> None:
        """Only on top of what was decided on: an eviction in between has changed it."""
        meta = found.meta
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.version}, "status": status}
        with translated(f"PodDisruptionBudget {meta.key}"):
            written = await self._client.patch(
                PodDisruptionBudget.Status,
                meta.key.name,
                body,
                namespace=meta.key.namespace,
                patch_type=PatchType.MERGE,
            )
        self.budgets.remember(written)

    def _scales(self) -> Iterator[tuple[str, Scale]]:
        for numbered in self._numbered.values.values():
            yield numbered.meta.uid, Scale(numbered.meta.uid, numbered.replicas)
        deployments = {one.meta.uid: one for one in self._deployments.values.values()}
        for one in self._sets.values.values():
            owner = deployments.get(one.controller.uid) if one.controller else None
            yield one.meta.uid, Scale((owner or one).meta.uid, (owner or one).replicas)
