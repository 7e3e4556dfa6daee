"""SharedVolumes with their volumes and claims, on the embedded API server."""

import asyncio
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import httpx2
import pytest
import pytest_asyncio
from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    Container,
    PersistentVolumeClaimVolumeSource,
    PodSpec,
    Volume,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Namespace, PersistentVolume, Pod
from tests.unit.kube.shared_volume_definition import define

from kube_efs.kube import shared_volume_store
from kube_efs.kube.shared_volume_store import SharedVolumeStore
from kube_efs.kube.shared_volumes import SharedVolumeResource, read_shared_volume
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import KubeConflict, KubeDenied, KubeInvalid
from kube_efs.model.shared_volumes.shared_volume import (
    FINALIZER,
    OWNED,
    Marks,
    Owner,
    SharedVolume,
    SharedVolumePhase,
    SharedVolumeSource,
    Status,
    marks_of,
)
from kube_efs.operator.manifests import load_asset

OWNER = Owner(namespace="default", name="sv1")
SOURCE = SharedVolumeSource(file_system_id="fs-1234cdef", access_point_id="fsap-0123456789abcdef")
READY = Status(phase=SharedVolumePhase.READY, claim_name="pvc-sv1", bound=False, matches=True, generation=1)


@pytest_asyncio.fixture
async def store(kube: AsyncClient) -> SharedVolumeStore:
    await define(kube)
    return SharedVolumeStore(kube)


async def _made(kube: AsyncClient) -> SharedVolume:
    body: dict[str, Any] = {
        "metadata": {"name": OWNER.name, "namespace": OWNER.namespace},
        "spec": {"fileSystemID": SOURCE.file_system_id, "accessPointID": SOURCE.access_point_id},
    }
    return read_shared_volume(await kube.create(SharedVolumeResource(**body)))


async def test_shared_volume_without_a_spec_is_released(kube: AsyncClient) -> None:
    # The definition of the older system accepts it, and that of kube-efs replaces this definition.
    (strict,) = load_asset("shared-volumes-crd")
    loose = deepcopy(strict)
    del loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["required"]
    await kube.apply(_definition(loose), field_manager="older")
    metadata = ObjectMeta(name=OWNER.name, namespace=OWNER.namespace, finalizers=[FINALIZER])
    await kube.create(SharedVolumeResource(metadata=metadata))
    await kube.apply(_definition(strict), field_manager="older", force=True)
    await kube.delete(SharedVolumeResource, OWNER.name, namespace=OWNER.namespace)
    store = SharedVolumeStore(kube)
    shared = await store.get(OWNER)
    assert shared
    with pytest.raises(KubeInvalid, match="spec"):
        await store.hold(shared)
    await store.release(shared)
    assert await store.get(OWNER) is None


def _definition(body: dict[str, Any]) -> CustomResourceDefinition:
    return cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(body))


async def test_missing_objects_are_none(store: SharedVolumeStore) -> None:
    assert await store.get(OWNER) is None
    assert await store.volume(OWNER) is None
    assert await store.claim(OWNER) is None
    assert await store.annotation("nowhere", "key") is None


async def test_finalizer_is_added_and_removed(kube: AsyncClient, store: SharedVolumeStore) -> None:
    shared = await _made(kube)
    assert (shared.owner, shared.source, shared.finalizers, shared.status.phase) == (OWNER, SOURCE, (), None)

    held = await store.hold(shared)

    assert held.finalizers == (FINALIZER,)
    assert await store.get(OWNER) == held
    with pytest.raises(KubeConflict):
        await store.hold(shared)
    await store.release(held)
    after = await store.get(OWNER)
    assert after
    assert after.finalizers == ()


async def test_deleted_object_can_be_released(kube: AsyncClient, store: SharedVolumeStore) -> None:
    held = await store.hold(await _made(kube))
    await kube.delete(SharedVolumeResource, OWNER.name, namespace=OWNER.namespace)
    leaving = await store.get(OWNER)
    assert leaving
    assert leaving.deleting
    await store.release(leaving)
    assert await store.get(OWNER) is None
    await store.release(held)


async def test_written_status_is_read_back(kube: AsyncClient, store: SharedVolumeStore) -> None:
    shared = await _made(kube)
    written = await store.write_status(shared, READY)
    assert written.status == READY
    assert set(written.since) == {"Bound", "VolumeMatches"}
    failed = replace(READY, phase=SharedVolumePhase.FAILED, message="no quota")
    assert (await store.write_status(written, failed)).status == failed


async def test_status_decided_on_an_older_version_is_refused(
    kube: AsyncClient, store: SharedVolumeStore
) -> None:
    shared = await _made(kube)
    written = await store.write_status(shared, READY)
    with pytest.raises(KubeConflict):
        await store.write_status(shared, replace(READY, phase=SharedVolumePhase.FAILED))
    assert await store.get(OWNER) == written


async def test_condition_has_the_time_of_its_last_change(kube: AsyncClient, store: SharedVolumeStore) -> None:
    long_ago = "2001-01-01T00:00:00Z"
    written = await store.write_status(await _made(kube), READY)
    aged = replace(written, since=dict.fromkeys(written.since, long_ago))
    bound = await store.write_status(aged, replace(READY, bound=True))
    assert bound.since["VolumeMatches"] == long_ago
    assert bound.since["Bound"] != long_ago


async def test_spec_is_restored(kube: AsyncClient, store: SharedVolumeStore) -> None:
    shared = await _made(kube)
    other = replace(SOURCE, file_system_id="fs-99999999")
    assert (await store.restore(shared, other)).source == other


async def test_created_volume_and_claim_are_read_back(kube: AsyncClient, store: SharedVolumeStore) -> None:
    shared = await _made(kube)
    volume = await store.make_volume(shared, None)
    claim = await store.make_claim(shared)
    assert (volume.source, volume.marks, volume.volume.name) == (SOURCE, marks_of(OWNER), "pv-default-sv1")
    assert volume.volume.claim
    assert (volume.volume.claim.name, volume.volume.claim.uid) == ("pvc-sv1", None)
    assert (claim.marks, claim.claim.name, claim.claim.volume_name) == (
        marks_of(OWNER),
        "pvc-sv1",
        "pv-default-sv1",
    )
    assert claim.claim.storage_class == volume.volume.storage_class == "efs-sc"


async def test_volume_is_bound_and_unbound(kube: AsyncClient, store: SharedVolumeStore) -> None:
    shared = await _made(kube)
    volume, claim = await store.make_volume(shared, None), await store.make_claim(shared)

    tied = await store.tie(OWNER, volume, claim)
    loose = await store.tie(OWNER, tied, None)

    assert tied.volume.claim
    assert tied.volume.claim.uid == claim.claim.uid
    assert loose.volume.claim
    assert (loose.volume.claim.name, loose.volume.claim.uid) == ("pvc-sv1", None)


async def test_binding_decided_on_an_older_version_is_refused(
    kube: AsyncClient, store: SharedVolumeStore
) -> None:
    shared = await _made(kube)
    seen = await store.make_volume(shared, None)
    claim = await store.make_claim(shared)
    bound = await store.tie(OWNER, seen, claim)

    with pytest.raises(KubeConflict):
        await store.tie(OWNER, seen, None)

    assert await store.volume(OWNER) == bound


async def test_marks_are_repaired_and_other_labels_are_kept(
    kube: AsyncClient, store: SharedVolumeStore
) -> None:
    shared = await _made(kube)
    await store.make_volume(shared, None)
    found = await kube.get(PersistentVolume, OWNER.volume_name)
    assert found.metadata
    found.metadata.labels, found.metadata.annotations = {OWNED: "false", "app": "web"}, {}
    await kube.replace(found)
    volume = await store.volume(OWNER)
    assert volume
    assert volume.marks == Marks(labels={OWNED: "false"})

    marked = await store.mark_volume(OWNER, volume)

    assert marked.marks == marks_of(OWNER)
    assert marked.volume.labels["app"] == "web"
    claim = await store.make_claim(shared)
    assert (await store.mark_claim(OWNER, claim)).marks == marks_of(OWNER)


async def test_only_the_observed_object_is_deleted(kube: AsyncClient, store: SharedVolumeStore) -> None:
    shared = await _made(kube)
    volume, claim = await store.make_volume(shared, None), await store.make_claim(shared)

    with pytest.raises(KubeConflict):
        await store.remove_volume(replace(volume, volume=replace(volume.volume, uid="another")))
    with pytest.raises(KubeConflict):
        await store.remove_claim(replace(claim, claim=replace(claim.claim, uid=ClaimUid("another"))))
    assert await store.volume(OWNER) is not None

    await store.remove_claim(claim)
    await store.remove_volume(volume)
    await store.remove_volume(volume)


def _pod(name: str, claim: str, node: str | None) -> Pod:
    source = PersistentVolumeClaimVolumeSource(claimName=claim)
    return Pod(
        metadata=ObjectMeta(name=name, namespace=OWNER.namespace),
        spec=PodSpec(
            nodeName=node,
            containers=[Container(name="main", image="x")],
            volumes=[Volume(name="data", persistentVolumeClaim=source)],
        ),
    )


async def test_users_are_scheduled_pods_with_the_claim(kube: AsyncClient, store: SharedVolumeStore) -> None:
    for pod in (
        _pod("b", "pvc-sv1", "node"),
        _pod("a", "pvc-sv1", "node"),
        _pod("waiting", "pvc-sv1", None),
        _pod("other", "pvc-sv2", "node"),
    ):
        await kube.create(pod)
    assert await store.users(OWNER) == ("a", "b")


@pytest.mark.parametrize(("most_uses", "pods"), [(2, ("a", "b")), (1, ("a",))], ids=["all", "too many"])
async def test_pods_of_a_namespace_are_read_in_pages(
    client_of: Callable[..., AsyncClient],
    monkeypatch: pytest.MonkeyPatch,
    most_uses: int,
    pods: tuple[str, ...],
) -> None:
    """Its users could otherwise fill the memory of the controller with large pods, or with many claims."""
    monkeypatch.setattr(shared_volume_store, "_MOST_USES", most_uses)
    limits = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        limits.append(request.url.params.get("limit"))
        first = "continue" not in request.url.params
        metadata = {"resourceVersion": "1", **({"continue": "page-2"} if first else {})}
        items = [_pod("a" if first else "b", "pvc-sv1", "node").to_dict()]
        return httpx2.Response(200, json={"metadata": metadata, "items": items})

    async with client_of(answer) as client:
        assert await SharedVolumeStore(client).users(OWNER) == pods
    assert limits == ["500"] * len(pods)


def _lists(counts: Counter[str], seconds: float = 0.5) -> Callable[[httpx2.Request], Any]:
    """An API server that needs that long for the pods of a namespace, in which pod ``a`` uses ``pvc-sv1``."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        counts["begun"] += 1
        counts["at a time"] = max(counts["at a time"], counts["begun"] - counts["ended"])
        await asyncio.sleep(seconds)
        counts["ended"] += 1
        if counts["begun"] <= counts["denied"]:
            return httpx2.Response(403, json={"message": "no right", "reason": "Forbidden", "code": 403})
        items = [_pod("a", "pvc-sv1", "node").to_dict()]
        return httpx2.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": items})

    return answer


@pytest.mark.virtual_time
async def test_claims_of_a_namespace_share_the_list_of_its_pods(
    client_of: Callable[..., AsyncClient],
) -> None:
    """Its users can otherwise let the controller read all pods any number of times."""
    counts = Counter[str]()
    owners = [replace(OWNER, name=f"sv{number}") for number in range(100)]
    async with client_of(_lists(counts)) as client:
        store = SharedVolumeStore(client)
        for lists in (1, 2):
            found = await asyncio.gather(*(store.users(owner) for owner in owners))
            assert (found[:3], counts["begun"]) == ([(), ("a",), ()], lists)
            await asyncio.sleep(9)
            await store.users(OWNER)
            assert counts["begun"] == lists
            await asyncio.sleep(1)


@pytest.mark.virtual_time
async def test_pods_that_take_long_to_list_are_listed_less_often(
    client_of: Callable[..., AsyncClient],
) -> None:
    counts = Counter[str]()
    async with client_of(_lists(counts, seconds=20)) as client:
        store = SharedVolumeStore(client)
        began = asyncio.get_running_loop().time()
        while counts["begun"] < 2:
            await asyncio.gather(store.users(OWNER), asyncio.sleep(1))
        assert asyncio.get_running_loop().time() - began > 200


@pytest.mark.virtual_time
async def test_failed_list_of_pods_is_shared_and_repeated_later(
    client_of: Callable[..., AsyncClient],
) -> None:
    counts = Counter(denied=1)
    async with client_of(_lists(counts, seconds=20)) as client:
        store = SharedVolumeStore(client)
        for _ in range(2):
            with pytest.raises(KubeDenied, match="no right"):
                await store.users(OWNER)
        await asyncio.sleep(10)
        assert await store.users(OWNER) == ("a",)
        assert counts["begun"] == 2


@pytest.mark.virtual_time
async def test_pods_of_few_namespaces_are_listed_at_a_time(client_of: Callable[..., AsyncClient]) -> None:
    counts = Counter[str]()
    async with client_of(_lists(counts)) as client:
        store = SharedVolumeStore(client)
        owners = [replace(OWNER, namespace=f"team-{number}") for number in range(10)]
        assert await asyncio.gather(*(store.users(owner) for owner in owners)) == [("a",)] * 10
    assert (counts["begun"], counts["at a time"]) == (10, 2)


async def test_namespace_annotation_is_read(kube: AsyncClient, store: SharedVolumeStore) -> None:
    await kube.create(Namespace(metadata=ObjectMeta(name="team", annotations={"key": ""})))
    assert await store.annotation("team", "key") == ""
    assert await store.annotation("team", "other") is None


@pytest.mark.parametrize(
    "status",
    [
        None,
        {"phase": "Odd"},
        5,
        {"phase": ["Ready"], "claimRef": "pvc-sv1", "conditions": {"type": "Bound"}},
        {"conditions": [7, {"status": "True"}, {"type": 7}, {"type": "Bound", "status": {}}]},
    ],
)
def test_objects_that_older_definitions_accepted_are_read(status: object) -> None:
    body = {"metadata": {"name": "sv1", "namespace": "default", "uid": "u"}, "status": status}
    shared = read_shared_volume(body)
    assert shared.source == SharedVolumeSource(file_system_id="", access_point_id="")
    assert shared.status == Status()
