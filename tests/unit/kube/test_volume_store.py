import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType
from tests.unit.kube.conftest import Answer

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeAlreadyExists, KubeInvalid, KubeNotFound
from kube_efs.model.volumes import FINALIZER, ClaimReference, NfsSource, Volume

VOLUME = Volume(
    name="pv",
    reclaim_policy=ReclaimPolicy.DELETE,
    storage_class="efs",
    claim=ClaimReference(namespace="team", name="data", uid=ClaimUid("u")),
    nfs=NfsSource(server="127.0.0.1", path="/team/data"),
    access_modes=("ReadWriteMany",),
)


async def test_what_was_created_is_read_back(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(VOLUME)
    assert created.uid
    assert replace(created, uid="", phase=VOLUME.phase, finalizers=()) == VOLUME
    assert (await store.get("pv")).uid == created.uid


async def test_a_name_is_given_once(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await store.create(VOLUME)
    with pytest.raises(KubeAlreadyExists) as caught:
        await store.create(VOLUME)
    assert str(caught.value) == ('volume pv: answered 409 (persistentvolumes "pv" already exists)')


async def test_what_is_not_there(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    with pytest.raises(KubeNotFound) as caught:
        await store.get("pv")
    assert caught.value.field == "volume pv"
    await store.delete(VOLUME)


async def test_what_the_api_server_does_not_accept(kube: AsyncClient) -> None:
    with pytest.raises(KubeInvalid):
        await VolumeStore(kube).create(replace(VOLUME, name="No Name"))


HELD = replace(VOLUME, finalizers=(FINALIZER,))
FOREIGN = "example.com/backup"


async def is_there(store: VolumeStore) -> bool:
    try:
        await store.get("pv")
    except KubeNotFound:
        return False
    return True


async def hold(kube: AsyncClient, *finalizers: str) -> None:
    await kube.patch(
        PersistentVolume, "pv", {"metadata": {"finalizers": list(finalizers)}}, patch_type=PatchType.MERGE
    )


async def unprotected(kube: AsyncClient, store: VolumeStore) -> Volume:
    """A volume that is not held by Kubernetes itself, as one is that no claim uses."""
    await store.create(HELD)
    await hold(kube, FINALIZER)
    return await store.get("pv")


async def test_a_new_volume_is_held_from_the_start(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(HELD)
    assert FINALIZER in created.finalizers
    assert FINALIZER in (await store.get("pv")).finalizers


async def test_deleting_takes_the_finalizer_away_too(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await store.delete(await unprotected(kube, store))
    assert not await is_there(store)


async def test_another_volume_of_the_same_name_is_left_alone(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    earlier = await unprotected(kube, store)
    await store.delete(earlier)
    later = await unprotected(kube, store)
    assert later.uid != earlier.uid
    await store.delete(earlier)
    assert await store.get("pv") == later


async def test_a_volume_that_somebody_has_deleted_goes_when_it_is_released(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await unprotected(kube, store)
    await kube.delete(PersistentVolume, "pv")
    waiting = await store.get("pv")
    assert (waiting.deleting, waiting.finalizers) == (True, (FINALIZER,))
    await store.release(waiting)
    assert not await is_there(store)


async def test_a_volume_that_is_being_deleted_is_deleted_to_the_end(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await unprotected(kube, store)
    await kube.delete(PersistentVolume, "pv")
    await store.delete(await store.get("pv"))
    assert not await is_there(store)


async def test_finalizers_of_others_are_left_to_them(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(VOLUME)
    await hold(kube, FOREIGN)
    await store.protect(created)
    assert set((await store.get("pv")).finalizers) == {FOREIGN, FINALIZER}
    await store.delete(await store.get("pv"))
    left = await store.get("pv")
    assert (left.deleting, left.finalizers) == (True, (FOREIGN,))
    await hold(kube)
    assert not await is_there(store)


async def test_a_volume_is_protected_once(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(VOLUME)
    for _ in range(2):
        await store.protect(created)
    assert (await store.get("pv")).finalizers.count(FINALIZER) == 1


@pytest.mark.parametrize("change", [VolumeStore.protect, VolumeStore.release, VolumeStore.delete])
async def test_a_volume_that_is_gone_is_no_error(
    kube: AsyncClient, change: Callable[[VolumeStore, Volume], Awaitable[None]]
) -> None:
    await change(VolumeStore(kube), replace(HELD, uid="u"))


@pytest.mark.parametrize("change", [VolumeStore.protect, VolumeStore.release])
async def test_a_new_volume_of_that_name_is_left_alone(
    kube: AsyncClient, change: Callable[[VolumeStore, Volume], Awaitable[None]]
) -> None:
    store = VolumeStore(kube)
    created = await store.create(HELD)
    with pytest.raises(KubeInvalid, match="uid"):
        await change(store, replace(created, uid="of-a-former-one"))
    assert await store.get("pv") == created


async def test_thousands_do_not_take_all_connections(client_of: Callable[[Answer], AsyncClient]) -> None:
    under_way, most = set[str](), 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal most
        body = json.loads(request.content)
        under_way.add(body["metadata"]["name"])
        most = max(most, len(under_way))
        await asyncio.sleep(0)
        under_way.discard(body["metadata"]["name"])
        return httpx2.Response(201, json=body)

    async with client_of(answer) as client:
        store = VolumeStore(client)
        made = await asyncio.gather(*(store.create(replace(VOLUME, name=f"pv-{n}")) for n in range(200)))

    assert {one.name for one in made} == {f"pv-{number}" for number in range(200)}
    assert 1 < most <= 16
