"""Observation of the whole cluster: usage of volumes, the status page, metrics."""

import asyncio
import json
import os
import re
import struct
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from lightkube import codecs
from lightkube.models.core_v1 import VolumeResourceRequirements
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import FOR_EVER, create, in_phase, pod_with, pods_gone

from fake_efs.policy import managed_policy
from kube_efs.model.volumes import Volume
from kube_efs.operator.manifests import RenderOptions, render_asset, values_of
from kube_efs.operator.platforms import Platform
from kube_efs_lab.programs import NODE
from tinykube.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

METRICS_PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
MIB = 1024**2
# The NULL call of NFS 4 (RFC 5531, RFC 8881), which every server answers.
NULL_CALL = struct.pack(">11I", 0x8000_0000 | 40, 1, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
PAGE_PORT = free_port()


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """A controller that measures continuously and serves its page."""
    return {
        "KUBE_EFS_USAGE_INTERVAL_SECONDS": "2",
        "KUBE_EFS_STATUS_PAGE": "true",
        "KUBE_EFS_STATUS_PAGE_PORT": str(PAGE_PORT),
    }


@pytest.fixture(scope="module")
def driver_policy() -> str:
    """The policy that AWS manages for the driver."""
    return managed_policy()


async def _grant(cluster: Cluster) -> None:
    """Grant the permissions of deploy/monitoring/observing-rbac.yaml to the controller."""
    options = RenderOptions(platform=Platform.KUBERNETES, namespace=cluster.namespace)
    rights = render_asset("observing-rbac", values_of(options))
    for one in codecs.load_all_yaml(yaml.safe_dump_all(rights)):
        await cluster.client.apply(one, force=True)


async def _small_claim(
    cluster: Cluster, claims: Claims, storage_class: str, labels: dict[str, str] | None = None
) -> Volume:
    """The volume of a claim named "data" that requests 1 MiB."""
    body = steps.claim(claims.namespace, "data", storage_class, labels)
    assert body.spec
    body.spec.resources = VolumeResourceRequirements(requests={"storage": "1Mi"})
    await cluster.client.create(body)
    return await claims.bound("data")


async def _answer(cluster: Cluster, command: str) -> dict[str, Any]:
    """The JSON output of a command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kube_efs", command, "--output", "json"),
        *("--kubeconfig", str(cluster.kubeconfig), "--namespace", cluster.namespace),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    answer: dict[str, Any] = json.loads(output)
    return answer


async def test_claim_gets_an_event_when_its_volume_exceeds_the_request(cluster: Cluster) -> None:
    await _grant(cluster)
    claims = await Claims.of(cluster)
    file_system_id = cluster.file_system_ids[0]
    labels = {"volume_name": "data", "file_system_id": file_system_id}
    volume = await _small_claim(cluster, claims, await steps.new_class(cluster.client), labels)
    assert volume.nfs
    folder = cluster.efs.folder(file_system_id) / volume.nfs.path.lstrip("/")
    (folder / "large").write_bytes(os.urandom(2 * MIB))

    [text] = await csi_steps.events(cluster, claims, "data", "VolumeOverRequest")
    assert re.fullmatch(r"2\.0 MiB are in the volume, its claim requests 1\.0 MiB; the file system .*", text)
    start = f'kube_efs_volume_used_bytes{{claim="data",claim_namespace="{claims.namespace}"'
    assert await steps.metric(cluster.controller, start) >= 2 * MIB

    (folder / "large").unlink()
    await csi_steps.events(cluster, claims, "data", "VolumeWithinRequest")
    assert len(await steps.messages(cluster.client, claims.namespace, "data", "VolumeOverRequest")) == 1


@pytest.mark.parametrize("kind", ["tunnel", "directory", "access point"])
async def test_expanded_claim_is_within_its_request_and_keeps_its_data(cluster: Cluster, kind: str) -> None:
    await _grant(cluster)
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    labels = None
    match kind:
        case "tunnel":
            storage_class = await steps.new_class(cluster.client)
            labels = {"volume_name": "data", "file_system_id": system}
        case "directory":
            storage_class = await directory_steps.new_class(cluster.client)
        case _:
            storage_class = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await steps.allow_expansion(cluster.client, storage_class)
    volume = await _small_claim(cluster, claims, storage_class, labels)
    if volume.nfs:
        folder = cluster.efs.folder(system) / volume.nfs.path.lstrip("/")
    else:
        access_point_id = csi_steps.handle_of(volume).access_point_id
        assert access_point_id
        folder = await cluster.efs.access_point_folder(access_point_id)
    content = os.urandom(2 * MIB)
    (folder / "large").write_bytes(content)
    await csi_steps.events(cluster, claims, "data", "VolumeOverRequest")

    await steps.expand(cluster.client, claims.namespace, "data", "4Mi")
    after = await claims.bound("data")
    assert after == replace(volume, capacity="4Mi", resource_version=after.resource_version)
    [text] = await csi_steps.events(cluster, claims, "data", "VolumeResizeSuccessful")
    assert text == f"Volume {volume.name} has the capacity 4Mi; EFS does not limit its size"
    [text] = await csi_steps.events(cluster, claims, "data", "VolumeWithinRequest")
    assert "not more than the 4.0 MiB that its claim requests" in text
    assert (folder / "large").read_bytes() == content


async def test_command_and_page_agree_about_a_volume_behind_an_access_point(cluster: Cluster) -> None:
    await _grant(cluster)
    claims = await Claims.of(cluster)
    parameters = {"fileSystemId": cluster.file_system_ids[0]}
    storage_class = await csi_steps.new_class(cluster.client, parameters=parameters)
    volume = await _small_claim(cluster, claims, storage_class)
    access_point_id = csi_steps.handle_of(volume).access_point_id
    assert access_point_id
    folder = await cluster.efs.access_point_folder(access_point_id)
    (folder / "file").write_bytes(os.urandom(MIB // 2))

    async def measured() -> dict[str, Any] | None:
        shown = {one["name"]: one for one in (await _answer(cluster, "status"))["volumes"]}[volume.name]
        usage: dict[str, Any] | None = shown["usage"]
        return shown if usage and usage["used_bytes"] >= MIB // 2 else None

    shown = await steps.eventually(measured, what="the volume is measured", pause_seconds=1)
    assert (shown["requested_bytes"], shown["usage"]["complete"], shown["usage"]["over"]) == (
        MIB,
        True,
        False,
    )

    async with aiohttp.ClientSession() as web:

        async def on_the_page() -> bool:
            async with web.get(f"http://localhost:{PAGE_PORT}/status.json") as answer:
                found = await answer.json()
            one = next((one for one in found.get("volumes", ()) if one["name"] == volume.name), None)
            return bool(one and one["usage"] and one["access_point_id"] == access_point_id)

        await steps.eventually(on_the_page, what="the page has it", pause_seconds=1)
        async with web.get(f"http://localhost:{PAGE_PORT}/") as answer:
            page = await answer.text()
    assert answer.status == 200
    for words in (
        volume.name,
        access_point_id,
        *cluster.file_system_ids,
        "this controller is the leader",
        NODE,
    ):
        assert words in page


async def test_top_and_page_show_growth_traffic_and_pods_of_a_volume(cluster: Cluster) -> None:
    await _grant(cluster)
    claims = await Claims.of(cluster)
    storage_class = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": cluster.file_system_ids[0]}
    )
    volume = await _small_claim(cluster, claims, storage_class)
    access_point_id = csi_steps.handle_of(volume).access_point_id
    assert access_point_id
    folder = await cluster.efs.access_point_folder(access_point_id)
    user = pod_with("data", FOR_EVER, name="user")
    await create(cluster, claims.namespace, user)
    await in_phase(cluster, claims.namespace, "user", "Running")

    async def grown() -> dict[str, Any] | None:
        with (folder / "log").open("ab") as log:
            log.write(os.urandom(MIB))
        loads = {one["volume"]["name"]: one for one in (await _answer(cluster, "top"))["volumes"]}
        load: dict[str, Any] = loads[volume.name]
        usage = load["volume"]["usage"]
        return load if usage and (usage["growth_bytes_a_day"] or 0) > 0 else None

    load = await steps.eventually(grown, what="the growth of the volume is known", pause_seconds=1)
    pod = {"namespace": claims.namespace, "name": "user", "node": NODE, "claim": f"{claims.namespace}/data"}
    assert (load["pods"], load["nodes"], load["shares_tunnel"]) == ([pod], [NODE], False)
    [tunnel] = [
        one
        for node in (await _answer(cluster, "status"))["nodes"]
        for one in node["tunnels"]
        if one["access_point_id"] == access_point_id
    ]
    labels = f'file_system="{tunnel["file_system_id"]}",tunnel="{tunnel["name"]}"'
    reader, writer = await asyncio.open_connection("127.0.0.1", tunnel["port"])
    writer.write(NULL_CALL)
    answer_of_server = await reader.read(1000)

    async def is_counted() -> bool:
        sent, received = [
            await steps.metric(cluster.tunnel, f"kube_efs_tunnel_{name}_bytes_total{{{labels}")
            for name in ("sent", "received")
        ]
        # The agent's own probes may add to them.
        return sent >= len(NULL_CALL) and received >= len(answer_of_server) > 0

    with closing(writer):
        await steps.eventually(is_counted, what="the bytes of the tunnel are counted", pause_seconds=1)
    async with aiohttp.ClientSession() as web:

        async def is_on_the_page() -> bool:
            async with web.get(f"http://localhost:{PAGE_PORT}/") as answer:
                return f"{claims.namespace}/user" in await answer.text()

        await steps.eventually(is_on_the_page, what="the page shows the pod", pause_seconds=1)
    await pods_gone(cluster, claims.namespace, "user")


async def test_every_metric_of_every_process_is_documented(cluster: Cluster) -> None:
    rows = re.findall(r"^\| `(\w+?)(?:_total)?` .*\| ([a-z, ]+) \|$", METRICS_PAGE.read_text(), re.MULTILINE)
    documented = {name: set(processes.split(", ")) for name, processes in rows}
    programs = {"controller": cluster.controller, "tunnel": cluster.tunnel, "node": cluster.node}
    async with aiohttp.ClientSession() as web:
        for process, program in programs.items():
            async with web.get(f"{program.health_url}/metrics") as answer:
                found = re.findall(r"^# TYPE (\w+) ", await answer.text(), re.MULTILINE)
            ours = {re.sub(r"_(total|created)$", "", name) for name in found}
            ours -= {name for name in ours if name.startswith(("process_", "python_"))}
            ours -= {"kube_efs_build_info"}
            assert ours, process
            assert {name for name in ours if process not in documented.get(name, ())} == set(), process
