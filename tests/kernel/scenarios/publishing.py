"""Volumes on a healthy node."""

import asyncio
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.kernel.guest.kernel import is_mounted, nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import IDLE_SECONDS, Modes, start
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import CommandFailed, run

from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.efs.directories import parse_directory
from kube_efs.tunnels.sockets.ports import nfs_client_ports

# What the kernel shows for the options of the AWS driver, and for those that it adds by itself.
_OPTIONS = {
    "vers=4.1",
    "rsize=1048576",
    "wsize=1048576",
    "hard",
    "timeo=600",
    "retrans=2",
    "noresvport",
    "nosharecache",
    "proto=tcp",
    "sec=sys",
    "clientaddr=127.0.0.1",
    "addr=127.0.0.1",
    "local_lock=none",
    "namlen=255",
    "rw",
}


async def volume_is_mounted_and_unmounted(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/one", uid=1001)
    async with machine.node() as node:
        first = await node.publish(volume, "first")
        mount = nfs_mount(first)
        assert mount.source == "127.0.0.1:/"
        assert mount.options == _OPTIONS | {f"port={mount.port}"}
        await run("sh", "-c", f"echo hello > {first}/greeting")

        second = await node.publish(volume, "second")
        assert await run("cat", f"{second}/greeting") == "hello\n"
        [tunnel] = await node.tunnels()
        assert (tunnel.port, len(tunnel.holders)) == (mount.port, 2)
        assert nfs_mount(second).port == mount.port

        await node.unpublish(volume, first)
        assert not first.exists()
        assert await run("cat", f"{second}/greeting") == "hello\n"
        await node.unpublish(volume, second)
        assert not is_mounted(second)
        [tunnel] = await node.tunnels()
        assert not tunnel.holders

        async def is_closed() -> bool:
            return not await node.tunnels()

        await until(is_closed, "the tunnel is closed", seconds=IDLE_SECONDS * 6)


async def nconnect_opens_connections_that_all_mounts_of_the_tunnel_share(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/one", uid=1001)
    async with machine.node() as node:
        first = await node.publish(volume, "first", flags=("nconnect=3",))
        second = await node.publish(volume, "second")
        assert "nconnect=3" in nfs_mount(first).options
        assert nfs_mount(second).port == nfs_mount(first).port
        assert [nfs_mount(target).transports for target in (first, second)] == [3, 3]
        # The kernel takes them in turn, and connects each with its first request.
        await run("sh", "-c", f"for name in a b c d e f; do echo hello > {first}/$name; done")
        assert await run("cat", f"{second}/f") == "hello\n"
        assert nfs_mount(first).connects >= 3


async def kernel_gives_the_connection_of_one_tunnel_to_another_one_of_the_same_server(
    machine: Machine,
) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/one", uid=1001)
    async with machine.node() as node:
        # Different zones have different tunnels to the one mount target.
        first, second = [
            await node.publish(volume, f"pod-{zone}", flags=(f"az=us-east-1{zone}",)) for zone in "ab"
        ]
        assert nfs_mount(first).port != nfs_mount(second).port
        # The driver relies on this reading to refuse a mount with the identity of another pod.
        ports = nfs_client_ports()
        assert ports is not None
        assert nfs_mount(first).port in ports
        assert nfs_mount(second).port not in ports


async def access_points_enforce_identity_and_root(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/teams/blue", uid=1001)
    (machine.efs.path(fs) / "secret").write_text("of others")
    served = machine.efs.path(fs, "/teams/blue")
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        for user in ("0", "5000"):
            await run("setpriv", f"--reuid={user}", "--clear-groups", "touch", f"{target}/by-{user}")
            made = (served / f"by-{user}").stat()
            assert (made.st_uid, made.st_gid) == (1001, 1001)
        assert sorted((await run("ls", "-A", str(target))).split()) == ["by-0", "by-5000"]
        assert (served.stat().st_uid, served.stat().st_mode & 0o777) == (1001, 0o750)
        # A link to a place above leads nowhere but to this machine's own files.
        await run("ln", "-s", "../../secret", f"{target}/link")
        with pytest.raises(CommandFailed, match="No such file"):
            await run("cat", f"{target}/link")


async def one_of_concurrent_publishes_for_one_pod_is_mounted(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/one", uid=1001)
    names = [f"pod-{number}" for number in range(5)]

    async with machine.node() as node:

        async def publish(name: str) -> Path | grpc.aio.AioRpcError:
            try:
                return await node.publish(volume, name, mode=Modes.SINGLE_NODE_SINGLE_WRITER)
            except grpc.aio.AioRpcError as error:
                return error

        async def race() -> Path:
            """Publish to all targets concurrently; returns where the volume is mounted."""
            outcomes = await asyncio.gather(*map(publish, names))
            refusals = [one for one in outcomes if isinstance(one, grpc.aio.AioRpcError)]
            assert {one.code() for one in refusals} == {grpc.StatusCode.FAILED_PRECONDITION}, refusals
            assert {"has access mode ReadWriteOncePod" in (one.details() or "") for one in refusals} == {True}
            [target] = [one for one in outcomes if isinstance(one, Path)]
            assert [name for name in names if is_mounted(node.pods / name / "mount")] == [target.parent.name]
            [tunnel] = await node.tunnels()
            assert len(tunnel.holders) == 1
            return target

        first = await race()
        await run("touch", f"{first}/kept")
        await node.driver.kill()
        await start(node.driver)
        assert await race() == first  # the driver that was killed knew it, the new one finds it
        await node.unpublish(volume, first)
        second = await race()
        assert await run("ls", str(second)) == "kept\n"
        await node.unpublish(volume, second)


async def read_only_volumes_refuse_writes(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/shared", uid=1001)
    async with machine.node() as node:
        writing = await node.publish(volume, "writer")
        reading = await node.publish(volume, "reader", read_only=True)
        await run("sh", "-c", f"echo hello > {writing}/greeting")
        assert await run("cat", f"{reading}/greeting") == "hello\n"
        with pytest.raises(CommandFailed, match="Read-only file system"):
            await run("touch", f"{reading}/mine")
        assert (nfs_mount(reading).read_only, nfs_mount(writing).read_only) == (True, False)
        await run("touch", f"{writing}/mine")


async def supplemental_groups_of_pods_work_on_directory_volumes(machine: Machine) -> None:
    fs = await machine.create_file_system()
    folder = machine.efs.path(fs) / "claim"
    folder.mkdir()
    os.chown(folder, 0, 2001)
    folder.chmod(0o2770)
    volume = VolumeHandle(file_system_id=fs, directory=parse_directory("/claim"))
    pod = ("setpriv", "--reuid=5000", "--regid=5000")
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        await run(*pod, "--groups=2001", "touch", f"{target}/file")
        made = (folder / "file").stat()
        assert (made.st_uid, made.st_gid) == (5000, 2001)
        with pytest.raises(CommandFailed, match="Permission denied"):
            await run(*pod, "--groups=2002", "touch", f"{target}/other")
