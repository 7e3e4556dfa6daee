"""Pods whose own service accounts sign the connections to EFS."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, ServiceAccount
from lightkube.resources.storage_v1 import CSIDriver
from lightkube.types import PatchType
from tests.scenarios import csi_steps, steps
from tests.scenarios.csi_steps import DRIVER, Aws
from tests.scenarios.directory_steps import Claims, restarted
from tests.scenarios.steps import Cluster
from tests.scenarios.test_csi_pods import (
    FOR_EVER,
    create,
    failed_mount,
    in_phase,
    mount_of,
    pod_with,
    pods_gone,
)

from fake_efs.aws_api import ACCOUNT_ID
from kube_efs.aws.connection import Service
from kube_efs.tunnels.status import TunnelStatus

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]

WRITER, READER = (f"arn:aws:iam::{ACCOUNT_ID}:role/{name}" for name in ("writer", "reader"))


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    return {"LOGGING_LEVEL": "DEBUG"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    async with Aws.of(cluster) as aws:
        yield aws


# --- steps


async def deny(cluster: Cluster, aws: Aws, *roles: str) -> None:
    """Set a policy for the file system that denies these roles, and everybody without a signature."""
    actions = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    allowed = [one for one in (WRITER, READER) if one not in roles]
    statements = [
        {"Effect": "Allow", "Principal": {"AWS": allowed}, "Action": actions},
        *({"Effect": "Deny", "Principal": {"AWS": role}, "Action": actions} for role in roles),
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    system = cluster.file_system_ids[0]
    await aws.connection.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=system, Policy=policy)


async def signed_volume(cluster: Cluster) -> tuple[Claims, str]:
    """A namespace with a claim ``data``, whose mounts are signed by pods; and its volume."""
    claims = await Claims.of(cluster)
    storage_class = await csi_steps.new_class(
        cluster.client,
        mount_options=["iam", "authenticationSource=pod"],
        parameters={"fileSystemId": cluster.file_system_ids[0]},
    )
    return claims, (await claims.provisioned(storage_class, "data")).name


async def account(cluster: Cluster, namespace: str, name: str, role: str | None = None) -> None:
    """A service account; with a role, STS gives it the role."""
    annotations = {"eks.amazonaws.com/role-arn": role} if role else {}
    metadata = ObjectMeta(namespace=namespace, name=name, annotations=annotations)
    await cluster.client.create(ServiceAccount(metadata=metadata))
    if role:
        cluster.efs.pod_roles.trust(role, namespace, name)


def pod_as(service_account: str, script: str, *, name: str) -> dict[str, Any]:
    body = pod_with("data", script, name=name)
    body["spec"]["serviceAccountName"] = service_account
    return body


async def held_tunnels(cluster: Cluster, holders: list[int]) -> list[TunnelStatus]:
    """Wait until the held tunnels have so many holders, the fewest first."""

    async def look() -> tuple[list[TunnelStatus]] | None:
        found = [one for one in (await steps.tunnels(cluster)).tunnels if one.on_demand and one.holders]
        found.sort(key=lambda one: one.holders)
        return (found,) if [one.holders for one in found] == holders else None

    (found,) = await steps.eventually(look, what=f"tunnels have {holders} holders")
    return found


async def new_session(cluster: Cluster, role: str, *, after: int) -> None:
    """Wait until the role has been given more than that often."""

    async def look() -> bool:
        return cluster.efs.pod_roles.sessions[role] > after

    await steps.eventually(look, what=f"{role} was given again")


async def list_root(port: int) -> bool:
    """Whether a client that connects to the port may list the root directory."""
    url = f"nfs://127.0.0.1//?version=4&nfsport={port}&mountport={port}"
    output = asyncio.subprocess.DEVNULL
    client = await asyncio.create_subprocess_exec("nfs-ls", url, stdout=output, stderr=output)
    async with asyncio.timeout(30):
        return await client.wait() == 0


async def listed(port: int) -> None:
    """Wait until a client may list the root directory.

    A restarted agent reloads stunnel, also for a new certificate. That resets connections that stunnel has
    not accepted yet. A mount would connect again.
    """
    await steps.eventually(lambda: list_root(port), what="a client lists the root directory")


# --- scenarios


async def test_each_pod_has_the_permissions_of_its_own_role(cluster: Cluster, aws: Aws) -> None:
    claims, _ = await signed_volume(cluster)
    space = claims.namespace
    await account(cluster, space, "writer", WRITER)
    await account(cluster, space, "reader")
    cluster.efs.pod_roles.associate(space, "reader", READER)
    await deny(cluster, aws, READER)

    write = f"echo hello > /data/file; {FOR_EVER}"
    await create(
        cluster,
        space,
        *(pod_as("writer", write, name=name) for name in ("one", "two")),
        pod_as("reader", FOR_EVER, name="three"),
    )
    for name in ("one", "two"):
        await in_phase(cluster, space, name, "Running")
    await failed_mount(cluster, space, "three", "mount.nfs4: access denied by server")
    # Two pods of a service account share the tunnel.
    [of_writer] = await held_tunnels(cluster, [2])

    await deny(cluster, aws)
    await in_phase(cluster, space, "three", "Running")
    of_reader, again = await held_tunnels(cluster, [1, 2])
    assert again.port == of_writer.port != of_reader.port
    assert of_reader.access_point_id == of_writer.access_point_id
    assert await list_root(of_reader.port)
    assert await list_root(of_writer.port)

    await deny(cluster, aws, READER)
    assert not await list_root(of_reader.port)
    assert await list_root(of_writer.port)
    await deny(cluster, aws)
    await pods_gone(cluster, space, "one", "two", "three")
    await held_tunnels(cluster, [])


async def test_certificate_is_renewed_with_tokens_of_the_pod_also_after_a_restart(
    cluster: Cluster, aws: Aws
) -> None:
    claims, volume = await signed_volume(cluster)
    space, roles = claims.namespace, cluster.efs.pod_roles
    await account(cluster, space, "writer", WRITER)
    await deny(cluster, aws)
    await create(cluster, space, pod_as("writer", FOR_EVER, name="one"))
    uid = await in_phase(cluster, space, "one", "Running")
    mount = mount_of(cluster, uid, volume)
    [tunnel] = await held_tunnels(cluster, [1])

    before = roles.sessions[WRITER]
    await restarted(cluster.tunnel)
    await new_session(cluster, WRITER, after=before)
    assert mount_of(cluster, uid, volume) == mount
    [again] = await held_tunnels(cluster, [1])
    assert again.port == tunnel.port
    await listed(tunnel.port)

    # After the next restart STS refuses: the pod gets an event, and the mount continues.
    roles.distrust(WRITER)
    await restarted(cluster.tunnel)
    remedy = f"check that the trust policy of {WRITER} allows this service account"
    told = await failed_mount(cluster, space, "one", remedy)
    # Not PermissionDenied: after that, the kubelet would take the volume for not mounted.
    assert f"code = Unavailable desc = service account {space}/writer: " in told
    assert mount_of(cluster, uid, volume) == mount
    await listed(tunnel.port)

    before = roles.sessions[WRITER]
    roles.trust(WRITER, space, "writer")
    await new_session(cluster, WRITER, after=before)
    [again] = await held_tunnels(cluster, [1])
    ends = datetime.strptime(again.certificate_ends, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert ends > datetime.now(UTC)
    await pods_gone(cluster, space, "one")


async def test_service_account_without_a_role_is_refused(cluster: Cluster) -> None:
    claims, _ = await signed_volume(cluster)
    await account(cluster, claims.namespace, "nobody")
    await create(cluster, claims.namespace, pod_as("nobody", FOR_EVER, name="one"))
    told = await failed_mount(cluster, claims.namespace, "one", "annotate the service account")
    assert "create a Pod Identity association for it" in told
    await pods_gone(cluster, claims.namespace, "one")


async def test_request_without_tokens_is_refused_with_the_remedy(cluster: Cluster) -> None:
    claims, _ = await signed_volume(cluster)
    driver = await cluster.client.get(CSIDriver, DRIVER)
    assert driver.spec
    wanted = [one.to_dict() for one in driver.spec.tokenRequests or ()]
    assert [one["audience"] for one in wanted] == ["sts.amazonaws.com", "pods.eks.amazonaws.com"]

    async def request(tokens: list[dict[str, Any]]) -> None:
        patch = {"spec": {"tokenRequests": tokens}}
        await cluster.client.patch(CSIDriver, DRIVER, patch, patch_type=PatchType.MERGE)

    await request([])
    try:
        await create(cluster, claims.namespace, pod_as("default", FOR_EVER, name="one"))
        told = await failed_mount(cluster, claims.namespace, "one", "tokens of the pod: are missing")
        assert "add tokenRequests for the audiences" in told
    finally:
        await request(wanted)
    await pods_gone(cluster, claims.namespace, "one")


async def test_tokens_and_keys_are_nowhere_to_be_read(cluster: Cluster) -> None:
    """After the other scenarios of this module."""
    secrets = [one.encode() for one in cluster.efs.pod_roles.secrets]
    assert len(secrets) > 4

    def find() -> list[str]:
        places = [path for path in cluster.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        places += Path("/proc").glob("[0-9]*/cmdline")
        found = []
        for path in places:
            try:
                text = path.read_bytes()
            except OSError:  # a process that has ended
                continue
            found += [str(path) for one in secrets if one in text]
        return found

    assert await asyncio.to_thread(find) == []
    events = [one.to_dict() async for one in cluster.client.list(Event, namespace="*")]
    texts = json.dumps(events, default=str).encode()
    assert not any(one in texts for one in secrets)
