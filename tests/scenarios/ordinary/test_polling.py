"""What happens between two discoveries, by a controller with the seconds between them to see it."""

import pytest
from tests.scenarios import csi_steps, steps
from tests.scenarios.steps import Cluster

from kube_efs.local.program import Program

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_claim_for_an_unknown_file_system_is_served_once_it_appears(cluster: Cluster) -> None:
    client = cluster.client
    namespace, storage_class = await steps.new_namespace(client), await steps.new_class(client)
    async with csi_steps.controller_with(cluster, EFS_POLLING_INTERVAL="15") as controller:

        async def polled() -> bool:
            return await _polls(controller) > 0

        await steps.eventually(polled, what="the first poll has been made")
        third = await cluster.efs.create_file_system("third")
        labels = {"volume_name": "later", "file_system_id": third}
        await client.create(steps.claim(namespace, "later", storage_class, labels))

        text = await steps.warning(client, namespace, "later")
        volume = await steps.bound_volume(client, namespace, "later")
    # The lowest of all is the default of others' classes.
    await cluster.efs.delete_file_system(third)

    told, _, known = text.partition("; known file systems: ")
    assert told == f"file system: '{third}' is not known (yet)"
    assert set(cluster.file_system_ids) <= set(known.split(", "))
    assert third not in known
    assert volume.file_system_id == third


async def _polls(controller: Program) -> float:
    return await steps.metric(controller, 'kube_efs_aws_calls_total{operation="DescribeFileSystems"')
