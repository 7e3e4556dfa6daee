"""What the kubelet asks a driver for, and what it leaves behind."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from lab.tests.tinykube.kubelet.csi_plugin import NAME, Plugin

from kube_efs.csi.protocol import csi_pb2
from kube_efs_lab.csi_calls import CsiCalls
from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.cluster import Cluster, DriverTerms
from tinykube.kubelet.csi_volumes import CsiVolumes, publish_request
from tinykube.kubelet.drivers import Driver, Drivers
from tinykube.kubelet.host_folders import HostFolders
from tinykube.kubelet.nfs import mount_points
from tinykube.kubelet.plugins import NodeInfo
from tinykube.kubelet.pods import Csi, Pod
from tinykube.kubelet.syscalls import MountFlag, mount

POD = Pod(namespace="team", name="web", uid="u-1", node="n-1", service_account="runner")
VOLUME = Csi(
    driver=NAME,
    handle="fs-1::fsap-1",
    volume="pvc-1",
    access_mode="ReadWriteMany",
    attributes={"encryptInTransit": "true"},
    options=("tls", "iam"),
)
NODE = NodeInfo(node_id="i-1", most_volumes=0, topology={}, knows_single_writers=True)
Modes = csi_pb2.VolumeCapability.AccessMode
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounting is root's")


class Terms(Cluster):
    """An API that knows nothing but what drivers ask for."""

    def __init__(self, terms: DriverTerms) -> None:
        self.terms = terms

    async def driver_terms(self, driver: str) -> DriverTerms:
        assert driver == NAME
        return self.terms


class OneDriver(Drivers):
    def __init__(self, driver: Driver | None) -> None:
        self.driver = driver

    def get(self, name: str) -> Driver:
        if self.driver is None or name != self.driver.name:
            raise NotYet(f"driver name {name} not found")
        return self.driver


@pytest.fixture
async def driver(plugin: Plugin) -> AsyncIterator[Driver]:
    async with plugin.running():
        yield Driver(name=NAME, socket=plugin.socket, node=NODE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "volumes"


def volumes(driver: Driver | None, terms: DriverTerms | None = None) -> CsiVolumes:
    cluster = Terms(terms or DriverTerms(attaches=False))
    return CsiVolumes(cluster, CsiCalls(), OneDriver(driver), HostFolders())


async def test_a_volume_is_published_and_unpublished_as_the_kubelet_does(
    driver: Driver, plugin: Plugin, folder: Path
) -> None:
    place = folder / "kubernetes.io~csi/pvc-1"
    path = await volumes(driver).publish(POD, VOLUME, folder, read_only=True)

    [request] = plugin.published
    assert path == place / "mount"
    assert (request.volume_id, request.target_path) == (VOLUME.handle, str(path))
    assert request.readonly
    assert list(request.volume_capability.mount.mount_flags) == ["tls", "iam"]
    assert request.volume_capability.access_mode.mode == Modes.MULTI_NODE_MULTI_WRITER
    assert dict(request.volume_context) == {"encryptInTransit": "true"}
    assert json.loads((place / "vol_data.json").read_text()) == {
        "driverName": NAME,
        "nodeName": "n-1",
        "specVolID": "pvc-1",
        "volumeHandle": "fs-1::fsap-1",
        "volumeLifecycleMode": "Persistent",
    }

    # By another kubelet, which knows only what lies there.
    await volumes(driver).unpublish_all(folder)

    assert plugin.unpublished == [f"{VOLUME.handle} {path}"]
    assert list(place.iterdir()) == []
    await volumes(driver).unpublish_all(folder)
    assert len(plugin.unpublished) == 1


async def test_a_driver_that_wants_to_know_the_pod_is_told(
    driver: Driver, plugin: Plugin, folder: Path
) -> None:
    terms = DriverTerms(attaches=False, wants_pod=True)
    await volumes(driver, terms).publish(POD, VOLUME, folder, read_only=False)
    assert dict(plugin.published[0].volume_context) == {
        "encryptInTransit": "true",
        "csi.storage.k8s.io/pod.name": "web",
        "csi.storage.k8s.io/pod.namespace": "team",
        "csi.storage.k8s.io/pod.uid": "u-1",
        "csi.storage.k8s.io/serviceAccount.name": "runner",
        "csi.storage.k8s.io/ephemeral": "false",
    }


async def test_a_driver_whose_volumes_are_to_be_attached_is_refused(
    driver: Driver, plugin: Plugin, folder: Path
) -> None:
    with pytest.raises(InvalidValue, match="attachRequired: false"):
        await volumes(driver, DriverTerms()).publish(POD, VOLUME, folder, read_only=False)
    assert plugin.published == []


async def test_refusals_are_told_in_the_words_of_kubernetes(
    driver: Driver, plugin: Plugin, folder: Path
) -> None:
    plugin.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "volume id: is nonsense")
    with pytest.raises(NotYet) as caught:
        await volumes(driver).publish(POD, VOLUME, folder, read_only=False)
    assert caught.value.problem == "rpc error: code = InvalidArgument desc = volume id: is nonsense"


async def test_unpublishing_waits_for_a_driver_that_fails(
    driver: Driver, plugin: Plugin, folder: Path
) -> None:
    made = volumes(driver)
    await made.publish(POD, VOLUME, folder, read_only=False)
    plugin.refusal = (grpc.StatusCode.ABORTED, "is being worked on")
    ending = asyncio.create_task(made.unpublish_all(folder))
    await asyncio.wait([ending], timeout=0.3)
    assert not ending.done()
    plugin.refusal = None
    await asyncio.wait_for(ending, 10)
    assert len(plugin.unpublished) == 1


@root_only
async def test_what_is_mounted_is_not_published_again_and_goes_when_nobody_waits_for_the_driver(
    driver: Driver, plugin: Plugin, folder: Path
) -> None:
    async def mount_there(target: Path) -> None:
        await asyncio.to_thread(target.mkdir)
        mount("tmpfs", str(target), "tmpfs", MountFlag.NOSUID)

    plugin.on_publish = mount_there
    made = volumes(driver)
    paths = await asyncio.gather(
        *(made.publish(POD, VOLUME, folder, read_only=read_only) for read_only in (False, True))
    )
    assert len(plugin.published) == 1
    assert str(paths[0]) in mount_points()

    ending = asyncio.create_task(volumes(None).unpublish_all(folder))
    await asyncio.wait([ending], timeout=0.3)
    assert not ending.done()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert str(paths[0]) not in mount_points()


@pytest.mark.parametrize(
    ("given", "knows_single_writers", "mode"),
    [
        ("ReadWriteMany", True, "MULTI_NODE_MULTI_WRITER"),
        ("ReadOnlyMany", False, "MULTI_NODE_READER_ONLY"),
        ("ReadWriteOnce", True, "SINGLE_NODE_MULTI_WRITER"),
        ("ReadWriteOnce", False, "SINGLE_NODE_WRITER"),
        ("ReadWriteOncePod", True, "SINGLE_NODE_SINGLE_WRITER"),
        ("ReadWriteOncePod", False, "SINGLE_NODE_WRITER"),
    ],
)
def test_access_modes(given: str, knows_single_writers: bool, mode: str) -> None:
    driver = Driver(
        name=NAME, socket=Path("/s"), node=replace(NODE, knows_single_writers=knows_single_writers)
    )
    volume = replace(VOLUME, access_mode=given)
    assert publish_request(driver, volume, "/t", {}, read_only=False).access_mode == mode
