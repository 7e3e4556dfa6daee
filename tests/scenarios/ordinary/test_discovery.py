"""Changes of file systems and mount targets: their effects, and what they must not affect."""

from contextlib import suppress

import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import NFSVolumeSource, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim
from tests.scenarios import csi_steps, steps
from tests.scenarios.nfs import SlowReader
from tests.scenarios.steps import Cluster

from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, TunnelTargets
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


async def test_claim_without_the_key_cannot_bind_a_root_volume(cluster: Cluster) -> None:
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


async def test_deleted_file_system_loses_its_port_and_root_and_affects_no_other(cluster: Cluster) -> None:
    first, second = cluster.file_system_ids
    third = FileSystemId(await cluster.efs.create_file_system("third"))
    ports = {system: await steps.port_of(cluster, system) for system in (first, second, third)}
    await steps.bound_volume(cluster.client, cluster.namespace, root_name(third))
    async with _reading(cluster, first) as reader:
        await cluster.efs.delete_file_system(third)
        await steps.eventually(lambda: _has_left(cluster, third), what=f"{third} has left the targets")
        await steps.eventually(
            lambda: _is_gone(cluster, root_name(third)), what="its root claim and volume are gone"
        )
        fourth = FileSystemId(await cluster.efs.create_file_system("fourth"))
        assert await steps.port_of(cluster, fourth) == ports[third]
        assert await steps.port_of(cluster, first) == ports[first]
        assert await steps.port_of(cluster, second) == ports[second]
        await reader.finish()
        assert reader.reconnects == 0
    await cluster.efs.delete_file_system(fourth)


async def test_port_of_a_static_volume_without_annotation_is_not_reassigned(cluster: Cluster) -> None:
    client, third = cluster.client, FileSystemId(await cluster.efs.create_file_system("third"))
    port = await steps.port_of(cluster, third)
    await client.create(_static_volume("static-localhost", port, server="localhost"))
    try:
        await _delete(cluster, third)
        await steps.eventually(
            lambda: _is_gone(cluster, root_name(third)), what="its root claim and volume are gone"
        )
        fourth = FileSystemId(await cluster.efs.create_file_system("fourth"))
        assert await steps.port_of(cluster, fourth) != port
        await _delete(cluster, fourth)
    finally:
        await client.delete(PersistentVolume, "static-localhost")


async def test_port_of_an_unknown_owner_is_reported(cluster: Cluster) -> None:
    client, name = cluster.client, "static-unknown"
    # Not one that is still reserved for a file system of the tests before.
    known = (await steps.published_targets(cluster)).ports.values()
    await client.create(_static_volume(name, max(known) + 100))
    try:
        # Anything that changes has the controller look at the ports again.
        third = FileSystemId(await cluster.efs.create_file_system("third"))
        await steps.port_of(cluster, third)
        told = await steps.eventually(
            lambda: steps.messages(client, "default", name, "UnknownFileSystem"), what="there is an event"
        )
        assert "annotate it with efs-stunnel.gnuthought.com/file-system-id=" in told[0]
        assert await steps.metric(cluster.controller, "kube_efs_volumes_of_unknown_port ") == 1
        await _delete(cluster, third)
    finally:
        await client.delete(PersistentVolume, name)


async def test_deleted_config_map_is_recreated_with_the_same_ports(cluster: Cluster) -> None:
    before = await steps.published_targets(cluster)
    await cluster.client.delete(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
    await steps.eventually(lambda: _is_published(cluster, before), what="the ConfigMap is as before")


async def test_config_map_deleted_without_a_controller_keeps_its_ports(cluster: Cluster) -> None:
    before = await steps.published_targets(cluster)
    for system in before.targets:
        await steps.bound_volume(cluster.client, cluster.namespace, root_name(system))
    # A controller that did not know the ports would begin at another one.
    async with csi_steps.controller_with(cluster, BASE_STUNNEL_PORT="21490") as other:
        await other.stop()
        await cluster.client.delete(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
        await other.start()
        await steps.eventually(lambda: _is_published(cluster, before), what="the ConfigMap is as before")


async def test_auto_keeps_the_file_system_of_the_data_when_another_appears(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, reclaim_policy="Retain", default_file_system_id="auto")
    await cluster.client.create(
        steps.claim(
            namespace,
            "early",
            storage_class,
            {"volume_name": "data", "file_system_id": max(cluster.file_system_ids)},
        )
    )
    early = await steps.bound_volume(client, namespace, "early")
    await client.create(steps.claim(namespace, "late", storage_class, {"volume_name": "data"}))
    assert (await steps.bound_volume(client, namespace, "late")).file_system_id == early.file_system_id
    await client.create(steps.claim(namespace, "other", storage_class, {"volume_name": "other"}))
    other = await steps.bound_volume(client, namespace, "other")
    assert other.file_system_id == min(cluster.file_system_ids)


async def test_auto_reports_the_missing_mount_target(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    third = FileSystemId(await cluster.efs.create_file_system("third"))
    await steps.port_of(cluster, third)
    targets = await cluster.efs.mount_targets(third)
    for target in targets:
        await cluster.efs.delete_mount_target(target.mount_target_id)
    storage_class = await steps.new_class(client, default_file_system_id="auto", file_system_ids=third)

    async def is_without_addresses() -> bool:
        published = (await steps.published_targets(cluster)).targets.get(third)
        return published is not None and not published.address_by_subnet

    await steps.eventually(is_without_addresses, what=f"{third} has no mount target")
    await client.create(steps.claim(namespace, "data", storage_class, {"volume_name": "data"}))
    assert f"'{third}' has no usable mount target" in await steps.warning(client, namespace, "data")
    await cluster.efs.create_mount_target(third, ZoneName("us-east-1a"))
    volume = await steps.bound_volume(client, namespace, "data")
    assert volume.file_system_id == third
    await client.delete(PersistentVolumeClaim, "data", namespace=namespace)
    await steps.gone(client, volume.name)
    await _delete(cluster, third)


async def test_tunnel_follows_a_moved_mount_target_and_other_tunnels_are_not_interrupted(
    cluster: Cluster,
) -> None:
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


async def test_tampered_config_map_is_repaired(cluster: Cluster) -> None:
    before = await steps.published_targets(cluster)
    first = cluster.file_system_ids[0]
    found = await cluster.client.get(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
    text = (found.data or {})[CONFIG_MAP_KEY]
    hostile = text.replace(f"stunnel_port: {before.port_of(first)}", "stunnel_port: 22")
    assert hostile != text
    patch = {"data": {CONFIG_MAP_KEY: hostile}}
    await cluster.client.patch(ConfigMap, cluster.names.config_map, patch, namespace=cluster.namespace)

    await steps.eventually(lambda: _is_published(cluster, before), what="the ConfigMap is as before")


async def _is_published(cluster: Cluster, wanted: TunnelTargets) -> bool:
    with suppress(AssertionError, ApiError):
        return (await steps.published_targets(cluster)).targets == wanted.targets
    return False


def _static_volume(name: str, port: int, *, server: str = "127.0.0.1") -> PersistentVolume:
    """A manually created volume without annotation."""
    return PersistentVolume(
        metadata=ObjectMeta(name=name),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            persistentVolumeReclaimPolicy="Retain",
            storageClassName="by-hand",
            mountOptions=[f"hard,port={port}"],
            nfs=NFSVolumeSource(server=server, path="/team/data"),
        ),
    )


def _reading(cluster: Cluster, system: FileSystemId) -> "SlowReader":
    return SlowReader(cluster, system, size_bytes=64 * MEBIBYTE)


def _next_address(address: str) -> str:
    head, _, tail = address.rpartition(".")
    return f"{head}.{int(tail) + 100}"


async def _delete(cluster: Cluster, system: FileSystemId) -> None:
    await cluster.efs.delete_file_system(system)
    await steps.eventually(lambda: _has_left(cluster, system), what=f"{system} has left the targets")


async def _has_left(cluster: Cluster, system: FileSystemId) -> bool:
    return system not in (await steps.published_targets(cluster)).targets


async def _is_gone(cluster: Cluster, name: str) -> bool:
    volumes = {one.metadata.name async for one in cluster.client.list(PersistentVolume) if one.metadata}
    try:
        await cluster.client.get(PersistentVolumeClaim, name, namespace=cluster.namespace)
    except ApiError as error:
        return error.status.code == 404 and name not in volumes
    return False
