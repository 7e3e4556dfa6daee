"""Complete migrations on the embedded API server with its controllers: killed after each step, or undone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from conftest import Eventually
from lightkube import ApiError, AsyncClient
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.types import PatchType

from kube_efs.kube.reading import read_claim, read_volume
from kube_efs.migration.cluster import Look, MigrationStore
from kube_efs.migration.errors import ClaimInUse, MigrationRefused, MoveStalled
from kube_efs.migration.moving import move_claim
from kube_efs.migration.plan import Direction, Migration, Selection, plan
from kube_efs.migration.steps import MigrationStep
from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy
from kube_efs.model.errors import KubeConflict, KubeUnavailable
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.volumes import PROVISIONED_BY, Volume
from tinykube.controllers.running import run_controllers

FS = "fs-0123456789abcdef0"
FORWARD, BACK = Direction.FORWARD, Direction.BACK


class KilledError(BaseException):
    """The simulated kill of the process, without cleanup."""


class KilledStore(MigrationStore):
    """Simulates a kill after that many steps, or after that step."""

    def __init__(self, client: AsyncClient, *, after: int | MigrationStep | None = None) -> None:
        super().__init__(client)
        self.taken: list[MigrationStep] = []
        self._after = after

    async def take(self, step: MigrationStep, migration: Migration, look: Look) -> None:
        await super().take(step, migration, look)
        self.taken.append(step)
        if self._after in {len(self.taken), step}:
            raise KilledError


class LateStore(MigrationStore):
    """The request of that step is stalled: the client gives it up, and it takes effect with ``arrive``."""

    def __init__(self, client: AsyncClient, late: MigrationStep) -> None:
        super().__init__(client)
        self._late = late
        self._request: Coroutine[None, None, None] | None = None

    async def take(self, step: MigrationStep, migration: Migration, look: Look) -> None:
        request = super().take(step, migration, look)
        if step is not self._late:
            await request
            return
        self._request = request
        raise KubeUnavailable("could not be reached (ReadTimeout)", field=str(step))

    async def arrive(self) -> None:
        assert self._request
        await self._request


class Site:
    """A claim ``data`` in its own namespace, bound to an NFS volume."""

    def __init__(self, client: AsyncClient, namespace: str, eventually: Eventually) -> None:
        self.client = client
        self.namespace = namespace
        self._eventually = eventually
        self.nfs = f"{namespace}-old"

    async def make(self) -> None:
        await self.client.create(Namespace(metadata=ObjectMeta(name=self.namespace)))
        reference = {"kind": "PersistentVolumeClaim", "namespace": self.namespace, "name": "data"}
        volume = {
            "metadata": {
                "name": self.nfs,
                "annotations": {
                    PROVISIONED_BY: "gnuthought.com/efs-stunnel",
                    "efs-stunnel.gnuthought.com/file-system-id": FS,
                },
            },
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "efs",
                "mountOptions": ["port=20490"],
                "nfs": {"server": "127.0.0.1", "path": f"/{self.namespace}/data"},
                "claimRef": reference,
            },
        }
        claim = {
            "metadata": {"name": "data", "namespace": self.namespace, "labels": {"app": "web"}},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "efs",
                "volumeName": self.nfs,
            },
        }
        for kind, body in (("PersistentVolume", volume), ("PersistentVolumeClaim", claim)):
            await self.client.create(from_dict({"apiVersion": "v1", "kind": kind, **body}))
        await self.until(lambda found: found is not None and found.phase is ClaimPhase.BOUND)

    async def until(self, condition: Callable[[Claim | None], bool]) -> None:
        async def look() -> bool:
            return condition(await self.claim())

        await self._eventually(look)

    async def claim(self) -> Claim | None:
        try:
            found = await self.client.get(PersistentVolumeClaim, "data", namespace=self.namespace)
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise
        return read_claim(found.to_dict())

    async def volumes(self) -> dict[str, Volume]:
        found = [read_volume(one.to_dict()) async for one in self.client.list(PersistentVolume)]
        return {one.name: one for one in found if one.claim and one.claim.namespace == self.namespace}

    async def label(self, **labels: str) -> None:
        patch = {"metadata": {"labels": labels}}
        await self.client.patch(
            PersistentVolumeClaim, "data", patch, namespace=self.namespace, patch_type=PatchType.MERGE
        )

    async def set_policy(self, volume: str, policy: ReclaimPolicy) -> None:
        patch = {"spec": {"persistentVolumeReclaimPolicy": str(policy)}}
        await self.client.patch(PersistentVolume, volume, patch, patch_type=PatchType.MERGE)

    async def manifest(self, volume: str) -> dict[str, Any]:
        """The volume as a tool that keeps manifests has it: with Retain, and reserved for no claim."""
        body = json.loads(json.dumps((await self.client.get(PersistentVolume, volume)).to_dict()))
        spec = {**body["spec"], "persistentVolumeReclaimPolicy": "Retain"}
        del spec["claimRef"]
        metadata = {"name": volume, "annotations": body["metadata"]["annotations"]}
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}

    async def plan(
        self, direction: Direction, new_class: str | None = None, store: MigrationStore | None = None
    ) -> list[Migration]:
        store = store or MigrationStore(self.client)
        state = await store.state(OPENSHIFT_EFS_STUNNEL, self.namespace, {})
        found = plan(state, Selection(namespace=self.namespace), direction, new_class=new_class)
        assert all(isinstance(one, Migration) for one in found), found
        return [one for one in found if isinstance(one, Migration)]

    async def move(
        self, direction: Direction, store: MigrationStore | None = None, *, new_class: str | None = None
    ) -> list[str]:
        """Plan again, as every process does, and migrate; returns the messages."""
        told: list[str] = []
        store = store or MigrationStore(self.client)
        for migration in await self.plan(direction, new_class, store):
            await move_claim(store, migration, told.append, patience_seconds=30)
        return told

    async def has_arrived(self, volume: str, storage_class: str) -> None:
        """Check that only this volume is left, and that the claim is bound to it."""
        claim = await self.claim()
        assert claim is not None
        assert (claim.phase, claim.volume_name, claim.storage_class) == (
            ClaimPhase.BOUND,
            volume,
            storage_class,
        )
        volumes = await self.volumes()
        assert list(volumes) == [volume]
        assert volumes[volume].reclaim_policy is ReclaimPolicy.DELETE
        assert volumes[volume].claim
        assert volumes[volume].claim.uid == claim.uid  # type: ignore[union-attr]
        assert await self.plan(FORWARD if volume.endswith("-csi") else BACK) == []


@pytest.fixture
async def controllers(kube: AsyncClient) -> AsyncIterator[None]:
    running = asyncio.create_task(run_controllers(kube, node=None))
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.fixture
def sites(kube: AsyncClient, controllers: None, eventually: Eventually) -> Callable[[str], Site]:
    return lambda namespace: Site(kube, namespace, eventually)


async def test_claim_is_moved_in_both_directions(sites: Callable[[str], Site]) -> None:
    site = sites("team")
    await site.make()
    store = KilledStore(site.client)
    told = await site.move(FORWARD, store, new_class="efs-csi")
    await site.has_arrived("team-old-csi", "efs-csi")
    assert store.taken == [
        MigrationStep.MAKE_TARGET,
        MigrationStep.KEEP_SOURCE,
        MigrationStep.MARK_CLAIM,
        MigrationStep.REMOVE_CLAIM,
        MigrationStep.MAKE_CLAIM,
        MigrationStep.RESTORE_POLICY,
        MigrationStep.REMOVE_SOURCE,
    ]
    assert [one for one in told if not one.startswith("wait")] == [str(step) for step in store.taken]

    await site.label(app="web", tier="front")
    await site.move(BACK)
    await site.has_arrived("team-old", "efs")
    found = await site.client.get(PersistentVolumeClaim, "data", namespace="team")
    assert found.metadata
    assert found.metadata.labels == {"app": "web", "tier": "front"}
    assert (await site.volumes())["team-old"].port == 20490


@pytest.mark.parametrize("direction", [FORWARD, BACK])
@pytest.mark.parametrize("onwards", [FORWARD, BACK])
async def test_migration_killed_at_any_step_is_completed_by_the_next(
    direction: Direction, onwards: Direction, sites: Callable[[str], Site]
) -> None:
    async def try_one(steps: int) -> None:
        site = sites(f"after-{steps}")
        await site.make()
        if direction is BACK:
            await site.move(FORWARD)
        with pytest.raises(KilledError):
            await site.move(direction, KilledStore(site.client, after=steps))
        await site.move(onwards)
        await site.has_arrived(f"{site.nfs}-csi" if onwards is FORWARD else site.nfs, "efs")

    await asyncio.gather(*(try_one(steps) for steps in range(1, 8)))


async def test_policy_that_was_chosen_after_the_migration_stays_after_the_way_back(
    sites: Callable[[str], Site],
) -> None:
    """Else a deletion of the claim would remove the data that an administrator has protected."""

    async def try_one(steps: int | None, onwards: Direction) -> None:
        site = sites(f"kept-{steps or 0}-{onwards.name.lower()}")
        await site.make()
        await site.move(FORWARD)
        await site.set_policy(f"{site.nfs}-csi", ReclaimPolicy.RETAIN)
        with suppress(KilledError):
            await site.move(BACK, KilledStore(site.client, after=steps))
        await site.move(onwards)
        (volume,) = (await site.volumes()).values()
        assert (volume.csi is None) is (onwards is BACK)
        assert volume.reclaim_policy is ReclaimPolicy.RETAIN

    ways = [(None, BACK), *((steps, onwards) for steps in range(1, 8) for onwards in (FORWARD, BACK))]
    await asyncio.gather(*(try_one(*way) for way in ways))


@pytest.mark.parametrize("direction", [FORWARD, BACK])
async def test_policy_that_was_chosen_after_it_was_restored_stays(
    direction: Direction, sites: Callable[[str], Site]
) -> None:
    async def try_one(onwards: Direction) -> None:
        site = sites(f"chosen-{onwards.name.lower()}")
        await site.make()
        if direction is BACK:
            await site.move(FORWARD)
        with pytest.raises(KilledError):
            await site.move(direction, KilledStore(site.client, after=MigrationStep.RESTORE_POLICY))
        target = f"{site.nfs}-csi" if direction is FORWARD else site.nfs
        await site.set_policy(target, ReclaimPolicy.RETAIN)
        await site.move(onwards)
        (volume,) = (await site.volumes()).values()
        assert (volume.csi is None) is (onwards is BACK)
        assert volume.reclaim_policy is ReclaimPolicy.RETAIN

    await asyncio.gather(try_one(FORWARD), try_one(BACK))


@pytest.mark.parametrize("direction", [FORWARD, BACK])
async def test_policy_that_was_chosen_stays_when_the_old_volume_exists_again(
    direction: Direction, sites: Callable[[str], Site]
) -> None:
    site = sites("again")
    await site.make()
    old = await site.manifest("again-old")
    await site.move(FORWARD)
    await site.set_policy("again-old-csi", ReclaimPolicy.RETAIN)
    old["spec"]["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "again", "name": "data"}
    await site.client.create(from_dict(old))
    await site.move(direction)
    (volume,) = (await site.volumes()).values()
    assert (volume.csi is None) is (direction is BACK)
    assert volume.reclaim_policy is ReclaimPolicy.RETAIN


@pytest.mark.parametrize(("direction", "undo"), [(FORWARD, BACK), (BACK, FORWARD)])
async def test_late_deletion_does_not_delete_a_claim_that_was_moved_back(
    direction: Direction, undo: Direction, sites: Callable[[str], Site]
) -> None:
    """Else the volume, which has Delete again, would be released, and its data removed."""
    site = sites("late")
    await site.make()
    if direction is BACK:
        await site.move(FORWARD)
    late = LateStore(site.client, MigrationStep.REMOVE_CLAIM)
    with pytest.raises(KubeUnavailable):
        await site.move(direction, late)
    await site.move(undo)
    with pytest.raises(KubeConflict):
        await late.arrive()
    await site.has_arrived("late-old" if undo is BACK else "late-old-csi", "efs")


@pytest.mark.parametrize(("direction", "undo"), [(FORWARD, BACK), (BACK, FORWARD)])
async def test_late_policy_does_not_reach_the_volume_of_a_claim_that_is_being_moved_on(
    direction: Direction, undo: Direction, sites: Callable[[str], Site]
) -> None:
    """Else the volume, which has lost its claim, would get Delete, and its data would be removed."""
    site = sites("late")
    await site.make()
    if direction is BACK:
        await site.move(FORWARD)
    late = LateStore(site.client, MigrationStep.RESTORE_POLICY)
    with pytest.raises(KubeUnavailable):
        await site.move(direction, late)
    with pytest.raises(KilledError):
        await site.move(undo, KilledStore(site.client, after=MigrationStep.REMOVE_CLAIM))
    with pytest.raises(KubeConflict):
        await late.arrive()
    assert {one.reclaim_policy for one in (await site.volumes()).values()} == {ReclaimPolicy.RETAIN}
    await site.move(undo)
    await site.has_arrived("late-old" if undo is BACK else "late-old-csi", "efs")


async def test_late_deletion_of_a_volume_does_not_delete_the_target_of_the_other_direction(
    sites: Callable[[str], Site],
) -> None:
    """The annotation of this volume is the only record of the deleted claim."""
    site = sites("late")
    await site.make()
    with pytest.raises(KilledError):
        await site.move(FORWARD, KilledStore(site.client, after=MigrationStep.KEEP_SOURCE))
    late = LateStore(site.client, MigrationStep.REMOVE_SOURCE)
    with pytest.raises(KubeUnavailable):
        await site.move(BACK, late)
    with pytest.raises(KilledError):
        await site.move(FORWARD, KilledStore(site.client, after=MigrationStep.REMOVE_CLAIM))
    with pytest.raises(KubeConflict):
        await late.arrive()
    await site.move(FORWARD)
    await site.has_arrived("late-old-csi", "efs")


async def test_claim_in_use_is_not_changed_until_its_pod_is_deleted(
    sites: Callable[[str], Site],
) -> None:
    site = sites("busy")
    await site.make()
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    spec = {"containers": [{"name": "app", "image": "app"}], "volumes": [volume]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "busy"}, "spec": spec}
    await site.client.create(from_dict(body))
    before = await site.volumes()

    with pytest.raises(ClaimInUse) as caught:
        await site.move(FORWARD)
    assert caught.value.value == "web"
    assert await site.volumes() == before

    (migration,) = await site.plan(FORWARD)
    told: list[str] = []
    store = MigrationStore(site.client)
    moving = asyncio.create_task(move_claim(store, migration, told.append, wait_seconds=60))
    await site._eventually(lambda: _has_reported(told, "wait for pods web"))
    await site.client.delete(Pod, "web", namespace="busy", grace_period=0)
    await moving
    await site.has_arrived("busy-old-csi", "efs")


async def _has_reported(told: list[str], text: str) -> bool:
    return text in told


async def test_later_edits_of_the_claim_are_kept(
    sites: Callable[[str], Site],
) -> None:
    site = sites("edited")
    await site.make()
    with pytest.raises(KilledError):
        await site.move(FORWARD, KilledStore(site.client, after=2))
    await site.label(tier="front")
    store = KilledStore(site.client)
    await site.move(FORWARD, store)
    assert store.taken[0] is MigrationStep.RECORD
    found = await site.client.get(PersistentVolumeClaim, "data", namespace="edited")
    assert found.metadata
    assert found.metadata.labels == {"app": "web", "tier": "front"}


async def test_foreign_volume_with_the_target_name_is_not_changed(sites: Callable[[str], Site]) -> None:
    site = sites("taken")
    await site.make()
    (migration,) = await site.plan(FORWARD)
    found = await site.client.get(PersistentVolume, "taken-old")
    body = json.loads(json.dumps(found.to_dict()))
    body["metadata"] = {"name": "taken-old-csi"}
    body["spec"]["claimRef"] = None
    await site.client.create(from_dict({"apiVersion": "v1", "kind": "PersistentVolume", **body}))
    with pytest.raises(MigrationRefused, match="was not created by a migration"):
        await move_claim(MigrationStore(site.client), migration, lambda _: None)
    assert (await site.volumes())["taken-old"].reclaim_policy is ReclaimPolicy.DELETE


async def _bind_other_claim(site: Site, volume: dict[str, Any]) -> None:
    """Create the volume and, in another namespace, a claim that is bound to it."""
    name = volume["metadata"]["name"]
    await site.client.create(from_dict(volume))
    await site.client.create(Namespace(metadata=ObjectMeta(name="other")))
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "db", "namespace": "other"},
        "spec": {**spec, "storageClassName": "efs", "volumeName": name},
    }
    await site.client.create(from_dict(claim))
    await site._eventually(lambda: _is_bound(site, "db"))


async def _is_bound(site: Site, name: str) -> bool:
    found = await site.client.get(PersistentVolumeClaim, name, namespace="other")
    return read_claim(found.to_dict()).phase is ClaimPhase.BOUND


async def test_volume_that_another_claim_has_got_is_not_taken_from_it(sites: Callable[[str], Site]) -> None:
    site = sites("team")
    await site.make()
    old = await site.manifest("team-old")
    await site.move(FORWARD)
    await _bind_other_claim(site, old)
    before = (await site.client.get(PersistentVolume, "team-old")).to_dict()
    store = KilledStore(site.client)
    with pytest.raises(MigrationRefused) as caught:
        await site.move(BACK, store)
    assert (caught.value.field, caught.value.value) == ("volume team-old spec.claimRef", "other/db")
    assert store.taken == []
    assert (await site.client.get(PersistentVolume, "team-old")).to_dict() == before


async def test_copy_of_a_migrated_volume_is_not_migrated_back(sites: Callable[[str], Site]) -> None:
    site = sites("team")
    await site.make()
    await site.move(FORWARD)
    copy = await site.manifest("team-old-csi")
    copy["metadata"]["name"] = "shared"
    copy["spec"]["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "other", "name": "db"}
    await _bind_other_claim(site, copy)
    state = await MigrationStore(site.client).state(OPENSHIFT_EFS_STUNNEL, None, {})
    (migration,) = plan(state, Selection(), BACK)
    assert isinstance(migration, Migration)
    assert migration.csi == "team-old-csi"


async def test_way_back_uses_a_volume_that_was_recreated_without_a_claim(
    sites: Callable[[str], Site],
) -> None:
    site = sites("team")
    await site.make()
    old = await site.manifest("team-old")
    await site.move(FORWARD)
    await site.client.create(from_dict(old))
    store = KilledStore(site.client)
    await site.move(BACK, store)
    assert store.taken.count(MigrationStep.REOPEN_TARGET) == 1
    await site.has_arrived("team-old", "efs")


async def test_missing_reaction_of_kubernetes_is_reported_after_a_timeout(
    kube: AsyncClient, eventually: Eventually
) -> None:
    site = Site(kube, "stalled", eventually)
    running = asyncio.create_task(run_controllers(kube, node=None))
    await site.make()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    (migration,) = await site.plan(FORWARD)
    with pytest.raises(MoveStalled, match="claim stalled/data is gone") as caught:
        await move_claim(MigrationStore(kube), migration, lambda _: None, patience_seconds=0.5)
    assert "run the same command again" in caught.value.remedy


@pytest.mark.parametrize("direction", [FORWARD, BACK])
async def test_command_that_was_planned_before_retain_was_chosen_keeps_the_data(
    direction: Direction, sites: Callable[[str], Site]
) -> None:
    """A second command has recorded the choice and was interrupted, and the first one continues."""
    site = sites("stale")
    await site.make()
    if direction is BACK:
        await site.move(FORWARD)
    (planned_before,) = await site.plan(direction)
    await site.set_policy(planned_before.move.source, ReclaimPolicy.RETAIN)
    with pytest.raises(KilledError):
        await site.move(direction, KilledStore(site.client, after=MigrationStep.KEEP_SOURCE))
    await move_claim(MigrationStore(site.client), planned_before, lambda _: None)
    (left,) = (await site.volumes()).values()
    assert (left.name, left.reclaim_policy) == (planned_before.move.target, ReclaimPolicy.RETAIN)


async def test_mark_of_an_abandoned_migration_hides_no_choice_of_retain(
    sites: Callable[[str], Site],
) -> None:
    site = sites("stale")
    await site.make()
    with pytest.raises(KilledError):
        await site.move(FORWARD, KilledStore(site.client, after=MigrationStep.KEEP_SOURCE))
    csi = f"{site.nfs}-csi"
    await site.client.delete(PersistentVolume, csi)
    without = {"metadata": {"finalizers": None}}
    await site.client.patch(PersistentVolume, csi, without, patch_type=PatchType.MERGE)
    await site.set_policy(site.nfs, ReclaimPolicy.DELETE)
    (planned_before,) = await site.plan(FORWARD)
    await site.set_policy(site.nfs, ReclaimPolicy.RETAIN)
    with pytest.raises(MigrationRefused, match="was changed to Retain"):
        await move_claim(MigrationStore(site.client), planned_before, lambda _: None)


async def test_choice_of_retain_after_a_way_back_is_not_taken_for_that_of_a_migration(
    sites: Callable[[str], Site],
) -> None:
    site = sites("stale")
    await site.make()
    with pytest.raises(KilledError):
        await site.move(FORWARD, KilledStore(site.client, after=MigrationStep.KEEP_SOURCE))
    (planned_before,) = await site.plan(FORWARD)
    await site.move(BACK)
    await site.set_policy(site.nfs, ReclaimPolicy.RETAIN)
    with pytest.raises(MigrationRefused, match="was changed to Retain"):
        await move_claim(MigrationStore(site.client), planned_before, lambda _: None)


async def test_policy_that_was_chosen_after_it_was_restored_is_reported(sites: Callable[[str], Site]) -> None:
    site = sites("chosen")
    await site.make()
    with pytest.raises(KilledError):
        await site.move(FORWARD, KilledStore(site.client, after=MigrationStep.RESTORE_POLICY))
    await site.set_policy(f"{site.nfs}-csi", ReclaimPolicy.RETAIN)
    (migration,) = await site.plan(FORWARD)
    store = MigrationStore(site.client)
    await move_claim(store, migration, lambda _: None)
    (left,) = (await site.volumes()).values()
    assert left.reclaim_policy is ReclaimPolicy.RETAIN
    assert (await store.look(migration)).seen.final_policy(migration.move) is ReclaimPolicy.RETAIN


async def test_volume_that_the_other_direction_deletes_is_reported_with_the_remedy(
    sites: Callable[[str], Site],
) -> None:
    site = sites("half")
    await site.make()
    await site.move(FORWARD)

    class Half(MigrationStore):
        """Ends between the two requests that remove the old volume."""

        async def _remove_source(self, volume: Volume | None) -> None:
            assert volume
            await self._volumes.terminate(volume)
            raise KilledError

    with pytest.raises(KilledError):
        await site.move(BACK, Half(site.client))
    with pytest.raises(MigrationRefused, match="first complete the command that deletes it"):
        await site.move(FORWARD)
