"""Unreachable mount targets."""

from tests.kernel.guest.efs import ZONES
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.network import packets_lost
from tests.kernel.guest.node import Node
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import working

from fake_efs.tls_front import Condition
from kube_efs.model.efs.ids import FileSystemId

# stunnel gives up 70 s after the kernel's last call, and a lease of 90 s is renewed after 60.
_NOTICED_SECONDS = 300.0


async def mount_target_refuses_and_recovers(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    near, far = machine.efs.fronts(fs)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        assert (near.traffic.bytes_received > 0, far.traffic.bytes_received) == (True, 0)
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            await near.become(Condition.REFUSING)
            await work.continues()
            assert far.traffic.bytes_received > 0
            await _until_led_away(machine, node, fs)
            await near.become(Condition.SERVING)
            await _until_led_back(machine, node, fs)
            # What is connected stays where it is, new connections are made to the near one again.
            await far.become(Condition.REFUSING)
            received = near.traffic.bytes_received
            await work.continues()
            assert near.traffic.bytes_received > received
        machine.tell(longest_wait_seconds=work.longest)


async def packets_to_a_mount_target_are_lost(machine: Machine) -> None:
    fs = await machine.create_file_system()
    volume = machine.efs.create_access_point(fs, "/data", uid=1001)
    near, far = machine.efs.fronts(fs)
    async with machine.node() as node:
        target = await node.publish(volume, "pod")
        async with working(target / "work", machine.efs.path(fs, "/data/work")) as work:
            async with packets_lost(near.address):
                await work.continues(10, seconds=_NOTICED_SECONDS)
                assert far.traffic.bytes_received > 0
                await _until_led_away(machine, node, fs)
                # A volume that is published now is led around it at once.
                other = await node.publish(volume, "other")
            await _until_led_back(machine, node, fs)
            await node.unpublish(volume, other)
        machine.tell(longest_wait_seconds=work.longest)


async def _until_led_away(machine: Machine, node: Node, fs: FileSystemId) -> None:
    """Wait until metrics and an event report the lost near mount target, and the one in use now."""
    near, far = machine.efs.fronts(fs)
    await _until_in_own_zone(node, fs, is_own=False)
    assert await node.metric("kube_efs_tunnel_fail_overs_total", file_system=fs) == 1
    text = f"{near.address} ({ZONES[0]}) of {fs} accepts no connections; new ones go to {far.address}"
    await _until_reported(machine, text, "Warning", "MountTargetUnreachable")


async def _until_led_back(machine: Machine, node: Node, fs: FileSystemId) -> None:
    near, _ = machine.efs.fronts(fs)
    await _until_in_own_zone(node, fs, is_own=True)
    text = f"{near.address} ({ZONES[0]}) of {fs} accepts connections again"
    await _until_reported(machine, text, "Normal", "MountTargetReachable")


async def _until_reported(machine: Machine, text: str, kind: str, reason: str) -> None:
    async def is_reported() -> bool:
        return await machine.node_events(text) == [(kind, reason)]

    await until(is_reported, f"an event of the node: {text}")


async def _until_in_own_zone(node: Node, fs: FileSystemId, *, is_own: bool) -> None:
    async def is_so() -> bool:
        return await node.metric("kube_efs_tunnel_in_own_zone", file_system=fs) == is_own

    await until(is_so, f"tunnels lead {'to the own' if is_own else 'to another'} zone")
