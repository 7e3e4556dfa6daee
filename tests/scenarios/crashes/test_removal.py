"""Data is removed only if every guard agrees: each guard, with an attempt to bypass it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import ObjectReference
from lightkube.resources.core_v1 import Event, PersistentVolume, PersistentVolumeClaim
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.provisioning.workers.trash import TRASH

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_data_is_removed_with_its_claim(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "data")
    volume = await steps.bound_volume(cluster.client, namespace, "data")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_text("x")
    (folder.parent / "neighbour").mkdir()

    await cluster.client.delete(PersistentVolumeClaim, "data", namespace=namespace)

    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()
    assert (folder.parent / "neighbour").is_dir()
    await steps.trash_is_empty(cluster.efs.folder(_system(cluster)))


async def test_targets_of_links_are_not_removed(cluster: Cluster, tmp_path: Path) -> None:
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
async def test_removal_of_a_directory_replaced_by_a_link_is_refused(cluster: Cluster, level: str) -> None:
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
    assert "is or is below a link or file" in text
    assert (victim / "swapped" / "file").read_text() == "kept"
    assert await _exists(cluster, volume.name)


@pytest.mark.parametrize("path", ["/", "/{namespace}"], ids=["the whole file system", "its parent"])
async def test_volume_above_a_directory_does_not_keep_it(cluster: Cluster, path: str) -> None:
    namespace, folder = await _claimed(cluster, "below")
    volume = await steps.bound_volume(cluster.client, namespace, "below")
    above = f"above-{namespace}"
    await cluster.client.create(
        await steps.foreign_volume(cluster, above, path.format(namespace=namespace), policy="Retain")
    )

    await cluster.client.delete(PersistentVolumeClaim, "below", namespace=namespace)

    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()
    assert await _exists(cluster, above)
    await cluster.client.delete(PersistentVolume, above)


async def test_directory_above_another_volume_is_kept(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "above")
    volume = await steps.bound_volume(cluster.client, namespace, "above")
    await cluster.client.create(
        await steps.foreign_volume(cluster, f"below-{namespace}", f"/{namespace}/above/inner")
    )

    await cluster.client.delete(PersistentVolumeClaim, "above", namespace=namespace)

    assert f"contains the directory of volume below-{namespace}" in await steps.refusal(cluster, volume.name)
    assert folder.is_dir()


@pytest.mark.parametrize(
    "path",
    ["/", "/{namespace}", "/kube-system/data", "/{namespace}/a/b", "/{namespace}/..", "/{namespace}/Data"],
    ids=["the root", "the namespace", "another namespace", "too deep", "dots", "not a volume_name"],
)
async def test_forged_volume_removes_nothing(cluster: Cluster, path: str) -> None:
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
    await cluster.client.delete(PersistentVolume, f"forged-{namespace}")
    await steps.gone(cluster.client, f"forged-{namespace}")


async def test_volumes_of_other_provisioners_and_policies_are_not_changed(cluster: Cluster) -> None:
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
    # A claim served and removed afterwards shows that the two were checked and passed over.
    later, other_folder = await _claimed(cluster, "later")
    served = await steps.bound_volume(cluster.client, later, "later")
    await cluster.client.delete(PersistentVolumeClaim, "later", namespace=later)
    await steps.gone(cluster.client, served.name)

    assert folder.is_dir()
    assert not other_folder.exists()
    assert await _exists(cluster, f"other-{namespace}")
    assert await _exists(cluster, f"retained-{namespace}")


async def test_interrupted_removal_is_finished(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "half")
    volume = await steps.bound_volume(cluster.client, namespace, "half")
    trash = cluster.efs.folder(_system(cluster)) / TRASH
    (trash / "left-by-a-crash" / "deep").mkdir(parents=True)

    await cluster.client.delete(PersistentVolumeClaim, "half", namespace=namespace)

    await steps.gone(cluster.client, volume.name)
    assert not folder.exists()
    await steps.trash_is_empty(cluster.efs.folder(_system(cluster)))


async def test_claims_do_not_wait_for_a_huge_trash(cluster: Cluster) -> None:
    namespace, huge = await _claimed(cluster, "huge")
    other, small = await _claimed(cluster, "small")
    first = await steps.bound_volume(cluster.client, namespace, "huge")
    second = await steps.bound_volume(cluster.client, other, "small")
    for number in range(20_000):
        (huge / f"{number}").touch()
    await cluster.client.delete(PersistentVolumeClaim, "huge", namespace=namespace)
    await steps.gone(cluster.client, first.name)
    assert not huge.exists()

    # It stands still, so however fast this machine is, the trash is not empty before the others are served.
    worker = await _who_empties(cluster)
    os.kill(worker, signal.SIGSTOP)
    try:
        await cluster.client.delete(PersistentVolumeClaim, "small", namespace=other)
        await steps.gone(cluster.client, second.name)
        await _claimed(cluster, "next")
        assert not small.exists()
        assert len(list(_trash(cluster).iterdir())) == 2
    finally:
        os.kill(worker, signal.SIGCONT)
    await steps.trash_is_empty(cluster.efs.folder(_system(cluster)))


async def test_file_that_cannot_be_removed_is_reported_until_it_can(cluster: Cluster) -> None:
    namespace, folder = await _claimed(cluster, "held")
    volume = await steps.bound_volume(cluster.client, namespace, "held")
    (folder / "file").touch()
    (folder / "other").touch()
    with steps.immutable(folder / "file", cluster.efs.folder(_system(cluster)) / "link"):
        await cluster.client.delete(PersistentVolumeClaim, "held", namespace=namespace)
        await steps.gone(cluster.client, volume.name)
        stuck = f'kube_efs_trash_stuck{{file_system="{_system(cluster)}"}}'

        async def told() -> str | None:
            events = [one async for one in cluster.client.list(Event, namespace=cluster.namespace)]
            found = [one for one in events if one.reason == "TrashNotEmptied"]
            return found[0].message if found else None

        text = await steps.eventually(told, what="an event says that the trash is not empty")
        assert f"File system {_system(cluster)}: 1 entry of the trash cannot be removed" in text
        assert "/file (Operation not permitted)" in text
        assert await steps.metric(cluster.controller, stuck) == 1
        (left,) = (cluster.efs.folder(_system(cluster)) / TRASH).iterdir()
        assert [path.name for path in left.iterdir()] == ["file"]
    # The next removal does not wait until the trash is due again.
    again, _ = await _claimed(cluster, "again")
    served = await steps.bound_volume(cluster.client, again, "again")
    await cluster.client.delete(PersistentVolumeClaim, "again", namespace=again)
    await steps.gone(cluster.client, served.name)
    await steps.trash_is_empty(cluster.efs.folder(_system(cluster)))

    async def well() -> bool:
        return await steps.metric(cluster.controller, stuck) == 0

    await steps.eventually(well, what="the metric says that nothing is stuck")


async def test_controller_killed_during_a_removal_converges(cluster: Cluster) -> None:
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


def _trash(cluster: Cluster) -> Path:
    return cluster.efs.folder(_system(cluster)) / TRASH


def _who_has_open(wanted: os.stat_result) -> int | None:
    # Only the pods, because reading all descriptors of a busy machine can take longer than the worker.
    for process in psutil.Process().children(recursive=True):
        for descriptor in Path(f"/proc/{process.pid}/fd").glob("*"):
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return process.pid
    return None


async def _who_empties(cluster: Cluster) -> int:
    """The process that empties an entry of the trash."""
    (entry,) = _trash(cluster).iterdir()
    wanted = entry.stat()

    async def look() -> int | None:
        return _who_has_open(wanted)

    return await steps.eventually(look, what="a pod empties the trash", pause_seconds=0.01)


def _system(cluster: Cluster) -> FileSystemId:
    return min(cluster.file_system_ids)


async def _claimed(cluster: Cluster, name: str) -> tuple[str, Path]:
    """A namespace with a served claim of that name, and its directory."""
    namespace = await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
    await cluster.client.create(steps.claim(namespace, name, storage_class, {"volume_name": name}))
    await steps.bound_volume(cluster.client, namespace, name)
    return namespace, cluster.efs.folder(_system(cluster)) / namespace / name


def _claim_for(volume: PersistentVolume, namespace: str) -> None:
    """Give the volume a deleted claim, so that it becomes Released."""
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
