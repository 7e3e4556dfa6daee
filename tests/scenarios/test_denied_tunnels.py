"""A file system that denies clients without an identity, in an installation without the CSI driver.

After the denial, no worker pods run on this file system for five minutes, so it needs a cluster of its own.
"""

import json

import pytest
from lightkube.resources.core_v1 import Event
from tests.scenarios import steps
from tests.scenarios.csi_steps import Aws
from tests.scenarios.steps import Cluster

from fake_efs.aws_api import ACCOUNT_ID
from kube_efs.aws.connection import Service
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.status import DENIED, TunnelState

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVERYBODY = "*"
OF_ACCOUNT = f"arn:aws:iam::{ACCOUNT_ID}:root"


async def test_denied_file_system_is_reported_once_and_is_not_down(cluster: Cluster) -> None:
    denied, other = cluster.file_system_ids
    await steps.tunnel_up(cluster, denied)
    client, namespace = cluster.client, await steps.new_namespace(cluster.client)
    async with Aws.of(cluster) as aws:
        await _allow(aws, denied, OF_ACCOUNT)
        try:
            await _reports_denial(cluster, denied)
            await _metrics_show_no_failure(cluster, denied)
            storage_class = await steps.new_class(client, default_file_system_id="auto")
            labels = {"volume_name": "denied", "file_system_id": denied}
            await client.create(steps.claim(namespace, "denied", storage_class, labels))
            # The worker pod gets a minute to start.
            text = await steps.eventually(
                lambda: _refusal(cluster, namespace), what="the claim has the reason", seconds=240
            )
            assert "access denied by server" in text
            assert "to all clients, or install the CSI driver" in text
            labels = {"volume_name": "other", "file_system_id": other}
            await client.create(steps.claim(namespace, "other", storage_class, labels))
            await steps.bound_volume(client, namespace, "other")
            await _reports_denial(cluster, denied)
            await _metrics_show_no_failure(cluster, denied)
            (event,) = await _events(cluster, "TunnelDenied")
            assert (event.type, event.count) == ("Warning", 1)
            assert f"tunnel volumes of {denied} cannot be mounted: {DENIED}" in (event.message or "")
        finally:
            await _allow(aws, denied, EVERYBODY)
    await steps.tunnel_up(cluster, denied)
    await steps.eventually(lambda: _events(cluster, "TunnelAllowed"), what="the end is reported")


async def _allow(aws: Aws, file_system_id: FileSystemId, principal: str) -> None:
    statement = {"Effect": "Allow", "Principal": {"AWS": principal}, "Action": "elasticfilesystem:Client*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    await aws.connection.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=file_system_id, Policy=policy)


async def _reports_denial(cluster: Cluster, system: FileSystemId) -> None:
    async def look() -> bool:
        tunnel = await steps.tunnel_status(cluster, system)
        return tunnel is not None and tunnel.denied and tunnel.state is TunnelState.REJECTED

    await steps.eventually(look, what=f"the tunnel of {system} is denied")


async def _metrics_show_no_failure(cluster: Cluster, denied: FileSystemId) -> None:
    of_denied = f'{{file_system="{denied}"}}'

    async def look() -> bool:
        # The alert EFSTunnelDown needs a value of 0.
        is_absent = not await steps.samples(cluster.tunnel, f"kube_efs_tunnel_up{of_denied}")
        return is_absent and await steps.metric(cluster.tunnel, f"kube_efs_tunnel_denied{of_denied}") == 1

    await steps.eventually(look, what="the tunnel is not counted as down")
    retried = await steps.samples(cluster.controller, 'kube_efs_worker_pods_total{outcome="failed"}')
    assert [one for one in retried if not one.endswith(" 0.0")] == []


async def _refusal(cluster: Cluster, namespace: str) -> str | None:
    told = await steps.messages(cluster.client, namespace, "denied", "ProvisioningFailed")
    return next((text for text in told if "cannot be mounted by worker pods" in text), None)


async def _events(cluster: Cluster, reason: str) -> list[Event]:
    found = cluster.client.list(Event, namespace="*", fields={"reason": reason})
    return [one async for one in found]
