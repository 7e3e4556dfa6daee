"""A real Prometheus on the metrics of a cluster in use: names, the dashboard, and alerts.

The alert about the relay is in tests/kernel, because the relay needs a kernel with TLS.
"""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from lightkube.models.core_v1 import VolumeResourceRequirements
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import PersistentVolume
from lightkube.types import PatchType
from tests.prometheus import Prometheus, running_prometheus
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.faulty_aws import FILE_SYSTEMS, PassOn, aws_behind, is_call
from tests.scenarios.forking import fork_module
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import (
    FOR_EVER,
    create,
    failed_mount,
    in_phase,
    pod_with,
    pods_gone,
    static_volume,
)
from tests.scenarios.test_pod_identities import account

from fake_efs.aws_api import ACCOUNT_ID
from fake_efs.process import ChildProcess
from fake_efs.tls_front import Condition
from kube_efs.csi.protocol.csi_pb2 import CreateVolumeRequest
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.volumes import DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE
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
_CHECK_SECONDS = 30.0
_QUOTA = 10
_FILE_SYSTEMS_MOST = 12


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    return {
        "KUBE_EFS_PROBE_INTERVAL_SECONDS": "1",
        "KUBE_EFS_ACCESS_POINT_QUOTA": str(_QUOTA),
        "KUBE_EFS_USAGE_INTERVAL_SECONDS": "2",
    }


def _programs(cluster: Cluster) -> Mapping[str, Program]:
    return {"controller": cluster.controller, "tunnel": cluster.tunnel, "node": cluster.node}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    folder, labels = (
        tmp_path_factory.mktemp("prometheus"),
        {"namespace": cluster.namespace, "node": "embedded"},
    )
    async with running_prometheus(folder, _programs(cluster), **labels) as running:
        yield running


async def fires(prometheus: Prometheus, name: str) -> None:
    async def look() -> bool:
        return name in await prometheus.firing()

    await steps.eventually(look, what=f"{name} fires")


async def ends(prometheus: Prometheus, name: str) -> None:
    async def look() -> bool:
        return name not in await prometheus.firing()

    await steps.eventually(look, what=f"{name} no longer fires")


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
        async with asyncio.timeout(_CHECK_SECONDS):
            told, _ = await checking.communicate(text.encode())
        ours = [line for line in told.decode().splitlines() if line.startswith("kube_efs")]
        assert ours == [], name


async def test_nothing_fires_in_a_cluster_in_use_and_every_panel_has_data(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    name = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.provisioned(name, "data")
    await create(cluster, claims.namespace, pod_with("data", FOR_EVER, name="user"))
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

    # The rules have no waiting times here, so an alert can fire for the moment in which something is made.
    async def nothing_fires() -> bool:
        return await prometheus.firing() == set()

    await steps.eventually(nothing_fires, what="nothing fires")
    await pods_gone(cluster, claims.namespace, "user")
    await csi_steps.removed(cluster, claims, "data")


async def test_alerts_fire_when_something_breaks(cluster: Cluster, prometheus: Prometheus) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[1]
    targets = await cluster.efs.mount_targets(system)
    fronts = [cluster.efs.data_plane.front(one.mount_target_id) for one in targets]

    # The mount target of the zone of the node, then all of them.
    await fronts[0].become(Condition.REFUSING)
    await fires(prometheus, "EFSTunnelFailedOver")
    for front in fronts[1:]:
        await front.become(Condition.REFUSING)
    await fires(prometheus, "EFSTunnelDown")
    for front in fronts:
        await front.become(Condition.SERVING)

    narrow = await directory_steps.new_class(cluster.client, gidMin="41000", gidMax="41000")
    await claims.provisioned(narrow, "the-only-one")
    await fires(prometheus, "EFSGidRangeNearlyFull")

    full = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await claims.create(full, *(f"data-{number}" for number in range(_QUOTA)))
    await fires(prometheus, "EFSAccessPointsNearlyFull")

    missing = {"fileSystemId": "fs-0123456789abcdef0"}
    await claims.create(await csi_steps.new_class(cluster.client, parameters=missing), "waits")
    await fires(prometheus, "EFSProvisioningFailing")

    killed: set[int | None] = {None}

    async def next_stunnel() -> int | None:
        found = (await steps.tunnels(cluster)).stunnel_pid
        return None if found in killed else found

    for _ in range(5):
        process = await steps.eventually(next_stunnel, what="the agent runs another stunnel")
        os.kill(process, signal.SIGKILL)
        killed.add(process)
    await fires(prometheus, "EFSStunnelRestarting")

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
    await fires(prometheus, "EFSVolumeOverRequest")

    with steps.immutable(large, folder / "link"):
        await claims.delete("large")
        await fires(prometheus, "EFSTrashNotEmptied")


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
    await fires(prometheus, "EFSDeletionFailing")
    await needs_secret("")
    await steps.gone(cluster.client, volume.name)


async def test_alert_fires_when_the_targets_hardly_fit(cluster: Cluster, prometheus: Prometheus) -> None:
    made: list[FileSystemId] = []
    try:
        while "EFSTargetsNearLimit" not in await prometheus.firing():
            assert len(made) < _FILE_SYSTEMS_MOST
            made.append(FileSystemId(await cluster.efs.create_file_system(f"{len(made)}-of-many")))
            await target_of(cluster, made[-1])
    finally:
        for one in made:
            await cluster.efs.delete_file_system(one)
    await ends(prometheus, "EFSTargetsNearLimit")


async def target_of(cluster: Cluster, file_system_id: FileSystemId) -> None:
    """Wait until nodes can mount the file system."""

    async def look() -> bool:
        return file_system_id in (await steps.published_targets(cluster)).targets

    await steps.eventually(look, what=f"{file_system_id} has a port")


async def test_alerts_fire_for_client_certificates(cluster: Cluster, prometheus: Prometheus) -> None:
    claims, system = await Claims.of(cluster), cluster.file_system_ids[0]
    space, role = claims.namespace, f"arn:aws:iam::{ACCOUNT_ID}:role/storage"
    await account(cluster, space, "writer", role)
    await mounting(cluster, claims, "signed", system, ["iam", "authenticationSource=pod"], account="writer")
    await in_phase(cluster, space, "signed", "Running")
    # A restarted agent finds the certificate of one that could not renew it for almost three hours.
    await cluster.tunnel.stop()
    file = max(cluster.folder.glob("**/*.certificates/*.pem"), key=lambda one: one.stat().st_mtime)
    replace_by_nearly_expired(file)
    cluster.efs.pod_roles.distrust(role)
    await cluster.tunnel.start()
    prometheus.read_from(_programs(cluster))
    await fires(prometheus, "EFSCertificateExpires")

    await mounting(cluster, claims, "unsigned", system, ["iam", "awsprofile=missing"])
    await failed_mount(cluster, space, "unsigned", "missing")
    await fires(prometheus, "EFSCertificateRenewalFailing")
    await pods_gone(cluster, space, "signed", "unsigned")


def replace_by_nearly_expired(file: Path) -> None:
    """Replace the certificate in the file by one of the same key that expires in five minutes."""
    before = x509.load_pem_x509_certificate(file.read_bytes())
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(key, RSAPrivateKey)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(before.subject)
        .issuer_name(before.issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=3))
        .not_valid_after(now + timedelta(minutes=5))
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    file.write_bytes(certificate.public_bytes(pem) + secret)


async def mounting(
    cluster: Cluster,
    claims: Claims,
    name: str,
    system: FileSystemId,
    options: Sequence[str],
    *,
    account: str = "default",
) -> None:
    """Create a pod of that name with a claim of the same name, whose volume has these mount options."""
    storage_class = await csi_steps.new_class(
        cluster.client, parameters={"fileSystemId": system}, mount_options=options
    )
    await claims.provisioned(storage_class, name)
    pod = pod_with(name, FOR_EVER, name=name)
    pod["spec"]["serviceAccountName"] = account
    await create(cluster, claims.namespace, pod)


async def test_alerts_fire_for_limits_and_outages_of_aws_and_for_defects(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    claims, is_full, is_down = await Claims.of(cluster), asyncio.Event(), asyncio.Event()

    async def aws(request: web.Request, pass_on: PassOn) -> web.StreamResponse:
        if is_full.is_set() and is_call(request, "POST", FILE_SYSTEMS):
            kind = "FileSystemLimitExceeded"
            body = {"ErrorCode": kind, "Message": "The account has 1000 of them."}
            headers = {"x-amzn-ErrorType": kind}
            return web.json_response(body, status=HTTPStatus.FORBIDDEN, headers=headers)
        if is_down.is_set():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return await pass_on(request)

    async with (
        aws_behind(aws, cluster.efs.endpoint_url) as url,
        csi_steps.controller_with(cluster, planted, AWS_ENDPOINT_URL=url) as controller,
    ):
        prometheus.read_from({"controller": controller})
        await fires(prometheus, "EFSDutyFailing")

        wrong = {"provisioningMode": "efs-fs", "securityGroupIds": "sg-0123456789abcdef0"}
        await claims.create(await csi_steps.new_class(cluster.client, parameters=wrong), "unfinished")
        await fires(prometheus, "EFSFileSystemUnfinished")
        await claims.delete("unfinished")
        await ends(prometheus, "EFSFileSystemUnfinished")

        is_full.set()
        own = {"provisioningMode": "efs-fs"}
        await claims.create(await csi_steps.new_class(cluster.client, parameters=own), "too-many")
        await fires(prometheus, "EFSAwsLimitReached")

        assert "EFSDiscoveryOld" not in await prometheus.firing()
        is_down.set()
        await fires(prometheus, "EFSDiscoveryOld")
        await claims.delete("too-many")
    prometheus.read_from(_programs(cluster))


async def planted(
    module: str, *arguments: str, environment: Mapping[str, str], log_file: Path
) -> ChildProcess:
    """Start the controller with its planted defect, instead of the module."""
    assert module == "kube_efs"
    return await fork_module(
        "tests.scenarios.planted_controller", *arguments, environment=environment, log_file=log_file
    )


async def test_alert_fires_for_failed_calls_of_csi_provisioner(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    socket = prometheus.folder / "csi.sock"
    async with csi_steps.controller_with(cluster, CSI_ENDPOINT=f"unix://{socket}") as controller:
        prometheus.read_from({"controller": controller})

        async def calls_fail() -> bool:
            with pytest.raises(grpc.aio.AioRpcError):
                await ControllerStub(channel).CreateVolume(CreateVolumeRequest(name="wrong"), timeout=5)
            return "EFSCreateVolumeFailing" in await prometheus.firing()

        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            await steps.eventually(calls_fail, what="EFSCreateVolumeFailing fires")
    prometheus.read_from(_programs(cluster))


async def test_alert_fires_while_the_api_server_cannot_be_read(
    cluster: Cluster, prometheus: Prometheus
) -> None:
    kubeconfig = prometheus.folder / "kubeconfig"
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"  # nobody listens there
    kubeconfig.write_text(yaml.safe_dump(document))
    log_file = prometheus.folder / "alone.log"
    alone = cluster.controller.replica(log_file, {"KUBECONFIG": str(kubeconfig)})
    try:
        await alone.start()
        prometheus.read_from({"controller": alone})
        await fires(prometheus, "EFSApiRequestsFailing")
    finally:
        await alone.stop()
        prometheus.read_from(_programs(cluster))


async def test_alert_fires_while_no_controller_leads(cluster: Cluster, prometheus: Prometheus) -> None:
    async def held_by(identity: str) -> None:
        lease = {"spec": {"holderIdentity": identity, "leaseDurationSeconds": 3600}}
        name = cluster.names.controller
        await cluster.client.patch(Lease, name, lease, namespace=cluster.namespace)

    await cluster.controller.stop()
    await held_by("another")
    await cluster.controller.start()
    prometheus.read_from(_programs(cluster))
    await fires(prometheus, "EFSControllerNotLeading")
    await held_by("")
    await ends(prometheus, "EFSControllerNotLeading")
