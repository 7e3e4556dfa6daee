from dataclasses import replace

import pytest
from lightkube import AsyncClient

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.errors import KubeAlreadyExists, KubeInvalid, KubeNotFound
from kube_efs.model.ids import ClaimUid
from kube_efs.model.volumes import ClaimReference, NfsSource, Volume

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
