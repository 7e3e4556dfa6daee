"""The load generator on a complete cluster: its claims are Bound, reported and deleted."""

import pytest
from bench.load import generate, table
from lightkube.resources.core_v1 import Namespace
from rich.console import Console
from tests.scenarios import csi_steps, steps
from tests.scenarios.steps import Cluster

from kube_efs.model.errors import InvalidValue, KubeNotFound

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLAIMS = 6
PATIENCE_SECONDS = 60.0


async def test_mix_of_classes_is_served_reported_and_deleted(cluster: Cluster) -> None:
    system = cluster.file_system_ids[0]
    csi = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    await steps.port_of(cluster, system)
    tunnel = await steps.new_class(cluster.client, default_file_system_id=system)

    report = await generate(
        cluster.client,
        {csi: 2, tunnel: 1},
        count=CLAIMS,
        per_second=20,
        size="1Gi",
        patience_seconds=PATIENCE_SECONDS,
    )

    assert {one.storage_class: (one.claims, one.bound) for one in report.classes} == {
        csi: (4, 4),
        tunnel: (2, 2),
        "all": (CLAIMS, CLAIMS),
    }
    assert report.volumes_left == 0
    namespaces = [one.metadata async for one in cluster.client.list(Namespace) if one.metadata]
    ours = [one for one in namespaces if (one.name or "").startswith("kube-efs-load-")]
    assert all(one.deletionTimestamp for one in ours)
    console = Console(record=True, width=100)
    console.print(table(report))
    assert csi in console.export_text()


async def test_missing_class_and_class_that_waits_for_pods_are_refused(cluster: Cluster) -> None:
    waiting = await csi_steps.new_class(
        cluster.client,
        binding_mode="WaitForFirstConsumer",
        parameters={"fileSystemId": cluster.file_system_ids[0]},
    )
    for name, error in ((waiting, InvalidValue), ("nobody-has-made-it", KubeNotFound)):
        with pytest.raises(error):
            await generate(
                cluster.client, {name: 1}, count=1, per_second=None, size="1Gi", patience_seconds=1
            )
