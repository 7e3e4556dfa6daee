"""Worker pods that mount the root of a file system with the CSI driver, in an installation of it alone.

The embedded EFS has no DNS, so the test publishes the addresses of the mount targets to the node, with no
port to open.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, PersistentVolume, PersistentVolumeClaim
from tests.scenarios import csi_steps, steps
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.steps import Cluster

from fake_efs.aws_api import ACCOUNT_ID
from kube_efs.aws.connection import Service
from kube_efs.model.efs.ids import FileSystemId, SubnetId
from kube_efs.model.efs.targets import (
    CONFIG_MAP_KEY,
    UNUSED_KEY,
    TunnelTarget,
    TunnelTargets,
    render_targets,
    render_unused,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.tunnels.status import TunnelState

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the kubelet makes namespaces and mounts: root only"),
]

OF_ACCOUNT = {"AWS": f"arn:aws:iam::{ACCOUNT_ID}:root"}
# Each policy allows less than the one before: everybody, identities of the account, nobody.
IDENTITIES_ONLY = [{"Effect": "Allow", "Principal": OF_ACCOUNT, "Action": "elasticfilesystem:Client*"}]
NOBODY = [{"Effect": "Deny", "Principal": {"AWS": "*"}, "Action": "elasticfilesystem:ClientMount"}]


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """The driver alone, as ``kube-efs render --csi-only`` installs it; volumes are measured continuously."""
    return {"KUBE_EFS_BACKENDS": "csi", "KUBE_EFS_USAGE_INTERVAL_SECONDS": "2"}


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def addresses(cluster: Cluster) -> None:
    """The mount targets of the file systems, for the tunnels on demand."""
    targets = {}
    for number, file_system_id in enumerate(cluster.file_system_ids):
        found = await cluster.efs.mount_targets(file_system_id)
        subnets = {SubnetId(one.subnet_id): one.address for one in found}
        targets[file_system_id] = TunnelTarget(
            file_system_id=file_system_id, port=3000 + number, address_by_subnet=subnets
        )
    known = TunnelTargets(targets=targets, unused=frozenset(targets))
    data = {
        CONFIG_MAP_KEY: render_targets(known, last_update=datetime.now(UTC)),
        UNUSED_KEY: render_unused(known),
    }
    metadata = ObjectMeta(name=cluster.names.config_map, namespace=cluster.namespace)
    await cluster.client.create(ConfigMap(metadata=metadata, data=data))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aws(cluster: Cluster) -> AsyncIterator[Aws]:
    async with Aws.of(cluster) as aws:
        yield aws


async def _set_policy(
    aws: Aws, file_system_id: FileSystemId, statements: Sequence[Mapping[str, object]]
) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    await aws.connection.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=file_system_id, Policy=policy)


async def _class_of(cluster: Cluster, file_system_id: FileSystemId) -> str:
    """A class of directories on the file system."""
    parameters = {"provisioningMode": "efs-dir", "fileSystemId": file_system_id, "basePath": "/volumes"}
    return await csi_steps.new_class(cluster.client, parameters=parameters)


async def _roots(cluster: Cluster) -> list[str]:
    """The names of the claims and volumes for the roots of file systems."""
    claims = cluster.client.list(PersistentVolumeClaim, namespace=cluster.namespace)
    volumes = cluster.client.list(PersistentVolume)
    return [
        *[one.metadata.name async for one in claims if one.metadata and one.metadata.name],
        *[
            one.metadata.name
            async for one in volumes
            if one.metadata and one.metadata.name and one.spec and one.spec.storageClassName == ROOT_CLASS
        ],
    ]


async def _lifetime(cluster: Cluster, file_system_id: FileSystemId, name: str) -> None:
    """A directory volume is created, measured and removed with its data."""
    claims = await Claims.of(cluster)
    volume = await claims.provisioned(await _class_of(cluster, file_system_id), name)
    folder = cluster.efs.folder(file_system_id).joinpath(*csi_steps.handle_of(volume).directory.parts)
    (folder / "file").write_bytes(bytes(100_000))

    async def is_measured() -> bool:
        of_claim = f'claim="{name}",claim_namespace="{claims.namespace}"'
        start = f"kube_efs_volume_used_bytes{{{of_claim}"
        return await steps.metric(cluster.controller, start) >= 100_000

    await steps.eventually(is_measured, what=f"{volume.name} is measured", seconds=120)
    await csi_steps.removed(cluster, claims, name)
    assert not folder.exists()
    await steps.trash_is_empty(cluster.efs.folder(file_system_id))


async def test_directories_are_served_without_an_open_root(cluster: Cluster, aws: Aws) -> None:
    first, _ = cluster.file_system_ids
    config_map = await cluster.client.get(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
    assert await _roots(cluster) == []

    await _lifetime(cluster, first, "data")

    async def no_roots() -> bool:
        return not await _roots(cluster)

    await steps.eventually(no_roots, what="the volumes of worker pods are gone", seconds=120)
    assert [one for one in (await steps.tunnels(cluster)).tunnels if not one.on_demand] == []
    now = await cluster.client.get(ConfigMap, cluster.names.config_map, namespace=cluster.namespace)
    assert now.metadata
    assert config_map.metadata
    assert now.metadata.resourceVersion == config_map.metadata.resourceVersion


async def test_identity_of_the_node_is_used_if_anonymous_clients_are_denied(
    cluster: Cluster, aws: Aws
) -> None:
    _, second = cluster.file_system_ids
    await _set_policy(aws, second, IDENTITIES_ONLY)
    await _lifetime(cluster, second, "signed")


async def test_denied_identity_is_reported_and_affects_no_other_file_system(
    cluster: Cluster, aws: Aws
) -> None:
    first, second = cluster.file_system_ids
    await _set_policy(aws, second, NOBODY)
    claims = await Claims.of(cluster)
    await claims.create(await _class_of(cluster, second), "denied")

    async def refusal() -> str | None:
        told = await steps.messages(cluster.client, claims.namespace, "denied", "ProvisioningFailed")
        return next((text for text in told if "cannot be mounted by worker pods" in text), None)

    # The worker pod gets a minute to start.
    text = await steps.eventually(refusal, what="the claim has the reason", seconds=240)

    assert "access denied by server" in text
    assert "let its policy allow ClientMount" in text
    await _lifetime(cluster, first, "other")
    assert await refusal() == text
    retried = await steps.samples(cluster.controller, "kube_efs_provisionings_total")
    assert [one for one in retried if 'outcome="retried"' in one and not one.endswith(" 0.0")] == []
    down = [
        one for one in (await steps.tunnels(cluster)).tunnels if one.holders and one.state is TunnelState.DOWN
    ]
    assert down == []
    await claims.delete("denied")
