"""All controllers of the embedded cluster, on shared caches."""

import asyncio

from lightkube import AsyncClient
from lightkube.resources import apps_v1

from tinykube.client.events import EventRecorder
from tinykube.controllers.binder import Binder
from tinykube.controllers.caches import Cache, Caches
from tinykube.controllers.daemon_sets import DaemonSets
from tinykube.controllers.deployments import Deployments, ReplicaSets
from tinykube.controllers.garbage import GarbageCollector
from tinykube.controllers.namespaces import NamespaceKeeper
from tinykube.controllers.protection import Protection
from tinykube.controllers.scheduler import Scheduler
from tinykube.controllers.stateful_sets import StatefulSets
from tinykube.controllers.workload_reading import (
    read_daemon_set,
    read_deployment,
    read_replica_set,
    read_stateful_set,
)


async def run_controllers(client: AsyncClient, *, node: str | None) -> None:
    """Run every controller until cancelled; pods go to the node of that name, None: others schedule."""
    caches = Caches.empty()
    async with (
        EventRecorder(client, component="persistentvolume-controller") as volume_events,
        EventRecorder(client, component="default-scheduler") as pod_events,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(Binder(client, caches, volume_events).run())
        tasks.create_task(Protection(client, caches).run())
        if node is not None:
            tasks.create_task(Scheduler(client, caches, pod_events, node=node).run())
        tasks.create_task(GarbageCollector(client).run())
        tasks.create_task(NamespaceKeeper(client).run())
        tasks.create_task(_run_workloads(client, caches))
        tasks.create_task(caches.run(client))


async def run_scheduler(client: AsyncClient, *, node: str) -> None:
    """Run the scheduler alone until cancelled, for a cluster that has all other controllers."""
    caches = Caches.empty()
    async with (
        EventRecorder(client, component="default-scheduler") as pod_events,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(Scheduler(client, caches, pod_events, node=node).run())
        tasks.create_task(caches.run(client))


async def _run_workloads(client: AsyncClient, caches: Caches) -> None:
    """Run the controllers of what makes pods; somebody else fills these caches."""
    numbered = Cache(apps_v1.StatefulSet, read_stateful_set, namespace="*")
    sets = Cache(apps_v1.ReplicaSet, read_replica_set, namespace="*")
    deployments = Cache(apps_v1.Deployment, read_deployment, namespace="*")
    daemons = Cache(apps_v1.DaemonSet, read_daemon_set, namespace="*")
    async with (
        EventRecorder(client, component="statefulset-controller") as numbered_events,
        EventRecorder(client, component="replicaset-controller") as set_events,
        EventRecorder(client, component="deployment-controller") as deployment_events,
        EventRecorder(client, component="daemonset-controller") as daemon_events,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(StatefulSets(client, caches, numbered, numbered_events).run())
        tasks.create_task(ReplicaSets(client, caches.pods, sets, set_events).run())
        tasks.create_task(Deployments(client, caches.pods, sets, deployments, deployment_events).run())
        tasks.create_task(DaemonSets(client, caches.pods, caches.nodes, daemons, daemon_events).run())
        for cache in (numbered, sets, deployments, daemons):
            tasks.create_task(cache.run(client))
