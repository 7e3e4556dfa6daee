"""Kubernetes' own tests of storage drivers pass, except for those in the list beside this file."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest
import pytest_asyncio
from tests.kubelet import installing, storage_suite
from tests.kubelet.cluster import NAMES, Cluster
from tests.kubelet.installing import DRIVER
from tests.kubelet.storage_suite import Result, ResultList
from tests.scenarios.steps import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(3000)]

LIST = ResultList.read()
_SETTINGS = {
    # Worker pods for directories would take the processor from the suite, as a second controller would.
    f"deployment/{NAMES.controller}": "KUBE_EFS_BACKENDS=tunnel,csi",
    # For the tests of the limit. All others together have fewer volumes at a time.
    f"daemonset/{NAMES.node}": "KUBE_EFS_VOLUME_ATTACH_LIMIT=20",
}


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite after its end: its results by name, and the access points from before it."""

    results: Mapping[str, Result]
    access_points: set[str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def suite(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Suite]:
    access_points = await cluster.access_points()
    await cluster.kubectl("apply", "-f", "-", stdin=installing.manifests(cluster.image))
    for workload, setting in _SETTINGS.items():
        await cluster.kubectl("set", "env", workload, "-n", NAMES.namespace, setting)
    await cluster.kubectl("scale", f"deployment/{NAMES.controller}", "-n", NAMES.namespace, "--replicas=1")
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": storage_suite.STORAGE_CLASS},
        "provisioner": DRIVER,
        "parameters": {
            "provisioningMode": "efs-ap",
            "fileSystemId": cluster.file_system,
            "directoryPerms": "700",
        },
    }
    await cluster.apply(storage_class)
    await storage_suite.load_images(cluster.node)
    await installing.rolled_out(cluster)
    excluded = [name for names in LIST.cannot_run.values() for name in names]
    folder = tmp_path_factory.mktemp("suite")
    results = await storage_suite.run(cluster.kubectl.kubeconfig, folder, excluded=excluded)
    yield Suite({one.name: one for one in results}, access_points)
    await cluster.kubectl("delete", "storageclass", storage_suite.STORAGE_CLASS)
    await installing.uninstall(cluster)


@pytest.mark.parametrize("name", LIST.passes)
async def test_suite_passes(suite: Suite, name: str) -> None:
    assert name in suite.results
    result = suite.results[name]
    assert result.state == "passed", f"{result.message}\n{result.output}"


async def test_list_has_what_becomes_of_each_test(suite: Suite, request: pytest.FixtureRequest) -> None:
    results = suite.results.values()
    found = ResultList.from_results(results, cannot_run=LIST.cannot_run)
    if request.config.getoption("update_snapshots"):
        found.write()
    else:
        assert found == LIST
    assert {name for names in LIST.cannot_run.values() for name in names} <= suite.results.keys()
    failed = {one.name: one.message for one in results if one.state not in {"passed", "skipped"}}
    assert not failed


async def test_nothing_is_left_after_the_suite(cluster: Cluster, suite: Suite) -> None:
    async def nothing_is_left() -> bool:
        volumes = await cluster.volumes()
        access_points = await cluster.access_points()
        return not volumes and access_points == suite.access_points and await cluster.is_nothing_mounted()

    await eventually(nothing_is_left, what="no volume, access point and mount is left", seconds=600)
