"""A controller with the file system mounted in its pod, as in efs-provisioner: it needs no worker pods."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from lightkube.models.core_v1 import NFSVolumeSource
from lightkube.resources.core_v1 import PersistentVolume
from tests.scenarios import directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.unmounting import unmount

from fake_efs.errors import PlatformError
from kube_efs.model.volumes import PROVISIONED_BY
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs_lab.program import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROVISIONER = "example.com/mounted"
LEASE = "efs-provisioner"
BASE = "/a/b"


@dataclass(frozen=True, slots=True)
class MountedController:
    """A separate controller, with ``exported`` mounted at ``mount_point``."""

    program: Program
    exported: Path
    mount_point: Path

    async def mount(self) -> None:
        """Mount it, as the kubelet does before the pod starts."""
        await directory_steps.bind(self.exported, self.mount_point)

    async def unmount(self) -> None:
        """Unmount it, if it is mounted."""
        if any(entry.mount_point == self.mount_point for entry in read_mountinfo()):
            await asyncio.to_thread(unmount, self.mount_point)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def mounted(cluster: Cluster, cluster_folder: Path) -> AsyncGenerator[MountedController, None]:
    """A controller for the second file system, below ``/a/b``."""
    system = cluster.file_system_ids[1]
    exported, mount_point = cluster.efs.folder(system) / BASE.lstrip("/"), cluster_folder / "mounted"
    exported.mkdir(parents=True)
    mount_point.mkdir()
    await directory_steps.allow_lease(cluster, LEASE)
    settings = {
        "KUBE_EFS_BACKENDS": "directory",
        "PROVISIONER_NAME": PROVISIONER,
        "FILE_SYSTEM_ID": system,
        "KUBE_EFS_LEASE_NAME": LEASE,
        "KUBE_EFS_DIRECTORY_MOUNT": str(mount_point),
        "KUBE_EFS_DIRECTORY_PATH": BASE,
        "POD_NAME": "efs-provisioner-0",
    }
    program = cluster.controller.replica(cluster_folder / "mounted-controller.log", settings)
    running = MountedController(program, exported, mount_point)
    await running.mount()
    try:
        await program.start()
        await program.ready()
        yield running
    finally:
        await program.stop()
        await running.unmount()


async def test_claims_are_served_and_removed_without_a_worker_pod(
    cluster: Cluster, mounted: MountedController
) -> None:
    claims = await Claims.of(cluster)
    name = await directory_steps.new_class(cluster.client, provisioner=PROVISIONER)
    names = [f"claim-{number}" for number in range(20)]

    async with steps.worker_pods(cluster) as pods:
        await claims.create(name, *names)
        volumes = await claims.all_bound(len(names))
        for volume in volumes:
            assert volume.nfs
            assert volume.nfs.server == directory_steps.server(cluster, cluster.file_system_ids[1])
            assert volume.nfs.path.startswith(f"{BASE}/claim-")
            found = (mounted.exported / Path(volume.nfs.path).name).stat()
            assert (found.st_gid, oct(found.st_mode & 0o7777)) == (volume.gid, "0o2771")
        assert len({volume.gid for volume in volumes}) == len(names)
        await claims.delete(*names)
        await claims.no_volumes()
        before = {pod for pod in pods.names if not pod.startswith("efs-list-")}

    assert not before
    assert _directories(mounted) == set()


def _directories(mounted: MountedController) -> set[str]:
    return {found.name for found in mounted.exported.iterdir() if "-pvc-" in found.name}


VECTORS = {
    "plain": ("/a/b/data", True),
    "nested": ("/a/b/pv/foo", True),
    "outside the base": ("/foo/pv", False),
    "sibling with a common prefix": ("/a/bc/d", False),
    "base itself": ("/a/b", False),
    "above the base": ("/a", False),
    "out of the base": ("/a/b/../../etc/d", False),
}


@pytest.mark.parametrize(("path", "goes"), VECTORS.values(), ids=VECTORS.keys())
async def test_only_what_is_below_the_base_is_removed(
    cluster: Cluster, mounted: MountedController, path: str, goes: bool
) -> None:
    root = cluster.efs.folder(cluster.file_system_ids[1])
    found = (root / path.lstrip("/")).resolve()
    assert found.is_relative_to(root)
    found.mkdir(parents=True, exist_ok=True)
    server, name = (
        directory_steps.server(cluster, cluster.file_system_ids[1]),
        f"vector-{list(VECTORS.values()).index((path, goes))}",
    )
    volume = directory_steps.released_volume(name, NFSVolumeSource(server=server, path=path))
    assert volume.metadata
    assert volume.metadata.annotations
    volume.metadata.annotations[PROVISIONED_BY] = PROVISIONER

    await cluster.client.create(volume)

    if not goes:
        told = await steps.refusal(cluster, name)
        assert f"spec.nfs.path: '{path}' is not a plain path below the base" in told
        await cluster.client.delete(PersistentVolume, name)
    await steps.gone(cluster.client, name)
    assert found.exists() is not goes


async def test_nothing_is_written_below_a_missing_mount(cluster: Cluster, mounted: MountedController) -> None:
    claims = await Claims.of(cluster)
    name = await directory_steps.new_class(cluster.client, provisioner=PROVISIONER)
    before = await claims.provisioned(name, "before")
    assert before.nfs
    await mounted.unmount()
    await claims.create(name, "lost")
    lost = f"mount: '{mounted.mount_point}' has nothing mounted instead of "

    told = await claims.warning("lost")

    assert lost in told
    assert "restart the pod, so that its volumes are mounted again" in told
    await claims.delete("before")
    assert lost in await steps.refusal(cluster, before.name)
    assert not list(mounted.mount_point.iterdir())
    assert _directories(mounted) == {Path(before.nfs.path).name}

    await mounted.mount()

    await claims.bound("lost")
    await steps.gone(cluster.client, before.name)
    await claims.delete("lost")
    await claims.no_volumes()
    assert _directories(mounted) == set()


async def test_restarted_controller_with_a_mount_assigns_no_gid_twice(
    cluster: Cluster, mounted: MountedController
) -> None:
    claims = await Claims.of(cluster)
    name = await directory_steps.new_class(
        cluster.client, provisioner=PROVISIONER, gidMin="4000", gidMax="4003"
    )
    await claims.create(name, "one", "two")
    await claims.all_bound(2)
    await mounted.program.kill()
    await claims.create(name, "three", "four")

    await mounted.program.start()

    volumes = await claims.all_bound(4)
    assert {volume.gid for volume in volumes} == {4000, 4001, 4002, 4003}


async def test_controller_without_its_mount_reports_it_and_ends(
    cluster: Cluster, mounted: MountedController, cluster_folder: Path
) -> None:
    changes = {"KUBE_EFS_DIRECTORY_MOUNT": "", "KUBE_EFS_LEASE_NAME": "another"}
    other = mounted.program.replica(cluster_folder / "unmounted.log", changes)
    with suppress(PlatformError):  # it may answer /healthz before it ends
        await other.start()
    async with asyncio.timeout(steps.DEADLINE_SECONDS):
        assert await other.ended() == 1
    written = await asyncio.to_thread(other.log_file.read_text)
    server = directory_steps.server(cluster, cluster.file_system_ids[1])
    assert f"server: '{server}' is not mounted" in written
