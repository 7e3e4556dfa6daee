"""A hundred claims at once: few worker pods, and never two volumes for one claim, whatever dies meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIMS = 100


async def test_a_burst_needs_few_worker_pods(cluster: Cluster) -> None:
    namespace, storage_class = await _prepare(cluster)
    async with steps.worker_pods(cluster) as pods:
        await _create_claims(cluster, namespace, storage_class)
        await _all_bound(cluster, namespace)

    assert 2 <= len(pods) <= 6
    await _each_has_one_volume(cluster, namespace)


async def _at_once(_cluster: Cluster, _namespace: str) -> bool:
    return True


async def _a_worker_runs(cluster: Cluster, _namespace: str) -> bool:
    found = cluster.client.list(Pod, namespace=cluster.namespace, labels={"component": "efs-worker"})
    return bool([pod async for pod in found])


def _volumes_exist(number: int) -> Callable[[Cluster, str], Awaitable[bool]]:
    async def look(cluster: Cluster, namespace: str) -> bool:
        return len(await steps.volumes_of(cluster.client, namespace)) >= number

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
    cluster: Cluster, moment: Callable[[Cluster, str], Awaitable[bool]]
) -> None:
    namespace, storage_class = await _prepare(cluster)
    await _create_claims(cluster, namespace, storage_class)
    await steps.eventually(lambda: moment(cluster, namespace), what="the moment to kill has come")

    await cluster.controller.kill()
    await cluster.controller.start()

    await _all_bound(cluster, namespace)
    await _each_has_one_volume(cluster, namespace)


async def _prepare(cluster: Cluster) -> tuple[str, str]:
    namespace = await steps.new_namespace(cluster.client)
    return namespace, await steps.new_class(cluster.client)


async def _create_claims(cluster: Cluster, namespace: str, storage_class: str) -> None:
    systems = cluster.file_system_ids
    await asyncio.gather(
        *(
            cluster.client.create(
                steps.claim(
                    namespace,
                    f"claim-{number}",
                    storage_class,
                    {"volume_name": f"volume_{number}", "file_system_id": systems[number % len(systems)]},
                )
            )
            for number in range(CLAIMS)
        )
    )


async def _all_bound(cluster: Cluster, namespace: str) -> None:
    async def look() -> bool:
        claims = [one async for one in cluster.client.list(PersistentVolumeClaim, namespace=namespace)]
        return len(claims) == CLAIMS and all(one.status and one.status.phase == "Bound" for one in claims)

    await steps.eventually(look, what=f"all {CLAIMS} claims are Bound", seconds=120)


async def _each_has_one_volume(cluster: Cluster, namespace: str) -> None:
    claims = [one async for one in cluster.client.list(PersistentVolumeClaim, namespace=namespace)]
    volumes = await steps.volumes_of(cluster.client, namespace)
    assert sorted(volume.claim.uid or "" for volume in volumes if volume.claim) == sorted(
        one.metadata.uid or "" for one in claims if one.metadata
    )
    for number in range(CLAIMS):
        system = cluster.file_system_ids[number % len(cluster.file_system_ids)]
        assert (cluster.efs.folder(system) / namespace / f"volume_{number}").is_dir()
