"""Faults of the API server, which a proxy in front of it causes."""

import asyncio
import random
from collections.abc import Callable

import pytest
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from tests.scenarios import faulty_api, steps
from tests.scenarios.burst import Burst
from tests.scenarios.faulty_api import Call, Fault, FaultyApi
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

FAULTS = (
    faulty_api.answering(429, retry_after=1),
    faulty_api.answering(500),
    faulty_api.answering(503),
    faulty_api.dropping,
)
CUT_SECONDS = 0.2


def _one_of_five_fails() -> Callable[[Call], Fault | None]:
    dice = random.Random(5)
    return lambda _: dice.choice(FAULTS) if dice.random() < 0.2 else None


def _answers_of_creations_are_lost() -> Callable[[Call], Fault | None]:
    made = {"persistentvolumes", "pods"}
    return lambda call: (
        faulty_api.losing_the_answer if call.method == "POST" and call.resource in made else None
    )


def _all_is_slow() -> Callable[[Call], Fault | None]:
    dice = random.Random(5)
    return lambda _: faulty_api.delaying(dice.uniform(0, 1))


BAD_DAYS = {
    "one request of five fails": _one_of_five_fails,
    "no answer to a creation arrives": _answers_of_creations_are_lost,
    "answers take up to a second": _all_is_slow,
}


@pytest.mark.parametrize("bad_day", BAD_DAYS.values(), ids=BAD_DAYS.keys())
async def test_burst_is_served_despite_api_server_faults(
    cluster: Cluster, api: FaultyApi, bad_day: Callable[[], Callable[[Call], Fault | None]]
) -> None:
    burst = await Burst.of(cluster)
    api.fault = bad_day()
    async with steps.worker_pods(cluster) as pods:
        await burst.create()
        await burst.served()
    assert set(pods.most_at_once.values()) == {1}
    assert not pods.conflicts


async def test_burst_is_served_despite_interrupted_watches(cluster: Cluster, api: FaultyApi) -> None:
    burst = await Burst.of(cluster)
    broken = 0

    async def break_watches() -> None:
        nonlocal broken
        while True:
            broken += await api.cut_watches()
            await asyncio.sleep(CUT_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        breaking = tasks.create_task(break_watches())
        await burst.create()
        await burst.served()
        breaking.cancel()
    assert broken > 10


async def test_changes_during_expired_watches_are_processed(cluster: Cluster, api: FaultyApi) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "old", storage_class, {"volume_name": "old"}))
    old = await steps.bound_volume(client, namespace, "old")

    api.fault = lambda call: faulty_api.expiring if call.is_watch else None
    assert await api.cut_watches()
    await client.create(steps.claim(namespace, "new", storage_class, {"volume_name": "new"}))
    await client.create(steps.claim(namespace, "brief", storage_class, {"volume_name": "brief"}))
    await client.delete(PersistentVolumeClaim, "brief", namespace=namespace)
    await client.delete(PersistentVolumeClaim, "old", namespace=namespace)

    # Each list shows what is new, though no watch ever does.
    await steps.bound_volume(client, namespace, "new")
    await steps.gone(client, old.name)
    api.fault = faulty_api.no_fault
    await client.create(steps.claim(namespace, "last", storage_class, {"volume_name": "last"}))
    await steps.bound_volume(client, namespace, "last")

    async def two_volumes() -> bool:
        return len(await steps.volumes_of(client, namespace)) == 2

    await steps.eventually(two_volumes, what="only the volumes of the claims that are there are left")


async def test_volume_deleted_without_a_watch_no_longer_blocks_a_removal(
    cluster: Cluster, api: FaultyApi
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "above", storage_class, {"volume_name": "above"}))
    above = await steps.bound_volume(client, namespace, "above")
    await client.create(
        await steps.foreign_volume(cluster, f"below-{namespace}", f"/{namespace}/above/inner")
    )
    await client.delete(PersistentVolumeClaim, "above", namespace=namespace)
    await steps.refusal(cluster, above.name)

    api.fault = lambda call: faulty_api.dropping if call.method == "GET" else None
    assert await api.cut_watches()
    await client.delete(PersistentVolume, f"below-{namespace}")
    api.fault = _expiring_once()

    await steps.gone(client, above.name)
    assert not (cluster.efs.folder(min(cluster.file_system_ids)) / namespace / "above").exists()


def _expiring_once() -> Callable[[Call], Fault | None]:
    """Let the next watch of each kind expire."""
    expired: set[str] = set()

    def fault(call: Call) -> Fault | None:
        if not call.is_watch or call.resource in expired:
            return None
        expired.add(call.resource)
        return faulty_api.expiring

    return fault
