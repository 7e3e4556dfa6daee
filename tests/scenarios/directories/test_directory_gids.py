"""Group IDs of directory volumes: each is assigned once over all classes, despite restarts and deletions."""

import asyncio
import os
from pathlib import Path

import pytest
from lightkube.models.core_v1 import NFSVolumeSource
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.types import PatchType
from tests.scenarios import directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster

from kube_efs.model.gids import GID_ANNOTATION
from kube_efs.model.volumes import FINALIZER, PROVISIONED_BY, VolumePhase

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def claims_of_each_class(request: pytest.FixtureRequest) -> int:
    """The number of concurrent claims: a real control plane deletes them slowly."""
    return 15 if request.config.getoption("--cluster") == "real" else 100


def one_gid(gid: int) -> dict[str, str]:
    """The parameters of a class with a single group ID."""
    return {"gidMin": str(gid), "gidMax": str(gid)}


async def test_classes_with_overlapping_ranges_share_no_gid(
    cluster: Cluster, claims_of_each_class: int
) -> None:
    # Each is large enough for both, and ids are given out from its lower end.
    lower = range(20000, 20000 + 2 * claims_of_each_class)
    higher = range(lower.start + claims_of_each_class // 2, lower.stop + claims_of_each_class // 2)
    low, high = [await _class_of(cluster, gids) for gids in (lower, higher)]
    claims = await Claims.of(cluster)
    names = [f"claim-{number}" for number in range(claims_of_each_class)]

    async with steps.worker_pods(cluster) as pods:
        await asyncio.gather(
            claims.create(low, *(f"low-{name}" for name in names)),
            claims.create(high, *(f"high-{name}" for name in names)),
        )
        volumes = await claims.all_bound(2 * claims_of_each_class)

    gids = [volume.gid or 0 for volume in volumes]
    assert len(set(gids)) == 2 * claims_of_each_class
    assert all(volume.gid in lower for volume in volumes if volume.storage_class == low)
    assert all(volume.gid in higher for volume in volumes if volume.storage_class == high)
    assert all(directory_steps.folder(cluster, volume).stat().st_gid == volume.gid for volume in volumes)
    assert 1 <= len(pods.names) <= 8
    assert set(pods.most_at_once.values()) == {1}

    await claims.delete(*(f"{kind}-{name}" for kind in ("low", "high") for name in names))
    await claims.no_volumes()
    assert not any(directory_steps.folder(cluster, volume).exists() for volume in volumes)


async def _class_of(cluster: Cluster, gids: range) -> str:
    limits = {"gidMin": str(gids.start), "gidMax": str(gids[-1])}
    return await directory_steps.new_class(cluster.client, **limits)


async def test_claim_waits_for_a_full_range_until_a_volume_is_deleted(cluster: Cluster) -> None:
    claims = await Claims.of(cluster)
    name = await directory_steps.new_class(cluster.client, gidMin="3000", gidMax="3002")
    await claims.create(name, "one", "two", "three")
    first = {volume.gid for volume in await claims.all_bound(3)}

    await claims.create(name, "four")

    told = await claims.warning("four")
    assert f"StorageClass {name} parameters.gidMin-gidMax: '3000-3002' has no free group ID" in told
    counted = f'kube_efs_gid_range_full_total{{storage_class="{name}"}}'
    assert await steps.metric(cluster.controller, counted) >= 1
    assert first == {3000, 3001, 3002}
    freed = (await claims.bound("two")).gid
    await claims.removed("two")
    assert (await claims.bound("four")).gid == freed


async def test_next_claim_gets_the_gid_of_a_failed_claim(cluster: Cluster) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client, **one_gid(3100))
    async with directory_steps.switched_off(cluster.controller):
        await claims.create(name, "blocked")
        in_the_way = await _directory_to_be(cluster, claims, "blocked")
        in_the_way.write_text("a file where the directory should be")
    assert "a link or file is in the way" in await claims.warning("blocked")
    assert in_the_way.read_text() == "a file where the directory should be"

    assert (await claims.provisioned(name, "next")).gid == 3100

    await claims.warning("blocked", "has no free group ID")
    in_the_way.unlink()
    await claims.removed("next")
    assert (await claims.bound("blocked")).gid == 3100


async def test_restarted_controller_catches_up_and_assigns_no_gid_twice(cluster: Cluster) -> None:
    claims = await Claims.of(cluster)
    name = await directory_steps.new_class(cluster.client, gidMin="3200", gidMax="3209")
    await claims.create(name, "one", "two", "three")
    before = {volume.name: volume.gid for volume in await claims.all_bound(3)}
    gone = await claims.bound("one")

    async with directory_steps.switched_off(cluster.controller):
        await claims.delete("one")
        await claims.create(name, "four", "five", "leaving", "brief")
        await claims.delete("brief")
        # Kept by a finalizer, so that it is still visible.
        await _hold(cluster, claims, "leaving")
        await claims.delete("leaving")

    await steps.gone(cluster.client, gone.name)
    assert not directory_steps.folder(cluster, gone).exists()
    for claim in ("four", "five"):
        await claims.bound(claim)
    volumes = await claims.volumes()
    assert len(volumes) == 4
    assert len({volume.gid for volume in volumes}) == 4
    assert all(before.get(volume.name, volume.gid) == volume.gid for volume in volumes)
    assert await steps.messages(cluster.client, claims.namespace, "leaving", "Provisioning") == []
    await _remove_finalizer(cluster, claims, "leaving")


async def test_retained_directory_keeps_its_gid_after_its_volume_is_deleted(
    cluster: Cluster,
) -> None:
    claims, keeping = await Claims.of(cluster), one_gid(3300)
    kept = await directory_steps.new_class(cluster.client, reclaim_policy="Retain", **keeping)
    other = await directory_steps.new_class(cluster.client, **keeping)
    volume = await claims.provisioned(kept, "kept")
    await claims.delete("kept")
    await directory_steps.reaches_phase(cluster, volume.name, VolumePhase.RELEASED)
    await cluster.client.delete(PersistentVolume, volume.name)
    await steps.gone(cluster.client, volume.name)

    await claims.create(other, "before", "after")
    await claims.warning("before", "has no free group ID")
    await directory_steps.restarted(cluster.controller)

    full = f'kube_efs_gid_range_full_total{{storage_class="{other}"}}'

    async def both_refused_again() -> bool:
        return await steps.metric(cluster.controller, full) >= 2

    await steps.eventually(both_refused_again, what="the restarted controller says that the range is full")
    assert directory_steps.folder(cluster, volume).stat().st_gid == 3300
    assert not await claims.volumes()


async def test_gids_of_other_directories_and_volumes_are_not_assigned(cluster: Cluster) -> None:
    claims = await Claims.of(cluster)
    by_hand = cluster.efs.folder(directory_steps.file_system(cluster)) / "made-by-hand"
    by_hand.mkdir()
    os.chown(by_hand, 0, 3400)
    server = directory_steps.server(cluster, cluster.file_system_ids[1])
    foreign = directory_steps.released_volume(
        "foreign", NFSVolumeSource(server=server, path="/foreign"), **{GID_ANNOTATION: "3401"}
    )
    assert foreign.metadata
    assert foreign.metadata.annotations
    foreign.metadata.annotations[PROVISIONED_BY] = "example.com/other"
    await cluster.client.create(foreign)
    await directory_steps.restarted(cluster.controller)
    name = await directory_steps.new_class(cluster.client, gidMin="3400", gidMax="3402")

    assert (await claims.provisioned(name, "data")).gid == 3402

    await cluster.client.delete(PersistentVolume, "foreign")


async def test_missing_finalizer_is_added_when_the_controller_starts(cluster: Cluster) -> None:
    claims, name = await Claims.of(cluster), await directory_steps.new_class(cluster.client, **one_gid(3500))
    volume = await claims.provisioned(name, "old")
    async with directory_steps.switched_off(cluster.controller):
        await directory_steps.set_finalizers(cluster.client, volume.name, ["kubernetes.io/pv-protection"])

    async def is_protected() -> bool:
        found = await directory_steps.get_volume(cluster, volume.name)
        return found is not None and FINALIZER in found.finalizers

    await steps.eventually(is_protected, what="the volume has the finalizer")
    await claims.removed("old")
    assert (await claims.provisioned(name, "new")).gid == 3500


async def test_volume_and_claim_deleted_without_a_controller_are_removed_after_its_start(
    cluster: Cluster,
) -> None:
    claims = await Claims.of(cluster)
    names = {
        policy: await directory_steps.new_class(cluster.client, reclaim_policy=policy) for policy in POLICIES
    }
    volumes = {policy: await claims.provisioned(names[policy], policy.lower()) for policy in POLICIES}
    async with directory_steps.switched_off(cluster.controller):
        for policy, volume in volumes.items():
            await claims.delete(policy.lower())
            await cluster.client.delete(PersistentVolume, volume.name)
            assert await directory_steps.get_volume(cluster, volume.name)

    for volume in volumes.values():
        await steps.gone(cluster.client, volume.name)
    assert not directory_steps.folder(cluster, volumes["Delete"]).exists()
    assert directory_steps.folder(cluster, volumes["Retain"]).is_dir()


POLICIES = ("Delete", "Retain")


async def _directory_to_be(cluster: Cluster, claims: Claims, name: str) -> Path:
    found = await claims.get(name)
    assert found.metadata
    return cluster.efs.folder(directory_steps.file_system(cluster)) / f"{name}-pvc-{found.metadata.uid}"


async def _hold(cluster: Cluster, claims: Claims, name: str) -> None:
    await _set_finalizers(cluster, claims, name, ["example.com/held"])


async def _remove_finalizer(cluster: Cluster, claims: Claims, name: str) -> None:
    await _set_finalizers(cluster, claims, name, [])


async def _set_finalizers(cluster: Cluster, claims: Claims, name: str, finalizers: list[str]) -> None:
    await cluster.client.patch(
        PersistentVolumeClaim,
        name,
        {"metadata": {"finalizers": finalizers}},
        namespace=claims.namespace,
        patch_type=PatchType.MERGE,
    )
