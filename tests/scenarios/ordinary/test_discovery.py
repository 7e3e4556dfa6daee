"""File systems and mount targets that come, go and move: what follows, and what must not be disturbed."""

from contextlib import suppress

import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim
from tests.scenarios import steps
from tests.scenarios.nfs import SlowReader
from tests.scenarios.steps import Cluster

from kube_efs.model.ids import FileSystemId, ZoneName
from kube_efs.model.targets import CONFIG_MAP_KEY, CONFIG_MAP_NAME
from kube_efs.model.tunnel_volumes import root_name

pytestmark = pytest.mark.asyncio(loop_scope="session")

MEBIBYTE = 1024 * 1024


async def test_every_file_system_has_a_bound_root_claim_with_a_key(cluster: Cluster) -> None:
    for system in cluster.file_system_ids:
        volume = await steps.bound_volume(cluster.client, cluster.namespace, root_name(system))
        assert volume.name == root_name(system)
        assert volume.storage_class == "efs-stunnel-system"
        assert volume.reclaim_policy == "Retain"
        assert volume.nfs
        assert volume.nfs.path == "/"
        assert volume.mount_options == (f"port={await steps.port_of(cluster, system)}",)
        assert volume.labels["file_system_id"] == system
        assert len(volume.labels["root_key"]) == 10


async def test_a_claim_cannot_take_a_root_without_its_key(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    thief = steps.claim(
        namespace,
        "thief",
        "efs-stunnel-system",
        {"file_system_id": cluster.file_system_ids[0], "root_key": "0" * 10},
    )
    await client.create(thief)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "honest", storage_class, {"volume_name": "honest"}))
    await steps.bound_volume(client, namespace, "honest")
    found = await client.get(PersistentVolumeClaim, "thief", namespace=namespace)
    assert found.status
    assert found.status.phase == "Pending"


async def test_a_file_system_that_goes_takes_its_port_and_root_and_disturbs_nobody(cluster: Cluster) -> None:
    first, second = cluster.file_system_ids
    third = await cluster.efs.create_file_system("third")
    ports = {system: await steps.port_of(cluster, system) for system in (first, second, third)}
    await steps.bound_volume(cluster.client, cluster.namespace, root_name(third))
    async with _reading(cluster, first) as reader:
        await cluster.efs.delete_file_system(third)
        await steps.eventually(lambda: _has_left(cluster, third), what=f"{third} has left the targets")
        await steps.eventually(
            lambda: _is_gone(cluster, root_name(third)), what="its root claim and volume are gone"
        )
        fourth = await cluster.efs.create_file_system("fourth")
        assert await steps.port_of(cluster, fourth) == ports[third]
        assert await steps.port_of(cluster, first) == ports[first]
        assert await steps.port_of(cluster, second) == ports[second]
        await reader.finish()
        assert reader.reconnects == 0
    await cluster.efs.delete_file_system(fourth)


async def test_a_moved_mount_target_is_followed_and_other_tunnels_are_not_cut(cluster: Cluster) -> None:
    first, second = cluster.file_system_ids
    port = await steps.port_of(cluster, second)
    own_zone = ZoneName("us-east-1a")
    target = next(one for one in await cluster.efs.mount_targets(second) if one.zone == own_zone)
    async with _reading(cluster, first) as reader:
        await cluster.efs.delete_mount_target(target.mount_target_id)
        moved = await cluster.efs.create_mount_target(second, own_zone, address=_next_address(target.address))

        async def served_from_there() -> bool:
            tunnel = await steps.tunnel_status(cluster, second)
            return tunnel is not None and tunnel.state == "up" and tunnel.address == moved.address

        await steps.eventually(served_from_there, what=f"the tunnel leads to {moved.address}")
        assert await steps.port_of(cluster, second) == port
        await reader.finish()
        assert reader.reconnects == 0


async def test_a_tampered_config_map_is_put_right(cluster: Cluster) -> None:
    before = await steps.published_targets(cluster)
    first = cluster.file_system_ids[0]
    found = await cluster.client.get(ConfigMap, CONFIG_MAP_NAME, namespace=cluster.namespace)
    text = (found.data or {})[CONFIG_MAP_KEY]
    hostile = text.replace(f"stunnel_port: {before.port_of(first)}", "stunnel_port: 22")
    assert hostile != text
    patch = {"data": {CONFIG_MAP_KEY: hostile}}
    await cluster.client.patch(ConfigMap, CONFIG_MAP_NAME, patch, namespace=cluster.namespace)

    async def restored() -> bool:
        with suppress(AssertionError):
            return (await steps.published_targets(cluster)).targets == before.targets
        return False

    await steps.eventually(restored, what="the ConfigMap is as before")


def _reading(cluster: Cluster, system: FileSystemId) -> "SlowReader":
    return SlowReader(cluster, system, size_bytes=64 * MEBIBYTE)


def _next_address(address: str) -> str:
    head, _, tail = address.rpartition(".")
    return f"{head}.{int(tail) + 100}"


async def _has_left(cluster: Cluster, system: FileSystemId) -> bool:
    return system not in (await steps.published_targets(cluster)).targets


async def _is_gone(cluster: Cluster, name: str) -> bool:
    volumes = {one.metadata.name async for one in cluster.client.list(PersistentVolume) if one.metadata}
    try:
        await cluster.client.get(PersistentVolumeClaim, name, namespace=cluster.namespace)
    except ApiError as error:
        return error.status.code == 404 and name not in volumes
    return False
