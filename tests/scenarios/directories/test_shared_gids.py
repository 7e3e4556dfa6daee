"""Two controllers with provisioners on the same file system: no group ID is assigned twice."""

import asyncio
import os
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from tests.scenarios import directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.unmounting import unmount

from kube_efs_lab.program import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROVISIONER = "example.com/neighbour"
LEASE = "neighbour"
# A mounted file system is checked once a minute.
LOOK_SECONDS = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def neighbour(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Program, None]:
    """A second controller, which has the file system of the cluster's controller mounted."""
    folder = tmp_path_factory.mktemp("neighbour")
    system, mount_point = directory_steps.file_system(cluster), folder / "mounted"
    mount_point.mkdir()
    await directory_steps.allow_lease(cluster, LEASE)
    settings = {
        "KUBE_EFS_BACKENDS": "directory",
        "PROVISIONER_NAME": PROVISIONER,
        "FILE_SYSTEM_ID": system,
        "KUBE_EFS_LEASE_NAME": LEASE,
        "KUBE_EFS_DIRECTORY_MOUNT": str(mount_point),
        "KUBE_EFS_DIRECTORY_PATH": "/",
        "KUBE_EFS_DIRECTORY_PROVISIONERS": "",
        "POD_NAME": "neighbour-0",
    }
    program = cluster.controller.replica(folder / "controller.log", settings)
    await directory_steps.bind(cluster.efs.folder(system), mount_point)
    try:
        await program.start()
        await program.ready()
        yield program
    finally:
        await program.stop()
        await asyncio.to_thread(unmount, mount_point)


async def _classes(cluster: Cluster, first: int, last: int) -> tuple[str, str]:
    """A class of the cluster's controller and one of its neighbor, with the same range."""
    gids = {"gidMin": str(first), "gidMax": str(last)}
    return (
        await directory_steps.new_class(cluster.client, **gids),
        await directory_steps.new_class(cluster.client, provisioner=PROVISIONER, **gids),
    )


@pytest.mark.usefixtures("neighbour")
async def test_concurrent_claims_of_two_controllers_share_no_gid(cluster: Cluster) -> None:
    ours, theirs = await _classes(cluster, 50000, 50999)
    claims = await Claims.of(cluster)

    await asyncio.gather(
        claims.create(ours, *(f"ours-{number}" for number in range(16))),
        claims.create(theirs, *(f"theirs-{number}" for number in range(16))),
    )
    volumes = await claims.all_bound(32)

    assert len({volume.gid for volume in volumes}) == 32
    assert all(directory_steps.folder(cluster, volume).stat().st_gid == volume.gid for volume in volumes)


@pytest.mark.usefixtures("neighbour")
async def test_gid_of_a_deleted_volume_is_free_for_another_controller(cluster: Cluster) -> None:
    ours, theirs = await _classes(cluster, 51000, 51000)
    claims = await Claims.of(cluster)
    await claims.provisioned(ours, "first")
    await claims.create(theirs, "second")
    await claims.warning("second", "has no free group ID")

    await claims.removed("first")

    async def is_served() -> bool:
        return any(volume.gid == 51000 for volume in await claims.volumes())

    await steps.eventually(is_served, what="the neighbour serves its claim", seconds=LOOK_SECONDS)


async def test_manually_changed_group_is_reported(cluster: Cluster, neighbour: Program) -> None:
    ours, theirs = await _classes(cluster, 52000, 52999)
    claims = await Claims.of(cluster)
    one = await claims.provisioned(ours, "one")
    other = await claims.provisioned(theirs, "other")
    assert other.gid is not None
    os.chown(directory_steps.folder(cluster, one), 0, other.gid)

    async def is_reported() -> bool:
        return bool(await steps.messages(cluster.client, claims.namespace, "other", "GroupIdShared"))

    await steps.eventually(is_reported, what="the claim has the event", seconds=LOOK_SECONDS)
    assert await steps.metric(neighbour, "kube_efs_gids_shared") == 1
    third = await claims.provisioned(theirs, "third")
    assert third.gid not in {one.gid, other.gid}
