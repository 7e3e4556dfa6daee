"""Upgrades and rollbacks by each way to install, other settings, and DaemonSets that are made again.

All the while, pods with volumes write and read back. Their programs see no error.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from tests.kubelet import installing
from tests.kubelet.cluster import NAMES, Cluster, Workload, pod
from tests.kubelet.installing import workloads
from tests.kubelet.ways import DAEMON_SETS, WAYS, Way, pods_of
from tests.scenarios.steps import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Harmless ones, but their processes need new pods.
SETTINGS = {
    "tunnel": {"KUBE_EFS_PROBE_INTERVAL_SECONDS": "4"},
    "node": {"KUBE_EFS_UNMOUNT_TIMEOUT_SECONDS": "45"},
}


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation of the older image, and the pods that use it."""

    cluster: Cluster
    way: Way
    workloads: list[Workload]

    async def pods_write(self) -> None:
        for one in self.workloads:
            await one.continues()
            await one.has_seen_no_error()

    async def start(self, name: str) -> None:
        """One more pod, on the volume of another one."""
        namespace = self.workloads[0].namespace
        await self.cluster.apply(pod(name, namespace, "access-point", image=self.cluster.image))
        self.workloads.append(Workload(self.cluster, namespace, name))

    async def processes(self) -> dict[str, list[tuple[str, str]]]:
        """UID and image of the running pods of nodes."""
        found = {}
        for process in DAEMON_SETS:
            pods = await pods_of(self.cluster, process)
            found[process] = [(one["metadata"]["uid"], one["spec"]["containers"][0]["image"]) for one in pods]
        return found

    async def has_only(self, image: str, *, instead_of: dict[str, list[tuple[str, str]]]) -> None:
        """Fail unless each process has one pod, which is a new one, with this image."""
        now = await self.processes()
        for process, before in instead_of.items():
            ((uid, has),) = now[process]
            assert has == image
            assert uid not in {earlier for earlier, _ in before}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=WAYS)
async def installation(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Installation]:
    way = WAYS[request.param]
    await installing.uninstall(cluster)
    await way.install(cluster, cluster.image)
    async with workloads(cluster) as users:
        yield Installation(cluster, way, list(users))
    await way.remove(cluster)


async def test_pods_write_while_the_newer_image_is_installed(installation: Installation) -> None:
    cluster = installation.cluster
    before = await installation.processes()

    await installation.way.upgrade(cluster, cluster.newer_image)

    await installation.pods_write()
    await installation.has_only(cluster.newer_image, instead_of=before)
    await installation.start("of-the-newer-image")
    await installation.pods_write()


async def test_daemon_sets_that_are_made_again_keep_the_pods_of_the_deleted_ones(
    installation: Installation,
) -> None:
    cluster = installation.cluster
    before = await installation.processes()
    daemon_sets = [f"daemonset/{one}" for one in DAEMON_SETS.values()]

    await cluster.kubectl("delete", "-n", NAMES.namespace, *daemon_sets, "--cascade=orphan")
    await installation.way.make_daemon_sets(cluster)
    await installing.rolled_out(cluster)

    assert await installation.processes() == before
    for process in DAEMON_SETS:
        (one,) = await pods_of(cluster, process)
        owner = await cluster.get("daemonset", DAEMON_SETS[process], "-n", NAMES.namespace)
        assert one["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
    await installation.pods_write()


async def test_pods_write_while_settings_of_the_nodes_change(installation: Installation) -> None:
    cluster = installation.cluster
    before = await installation.processes()

    await installation.way.change_settings(cluster, SETTINGS)

    await installation.pods_write()
    await installation.has_only(cluster.newer_image, instead_of=before)
    for process, variables in SETTINGS.items():
        (one,) = await pods_of(cluster, process)
        (container,) = one["spec"]["containers"]
        have = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert variables.items() <= have.items()


async def test_pods_write_while_the_older_image_returns(installation: Installation) -> None:
    cluster = installation.cluster
    before = await installation.processes()

    await installation.way.roll_back(cluster, cluster.image)

    await installation.pods_write()
    await installation.has_only(cluster.image, instead_of=before)
    await installation.start("of-the-older-image")
    await installation.pods_write()


async def test_pods_of_every_version_are_deleted_by_the_last_one(installation: Installation) -> None:
    """Their volumes were mounted by the older image, by the newer one, and by the older one again."""
    cluster = installation.cluster
    for one in installation.workloads:
        await one.has_seen_no_error()
    await asyncio.gather(*(one.delete() for one in installation.workloads))
    await eventually(cluster.is_nothing_mounted, what="nothing is mounted on the node", seconds=600)
