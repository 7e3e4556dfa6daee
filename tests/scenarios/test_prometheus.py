"""A real Prometheus on the metrics of a cluster in use: names, the dashboard, and alerts.

The rules are those of deploy/monitoring, without their waiting times. What takes longer than a test to fire
(an old list of file systems, a certificate that expires) is in tests/monitoring, which promtool runs.
"""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import pytest_asyncio
import yaml
from lightkube.models.core_v1 import VolumeResourceRequirements
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import create, failed_mount, in_phase, pod_with, pods_gone, static_volume

from fake_efs.process import ChildProcess
from fake_efs.tls_front import Condition
from kube_efs.csi.protocol.csi_pb2 import CreateVolumeRequest
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub
from kube_efs.model.volumes import DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE
from kube_efs.operator.manifests import load_asset
from kube_efs_lab.program import Program

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus (Debian: prometheus) is missing"
    ),
]

DASHBOARD = Path(__file__).parents[2] / "deploy/monitoring/dashboard.json"
# What shows only faults; the test of the alerts has made some of each.
OF_FAULTS = ("Failed calls to the CSI services", "Restarts of stunnel after it ended unexpectedly")
_START_SECONDS = 30.0
_QUOTA = 10


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    return {
        "KUBE_EFS_PROBE_INTERVAL_SECONDS": "1",
        "KUBE_EFS_ACCESS_POINT_QUOTA": str(_QUOTA),
        "KUBE_EFS_USAGE_INTERVAL_SECONDS": "2",
    }


class Prometheus:
    """A running Prometheus that reads the three processes of a cluster; ``folder`` has its configuration."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self.folder = folder

    async def is_ready(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/-/ready") as answer:
            return answer.status == HTTPStatus.OK

    async def ask(self, path: str, **query: str) -> Any:
        url = f"{self._url}/api/v1/{path}"
        async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
            body = await answer.json()
        assert body["status"] == "success", body
        return body["data"]

    async def query(self, expression: str) -> list[Any]:
        found: list[Any] = (await self.ask("query", query=expression))["result"]
        return found

    async def firing(self) -> set[str]:
        alerts = (await self.ask("alerts"))["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    async def fires(self, name: str) -> None:
        async def look() -> bool:
            return name in await self.firing()

        await steps.eventually(look, what=f"{name} fires")


def _programs(cluster: Cluster) -> Mapping[str, Program]:
    return {"controller": cluster.controller, "tunnel": cluster.tunnel, "node": cluster.node}


def _write_targets(cluster: Cluster, folder: Path, **others: Program) -> None:
    """Where the processes are, with the labels that the PodMonitors give; Prometheus watches these files.

    ``others`` run instead of those of the cluster.
    """
    for name, program in {**_programs(cluster), **others}.items():
        labels = {"namespace": cluster.namespace, "pod": f"kube-efs-{name}", "node": "embedded"}
        target = {"targets": [program.health_url.removeprefix("http://")], "labels": labels}
        draft = folder / f"{name}.draft"
        draft.write_text(json.dumps([target]))
        draft.rename(folder / f"{name}.json")


def _configuration(cluster: Cluster, folder: Path) -> Path:
    _write_targets(cluster, folder)
    jobs = [
        {"job_name": name, "file_sd_configs": [{"files": [f"{name}.json"], "refresh_interval": "1s"}]}
        for name in _programs(cluster)
    ]
    [rules] = [one["spec"] for one in load_asset("rules") if one["kind"] == "PrometheusRule"]
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    configuration = folder / "prometheus.yaml"
    configuration.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yaml"],
                "scrape_configs": jobs,
            }
        )
    )
    return configuration


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    process = await ChildProcess.start(
        "prometheus",
        f"--config.file={_configuration(cluster, folder)}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        log_file=folder / "prometheus.log",
    )
    try:
        port = await process.listening_port(timeout_seconds=_START_SECONDS)
        found = Prometheus(f"http://127.0.0.1:{port}", folder)

        # It listens before it has read its data, and refuses queries until then.
        await steps.eventually(found.is_ready, what="Prometheus is ready")

        async def has_all() -> bool:
            return len(await found.query("up == 1")) == len(_programs(cluster))

        await steps.eventually(has_all, what="Prometheus has read all processes")
        yield found
    finally:
        await process.stop()


def expressions() -> list[tuple[str, str]]:
    """The title and the query of each panel."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [(one["title"], target["expr"]) for one in panels for target in one.get("targets", ())]


async def test_names_of_metrics_follow_the_conventions(cluster: Cluster, prometheus: Prometheus) -> None:
    for name, program in _programs(cluster).items():
        async with aiohttp.ClientSession() as session, session.get(f"{program.health_url}/metrics") as answer:
            text = await answer.text()
        checking = await asyncio.create_subprocess_exec(
            *("promtool", "check", "metrics"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(_START_SECONDS):
            told, _ = await checking.communicate(text.encode())
        ours = [line for line in told.decode().splitlines() if line.startswith("kube_efs")]
        assert ours == [], name


async def test_nothing_fires_in_a_cluster_in_use_and_every_panel_has_data(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.provisioned(name, "data")
    await create(cluster, claims.namespace, pod_with("data", "while true; do sleep 1; done", name="user"))
    await in_phase(cluster, claims.namespace, "user", "Running")
    directories = await directory_steps.new_class(cluster.client, gidMin="40000", gidMax="40100")
    await claims.provisioned(directories, "of-a-directory")
    await claims.provisioned(directories, "short")
    await claims.removed("short")

    namespace, interval = cluster.namespace, "1m"
    for title, query in expressions():
        if title in OF_FAULTS:
            continue
        expression = query.replace("$namespace", namespace).replace("$__rate_interval", interval)

        async def has_data(expression: str = expression) -> bool:
            return bool(await prometheus.query(expression))

        await steps.eventually(has_data, what=f"panel {title} has data: {expression}")
    assert await prometheus.firing() == set()
    await pods_gone(cluster, claims.namespace, "user")
    await csi_steps.removed(cluster, claims, "data")


async def test_alerts_fire_when_something_breaks(cluster: Cluster, prometheus: Prometheus) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    targets = await cluster.efs.mount_targets(system)
    fronts = [cluster.efs.data_plane.front(one.mount_target_id) for one in targets]

    # The mount target of the zone of the node, then all of them.
    await fronts[0].become(Condition.REFUSING)
    await prometheus.fires("EFSTunnelFailedOver")
    for front in fronts[1:]:
        await front.become(Condition.REFUSING)
    await prometheus.fires("EFSTunnelDown")
    for front in fronts:
        await front.become(Condition.SERVING)

    narrow = await directory_steps.new_class(cluster.client, gidMin="41000", gidMax="41000")
    await claims.provisioned(narrow, "the-only-one")
    await prometheus.fires("EFSGidRangeNearlyFull")

    full = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.create(full, *(f"data-{number}" for number in range(_QUOTA)))
    await prometheus.fires("EFSAccessPointsNearlyFull")

    missing = {"fileSystemId": "fs-0123456789abcdef0"}
    await claims.create(await csi_steps.new_class(cluster.client, parameters=missing), "waits")
    await prometheus.fires("EFSProvisioningFailing")

    killed: set[int | None] = {None}

    async def next_stunnel() -> int | None:
        found = (await steps.tunnels(cluster)).stunnel_pid
        return None if found in killed else found

    for _ in range(5):
        process = await steps.eventually(next_stunnel, what="the agent runs another stunnel")
        os.kill(process, signal.SIGKILL)
        killed.add(process)
    await prometheus.fires("EFSStunnelRestarting")

    await static_volume(cluster, claims, "gone", f"{system}::fsap-0123456789abcdef0")
    await create(cluster, claims.namespace, pod_with("gone", "true", name="waiting"))
    await failed_mount(cluster, claims.namespace, "waiting", "")
    for title, query in expressions():
        if title in OF_FAULTS:
            expression = query.replace("$namespace", cluster.namespace).replace("$__rate_interval", "1m")

            async def has_data(expression: str = expression) -> bool:
                return bool(await prometheus.query(expression))

            await steps.eventually(has_data, what=f"panel {title} has data")
    await pods_gone(cluster, claims.namespace, "waiting")


async def test_alerts_fire_for_large_volumes_and_trash_that_stays(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    claims = await Claims.of(cluster)
    storage_class = await steps.new_class(cluster.client, default_file_system_id="auto")
    body = steps.claim(claims.namespace, "large", storage_class, {"volume_name": "large"})
    assert body.spec
    body.spec.resources = VolumeResourceRequirements(requests={"storage": "1Mi"})
    await cluster.client.create(body)
    volume = await claims.bound("large")
    assert volume.nfs
    folder = cluster.efs.folder(min(cluster.file_system_ids))
    large = folder / volume.nfs.path.lstrip("/") / "large"
    large.write_bytes(os.urandom(2 << 20))
    await prometheus.fires("EFSVolumeOverRequest")

    with steps.immutable(large, folder / "link"):
        await claims.delete("large")
        await prometheus.fires("EFSTrashNotEmptied")


async def test_alert_fires_for_volumes_that_cannot_be_removed(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    volume = await claims.provisioned(
        await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system}), "stays"
    )

    async def needs_secret(name: str) -> None:
        annotations = {DELETION_SECRET_NAME: name, DELETION_SECRET_NAMESPACE: name and claims.namespace}
        change = {"metadata": {"annotations": annotations}}
        await cluster.client.patch(PersistentVolume, volume.name, change, patch_type=PatchType.MERGE)

    await needs_secret("missing")
    await claims.delete("stays")
    await prometheus.fires("EFSDeletionFailing")
    await needs_secret("")
    await steps.gone(cluster.client, volume.name)


async def test_alert_fires_for_failed_calls_of_csi_provisioner(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    socket = prometheus.folder / "csi.sock"
    async with csi_steps.controller_with(cluster, CSI_ENDPOINT=f"unix://{socket}") as controller:
        _write_targets(cluster, prometheus.folder, controller=controller)

        async def fires() -> bool:
            with pytest.raises(grpc.aio.AioRpcError):
                await ControllerStub(channel).CreateVolume(CreateVolumeRequest(name="wrong"), timeout=5)
            return "EFSCreateVolumeFailing" in await prometheus.firing()

        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            await steps.eventually(fires, what="EFSCreateVolumeFailing fires")
    _write_targets(cluster, prometheus.folder)


async def test_alert_fires_while_no_controller_leads(cluster: Cluster, prometheus: Prometheus) -> None:
    async def held_by(identity: str) -> None:
        lease = {"spec": {"holderIdentity": identity, "leaseDurationSeconds": 3600}}
        name = cluster.names.controller
        await cluster.client.patch(Lease, name, lease, namespace=cluster.namespace)

    await cluster.controller.stop()
    await held_by("another")
    await cluster.controller.start()
    _write_targets(cluster, prometheus.folder)
    await prometheus.fires("EFSControllerNotLeading")
    await held_by("")

    async def leads() -> bool:
        return "EFSControllerNotLeading" not in await prometheus.firing()

    await steps.eventually(leads, what="the controller leads again")
