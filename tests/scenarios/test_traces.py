"""Traces of the real processes: a claim, and a pod that mounts its volume."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from lightkube.resources.core_v1 import Pod
from tests.collector import Collector, ReceivedSpan, collecting
from tests.scenarios import csi_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import create, in_phase, pod_with, static_volume

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def cluster_settings(collector: Collector) -> dict[str, str]:
    return collector.environment


def names_inside(collector: Collector, outer: ReceivedSpan) -> list[str]:
    return [one.name for one in collector.inside(outer)]


async def test_trace_of_a_claim_has_its_directory_and_its_volume(
    cluster: Cluster, collector: Collector
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "example", storage_class, {"volume_name": "example"}))
    volume = await steps.bound_volume(client, namespace, "example")

    claim = await collector.received("claim.provision", claim=f"{namespace}/example")

    assert (claim.process, claim.parent_id, claim.error) == ("kube-efs-controller", "", "")
    assert claim.attributes == {
        "claim": f"{namespace}/example",
        "storage_class": storage_class,
        "volume": volume.name,
        "outcome": "succeeded",
    }
    assert names_inside(collector, claim) == ["worker.directory", "volume.create"]
    directory, created = collector.inside(claim)
    assert directory.attributes == {
        "action": "make",
        "file_system": volume.file_system_id,
        "directory": f"/{namespace}/example",
    }
    assert created.attributes == {"volume": volume.name}
    assert 0 < directory.seconds + created.seconds <= claim.seconds


async def test_trace_of_a_claim_of_the_csi_driver_has_the_calls_to_aws(
    cluster: Cluster, collector: Collector
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    storage_class = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.create(storage_class, "points")
    volume = await steps.bound_volume(cluster.client, claims.namespace, "points")

    claim = await collector.received("claim.provision", claim=f"{claims.namespace}/points")

    assert claim.attributes["volume"] == volume.name
    names = names_inside(collector, claim)
    assert "aws.CreateAccessPoint" in names
    assert names[-1] == "volume.create"
    [creating] = [one for one in collector.inside(claim) if one.name == "aws.CreateAccessPoint"]
    assert creating.attributes["subject"].startswith(f"{system}:/")


async def test_refused_claim_has_the_text_of_its_event_in_its_trace(
    cluster: Cluster, collector: Collector
) -> None:
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    storage_class = await steps.new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "wrong", storage_class, {"file_system_id": "wrong"}))

    claim = await collector.received("claim.provision", claim=f"{namespace}/wrong")

    [event] = await steps.eventually(
        lambda: steps.messages(client, namespace, "wrong", "ProvisioningFailed"), what="the refusal is shown"
    )
    assert claim.error == event
    assert claim.attributes["outcome"] == "refused"
    assert claim.attributes["error.type"] == "ClaimRefused"
    assert collector.inside(claim) == []


async def test_retried_claim_has_a_trace_for_each_attempt(cluster: Cluster, collector: Collector) -> None:
    claims, system = await Claims.of(cluster), "fs-00000000000000000"
    storage_class = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.create(storage_class, "lost")
    key = f"{claims.namespace}/lost"

    async def has_two() -> bool:
        return len(collector.named("claim.provision", claim=key)) >= 2

    await steps.eventually(has_two, what="the claim is retried")
    first, second, *_ = collector.named("claim.provision", claim=key)
    assert first.trace_id != second.trace_id
    assert "was answered with FileSystemNotFound" in first.error
    assert first.attributes["outcome"] == "retried"
    [failed] = [one for one in collector.inside(first) if one.error]
    assert (failed.name, failed.error) == ("aws.CreateAccessPoint", first.error)


async def test_trace_of_a_mount_goes_through_the_tunnel_agent(cluster: Cluster, collector: Collector) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    (cluster.efs.folder(system) / "traced").mkdir()
    await static_volume(cluster, claims, "traced", f"{system}:/traced")
    await create(cluster, claims.namespace, pod_with("traced", "true", name="user"))
    await in_phase(cluster, claims.namespace, "user", "Succeeded")

    publish = await collector.received("csi.NodePublishVolume", volume=f"{system}:/traced")
    await collector.received("tunnel.open", file_system=system)

    assert (publish.process, publish.parent_id, publish.error) == ("kube-efs-node", "", "")
    assert publish.attributes["target"].endswith("/mount")
    request, mount = collector.inside(publish)
    assert (request.name, request.attributes) == ("tunnel.request", {"file_system": system})
    assert mount.name == "mount"
    assert mount.attributes == {
        "volume": f"{system}:/traced",
        "source": "127.0.0.1:/traced",
        "target": publish.attributes["target"],
    }
    [opened] = collector.inside(request)
    assert (opened.name, opened.process) == ("tunnel.open", "kube-efs-tunnel")
    assert names_inside(collector, opened) == ["tunnel.reserve", "tunnel.listen"]
    assert publish.resource["k8s.node.name"] == opened.resource["k8s.node.name"]
    await cluster.client.delete(Pod, "user", namespace=claims.namespace, grace_period=0)
    unpublish = await collector.received("csi.NodeUnpublishVolume", volume=f"{system}:/traced")
    assert unpublish.error == ""


async def test_failed_mount_has_its_error_in_the_trace(cluster: Cluster, collector: Collector) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    await static_volume(cluster, claims, "nowhere", f"{system}:/nowhere")
    await create(cluster, claims.namespace, pod_with("nowhere", "true", name="lost"))

    publish = await collector.received("csi.NodePublishVolume", volume=f"{system}:/nowhere")

    assert "No such file or directory" in publish.error
    [mount] = [one for one in collector.inside(publish) if one.name == "mount" and one.error]
    assert mount.attributes["error.type"] == "MountFailed"
    await cluster.client.delete(Pod, "lost", namespace=claims.namespace, grace_period=0)


async def test_processes_end_in_time_after_they_have_sent_their_spans(
    cluster: Cluster, collector: Collector
) -> None:
    async with asyncio.timeout(5):
        assert await cluster.controller.stop() == 0
    provisioned = collector.named("claim.provision", outcome="succeeded")
    assert len(provisioned) == len(collector.named("volume.create")) == 2
    # The controller has checked the refused claim again since, with the same outcome.
    assert len(collector.named("claim.provision", outcome="refused")) == 1
