"""The end of the processes, their HTTP endpoints, and what they leave behind."""

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.tunnel_volumes import root_name
from kube_efs_lab.program import Program
from tiny_ca.authority import Authority, trusting
from tinykube.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", ["controller", "tunnel"])
async def test_process_serves_its_health_and_metrics(cluster: Cluster, name: str) -> None:
    program: Program = getattr(cluster, name)
    if name == "controller":  # one that waits to lead is ready, and is not while it then reads its lists
        await steps.bound_volume(cluster.client, cluster.namespace, root_name(cluster.file_system_ids[0]))
    await program.ready()
    async with aiohttp.ClientSession() as session:
        for page in ("/healthz", "/readyz"):
            async with session.get(f"{program.health_url}{page}") as answer:
                assert answer.status == 200
                assert await answer.json() == {"ok": True, "reasons": []}
    assert await steps.metric(program, "kube_efs_build_info") == 1


async def test_controller_serves_its_metrics_over_tls(cluster: Cluster, tmp_path: Path) -> None:
    authority, port = Authority.create(), free_port()
    pem = authority.issue(["127.0.0.1"]).secret_pem()
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(pem)
    settings = {"KUBE_EFS_METRICS_CERTIFICATE_FOLDER": str(tmp_path), "KUBE_EFS_METRICS_PORT": str(port)}
    standby = cluster.controller.replica(tmp_path / "standby.log", {**settings, "POD_NAME": "standby"})
    context = trusting(authority.pem)

    async def look() -> str:
        async with aiohttp.ClientSession() as session:
            with suppress(aiohttp.ClientError):
                async with session.get(f"https://127.0.0.1:{port}/metrics", ssl=context) as answer:
                    return await answer.text()
        return ""

    try:
        await standby.start()
        assert "kube_efs_build_info" in await steps.eventually(look, what="metrics come over TLS")
    finally:
        await standby.stop()


@pytest.mark.parametrize("name", ["controller", "tunnel"])
async def test_process_ends_in_order_on_a_signal(cluster: Cluster, name: str) -> None:
    program: Program = getattr(cluster, name)
    async with asyncio.timeout(5):  # kube-efs promises this to the kubelet
        assert await program.stop() == 0
    await program.start()
    await program.ready()


async def test_lease_is_released_by_an_orderly_end(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "data", storage_class, {"volume_name": "data"}))
    volume = await steps.bound_volume(client, namespace, "data")
    await client.delete(PersistentVolumeClaim, "data", namespace=namespace)
    # The controller keeps the Lease until its watch has shown it each volume that it created. It removes this
    # one, so it has seen it, and those of the root claims before.
    await steps.gone(client, volume.name)
    await cluster.controller.stop()
    lease = await cluster.client.get(Lease, "kube-efs-controller", namespace=cluster.namespace)
    await cluster.controller.start()
    assert lease.spec
    assert not lease.spec.holderIdentity


async def test_failed_worker_pod_is_kept_and_the_claim_is_retried(cluster: Cluster) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    in_the_way = cluster.efs.folder(min(cluster.file_system_ids)) / namespace
    await asyncio.to_thread(in_the_way.write_text, "a file where the namespace's directory should be")

    await client.create(steps.claim(namespace, "blocked", storage_class, {"volume_name": "blocked"}))

    text = await steps.warning(client, namespace, "blocked")
    assert text.startswith(f"directory: '/{namespace}/blocked' failed in its worker pod")
    assert "a link or file is in the way" in text
    pods = [
        pod
        async for pod in client.list(Pod, namespace=cluster.namespace, labels={"component": "efs-worker"})
        if pod.metadata and namespace in (pod.metadata.name or "")
    ]
    # Another attempt may have begun.
    assert "Failed" in {pod.status.phase for pod in pods if pod.status}

    await asyncio.to_thread(in_the_way.unlink)
    await steps.bound_volume(client, namespace, "blocked")


async def test_controller_catches_up_on_claims_created_and_deleted_without_it(
    cluster: Cluster,
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "old", storage_class, {"volume_name": "old"}))
    old = await steps.bound_volume(client, namespace, "old")
    await cluster.controller.stop()
    await client.delete(PersistentVolumeClaim, "old", namespace=namespace)
    await client.create(steps.claim(namespace, "new", storage_class, {"volume_name": "new"}))

    await cluster.controller.start()

    await steps.bound_volume(client, namespace, "new")
    await steps.gone(client, old.name)


async def test_failed_worker_pod_does_not_keep_the_root_claim_of_a_deleted_file_system(
    cluster: Cluster,
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    third = FileSystemId(await cluster.efs.create_file_system("third"))
    storage_class = await steps.new_class(client, default_file_system_id=third)
    await steps.port_of(cluster, third)
    in_the_way = cluster.efs.folder(third) / namespace
    await asyncio.to_thread(in_the_way.write_text, "a file where the namespace's directory should be")
    await client.create(steps.claim(namespace, "blocked", storage_class, {"volume_name": "blocked"}))
    await steps.warning(client, namespace, "blocked")

    await cluster.efs.delete_file_system(third)

    async def no_root_claim() -> bool:
        claims = client.list(PersistentVolumeClaim, namespace=cluster.namespace)
        return root_name(third) not in {one.metadata.name async for one in claims if one.metadata}

    await steps.eventually(no_root_claim, what="the root claim is gone")
