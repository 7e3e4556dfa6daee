"""Real faults of an embedded cluster, one after the other, and the findings of the doctor.

Each test restores the cluster, or leaves only objects that do not affect other tests.
"""

import asyncio
import base64
import json
import os
import signal
import sys
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret
from tests.scenarios import csi_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import eventually, new_class, new_namespace, port_of, tunnel_up

from kube_efs.aws.connection import AwsConnection, AwsOptions, Service
from kube_efs.aws.gateway import AwsGateway
from kube_efs.cli import installation
from kube_efs.doctor.bundle import Bundle
from kube_efs.doctor.diagnosis import diagnose
from kube_efs.doctor.facts import ClusterFacts, Facts, NodeObject
from kube_efs.doctor.findings import Finding, Severity
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.aws import gather_aws
from kube_efs.doctor.gathering.bundles import collect_cluster, collect_node
from kube_efs.doctor.gathering.cluster import gather_cluster
from kube_efs.doctor.gathering.node import NodeCheckOptions, gather_node
from kube_efs.doctor.run import examine_aws, examine_cluster
from kube_efs.model.efs.ids import FileSystemId, Region, SubnetId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs_lab.cluster import EmbeddedCluster

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the embedded cluster needs root"),
]

SECONDS = 120.0
_OF_THE_MACHINE = ("tunnel/slow", "doctor/")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[EmbeddedCluster, None]:
    """A fresh cluster with two file systems, ``first`` and ``second``."""
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as running:
        for system in running.file_system_ids:
            await tunnel_up(running, system)
        yield running


@pytest.fixture(autouse=True)
def aws(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to AWS."""
    for name, value in cluster.efs.environment().items():
        monkeypatch.setenv(name, value)


async def _examine(cluster: EmbeddedCluster, claim: str = "", *, in_aws: bool = False) -> tuple[Finding, ...]:
    attempts = Attempts(timeout_seconds=SECONDS)
    facts = await examine_cluster(cluster.client, cluster.names, installation, attempts)
    aws = await examine_aws(facts, None, attempts) if in_aws else None
    return diagnose(Facts(claim=claim, cluster=facts, aws=aws, gaps=attempts.gaps))


def _options(cluster: EmbeddedCluster) -> NodeCheckOptions:
    return NodeCheckOptions(
        name="embedded",
        configuration=cluster.folder / "tunnel" / "stunnel.conf",
        agent_url=cluster.tunnel.health_url,
        driver_url=cluster.node.health_url,
        # What this machine's kernel says is about others' mounts.
        kernel_log=Path(os.devnull),
    )


async def _look_at_node(cluster: EmbeddedCluster) -> tuple[Finding, ...]:
    attempts = Attempts(timeout_seconds=SECONDS)
    node = await gather_node(_options(cluster), attempts)
    return diagnose(Facts(node=replace(node, mounts=()), gaps=attempts.gaps))


def _tell(findings: tuple[Finding, ...]) -> str:
    return "\n".join(
        f"{one.kind.id} {one.subject}: {one.problem} {' '.join(one.evidence)}" for one in findings
    )


async def _found(look: Callable[[], Awaitable[tuple[Finding, ...]]], kind: str, *words: str) -> Finding:
    """Wait for a finding of that kind with those texts."""

    async def found() -> Finding | None:
        told = await look()
        fits = (one for one in told if one.kind.id == kind and all(word in _tell((one,)) for word in words))
        return next(fits, None)

    return await eventually(found, what=f"{kind} {words}", seconds=SECONDS, pause_seconds=0.5)


async def test_healthy_cluster_has_no_findings(cluster: EmbeddedCluster) -> None:
    async def well() -> bool:
        findings = await _examine(cluster, in_aws=True) + await _look_at_node(cluster)
        return not [one for one in findings if not one.kind.id.startswith(_OF_THE_MACHINE)]

    await eventually(well, what="nothing is found", seconds=SECONDS, pause_seconds=0.5)


async def test_doctor_node_prints_json_and_writes_a_bundle(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    options = _options(cluster)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kube_efs", "doctor", "node", "--output", "json"),
        *("--agent", options.agent_url, "--driver", f"{options.driver_url}/"),
        *("--bundle", str(tmp_path / "node.tar.gz")),
        env={**os.environ, "STUNNEL_CONF_PATH": str(options.configuration), "NODE_NAME": "embedded"},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    document = json.loads(output)
    assert document["about"] == "node embedded"
    # A machine that is busy may not answer in time.
    ids = {one["id"] for one in document["findings"]}
    assert not ids & {"stunnel/no-configuration", "stunnel/not-running", "port/not-listening"}
    assert process.returncode == ("broken" in {one["severity"] for one in document["findings"]})
    with tarfile.open(tmp_path / "node.tar.gz") as archive:
        assert "kube-efs-doctor/node/stunnel.conf" in archive.getnames()


async def test_invalid_class_and_its_pending_claim_are_found(cluster: EmbeddedCluster) -> None:
    client, namespace = cluster.client, await new_namespace(cluster.client)
    wrong = await new_class(client, default_file_system_id="fs_nonsense")
    await client.create(steps.claim(namespace, "stuck", wrong, {"volume_name": "stuck"}))
    event = await steps.warning(client, namespace, "stuck")
    try:
        told = {one.kind.id: one for one in await _examine(cluster, f"{namespace}/stuck")}
        assert told.keys() == {"storage-class/parameter", "claim/pending"}
        assert told["storage-class/parameter"].subject.name == wrong
        # In the controller's own words.
        pending = told["claim/pending"]
        assert f"{pending.problem}; {pending.remedy}" == event
        assert f"ProvisioningFailed: {event}" in told["claim/pending"].evidence
        assert await _examine(cluster, f"{namespace}/other") != ()
    finally:
        await client.delete(PersistentVolumeClaim, "stuck", namespace=namespace)


async def test_released_volume_kept_by_a_guard_is_found(cluster: EmbeddedCluster) -> None:
    client, namespace = cluster.client, await new_namespace(cluster.client)
    good = await new_class(client, default_file_system_id="auto")
    await client.create(steps.claim(namespace, "kept", good, {"volume_name": "kept"}))
    volume = await steps.bound_volume(client, namespace, "kept")
    # Somebody has put another volume below it: its directory must not go.
    await client.create(await steps.foreign_volume(cluster, f"below-{namespace}", f"/{namespace}/kept/inner"))
    await client.delete(PersistentVolumeClaim, "kept", namespace=namespace)

    refusal = await steps.refusal(cluster, volume.name)

    found = await _found(lambda: _examine(cluster), "volume/released", volume.name)
    assert f"VolumeFailedDelete: {refusal}" in found.evidence


async def test_missing_mount_target_is_found(cluster: EmbeddedCluster) -> None:
    system = FileSystemId(await cluster.efs.create_file_system("lonely", zones=[cluster.efs.subnets[0].zone]))
    await port_of(cluster, system)
    (target,) = await cluster.efs.mount_targets(system)
    await cluster.efs.delete_mount_target(target.mount_target_id)
    try:
        found = await _found(lambda: _examine(cluster, in_aws=True), "mount-target/none", system)
        assert found.remedy == "create a mount target in each zone that has nodes"
        # The agent also reports it, after the controller has published the targets.
        await _found(lambda: _examine(cluster), "tunnel/down", system, "no usable mount target")
    finally:
        await cluster.efs.delete_file_system(system)


async def test_file_system_for_a_claim_is_healthy_until_nothing_but_the_file_system_is_left(
    cluster: EmbeddedCluster,
) -> None:
    client, claims = cluster.client, await Claims.of(cluster)
    storage_class = await csi_steps.new_class(client, parameters={"provisioningMode": "efs-fs"})
    await claims.create(storage_class, "ledger")
    volume = await claims.bound("ledger")
    handle = csi_steps.handle_of(volume)
    system, access_point = handle.file_system_id, handle.access_point_id

    async def well() -> bool:
        findings = await _examine(cluster, f"{claims.namespace}/ledger", in_aws=True)
        # The address of the embedded node, 127.0.0.1, is not in the network that the security group allows.
        ignored = (*_OF_THE_MACHINE, "security-group/closed")
        return not [one for one in findings if not one.kind.id.startswith(ignored)]

    await eventually(well, what="nothing is found", seconds=SECONDS, pause_seconds=0.5)

    facts = await gather_cluster(client, cluster.names, Attempts(timeout_seconds=SECONDS))
    assert volume.claim is not None
    step = facts.progress_of(volume.claim.uid or "")
    assert step is not None
    assert str(step).startswith(f"CreatingFileSystem: File system {system}: mount targets ")

    # Somebody keeps the volume, and removes it and its access point by hand.
    await client.patch(PersistentVolume, volume.name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await client.delete(PersistentVolumeClaim, "ledger", namespace=claims.namespace)
    await client.delete(PersistentVolume, volume.name)
    async with AwsGateway(AwsOptions(region=Region(cluster.efs.region))) as gateway:
        assert access_point is not None
        await gateway.access_points.delete(access_point)
    try:
        found = await _found(lambda: _examine(cluster, in_aws=True), "file-system/unused", system)
        assert f"it is named {claims.namespace}/ledger" in found.evidence
    finally:
        await cluster.efs.delete_file_system(system)


async def test_closed_security_group_and_refusing_policy_are_found(cluster: EmbeddedCluster) -> None:
    options = AwsOptions(region=Region(cluster.efs.region))
    subnet = cluster.efs.subnets[0]
    async with AwsConnection(options) as ec2, AwsGateway(options) as gateway:
        made = {"GroupName": "closed", "Description": "for a test", "VpcId": subnet.vpc_id}
        group = (await ec2.call(Service.EC2, "CreateSecurityGroup", **made))["GroupId"]
        system = (await gateway.create_file_system("guarded")).file_system_id
        await gateway.create_mount_target(system, SubnetId(subnet.subnet_id), security_groups=[group])
        try:
            found = await _gathered(options, system)
            assert [one.kind.id for one in found] == ["security-group/closed"]
            assert "node embedded 10.1.2.3" in found[0].evidence
            assert f"{group} allows no source" in found[0].evidence

            rule = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
            network = {**rule, "IpRanges": [{"CidrIp": "10.1.0.0/16"}]}
            await ec2.call(
                Service.EC2, "AuthorizeSecurityGroupIngress", GroupId=group, IpPermissions=[network]
            )
            assert await _gathered(options, system) == ()

            refusing = {"Effect": "Allow", "Principal": "*", "Action": "elasticfilesystem:ClientMount"}
            policy = json.dumps({"Version": "2012-10-17", "Statement": [refusing]})
            await ec2.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=system, Policy=policy)
            found = await _gathered(options, system)
            assert [one.kind.id for one in found] == ["file-system/policy"]
            assert "ClientWrite, ClientRootAccess" in found[0].problem
        finally:
            await cluster.efs.delete_file_system(system)


async def _gathered(options: AwsOptions, system: FileSystemId) -> tuple[Finding, ...]:
    """The findings about a node of another machine, and that file system."""
    attempts = Attempts(timeout_seconds=SECONDS)
    node = NodeObject(name="embedded", addresses=("10.1.2.3",))
    aws = await gather_aws(options, attempts, named={system: FileSystemKind.EFS}, nodes=[node])
    facts = Facts(
        cluster=ClusterFacts(names=OPENSHIFT_EFS_STUNNEL, nodes=(node,)), aws=aws, gaps=attempts.gaps
    )
    return diagnose(facts)


async def test_missing_aws_credentials_are_reported_and_all_else_is_checked(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = [one for one in await _examine(cluster, in_aws=True) if one.kind.severity is Severity.UNCHECKED]
    assert [one.kind.id for one in found] == ["aws/not-checked"]
    assert "redentials" in found[0].evidence[0]


@asynccontextmanager
async def _certificate_for(cluster: EmbeddedCluster, system: FileSystemId, name: str) -> AsyncGenerator[None]:
    cluster.efs.present(system, cluster.efs.authority.issue([name]))
    try:
        yield
    finally:
        cluster.efs.present(system, None)
        await tunnel_up(cluster, system)


async def test_certificate_with_another_name_is_found(cluster: EmbeddedCluster) -> None:
    system = cluster.file_system_ids[1]
    async with _certificate_for(cluster, system, "impostor.example.com"):
        found = await _found(lambda: _look_at_node(cluster), "tls/name", system)
        assert "names in the certificate: impostor.example.com" in found.evidence
        await _found(lambda: _look_at_node(cluster), "tunnel/no-nfs", system)
        await _found(lambda: _examine(cluster), "tunnel/down", system)


async def test_killed_stunnel_and_agent_are_found(cluster: EmbeddedCluster) -> None:
    system = cluster.file_system_ids[0]
    port = await port_of(cluster, system)
    try:
        await cluster.tunnel.kill()
        for process in _stunnels(cluster):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        await _found(lambda: _look_at_node(cluster), "port/not-listening", f"port {port}")
        found = await _found(lambda: _look_at_node(cluster), "process/unreachable", "the tunnel agent")
        assert "Connect" in found.evidence[0]
        # The server at the mount targets still has the right name.
        assert not [one for one in await _look_at_node(cluster) if one.kind.id == "tls/name"]
    finally:
        await cluster.tunnel.start()
        await tunnel_up(cluster, system)


def _stunnels(cluster: EmbeddedCluster) -> list[psutil.Process]:
    configuration = str(_options(cluster).configuration)
    return [one for one in psutil.process_iter(["cmdline"]) if configuration in (one.info["cmdline"] or ())]


async def test_bundles_are_complete_and_contain_no_planted_secret(cluster: EmbeddedCluster) -> None:
    client = cluster.client
    planted = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    await _plant(client, cluster.namespace, planted)
    attempts, bundle = Attempts(timeout_seconds=SECONDS), Bundle()
    await collect_cluster(client, await gather_cluster(client, cluster.names, attempts), bundle, attempts)
    options = _options(cluster)
    secret = options.configuration.with_suffix(".log")
    with secret.open("a") as log:
        log.write(f"aws_secret_access_key={planted}\n")
    await collect_node(options, ("nfs: server 127.0.0.1 OK",), bundle)

    files = bundle.files
    everything = "\n".join(files.values())
    assert not [one for one in attempts.gaps if "log" not in one.what]
    assert planted not in everything
    assert base64.b64encode(planted.encode()).decode() not in everything
    assert "EXAMPLEKEY" not in everything
    assert "checkHost" in files["node/stunnel.conf"]
    assert "kube_efs_tunnel_up" in files["node/metrics"]
    assert files["node/kernel.log"] == "nfs: server 127.0.0.1 OK"
    assert "efs-stunnel" in files["objects/ConfigMap.json"]
    assert "Secret" not in {Path(name).stem for name in files}


async def _plant(client: AsyncClient, namespace: str, secret: str) -> None:
    """Put a secret into a Secret, and into a ConfigMap, where it does not belong."""
    secret_metadata = ObjectMeta(name="efs-credentials", namespace=namespace)
    await client.create(Secret(metadata=secret_metadata, stringData={"key": secret}))
    metadata = ObjectMeta(name="efs-stunnel-planted", namespace=namespace)
    await client.create(ConfigMap(metadata=metadata, data={"note": f"AWS_SECRET_ACCESS_KEY: {secret}"}))
