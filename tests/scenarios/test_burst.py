"""A hundred claims at once: few worker pods, and never two volumes for one claim, whatever dies meanwhile."""

from collections.abc import Awaitable, Callable

import pytest
from lightkube.resources.core_v1 import Pod
from tests.scenarios import steps
from tests.scenarios.burst import CLAIMS, Burst
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_burst_needs_few_worker_pods(cluster: Cluster) -> None:
    burst = await Burst.of(cluster)
    async with steps.worker_pods(cluster) as pods:
        await burst.create()
        await burst.served()
    assert 2 <= len(pods.names) <= 6
    assert set(pods.most_at_once.values()) == {1}


async def _at_once(_cluster: Cluster, _burst: Burst) -> bool:
    return True


async def _a_worker_runs(cluster: Cluster, _burst: Burst) -> bool:
    found = cluster.client.list(Pod, namespace=cluster.namespace, labels={"component": "efs-worker"})
    return bool([pod async for pod in found])


def _volumes_exist(number: int) -> Callable[[Cluster, Burst], Awaitable[bool]]:
    async def look(_cluster: Cluster, burst: Burst) -> bool:
        return await burst.has_volumes(number)

    return look


MOMENTS = {
    "as the claims appear": _at_once,
    "while a worker runs": _a_worker_runs,
    "after the first volume": _volumes_exist(1),
    "half-way": _volumes_exist(CLAIMS // 2),
    "after the last volume": _volumes_exist(CLAIMS),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
async def test_a_killed_controller_loses_and_doubles_nothing(
    cluster: Cluster, moment: Callable[[Cluster, Burst], Awaitable[bool]]
) -> None:
    burst = await Burst.of(cluster)
    await burst.create()
    await steps.eventually(lambda: moment(cluster, burst), what="the moment to kill has come")

    await cluster.controller.kill()
    await cluster.controller.start()

    await burst.served()
