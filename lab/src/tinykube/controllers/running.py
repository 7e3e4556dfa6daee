"""All controllers of the embedded cluster, on shared caches."""

import asyncio

from lightkube import AsyncClient

from tinykube.controllers.binder import Binder
from tinykube.controllers.caches import Caches
from tinykube.controllers.garbage import GarbageCollector
from tinykube.controllers.namespaces import NamespaceKeeper
from tinykube.controllers.protection import Protection
from tinykube.controllers.scheduler import Scheduler
from tinykube.controllers.workloads import run_workloads


async def run_controllers(client: AsyncClient, *, node: str | None) -> None:
    """Run every controller until cancelled; pods go to the node of that name, None: others schedule."""
    caches = Caches.empty()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Binder(client, caches).run())
        tasks.create_task(Protection(client, caches).run())
        if node is not None:
            tasks.create_task(Scheduler(client, caches, node=node).run())
        tasks.create_task(GarbageCollector(client).run())
        tasks.create_task(NamespaceKeeper(client).run())
        tasks.create_task(run_workloads(client, caches))
        tasks.create_task(caches.run(client))


async def run_scheduler(client: AsyncClient, *, node: str) -> None:
    """Run the scheduler alone until cancelled, for a cluster that has all other controllers."""
    caches = Caches.empty()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Scheduler(client, caches, node=node).run())
        tasks.create_task(caches.run(client))
