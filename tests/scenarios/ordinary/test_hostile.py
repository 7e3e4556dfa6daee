"""Hostile values: they are refused and reported, and have no other effect."""

import asyncio
import re
from pathlib import Path

import pytest
from lightkube import ApiError
from lightkube.resources.core_v1 import ConfigMap, PersistentVolumeClaim
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from kube_efs.model.efs.targets import CONFIG_MAP_KEY

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    "name", ["..", "a/b", "/etc", "a b", "$(id)", "a;b", "a\nb", "`id`", "a.b", "-a", "A"]
)
async def test_hostile_volume_name_is_refused(cluster: Cluster, name: str) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    if await _is_taken(cluster, steps.claim(namespace, "hostile", storage_class, {"volume_name": name})):
        text = await steps.warning(client, namespace, "hostile")
        refusal = f"{name!r} is not allowed; use a-z, 0-9 and _, and - after the first character"
        assert text == f"spec.selector.matchLabels.volume_name: {refusal}"
    assert await steps.volumes_of(client, namespace) == []


@pytest.mark.parametrize("system", ["fs-1;id", "fs-../x", "fs-UPPER", "efs", "fs-"])
async def test_hostile_file_system_id_is_refused(cluster: Cluster, system: str) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    labels = {"volume_name": "a", "file_system_id": system}
    if await _is_taken(cluster, steps.claim(namespace, "hostile", storage_class, labels)):
        assert "is not a valid file system ID" in await steps.warning(client, namespace, "hostile")
    assert await steps.volumes_of(client, namespace) == []


async def test_claim_after_hostile_input_is_served(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "next", storage_class, {"volume_name": "next"}))
    await steps.bound_volume(client, namespace, "next")


HOSTILE_ENTRIES = {
    "line break in the id": '"fs-1\\nexec = /bin/sh": {stunnel_port: 30001, mount_target_ip_by_subnet: {}}',
    "section in the id": '"fs-1]\\n[evil": {stunnel_port: 30002, mount_target_ip_by_subnet: {}}',
    "name as an address": "fs-000000a1: {stunnel_port: 30003, mount_target_ip_by_subnet: {subnet-1: a.b}}",
    "option in an address": (
        'fs-000000a2: {stunnel_port: 30004, mount_target_ip_by_subnet: {subnet-1: "127.0.0.1\\nexec=/x"}}'
    ),
    "privileged port": "fs-000000a3: {stunnel_port: 22, mount_target_ip_by_subnet: {}}",
    "port too high": "fs-000000a4: {stunnel_port: 70000, mount_target_ip_by_subnet: {}}",
    "port as text": 'fs-000000a5: {stunnel_port: "30005; id", mount_target_ip_by_subnet: {}}',
    "path instead of an ID": "../../etc/passwd: {stunnel_port: 30006, mount_target_ip_by_subnet: {}}",
    "not a mapping": "fs-000000a6: [1, 2]",
}


async def test_hostile_entries_are_omitted_and_others_are_kept(cluster: Cluster) -> None:
    for system in cluster.file_system_ids:
        await steps.tunnel_up(cluster, system)
    configuration = cluster.folder / "tunnel" / "stunnel.conf"
    before = set((await asyncio.to_thread(configuration.read_text)).splitlines())
    # The controller would put the ConfigMap right before the node has seen it.
    await cluster.controller.stop()
    try:
        found = await cluster.client.get(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
        text = (found.data or {})[CONFIG_MAP_KEY]
        entries = "".join(f"  {entry}\n" for entry in HOSTILE_ENTRIES.values())
        hostile = text.replace("efs_stunnel_targets:\n", f"efs_stunnel_targets:\n{entries}")
        patch = {"data": {CONFIG_MAP_KEY: hostile}}
        await cluster.client.patch(ConfigMap, cluster.names.config_map, patch, namespace=cluster.namespace)

        async def told() -> bool:
            return len((await steps.tunnels(cluster)).problems) == len(HOSTILE_ENTRIES)

        await steps.eventually(told, what="every hostile entry is reported")
        # A tunnel that nothing needs any more may end meanwhile.
        assert set((await asyncio.to_thread(configuration.read_text)).splitlines()) <= before
        for system in cluster.file_system_ids:
            await steps.tunnel_up(cluster, system)
    finally:
        await cluster.controller.start()
        await steps.eventually(lambda: _check_nothing_is_reported(cluster), what="the ConfigMap is put right")


async def test_only_the_owner_can_read_secrets_and_configuration(cluster: Cluster) -> None:
    private: list[Path] = [cluster.folder / "tunnel" / "stunnel.conf", cluster.kubeconfig]
    for path in private:
        assert path.stat().st_mode & 0o777 == 0o600, path
    token = re.search(r"token: (\S+)", await asyncio.to_thread(cluster.kubeconfig.read_text))
    assert token
    for program in (cluster.controller, cluster.tunnel):
        assert token[1] not in await asyncio.to_thread(program.log_file.read_text)


async def _is_taken(cluster: Cluster, hostile: PersistentVolumeClaim) -> bool:
    """Whether the API server accepts the claim; it refuses invalid label values itself."""
    try:
        await cluster.client.create(hostile)
    except ApiError as error:
        if error.status.code == 422:
            return False
        raise
    return True


async def _check_nothing_is_reported(cluster: Cluster) -> bool:
    status = await steps.tunnels(cluster)
    return bool(status.tunnels) and not status.problems
