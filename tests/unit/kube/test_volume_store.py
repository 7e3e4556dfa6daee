import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx2
import pytest
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType
from tests.unit.conftest import Answer

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


async def test_created_volume_is_read_back(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(VOLUME)
    assert created.uid
    assert replace(created, uid="", phase=VOLUME.phase, finalizers=()) == VOLUME
    assert (await store.get("pv")).uid == created.uid


async def test_duplicate_name_is_refused(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await store.create(VOLUME)
    with pytest.raises(KubeAlreadyExists) as caught:
        await store.create(VOLUME)
    assert str(caught.value) == ('volume pv: answered 409 (persistentvolumes "pv" already exists)')


async def test_missing_volume_is_not_found_and_can_be_deleted(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    with pytest.raises(KubeNotFound) as caught:
        await store.get("pv")
    assert caught.value.field == "volume pv"
    await store.delete(VOLUME)


async def test_volume_that_the_api_server_refuses_is_an_error(kube: AsyncClient) -> None:
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
    """A volume without the finalizer of Kubernetes, as if no claim used it."""
    await store.create(HELD)
    await hold(kube, FINALIZER)
    return await store.get("pv")


async def test_new_volume_has_the_finalizer_from_the_start(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(HELD)
    assert FINALIZER in created.finalizers
    assert FINALIZER in (await store.get("pv")).finalizers


async def test_deletion_removes_the_finalizer(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await store.delete(await unprotected(kube, store))
    assert not await is_there(store)


async def test_deletion_spares_a_newer_volume_of_the_same_name(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    earlier = await unprotected(kube, store)
    await store.delete(earlier)
    later = await unprotected(kube, store)
    assert later.uid != earlier.uid
    await store.delete(earlier)
    assert await store.get("pv") == later


async def test_deleted_volume_disappears_when_the_finalizer_is_removed(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await unprotected(kube, store)
    await kube.delete(PersistentVolume, "pv")
    waiting = await store.get("pv")
    assert (waiting.deleting, waiting.finalizers) == (True, (FINALIZER,))
    await store.release(waiting)
    assert not await is_there(store)


async def test_deletion_of_a_terminating_volume_is_completed(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    await unprotected(kube, store)
    await kube.delete(PersistentVolume, "pv")
    await store.delete(await store.get("pv"))
    assert not await is_there(store)


async def test_foreign_finalizers_are_kept(kube: AsyncClient) -> None:
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


async def test_protection_adds_the_finalizer_once(kube: AsyncClient) -> None:
    store = VolumeStore(kube)
    created = await store.create(VOLUME)
    for _ in range(2):
        await store.protect(created)
    assert (await store.get("pv")).finalizers.count(FINALIZER) == 1


@pytest.mark.parametrize("change", [VolumeStore.protect, VolumeStore.release, VolumeStore.delete])
async def test_deleted_volume_is_not_an_error(
    kube: AsyncClient, change: Callable[[VolumeStore, Volume], Awaitable[None]]
) -> None:
    await change(VolumeStore(kube), replace(HELD, uid="u"))


@pytest.mark.parametrize("change", [VolumeStore.protect, VolumeStore.release])
async def test_change_of_the_finalizer_spares_a_newer_volume_of_the_same_name(
    kube: AsyncClient, change: Callable[[VolumeStore, Volume], Awaitable[None]]
) -> None:
    store = VolumeStore(kube)
    created = await store.create(HELD)
    with pytest.raises(KubeInvalid, match="uid"):
        await change(store, replace(created, uid="of-a-former-one"))
    assert await store.get("pv") == created


async def test_thousands_of_requests_do_not_use_all_connections(
    client_of: Callable[[Answer], AsyncClient],
) -> None:
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
