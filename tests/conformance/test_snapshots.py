"""VolumeSnapshots with the real snapshot-controller, served here and by csi-snapshotter."""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.conformance.kubectl import Kubectl
from tests.conformance.programs import PROGRAMS
from tests.docs.blocks import manifests_for
from tests.scenarios import csi_steps
from tests.scenarios.copy_steps import folder_of, mounted_once, new_class
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims, restarted
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import eventually

from fake_efs.policy import managed_policy
from fake_efs.process import ChildProcess
from kube_efs.model.copies import SNAPSHOTS
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.real_control_plane import ControlPlanes
from kube_efs_lab.real_plane import RealPlane

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(
        not (PROGRAMS / "snapshot-controller").exists(),
        reason="tests/conformance/tools/build could not download the Go modules of snapshot-controller",
    ),
]

# The claim of the snapshot is "orders", and its class "efs-sc-1".
CLASS, SNAPSHOT, RESTORED = (
    json.dumps(one) for one in manifests_for("docs/copies.md", "tests/conformance/test_snapshots.py")
)


@asynccontextmanager
async def program(name: str, folder: Path, *arguments: str) -> AsyncGenerator[None, None]:
    """The program runs while the context is open."""
    process = await ChildProcess.start(
        str(PROGRAMS / name), *arguments, "--v=4", log_file=folder / f"{name}.log"
    )
    try:
        yield
    finally:
        await process.stop(timeout_seconds=5)


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(control_planes: ControlPlanes, tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(
        tmp_path / "cluster",
        control_plane=RealPlane(control_planes),
        starter=fork_module,
        driver_policy=managed_policy(),
    ) as running:
        kubectl = Kubectl(running.kubeconfig)
        await kubectl("apply", "-f", str(PROGRAMS / "snapshot-kinds"))
        await kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
        await kubectl("apply", "-f-", stdin=CLASS)
        async with program("snapshot-controller", tmp_path, f"--kubeconfig={running.kubeconfig}"):
            yield running


@asynccontextmanager
async def served(cluster: EmbeddedCluster, way: str, folder: Path) -> AsyncGenerator[None, None]:
    """Snapshots and claims are served in that way while the context is open."""
    if way == "built in":
        await restarted(cluster.controller)  # It would find the new kinds only after a minute.
        yield
        return
    socket = cluster.driver_socket.with_name("controller.sock")
    common = (f"--csi-address={socket}", f"--kubeconfig={cluster.kubeconfig}", "--timeout=15s")
    async with AsyncExitStack() as stack:
        settings = {"CSI_ENDPOINT": f"unix://{socket}"}
        await stack.enter_async_context(csi_steps.controller_with(cluster, **settings))

        async def is_served() -> bool:
            return socket.is_socket()

        await eventually(is_served, what="the socket is served")
        await stack.enter_async_context(program("csi-snapshotter", folder, *common))
        await stack.enter_async_context(
            program("csi-provisioner", folder, *common, "--extra-create-metadata")
        )
        yield


@pytest.mark.parametrize("way", ["built in", "csi-snapshotter"])
async def test_snapshot_is_taken_restored_and_deleted(
    cluster: EmbeddedCluster, way: str, tmp_path: Path
) -> None:
    claims, name = await Claims.of(cluster), await new_class(cluster, "efs-ap")
    kubectl = Kubectl(cluster.kubeconfig)
    inside = ("-n", claims.namespace)
    async with served(cluster, way, tmp_path), Aws.of(cluster) as aws:
        volume = await claims.provisioned(name, "orders")
        source = await mounted_once(cluster, aws, volume)
        own = source.stat()
        (source / "file").write_text("as in the snapshot")
        os.chown(source / "file", own.st_uid, own.st_gid)

        await kubectl("apply", *inside, "-f-", stdin=SNAPSHOT)
        ready = "--for=jsonpath={.status.readyToUse}=true"
        await kubectl("wait", *inside, "volumesnapshot", "yesterday", ready, "--timeout=60s")
        content = json.loads(await kubectl("get", "volumesnapshotcontent", "-ojson"))["items"][0]
        (source / "file").write_text("changed")
        await kubectl("apply", *inside, "-f-", stdin=RESTORED.replace("efs-sc-1", name))
        restored = await folder_of(cluster, aws, await claims.bound("orders-of-yesterday"))
        assert (restored / "file").read_text() == "as in the snapshot"
        assert (restored / "file").stat().st_uid == restored.stat().st_uid
        told = await csi_steps.events(cluster, claims, "orders-of-yesterday", "Copying")
        assert any(one.startswith("Copied 1 file or directory") for one in told)

        await kubectl("delete", *inside, "volumesnapshot", "yesterday", "--timeout=60s")
        contents = "volumesnapshotcontent", content["metadata"]["name"]
        await kubectl("wait", "--for=delete", "--timeout=60s", *contents)
        assert content["spec"]["source"] == {"volumeHandle": volume.csi.handle if volume.csi else ""}
        directory = f"/{SNAPSHOTS}/snapshot-{content['spec']['volumeSnapshotRef']['uid']}"
        system = cluster.file_system_ids[0]
        assert content["status"]["snapshotHandle"] == f"{system}:{directory}:{own.st_uid}:{own.st_gid}"
        assert not (cluster.efs.folder(system) / directory[1:]).exists()
        await csi_steps.removed(cluster, claims, "orders")
        assert (restored / "file").read_text() == "as in the snapshot"
        await csi_steps.removed(cluster, claims, "orders-of-yesterday")
