"""Missing or broken resources of a node: a clear error, and no effect on running mounts."""

import asyncio
import os
import shutil

import grpc
import grpc.aio
import pytest
from lightkube.resources.core_v1 import ConfigMap
from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node, start
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import working

from fake_efs.errors import PlatformError
from kube_efs.model.efs.targets import CONFIG_MAP_KEY
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL


async def port_range_is_exhausted(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volumes = [machine.efs.create_access_point(fs, f"/{number}", uid=1001) for number in range(3)]
    async with machine.node(KUBE_EFS_TUNNEL_PORTS="22049-22050") as node:
        first, second = [await node.publish(one, f"pod-{one.access_point_id}") for one in volumes[:2]]
        async with working(first / "work", machine.efs.path(fs, "/0/work")):
            with pytest.raises(grpc.aio.AioRpcError, match="has no free port") as refused:
                await node.publish(volumes[2], "third")
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "KUBE_EFS_TUNNEL_PORTS" in (refused.value.details() or "")
            await node.unpublish(volumes[1], second)

            async def is_there_room() -> bool:
                try:
                    return bool(await node.publish(volumes[2], "third"))
                except grpc.aio.AioRpcError:
                    return False

            await until(is_there_room, "there is a port for the third volume")


async def disk_is_full(machine: Machine) -> None:
    fs = await machine.create_file_system()
    first, second = (machine.efs.create_access_point(fs, f"/{name}", uid=1001) for name in "ab")
    async with machine.node() as node:
        target = await node.publish(first, "first")
        async with working(target / "work", machine.efs.path(fs, "/a/work")) as work:
            await _fill(node)
            with pytest.raises(grpc.aio.AioRpcError, match="No space left on device"):
                await node.publish(second, "second")
            # Nothing of the state before is lost, even if the agent is killed now.
            before = nfs_mount(target)
            await node.tunnel.kill()
            await start(node.tunnel)
            assert any(one.port == before.port and one.holders for one in await node.tunnels())
            await work.continues()
            assert nfs_mount(target) == before
            # stunnel starts again with the files that it had.
            node.kill_data_planes()
            await work.continues()
            assert nfs_mount(target).port == before.port
            (node.state / "filling").unlink()
            await node.publish(second, "second")


async def state_is_truncated(machine: Machine) -> None:
    fs = await machine.create_file_system()
    first, second = (machine.efs.create_access_point(fs, f"/{name}", uid=1001) for name in "ab")
    async with machine.node() as node:
        target = await node.publish(first, "first")
        other = await node.publish(second, "second")
        before = nfs_mount(target)
        await node.unpublish(second, other)  # one more state, so that the one before has the first, too
        async with working(target / "work", machine.efs.path(fs, "/a/work")) as work:
            await node.tunnel.kill()
            state = node.reservations.read_text()
            node.reservations.write_text(state[: len(state) // 2])
            await start(node.tunnel)
            await work.continues()
            assert before.port in {one.port for one in await node.tunnels()}
            node.kill_data_planes()
            await work.continues()
        assert nfs_mount(target).port == before.port
        assert "on-demand-tunnels-unreadable" in node.tunnel.log_file.read_text()


async def stunnel_program_is_missing(machine: Machine) -> None:
    program = machine.folder / "stunnel"
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    machine.folder.mkdir(exist_ok=True)
    shutil.copy("/usr/bin/stunnel", program)
    async with machine.node(STUNNEL_PATH=str(program)) as node:
        target = await node.publish(volume, "pod")
        before = nfs_mount(target)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            program.unlink()
            await node.tunnel.kill()
            with pytest.raises(PlatformError, match="is not an executable program"):
                await start(node.tunnel)
            await work.continues()
            shutil.copy("/usr/bin/stunnel", program)
            await start(node.tunnel)
            await work.continues()
            assert nfs_mount(target) == before
            # And what it runs now, if it must.
            node.kill_data_planes()
            await work.continues()


async def configurations_cannot_be_read(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        before = nfs_mount(target)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            names, patch = OPENSHIFT_EFS_STUNNEL, {"data": {CONFIG_MAP_KEY: "efs_stunnel_targets: ["}}
            await machine.client.patch(ConfigMap, names.config_map, patch, namespace=names.namespace)
            await until(lambda: "targets-unreadable" in node.tunnel.log_file.read_text(), "the agent's log")
            for path in node.data_planes():
                path.write_bytes(os.urandom(1000))
            await node.tunnel.kill()
            await start(node.tunnel)
            await work.continues()
            assert nfs_mount(target) == before
            node.kill_data_planes()
            await work.continues()
        assert nfs_mount(target).port == before.port


async def _fill(node: Node) -> None:
    """Fill the directory of the state."""
    filling = node.state / "filling"
    process = await asyncio.create_subprocess_exec(
        "dd", "if=/dev/zero", f"of={filling}", "bs=4k", stderr=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 1, "the disk has no end"
