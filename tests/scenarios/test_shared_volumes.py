"""SharedVolumes: the session of aws-efs-operator's README, and known weaknesses of that system."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from lightkube import ApiError
from lightkube.models.core_v1 import CSIPersistentVolumeSource, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim
from lightkube.types import PatchType
from tests.conformance.kubectl import Kubectl
from tests.scenarios import steps
from tests.scenarios.shared_volume_steps import (
    ACCESS_POINT,
    CRD,
    FILE_SYSTEM,
    OTHER_POINT,
    OWNER_ID,
    SEED,
    SEED_POD,
    SharedVolumes,
    claim_by_hand,
    define,
    new_access_point,
)
from tests.scenarios.steps import Cluster

from kube_efs.kube.shared_volumes import SharedVolumeResource
from kube_efs.model.shared_volumes.limits import ANNOTATION
from kube_efs.model.shared_volumes.shared_volume import (
    FINALIZER,
    OWNED,
    OWNER_NAME,
    OWNER_NAMESPACE,
    SharedVolumePhase,
    marks_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

READY, FAILED = SharedVolumePhase.READY, SharedVolumePhase.FAILED
PENDING, DELETING = SharedVolumePhase.PENDING, SharedVolumePhase.DELETING


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    return {
        "KUBE_EFS_SHARED_VOLUME_LIMITS": "{limited-by-settings: [fs-0000000a]}",
        "PROVISION_BACKOFF_INTERVAL": "1",
    }


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def _defined(cluster: Cluster) -> None:
    await define(cluster)


@asynccontextmanager
async def _absent(cluster: Cluster) -> AsyncGenerator[None, None]:
    """The controller is stopped while the context is open."""
    await cluster.controller.kill()
    try:
        yield
    finally:
        await cluster.controller.start()
        await cluster.controller.ready()


# --- the README's session


async def test_session_of_the_readme_works(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    kubectl, namespace = volumes.kubectl, volumes.namespace

    created = await kubectl("create", "-n", namespace, "-f", "-", stdin=SEED)
    await volumes.in_phase(READY)
    shown = (await kubectl("get", "sv", "sv1", "-n", namespace)).splitlines()
    claim = await volumes.bound()
    listed = (await kubectl("get", "pvc", "pvc-sv1", "-n", namespace)).splitlines()
    deleted = await kubectl("delete", "sv", "sv1", "-n", namespace, "--timeout=30s")

    assert created == "sharedvolume.aws-efs.managed.openshift.io/sv1 created\n"
    assert [cell.strip() for cell in shown[0].split("  ") if cell] == [
        "NAME",
        "FILE SYSTEM",
        "ACCESS POINT",
        "PHASE",
        "CLAIM",
        "MESSAGE",
    ]
    assert shown[1].split() == ["sv1", FILE_SYSTEM, ACCESS_POINT, "Ready", "pvc-sv1"]
    assert claim.claim.volume_name == f"pv-{namespace}-sv1"
    assert listed[1].split()[:4] == ["pvc-sv1", "Bound", f"pv-{namespace}-sv1", "1Gi"]
    assert listed[1].split()[4:6] == ["RWX", "efs-sc"]
    assert deleted.startswith('sharedvolume.aws-efs.managed.openshift.io "sv1" deleted')
    await volumes.gone()


@pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only")
async def test_data_outlives_shared_volumes_and_is_shared(cluster: Cluster) -> None:
    one, other = await SharedVolumes.of(cluster), await SharedVolumes.of(cluster)
    place = await new_access_point(cluster)
    folder = await cluster.efs.access_point_folder(place.access_point_id)
    ids = {ACCESS_POINT: place.access_point_id, FILE_SYSTEM: place.file_system_id}
    manifest = SEED
    for example, real in ids.items():
        manifest = manifest.replace(example, real)
    for volumes in (one, other):
        await volumes.kubectl("create", "-n", volumes.namespace, "-f", "-", stdin=manifest)
        await volumes.bound()

    # The README omits options that kubectl requires.
    await one.kubectl("create", "-n", one.namespace, "-f", "-", stdin=f"apiVersion: v1{SEED_POD}")
    await one.pod_in_phase("pod1", "Running")
    await one.run("writer", 'echo "Hello world" > /mnt/efs-data/f1')
    await other.run("reader", 'test "$(cat /mnt/efs-data/f1)" = "Hello world"')

    assert (folder / "f1").read_text() == "Hello world\n"
    assert folder.stat().st_uid == OWNER_ID
    for volumes, pods in ((one, ("pod1", "writer")), (other, ("reader",))):
        await volumes.end_pods(*pods)
        await volumes.removed()
    assert (folder / "f1").read_text() == "Hello world\n"

    await one.create("sv2", file_system=place.file_system_id, access_point=place.access_point_id)
    await one.bound("sv2")
    await one.run("reader", "grep 'Hello world' /mnt/efs-data/f1", claim="pvc-sv2")
    await one.end_pods("reader")
    await one.removed("sv2")


async def test_volume_and_claim_match_the_older_system(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()

    volume = await cluster.client.get(PersistentVolume, owner.volume_name)
    claim = await cluster.client.get(PersistentVolumeClaim, owner.claim_name, namespace=owner.namespace)
    shared = await volumes.get()

    labels = {OWNED: "true", OWNER_NAMESPACE: owner.namespace, OWNER_NAME: "sv1"}
    assert volume.metadata
    assert volume.spec
    assert volume.spec.csi
    assert volume.spec.claimRef
    assert volume.metadata.labels == labels
    assert (volume.spec.csi.driver, volume.spec.csi.volumeHandle) == (
        "efs.csi.aws.com",
        f"{FILE_SYSTEM}::{ACCESS_POINT}",
    )
    assert (volume.spec.accessModes, volume.spec.capacity) == (["ReadWriteMany"], {"storage": "1Gi"})
    assert (volume.spec.storageClassName, volume.spec.persistentVolumeReclaimPolicy) == ("efs-sc", "Retain")
    assert (volume.spec.mountOptions, volume.spec.csi.volumeAttributes) == (None, None)
    assert (volume.spec.claimRef.namespace, volume.spec.claimRef.name) == (owner.namespace, "pvc-sv1")
    assert claim.metadata
    assert claim.spec
    assert claim.metadata.labels == labels
    assert (claim.metadata.ownerReferences, volume.metadata.ownerReferences) == (None, None)
    assert (claim.spec.accessModes, claim.spec.storageClassName) == (["ReadWriteMany"], "efs-sc")
    assert claim.spec.volumeName == owner.volume_name
    assert shared
    assert shared.finalizers == (FINALIZER,)
    assert (shared.status.claim_name, shared.status.message) == ("pvc-sv1", "")
    assert (shared.status.bound, shared.status.matches) == (True, True)
    assert "uses access point" in await volumes.event_text("Ready")
    await volumes.removed()


async def test_two_namespaces_share_an_access_point(cluster: Cluster) -> None:
    one, other = await SharedVolumes.of(cluster), await SharedVolumes.of(cluster)
    for volumes in (one, other):
        await volumes.create()
    found = []
    for volumes in (one, other):
        await volumes.bound()
        found.append(await volumes.volume())

    assert found[0]
    assert found[1]
    assert found[0].volume.name != found[1].volume.name
    assert found[0].volume.csi == found[1].volume.csi

    await one.removed()
    assert (await other.bound()).claim.phase == "Bound"
    await other.removed()


async def test_several_shared_volumes_of_a_namespace_are_separate(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create("one")
    await volumes.create("same")
    await volumes.create("two", access_point=OTHER_POINT)
    for name in ("one", "same", "two"):
        await volumes.bound(name)

    await volumes.removed("one")

    sources = {name: volume.source for name in ("same", "two") if (volume := await volumes.volume(name))}
    assert {name: source and source.access_point_id for name, source in sources.items()} == {
        "same": ACCESS_POINT,
        "two": OTHER_POINT,
    }
    await volumes.removed("same")
    await volumes.removed("two")


# --- edits


@pytest.mark.real_only("the embedded API server evaluates no rules")
async def test_edit_is_refused_if_the_api_server_has_rules(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    await volumes.in_phase(READY)

    with pytest.raises(ApiError) as caught:
        await volumes.edit(accessPointID=OTHER_POINT)

    assert caught.value.status.code == 422
    assert "spec.accessPointID" in (caught.value.status.message or "")
    assert "create another SharedVolume" in (caught.value.status.message or "")
    await volumes.removed()


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [("fileSystemID", "fs-99999999", FILE_SYSTEM), ("accessPointID", OTHER_POINT, ACCESS_POINT)],
)
async def test_edit_is_undone_and_reported(cluster: Cluster, field: str, value: str, kept: str) -> None:
    await define(cluster, enforced=False)
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()
    before = await cluster.client.get(PersistentVolume, owner.volume_name)

    await volumes.edit(**{field: value})

    shared = await volumes.becomes(lambda one: str(kept) in one.source.handle, "has its old spec")
    told = await volumes.event_text("EditUndone")
    assert (shared.source.file_system_id, shared.source.access_point_id) == (FILE_SYSTEM, ACCESS_POINT)
    assert f"spec.{field}: '{value}' was reset to '{kept}'" in told
    after = await cluster.client.get(PersistentVolume, owner.volume_name)
    assert after.spec == before.spec
    assert (await volumes.in_phase(READY)).status.matches
    assert await steps.metric(cluster.controller, "kube_efs_shared_volume_edits_undone_total") >= 1
    await volumes.removed()


async def test_edit_without_a_running_controller_is_undone(cluster: Cluster) -> None:
    await define(cluster, enforced=False)
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    await volumes.bound()

    async with _absent(cluster):
        await volumes.edit(accessPointID=OTHER_POINT)

    await volumes.becomes(lambda one: one.source.access_point_id == ACCESS_POINT, "has its old spec")
    await volumes.removed()


@pytest.mark.real_only("the embedded API server evaluates no rules")
async def test_edit_that_cannot_be_undone_is_reported(cluster: Cluster) -> None:
    await define(cluster, enforced=False)
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    await volumes.bound()

    async with _absent(cluster):
        await volumes.edit(accessPointID=OTHER_POINT)
        await define(cluster)

    shared = await volumes.in_phase(FAILED)
    assert f"differs from the handle of its volume pv-{volumes.namespace}-sv1" in shared.status.message
    assert "delete this SharedVolume and create it again" in shared.status.message
    await volumes.removed()


# --- what goes comes back


async def test_manually_deleted_claim_is_recreated_and_bound(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    first = await volumes.bound()

    await volumes.delete_claim()

    async def is_new() -> bool:
        claim = await volumes.claim()
        return claim is not None and claim.claim.uid != first.claim.uid and claim.claim.phase == "Bound"

    await steps.eventually(is_new, what="another claim is Bound")
    assert (await volumes.in_phase(READY)).status.message == ""
    await volumes.removed()


async def test_deleted_claim_in_use_is_recreated_after_its_pods_end(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    first = await volumes.bound()

    async with volumes.used("worker-1", "worker-2"):
        await volumes.delete_claim()
        shared = await volumes.in_phase(PENDING)
        assert "waits until claim pvc-sv1 is gone, which pods worker-1, worker-2 use" in shared.status.message

    assert (await volumes.in_phase(READY)).status.message == ""
    assert (await volumes.bound()).claim.uid != first.claim.uid
    await volumes.removed()


async def test_deleted_claim_and_volume_are_recreated(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()
    before = await volumes.volume()
    assert before

    await cluster.client.delete(PersistentVolume, owner.volume_name)
    shared = await volumes.in_phase(PENDING)
    assert "is being deleted and is removed with its claim; delete claim pvc-sv1" in shared.status.message
    await volumes.delete_claim()

    async def is_new() -> bool:
        volume = await volumes.volume()
        return volume is not None and volume.volume.uid != before.volume.uid

    await steps.eventually(is_new, what="another volume is there")
    await volumes.bound()
    await volumes.in_phase(READY)
    await volumes.removed()


async def test_volume_removed_without_its_finalizers_is_recreated_for_its_claim(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    claim, before = await volumes.bound(), await volumes.volume()
    assert before

    torn = {"metadata": {"finalizers": None}}
    await cluster.client.delete(PersistentVolume, owner.volume_name)
    await cluster.client.patch(PersistentVolume, owner.volume_name, torn, patch_type=PatchType.MERGE)

    async def is_bound_again() -> bool:
        volume, now = await volumes.volume(), await volumes.claim()
        is_new = volume is not None and volume.volume.uid != before.volume.uid
        return is_new and now is not None and now.claim.phase == "Bound"

    await steps.eventually(is_bound_again, what="the claim is Bound to another volume")
    again = await volumes.bound()
    assert again.claim.uid == claim.claim.uid
    await volumes.removed()


async def test_removed_labels_are_restored(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()
    labels = {"metadata": {"labels": {OWNED: None, OWNER_NAME: "other", OWNER_NAMESPACE: None}}}

    await cluster.client.patch(PersistentVolume, owner.volume_name, labels, patch_type=PatchType.MERGE)
    await cluster.client.patch(
        PersistentVolumeClaim,
        owner.claim_name,
        labels,
        namespace=owner.namespace,
        patch_type=PatchType.MERGE,
    )

    async def is_mended() -> bool:
        volume, claim = await volumes.volume(), await volumes.claim()
        return volume is not None and claim is not None and volume.marks == claim.marks == marks_of(owner)

    await steps.eventually(is_mended, what="both have their labels")
    await volumes.removed()


@pytest.mark.parametrize("uid", [None, "of-an-earlier-claim"])
async def test_lost_claim_of_a_restored_backup_is_bound_again(cluster: Cluster, uid: str | None) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()
    reference = {"claimRef": {"namespace": owner.namespace, "name": owner.claim_name, "uid": uid}}

    async with _absent(cluster):
        await cluster.client.patch(
            PersistentVolume, owner.volume_name, {"spec": reference}, patch_type=PatchType.MERGE
        )

        async def is_lost() -> bool:
            claim = await volumes.claim()
            return claim is not None and claim.claim.phase == "Lost"

        await steps.eventually(is_lost, what="the claim is Lost")

    await volumes.bound()
    assert "was Lost" in await volumes.event_text("LostClaimRepaired")
    await volumes.removed()


# --- deletion


async def test_deletion_waits_for_pods_and_names_them(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    await volumes.bound()

    async with volumes.used("worker"):
        await volumes.delete()
        shared = await volumes.in_phase(DELETING)
        assert shared.status.message == "waits until claim pvc-sv1 is gone, which pod worker uses"
        assert FINALIZER in shared.finalizers
        assert await volumes.event_text("Waiting") == shared.status.message

    await volumes.gone()


async def test_new_shared_volume_of_the_same_name_is_independent_of_the_old_one(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create()
    await volumes.bound()
    await volumes.removed()

    await volumes.create(access_point=OTHER_POINT)

    await volumes.bound()
    volume = await volumes.volume()
    assert volume
    assert volume.source
    assert volume.source.access_point_id == OTHER_POINT
    await volumes.removed()


async def test_deletions_without_a_controller_are_finished_after_its_restart(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    for name in ("one", "two"):
        await volumes.create(name)
        await volumes.bound(name)

    async with _absent(cluster):
        await volumes.delete("one")
        await volumes.delete("two")
        assert await volumes.get("one")

    await volumes.gone("one")
    await volumes.gone("two")


async def test_killed_controller_continues_after_its_restart(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    names = [f"sv{number}" for number in range(20)]
    for name in names:
        await volumes.create(name)
    async with _absent(cluster):
        pass
    for name in names:
        await volumes.bound(name)

    await volumes.kubectl("delete", "sv", "--all", "-n", volumes.namespace, "--wait=false")
    async with _absent(cluster):
        pass
    for name in names:
        await volumes.gone(name)


async def test_deletion_of_the_definition_deletes_all_its_objects(cluster: Cluster) -> None:
    one, other = await SharedVolumes.of(cluster), await SharedVolumes.of(cluster)
    for volumes in (one, other):
        await volumes.create()
        await volumes.bound()

    await Kubectl(cluster.kubeconfig)("delete", "crd", CRD, "--timeout=50s")

    for volumes in (one, other):
        assert await volumes.claim() is None
        assert await volumes.volume() is None
    # It may come back, and is served again without a restart.
    await define(cluster)
    await one.create()
    await one.bound()
    await one.removed()


async def test_deletion_of_a_namespace_deletes_its_shared_volumes(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()

    await cluster.client.delete(Namespace, volumes.namespace)

    await steps.gone(cluster.client, owner.volume_name)

    async def is_gone() -> bool:
        try:
            await cluster.client.get(Namespace, volumes.namespace)
        except ApiError as error:
            return error.status.code == 404
        return False

    await steps.eventually(is_gone, what="the namespace is gone")


# --- what belongs to others


async def test_ambiguous_names_of_two_namespaces_are_kept_apart(cluster: Cluster) -> None:
    one = await SharedVolumes.named(cluster, "clash-a")
    other = await SharedVolumes.named(cluster, "clash")
    await one.create("b")
    await one.bound("b")

    await other.create("a-b", access_point=OTHER_POINT)

    shared = await other.in_phase(FAILED, "a-b")
    assert (
        "PersistentVolume: 'pv-clash-a-b' exists already and was not created for this SharedVolume"
        in shared.status.message
    )
    assert shared.source.access_point_id == OTHER_POINT
    assert shared.status.message in await other.event_text("Failed", "a-b")
    await other.delete("a-b")
    await steps.eventually(lambda: _is_none(other, "a-b"), what="it is gone")
    assert (await one.bound("b")).claim.phase == "Bound"

    await other.create("a-b", access_point=OTHER_POINT)
    await other.in_phase(FAILED, "a-b")
    await one.delete("b")
    await other.bound("a-b")
    assert await one.get("b") is None
    assert (await other.in_phase(READY, "a-b")).status.message == ""
    await other.removed("a-b")


async def _is_none(volumes: SharedVolumes, name: str) -> bool:
    return await volumes.get(name) is None


async def test_foreign_claim_is_not_changed(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    uid = await claim_by_hand(volumes, cluster, "pvc-sv1")

    await volumes.create()

    shared = await volumes.in_phase(FAILED)
    assert "PersistentVolumeClaim: 'pvc-sv1' exists already" in shared.status.message
    await volumes.delete()
    await steps.eventually(lambda: _is_none(volumes, "sv1"), what="it is gone")
    claim = await volumes.claim()
    assert claim
    assert claim.claim.uid == uid
    assert not claim.claim.deleting

    await volumes.create()
    await volumes.in_phase(FAILED)
    await volumes.delete_claim()
    assert (await volumes.bound()).claim.uid != uid
    await volumes.removed()


async def test_foreign_volume_is_not_changed(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    owner = volumes.owner("sv1")
    foreign = _left_by_the_older_system(volumes.namespace, legacy=False)
    assert foreign.metadata
    foreign.metadata.labels = {"made-by": "administrator"}
    before = await cluster.client.create(foreign)

    await volumes.create()

    message = (await volumes.in_phase(FAILED)).status.message
    assert f"PersistentVolume: '{owner.volume_name}' exists already" in message
    assert await volumes.event_text("Failed") == message
    assert await volumes.claim() is None
    await volumes.delete()
    await steps.eventually(lambda: _is_none(volumes, "sv1"), what="it is gone")
    after = await cluster.client.get(PersistentVolume, owner.volume_name)
    assert after.metadata
    assert before.metadata
    assert (after.metadata.uid, after.metadata.labels, after.metadata.deletionTimestamp) == (
        before.metadata.uid,
        before.metadata.labels,
        None,
    )
    assert after.spec == before.spec

    await volumes.create()
    await volumes.in_phase(FAILED)
    await cluster.client.delete(PersistentVolume, owner.volume_name)
    await volumes.bound()
    await volumes.removed()


@pytest.mark.real_only("the embedded API server has no quotas")
async def test_quota_is_reported_until_there_is_room(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await _limit_claims(volumes)
    await volumes.create()

    message = (await volumes.in_phase(FAILED)).status.message
    assert message.startswith("PersistentVolumeClaim pvc-sv1: answered 403 (")
    assert "exceeded quota: no-claims, requested: persistentvolumeclaims=1" in message
    assert message.endswith("; raise the quota, or delete objects that it counts")
    assert await volumes.event_text("Failed") == message
    assert await volumes.claim() is None

    await volumes.kubectl("delete", "resourcequota", "no-claims", "-n", volumes.namespace)
    await volumes.bound()
    assert (await volumes.in_phase(READY)).status.message == ""
    await volumes.removed()


@pytest.mark.real_only("the embedded API server has no quotas")
async def test_foreign_claim_that_has_bound_the_volume_is_kept(cluster: Cluster) -> None:
    """A claim is created by somebody else after the volume, and before the controller can create its own."""
    volumes = await SharedVolumes.of(cluster)
    await _limit_claims(volumes)
    owner = await volumes.create()
    await volumes.in_phase(FAILED)
    assert await volumes.volume()

    async with _absent(cluster):
        await volumes.kubectl("delete", "resourcequota", "no-claims", "-n", volumes.namespace)
        uid = await claim_by_hand(volumes, cluster, owner.claim_name)
        await steps.bound_volume(cluster.client, volumes.namespace, owner.claim_name)

    shared = await volumes.becomes(
        lambda one: "PersistentVolumeClaim: 'pvc-sv1' exists already" in one.status.message, "names the claim"
    )
    assert shared.status.phase is FAILED
    await volumes.delete()
    shared = await volumes.in_phase(DELETING)
    assert shared.status.message == (
        f"waits until volume {owner.volume_name} is gone, which claim pvc-sv1 uses;"
        " that claim was not created for this SharedVolume, so delete it"
    )
    claim = await volumes.claim()
    assert claim
    assert (claim.claim.uid, claim.claim.deleting) == (uid, False)
    await volumes.delete_claim()
    await volumes.gone()


async def _limit_claims(volumes: SharedVolumes) -> None:
    """Allow no claim in the namespace."""
    quota = ("resourcequota", "no-claims", "-n", volumes.namespace)
    await volumes.kubectl("create", *quota, "--hard=persistentvolumeclaims=0")
    hard = "jsonpath={.status.hard.persistentvolumeclaims}=0"
    await volumes.kubectl("wait", *quota, f"--for={hard}", "--timeout=30s")


async def test_other_claims_cannot_bind_the_volume(cluster: Cluster) -> None:
    thief = await SharedVolumes.of(cluster)
    await claim_by_hand(thief, cluster, "any-volume-will-do")
    volumes = await SharedVolumes.of(cluster)
    owner = await volumes.create()
    await volumes.bound()

    await claim_by_hand(thief, cluster, "that-volume", owner.volume_name)
    await volumes.delete_claim()

    await volumes.becomes(lambda one: one.status.phase is READY and bool(one.status.bound), "is bound again")
    volume = await volumes.volume()
    assert volume
    assert volume.volume.claim
    assert volume.volume.claim.namespace == volumes.namespace
    await volumes.removed()
    for name in ("any-volume-will-do", "that-volume"):
        await cluster.client.delete(PersistentVolumeClaim, name, namespace=thief.namespace)


# --- taking over


def _left_by_the_older_system(owner_namespace: str, *, legacy: bool) -> PersistentVolume:
    labels = {OWNED: "true", OWNER_NAMESPACE: owner_namespace, OWNER_NAME: "sv1"}
    handle = FILE_SYSTEM if legacy else f"{FILE_SYSTEM}::{ACCESS_POINT}"
    return PersistentVolume(
        metadata=ObjectMeta(name=f"pv-{owner_namespace}-sv1", labels=labels),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            csi=CSIPersistentVolumeSource(driver="efs.csi.aws.com", volumeHandle=handle),
            mountOptions=["tls", f"accesspoint={ACCESS_POINT}"] if legacy else None,
            persistentVolumeReclaimPolicy="Retain",
            storageClassName="efs-sc",
            volumeMode="Filesystem",
        ),
    )


@pytest.mark.parametrize("legacy", [True, False], ids=["of early versions", "of the last version"])
async def test_objects_of_the_older_system_are_adopted_unchanged(cluster: Cluster, legacy: bool) -> None:
    volumes = await SharedVolumes.of(cluster)
    namespace, owner = volumes.namespace, volumes.owner("sv1")
    volume = _left_by_the_older_system(namespace, legacy=legacy)
    claim = steps.claim(namespace, "pvc-sv1", "efs-sc", None)
    assert claim.metadata
    assert claim.spec
    assert volume.metadata
    claim.metadata.labels = volume.metadata.labels
    claim.spec.volumeName = owner.volume_name

    async with _absent(cluster):
        await define(cluster, enforced=False)
        await cluster.client.create(volume)
        await cluster.client.create(claim)
        await steps.bound_volume(cluster.client, namespace, "pvc-sv1")
        await volumes.create()
        held = {"metadata": {"finalizers": [FINALIZER]}}
        await cluster.client.patch(
            SharedVolumeResource, "sv1", held, namespace=namespace, patch_type=PatchType.MERGE
        )
        before = await cluster.client.get(PersistentVolume, owner.volume_name)
        await define(cluster)

    await volumes.becomes(lambda one: bool(one.status.matches and one.status.bound), "is served")
    after = await cluster.client.get(PersistentVolume, owner.volume_name)
    assert after.metadata
    assert before.metadata
    assert (after.metadata.uid, after.spec) == (before.metadata.uid, before.spec)
    assert after.metadata.resourceVersion == before.metadata.resourceVersion
    await volumes.removed()


# --- limits


async def test_annotation_limits_a_namespace(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster, **{ANNOTATION: f"{OTHER_POINT}, fs-0000000b"})
    await volumes.create("no")
    await volumes.create("point", access_point=OTHER_POINT)
    await volumes.create("system", file_system="fs-0000000b")

    shared = await volumes.in_phase(FAILED, "no")
    for name in ("point", "system"):
        await volumes.bound(name)

    assert f"is not allowed in namespace {volumes.namespace}" in shared.status.message
    assert await volumes.volume("no") is None
    await volumes.kubectl("annotate", "--overwrite", "namespace", volumes.namespace, f"{ANNOTATION}=*")
    await volumes.bound("no")
    for name in ("no", "point", "system"):
        await volumes.removed(name)


async def test_settings_limit_a_namespace(cluster: Cluster) -> None:
    volumes = await SharedVolumes.named(cluster, "limited-by-settings", **{ANNOTATION: "*"})
    await volumes.create("no")
    await volumes.create("yes", file_system="fs-0000000a")

    shared = await volumes.in_phase(FAILED, "no")
    await volumes.bound("yes")

    assert "which may use fs-0000000a" in shared.status.message
    await volumes.removed("no")
    await volumes.removed("yes")


# --- what cannot be


async def test_ids_that_the_driver_cannot_mount_are_reported(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    await volumes.create(file_system="fs-1")
    assert (
        "spec.fileSystemID: 'fs-1' is not a valid file system ID"
        in (await volumes.in_phase(FAILED)).status.message
    )
    assert await volumes.volume() is None
    await volumes.removed()


async def test_long_names_are_served_and_names_over_the_limit_are_reported(cluster: Cluster) -> None:
    volumes = await SharedVolumes.of(cluster)
    long, too_long = "l" * 100, "t" * 249

    await volumes.create(long)
    await volumes.create(too_long)

    assert (await volumes.bound(long)).marks == marks_of(volumes.owner(long))
    message = (await volumes.in_phase(FAILED, too_long)).status.message
    assert "is too long, as pv-... would be" in message
    assert "characters shorter" in message
    await volumes.removed(long)
    await volumes.removed(too_long)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("{fileSystemID: fs-1234cdef}", "spec.accessPointID"),
        ("{fileSystemID: nfs-1, accessPointID: fsap-1}", "spec.fileSystemID"),
        ("null", "spec"),
    ],
    ids=["half a spec", "no id", "no spec"],
)
async def test_definition_refuses_malformed_objects(cluster: Cluster, spec: str, told: str) -> None:
    volumes = await SharedVolumes.of(cluster)
    body = f"{SEED.split('spec:')[0]}spec: {spec}\n"

    answer = await volumes.kubectl.run("create", "-n", volumes.namespace, "-f", "-", stdin=body)

    assert answer.status == 1
    assert told in answer.errors
