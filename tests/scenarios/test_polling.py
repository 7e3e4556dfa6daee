"""What happens between two discoveries, on a cluster with the seconds between them to see it."""

import pytest
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def cluster_settings() -> dict[str, str]:
    """A controller that looks for file systems each quarter of a minute."""
    return {"EFS_POLLING_INTERVAL": "15"}


async def test_a_claim_for_an_unknown_file_system_is_served_once_it_appears(cluster: Cluster) -> None:
    client = cluster.client
    namespace, storage_class = await steps.new_namespace(client), await steps.new_class(client)
    polls = await _polls(cluster)

    async def polled() -> bool:
        return await _polls(cluster) > polls

    await steps.eventually(polled, what="a poll has just been made")
    third = await cluster.efs.create_file_system("third")
    labels = {"volume_name": "later", "file_system_id": third}
    await client.create(steps.claim(namespace, "later", storage_class, labels))

    text = await steps.warning(client, namespace, "later")
    volume = await steps.bound_volume(client, namespace, "later")

    known = ", ".join(sorted(cluster.file_system_ids))
    assert text == f"file system: '{third}' is not known (yet); known file systems: {known}"
    assert volume.file_system_id == third


async def _polls(cluster: Cluster) -> float:
    return await steps.metric(cluster.controller, 'kube_efs_aws_calls_total{operation="DescribeFileSystems"')
