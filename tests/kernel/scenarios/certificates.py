"""Successful and failed renewals of client certificates while their tunnels are in use."""

from datetime import timedelta

from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import working

_RENEWED_SECONDS = 150.0
_CONNECTED_SECONDS = 120.0


async def renewal_keeps_connections(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        # Renewed when half of this is over.
        machine.efs.credentials_last = timedelta(minutes=1)
        target = await node.publish(volume, "pod", flags=["iam"])
        before = nfs_mount(target)
        [tunnel] = await node.tunnels()
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await _until_renewals(node, "succeeded", 2)
            await work.continues()
        assert nfs_mount(target) == before
        [found] = await node.tunnels()
        assert found.certificate_ends > tunnel.certificate_ends
        machine.efs.credentials_last = timedelta(hours=6)


async def credentials_are_unavailable_and_expire(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    async with machine.node() as node:
        machine.efs.credentials_last = timedelta(minutes=1)
        target = await node.publish(volume, "pod", flags=["iam"])
        before = nfs_mount(target)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            machine.efs.has_credentials = False
            await _until_renewals(node, "failed", 1)
            # What has expired counts for new connections only.
            machine.efs.expire_credentials()
            await work.continues()
            assert nfs_mount(target) == before

            node.kill_data_planes()
            await until(lambda: work.waits_since > 5, "the mount waits")
            machine.efs.credentials_last = timedelta(hours=6)
            machine.efs.has_credentials = True
            await work.continues(seconds=_CONNECTED_SECONDS)
        machine.tell(waited_seconds=work.longest)


async def _until_renewals(node: Node, outcome: str, number: int) -> None:
    async def are_made() -> bool:
        return await node.metric("kube_efs_certificate_renewals_total", outcome=outcome) >= number

    await until(are_made, f"{number} renewals have {outcome}", seconds=_RENEWED_SECONDS)
