"""How drivers become known to the kubelet and are forgotten, and what it asks them for."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from lab.tests.tinykube.kubelet.csi_plugin import NAME, Plugin
from lightkube import AsyncClient
from lightkube.models.core_v1 import CSIPersistentVolumeSource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node

from kube_efs.csi.protocol import csi_pb2
from kube_efs_lab.csi_calls import CsiCalls
from tinykube.errors import NotYet
from tinykube.kubelet.csi import CsiVolumes, Drivers, _CsiNode
from tinykube.kubelet.nfs import mount_points
from tinykube.kubelet.node import HostFolders
from tinykube.kubelet.pod_tokens import PodContext
from tinykube.kubelet.syscalls import MountFlag, mount

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
SOURCE = CSIPersistentVolumeSource(
    driver=NAME, volumeHandle="fs-1::fsap-1", volumeAttributes={"encryptInTransit": "true"}
)
Modes = csi_pb2.VolumeCapability.AccessMode
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@asynccontextmanager
async def following(kube: AsyncClient, plugin: Plugin) -> AsyncIterator[Drivers]:
    drivers = Drivers(kube, "n-1", plugin.registry, CsiCalls(), HostFolders())
    running = asyncio.create_task(drivers.run())
    try:
        yield drivers
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.fixture
async def node(kube: AsyncClient) -> AsyncClient:
    await kube.create(Node(metadata=ObjectMeta(name="n-1")))
    return kube


async def known(kube: AsyncClient) -> list[dict[str, Any]]:
    found = await kube.get(_CsiNode, "n-1")
    return list(found["spec"].get("drivers") or ())


async def is_reported(plugin: Plugin) -> bool:
    return bool(plugin.told)


async def is_known(drivers: Drivers) -> bool:
    with suppress(NotYet):
        return bool(drivers.socket_of(NAME))
    return False


async def test_a_driver_is_registered_by_what_it_says_of_itself(
    node: AsyncClient, plugin: Plugin, eventually: Eventually
) -> None:
    plugin.topology = {"zone": "a"}
    async with following(node, plugin) as drivers, plugin.running():
        await eventually(lambda: is_known(drivers))
        assert drivers.socket_of(NAME) == plugin.socket.resolve()
    assert plugin.told == [True]
    [entry] = await known(node)
    assert (entry["name"], entry["nodeID"], entry["topologyKeys"]) == (NAME, "i-1", ["zone"])
    meta = (await node.get(Node, "n-1")).metadata
    assert meta is not None
    assert (meta.labels or {})["zone"] == "a"
    assert json.loads((meta.annotations or {})["csi.volume.kubernetes.io/nodeid"]) == {NAME: "i-1"}


async def test_one_that_ends_is_forgotten_and_its_successor_registered(
    node: AsyncClient, plugin: Plugin, eventually: Eventually
) -> None:
    async with following(node, plugin) as drivers:

        async def is_forgotten() -> bool:
            return not await is_known(drivers)

        async with plugin.running():
            await eventually(lambda: is_known(drivers))
        await eventually(is_forgotten)
        assert await known(node) == []
        with pytest.raises(NotYet, match=f"driver name {NAME} not found in the list of registered CSI"):
            drivers.socket_of(NAME)
        async with plugin.running():
            await eventually(lambda: is_known(drivers))
            assert len(plugin.told) == 2


async def test_a_socket_that_was_replaced_is_another_driver(
    node: AsyncClient, plugin: Plugin, eventually: Eventually
) -> None:
    successor = Plugin(plugin.socket.parent)
    async with following(node, plugin), plugin.running():
        await eventually(lambda: is_reported(plugin))
        async with successor.running():
            await eventually(lambda: is_reported(successor))


async def test_hidden_sockets_and_files_are_passed_over(
    node: AsyncClient, plugin: Plugin, eventually: Eventually
) -> None:
    hidden = Plugin(plugin.socket.parent)
    plugin.registry.mkdir()
    (plugin.registry / "file").touch()
    async with hidden.running(name=".hidden-reg.sock"):
        async with following(node, plugin), plugin.running():
            await eventually(lambda: is_reported(plugin))
        assert hidden.told == []


async def test_a_registration_that_failed_is_tried_again(
    kube: AsyncClient, plugin: Plugin, eventually: Eventually
) -> None:
    async with following(kube, plugin) as drivers, plugin.running():
        await asyncio.sleep(0.3)
        assert not await is_known(drivers)
        await kube.create(Node(metadata=ObjectMeta(name="n-1")))
        await eventually(lambda: is_known(drivers))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "volumes"


@pytest.fixture
async def drivers(node: AsyncClient, plugin: Plugin, eventually: Eventually) -> AsyncIterator[Drivers]:
    async with following(node, plugin) as drivers, plugin.running():
        await eventually(lambda: is_known(drivers))
        yield drivers


@pytest.fixture
def volumes(drivers: Drivers) -> CsiVolumes:
    return CsiVolumes(CsiCalls(), drivers, HostFolders())


async def nothing() -> PodContext:
    return PodContext()


async def publish(
    volumes: CsiVolumes,
    folder: Path,
    *,
    mode: str = "ReadWriteMany",
    read_only: bool = False,
    get_context: Callable[[], Awaitable[PodContext]] = nothing,
) -> Path:
    options = ("tls", "iam")
    return await volumes.publish(
        "pvc-1",
        SOURCE,
        folder,
        access_mode=mode,
        options=options,
        read_only=read_only,
        get_context=get_context,
    )


async def test_a_volume_is_published_and_unpublished_as_the_kubelet_does(
    volumes: CsiVolumes, plugin: Plugin, folder: Path
) -> None:
    path = await publish(volumes, folder, read_only=True)

    [request] = plugin.published
    assert path == folder / "kubernetes.io~csi/pvc-1/mount"
    assert (request.volume_id, request.target_path) == (SOURCE.volumeHandle, str(path))
    assert request.readonly
    assert list(request.volume_capability.mount.mount_flags) == ["tls", "iam"]
    assert dict(request.volume_context) == {"encryptInTransit": "true"}

    await volumes.unpublish_all(folder)

    assert plugin.unpublished == [f"{SOURCE.volumeHandle} {path}"]
    await volumes.unpublish_all(folder)
    assert len(plugin.unpublished) == 1


async def test_a_volume_is_published_again_with_new_tokens_if_its_driver_wants_it(
    volumes: CsiVolumes, plugin: Plugin, folder: Path
) -> None:
    contexts = [
        PodContext(attributes={"tokens": "first"}, again=True),
        PodContext(attributes={"tokens": "second"}, again=True),
        PodContext(),
    ]

    async def get_context() -> PodContext:
        return contexts.pop(0)

    await publish(volumes, folder, get_context=get_context)
    await volumes.publish_again(folder)
    await volumes.publish_again(folder)

    context = {"encryptInTransit": "true"}
    assert [dict(one.volume_context) for one in plugin.published] == [
        {**context, "tokens": "first"},
        {**context, "tokens": "second"},
    ]
    assert contexts == []


async def test_refusals_are_reported_in_the_words_of_kubernetes(
    volumes: CsiVolumes, plugin: Plugin, folder: Path
) -> None:
    plugin.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "volume id: is nonsense")
    with pytest.raises(NotYet) as caught:
        await publish(volumes, folder)
    assert caught.value.problem == "rpc error: code = InvalidArgument desc = volume id: is nonsense"


async def test_unpublishing_waits_for_a_driver_that_fails(
    volumes: CsiVolumes, plugin: Plugin, folder: Path
) -> None:
    await publish(volumes, folder)
    plugin.refusal = (grpc.StatusCode.ABORTED, "is being worked on")
    ending = asyncio.create_task(volumes.unpublish_all(folder))
    await asyncio.wait([ending], timeout=0.3)
    assert not ending.done()
    plugin.refusal = None
    await asyncio.wait_for(ending, 60)
    assert len(plugin.unpublished) == 1


@root_only
async def test_what_is_mounted_is_not_published_again_and_goes_when_nobody_waits_for_the_driver(
    volumes: CsiVolumes, plugin: Plugin, folder: Path
) -> None:
    async def mount_there(target: Path) -> None:
        await asyncio.to_thread(target.mkdir)
        mount("tmpfs", str(target), "tmpfs", MountFlag.NOSUID)

    plugin.on_publish = mount_there
    paths = {await publish(volumes, folder, read_only=read_only) for read_only in (False, True)}
    [path] = paths
    assert len(plugin.published) == 1
    assert str(path) in mount_points()

    plugin.refusal = (grpc.StatusCode.UNAVAILABLE, "is away")
    ending = asyncio.create_task(volumes.unpublish_all(folder))
    await asyncio.wait([ending], timeout=0.3)
    assert not ending.done()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert str(path) not in mount_points()


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("ReadWriteMany", Modes.MULTI_NODE_MULTI_WRITER),
        ("ReadOnlyMany", Modes.MULTI_NODE_READER_ONLY),
        ("ReadWriteOnce", Modes.SINGLE_NODE_MULTI_WRITER),
        ("ReadWriteOncePod", Modes.SINGLE_NODE_SINGLE_WRITER),
    ],
)
async def test_access_modes(volumes: CsiVolumes, plugin: Plugin, folder: Path, given: str, mode: int) -> None:
    await publish(volumes, folder, mode=given)
    assert plugin.published[0].volume_capability.access_mode.mode == mode
