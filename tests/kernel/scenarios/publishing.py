"""Volumes on a node where nothing is wrong."""

from tests.kernel.guest.kernel import is_mounted, nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import IDLE_SECONDS
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import run

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


async def a_volume_comes_and_goes(machine: Machine) -> None:
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
