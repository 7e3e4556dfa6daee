"""Many concurrent claims: few worker pods, and one volume for each claim despite crashes."""

import asyncio
import re

import pytest
from tests.scenarios import steps
from tests.scenarios.burst import MANY, MOMENTS, Burst, Moment
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_burst_uses_few_worker_pods(cluster: Cluster) -> None:
    burst = await Burst.of(cluster, MANY)
    async with steps.worker_pods(cluster) as pods:
        await burst.create()
        await burst.served()
    assert 2 <= len(pods.names) <= 6
    assert set(pods.most_at_once.values()) == {1}
    assert not pods.conflicts


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
async def test_killed_controller_loses_and_duplicates_nothing(cluster: Cluster, moment: Moment) -> None:
    burst = await Burst.of(cluster)
    await burst.create()
    await burst.reaches(moment)

    await cluster.controller.kill()
    await cluster.controller.start()

    await burst.served()


async def test_burst_needs_no_missing_permission(cluster: Cluster) -> None:
    # Some refusals are only logged: that of an event after a restart, for one.
    for program in (cluster.controller, cluster.tunnel):
        written = await asyncio.to_thread(program.log_file.read_text)
        assert re.findall(r"cannot \w+ resource[^}]*", written) == []
