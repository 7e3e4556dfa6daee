"""All controllers of the embedded cluster, on shared caches."""

import asyncio

from lightkube import AsyncClient

from kube_efs.kube.events import EventRecorder
from kube_efs.local.controllers.binder import Binder
from kube_efs.local.controllers.caches import Caches
from kube_efs.local.controllers.garbage import GarbageCollector
from kube_efs.local.controllers.namespaces import NamespaceKeeper
from kube_efs.local.controllers.protection import Protection
from kube_efs.local.controllers.scheduler import Scheduler


async def run_controllers(client: AsyncClient, *, node: str) -> None:
    """Run every controller until cancelled; pods go to the node of that name."""
    caches = Caches.empty()
    async with (
        EventRecorder(client, component="persistentvolume-controller") as volume_events,
        EventRecorder(client, component="default-scheduler") as pod_events,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(Binder(client, caches, volume_events).run())
        tasks.create_task(Protection(client, caches).run())
        tasks.create_task(Scheduler(client, caches, pod_events, node=node).run())
        tasks.create_task(GarbageCollector(client).run())
        tasks.create_task(NamespaceKeeper(client).run())
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
