"""Data goes only when every guard agrees: each guard, and an attempt to get past it."""

from pathlib import Path

import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from kube_efs.model.ids import FileSystemId
from kube_efs.provisioning.trash import TRASH

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_data_goes_with_its_claim(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "data")
    volume = await steps.bound_volume(cluster.client, namespace, "data")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_text("x")
    (folder.parent / "neighbour").mkdir()

    await cluster.client.delete(PersistentVolumeClaim, "data", namespace=namespace)

    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()
    assert (folder.parent / "neighbour").is_dir()
    assert list((cluster.efs.folder(_system(cluster)) / TRASH).iterdir()) == []


async def test_what_links_lead_to_is_not_touched(cluster: Cluster, tmp_path: Path) -> None:
    namespace, folder = await _claimed(cluster, "links")
    volume = await steps.bound_volume(cluster.client, namespace, "links")
    precious = cluster.efs.folder(_system(cluster)) / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (folder / "inside").symlink_to(precious)
    (tmp_path / "file").write_text("kept")
    (folder / "outside").symlink_to(tmp_path)

    await cluster.client.delete(PersistentVolumeClaim, "links", namespace=namespace)

    await steps.gone(cluster.client, volume.name)
    assert (precious / "file").read_text() == "kept"
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("level", ["directory", "namespace"])
async def test_a_directory_replaced_by_a_link_is_refused(cluster: Cluster, level: str) -> None:
    namespace, folder = await _claimed(cluster, "swapped")
    volume = await steps.bound_volume(cluster.client, namespace, "swapped")
    victim = cluster.efs.folder(_system(cluster)) / f"victim-{level}"
    (victim / "swapped").mkdir(parents=True)
    (victim / "swapped" / "file").write_text("kept")
    replaced = folder if level == "directory" else folder.parent
    target = victim / "swapped" if level == "directory" else victim
    replaced.rename(replaced.with_name(f"{replaced.name}-moved"))
    replaced.symlink_to(target)

    await cluster.client.delete(PersistentVolumeClaim, "swapped", namespace=namespace)

    text = await steps.refusal(cluster, volume.name)
    assert "is or lies behind a link or file" in text
    assert (victim / "swapped" / "file").read_text() == "kept"
    assert await _exists(cluster, volume.name)


async def test_a_directory_below_another_volumes_stays(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "below")
    volume = await steps.bound_volume(cluster.client, namespace, "below")
    await cluster.client.create(await steps.foreign_volume(cluster, f"above-{namespace}", f"/{namespace}"))

    await cluster.client.delete(PersistentVolumeClaim, "below", namespace=namespace)

    assert f"lies above or below the directory of volume above-{namespace}" in await steps.refusal(
        cluster, volume.name
    )
    assert folder.is_dir()
    await cluster.client.delete(PersistentVolume, f"above-{namespace}")
    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()


async def test_a_directory_above_another_volumes_stays(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "above")
    volume = await steps.bound_volume(cluster.client, namespace, "above")
    await cluster.client.create(
        await steps.foreign_volume(cluster, f"below-{namespace}", f"/{namespace}/above/inner")
    )

    await cluster.client.delete(PersistentVolumeClaim, "above", namespace=namespace)

    assert f"lies above or below the directory of volume below-{namespace}" in await steps.refusal(
        cluster, volume.name
    )
    assert folder.is_dir()


@pytest.mark.parametrize(
    "path",
    ["/", "/{namespace}", "/kube-system/data", "/{namespace}/a/b", "/{namespace}/..", "/{namespace}/Data"],
    ids=["the root", "the namespace", "another namespace", "too deep", "dots", "not a volume_name"],
)
async def test_a_forged_volume_removes_nothing(cluster: Cluster, path: str) -> None:
    namespace = await steps.new_namespace(cluster.client)
    root = cluster.efs.folder(_system(cluster))
    kept = [root / "kube-system" / "data", root / namespace / "a" / "b", root / namespace / "Data"]
    for folder in kept:
        folder.mkdir(parents=True, exist_ok=True)
    forged = await steps.foreign_volume(cluster, f"forged-{namespace}", path.format(namespace=namespace))
    _claim_for(forged, namespace)
    await cluster.client.create(forged)

    assert "is not the claim's directory" in await steps.refusal(cluster, f"forged-{namespace}")
    assert all(folder.is_dir() for folder in kept)
    assert await _exists(cluster, f"forged-{namespace}")
    # A volume of the root is above everything, so it would stand in the way of the other tests' removals.
    await cluster.client.delete(PersistentVolume, f"forged-{namespace}")
    await steps.gone(cluster.client, f"forged-{namespace}")


async def test_volumes_of_other_provisioners_and_policies_are_left_alone(cluster: Cluster) -> None:
    namespace = await steps.new_namespace(cluster.client)
    folder = cluster.efs.folder(_system(cluster)) / namespace / "kept"
    folder.mkdir(parents=True)
    other = await steps.foreign_volume(
        cluster, f"other-{namespace}", f"/{namespace}/kept", provisioner="example.com/other"
    )
    retained = await steps.foreign_volume(
        cluster, f"retained-{namespace}", f"/{namespace}/kept", policy="Retain"
    )
    for volume in (other, retained):
        _claim_for(volume, namespace)
        await cluster.client.create(volume)
    # A claim served and removed afterwards shows that the two were looked at and passed over.
    later, other_folder = await _claimed(cluster, "later")
    served = await steps.bound_volume(cluster.client, later, "later")
    await cluster.client.delete(PersistentVolumeClaim, "later", namespace=later)
    await steps.gone(cluster.client, served.name)

    assert folder.is_dir()
    assert not other_folder.exists()
    assert await _exists(cluster, f"other-{namespace}")
    assert await _exists(cluster, f"retained-{namespace}")


async def test_a_removal_interrupted_half_way_is_finished(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "half")
    volume = await steps.bound_volume(cluster.client, namespace, "half")
    trash = cluster.efs.folder(_system(cluster)) / TRASH
    (trash / "left-by-a-crash" / "deep").mkdir(parents=True)

    await cluster.client.delete(PersistentVolumeClaim, "half", namespace=namespace)

    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()
    assert list(trash.iterdir()) == []


async def test_a_controller_killed_while_removing_converges(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "killed")
    volume = await steps.bound_volume(cluster.client, namespace, "killed")
    async with steps.worker_pods(cluster) as pods:
        await cluster.client.delete(PersistentVolumeClaim, "killed", namespace=namespace)

        async def cleaning() -> bool:
            return any(name.startswith("efs-clean-") for name in pods.names)

        await steps.eventually(cleaning, what="a worker removes the directory")
        await cluster.controller.kill()
    await cluster.controller.start()

    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()


def _system(cluster: Cluster) -> FileSystemId:
    return min(cluster.file_system_ids)


async def _claimed(cluster: Cluster, name: str) -> tuple[str, Path]:
    """A namespace with a claim of that name that is served, and its folder."""
    namespace = await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
    await cluster.client.create(steps.claim(namespace, name, storage_class, {"volume_name": name}))
    await steps.bound_volume(cluster.client, namespace, name)
    return namespace, cluster.efs.folder(_system(cluster)) / namespace / name


def _claim_for(volume: PersistentVolume, namespace: str) -> None:
    """Make the volume one whose claim is gone, so that it becomes Released."""
    assert volume.spec
    volume.spec.claimRef = ObjectReference(
        apiVersion="v1", kind="PersistentVolumeClaim", namespace=namespace, name="gone", uid="no-such-claim"
    )


async def _exists(cluster: Cluster, volume: str) -> bool:
    try:
        await cluster.client.get(PersistentVolume, volume)
    except ApiError as error:
        if error.status.code == 404:
            return False
        raise
    return True
