"""Both data planes: their contract, and changes from one to the other; they need a kernel with TLS."""

from tests.kernel.guest.contract import run_contract
from tests.kernel.guest.kernel import nfs_mount
from tests.kernel.guest.machine import Machine
from tests.kernel.guest.node import Node
from tests.kernel.guest.waiting import until
from tests.kernel.guest.work import working

from kube_efs.tunnels.options import relay_socket
from kube_efs.tunnels.sockets.ports import listening_ports


async def contract_of_both(machine: Machine) -> None:
    # What needs TLS 1.3 runs with the relay of the image (``image``).
    await run_contract(machine, "--ignore=tests/integration/data_planes/test_tls_1_3.py")


async def mounts_continue_when_the_setting_of_the_data_plane_changes(machine: Machine) -> None:
    """Ports with connections stay with their process; new and unused ones follow the setting."""
    fs = await machine.create_file_system()
    unused = machine.efs.targets().targets[fs].port
    volumes = [machine.efs.create_access_point(fs, f"/{name}", uid=1001) for name in ("first", "second")]
    served = [machine.efs.path(fs, f"/{name}/work") for name in ("first", "second")]
    async with machine.node() as node:
        first = await node.publish(volumes[0], "first")
        by_stunnel = nfs_mount(first)
        stunnel = node.data_plane_at(by_stunnel.port)
        async with working(first / "work", served[0]) as work:
            await node.replace_tunnel_agent(KUBE_EFS_DATA_PLANE="kernel")
            await work.continues()
            second = await node.publish(volumes[1], "second")
            by_relay = nfs_mount(second)
            relay = node.data_planes()[relay_socket(node.conf)]
            await until(lambda: unused in listening_ports(relay), "the relay has the unused port")
            async with working(second / "work", served[1]) as other_work:
                await other_work.continues()
                await node.replace_tunnel_agent(KUBE_EFS_DATA_PLANE="stunnel")
                await work.continues()
                await other_work.continues()
                await until(
                    lambda: any(unused in listening_ports(one) for one in _stunnels(node, relay)),
                    "a stunnel has it again",
                )
                assert node.data_plane_at(by_stunnel.port) == stunnel
                assert node.data_plane_at(by_relay.port) == relay
        assert (nfs_mount(first), nfs_mount(second)) == (by_stunnel, by_relay)
        for volume, target in zip(volumes, (first, second), strict=True):
            await node.unpublish(volume, target)


def _stunnels(node: Node, relay: int) -> list[int]:
    return [pid for pid in node.data_planes().values() if pid != relay]
