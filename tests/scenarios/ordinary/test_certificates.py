"""A server without a valid certificate gets no byte of NFS, and the reason is reported."""

import asyncio
from collections.abc import Callable

import pytest
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from fake_efs.file_systems import server_names
from kube_efs.model.efs.ids import FileSystemId
from tiny_ca.authority import Authority, ServerCertificate

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _other_name(cluster: Cluster, _system: FileSystemId) -> ServerCertificate:
    return cluster.efs.authority.issue(server_names(FileSystemId("fs-0000dead"), cluster.efs.region))


def _other_authority(cluster: Cluster, system: FileSystemId) -> ServerCertificate:
    return Authority.create().issue(server_names(system, cluster.efs.region))


IMPOSTORS = {
    "another name": (_other_name, "is for another name"),
    "another authority": (_other_authority, "is not trusted"),
}


@pytest.mark.parametrize(("certificate", "words"), IMPOSTORS.values(), ids=IMPOSTORS.keys())
async def test_server_with_a_wrong_certificate_receives_no_data(
    cluster: Cluster, certificate: Callable[[Cluster, FileSystemId], ServerCertificate], words: str
) -> None:
    impostor, honest = cluster.file_system_ids
    await _in_state(cluster, impostor, "up")
    cluster.efs.present(impostor, certificate(cluster, impostor))
    try:
        await _in_state(cluster, impostor, "down")
        before = await _bytes_of_nfs(cluster, impostor)
        assert await _list_root(await steps.port_of(cluster, impostor)) != 0
        await steps.eventually(
            lambda: _reason_names(cluster, impostor, words), what=f"the reason says that it {words}"
        )
        assert await _bytes_of_nfs(cluster, impostor) == before
        await _in_state(cluster, honest, "up")
        assert await _list_root(await steps.port_of(cluster, honest)) == 0
        down = f'kube_efs_tunnel_up{{file_system="{impostor}"}}'
        assert await steps.metric(cluster.tunnel, down) == 0
    finally:
        cluster.efs.present(impostor, None)
    await _in_state(cluster, impostor, "up")


async def _in_state(cluster: Cluster, system: FileSystemId, state: str) -> None:
    async def look() -> bool:
        tunnel = await steps.tunnel_status(cluster, system)
        return tunnel is not None and tunnel.state == state

    await steps.eventually(look, what=f"the tunnel of {system} is {state}")


async def _reason_names(cluster: Cluster, system: FileSystemId, words: str) -> bool:
    tunnel = await steps.tunnel_status(cluster, system)
    return tunnel is not None and words in tunnel.reason


async def _bytes_of_nfs(cluster: Cluster, system: FileSystemId) -> int:
    targets = await cluster.efs.mount_targets(system)
    return sum(cluster.efs.traffic(target.mount_target_id).bytes_received for target in targets)


async def _list_root(port: int) -> int:
    url = f"nfs://127.0.0.1//?version=4&nfsport={port}&mountport={port}"
    client = await asyncio.create_subprocess_exec(
        "nfs-ls", url, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(steps.DEADLINE_SECONDS):
        return await client.wait()
