"""Events between two discoveries, also if a discovery is slow."""

import asyncio

import pytest
from aiohttp import web
from tests.scenarios import csi_steps, steps
from tests.scenarios.faulty_aws import FILE_SYSTEMS, PassOn, aws_behind, is_call
from tests.scenarios.steps import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_claim_for_an_unknown_file_system_is_served_when_it_appears(cluster: Cluster) -> None:
    client = cluster.client
    namespace, storage_class = await steps.new_namespace(client), await steps.new_class(client)
    listing = asyncio.Lock()

    async def list_while_free(request: web.Request, pass_on: PassOn) -> web.Response:
        if not is_call(request, "GET", FILE_SYSTEMS):
            return await pass_on(request)
        async with listing:
            return await pass_on(request)

    async with (
        aws_behind(list_while_free, cluster.efs.endpoint_url) as url,
        csi_steps.controller_with(cluster, AWS_ENDPOINT_URL=url) as controller,
    ):

        async def discovered() -> bool:
            known = await steps.metric(controller, "kube_efs_file_systems ")
            return known >= len(cluster.file_system_ids)

        await steps.eventually(discovered, what="the first discovery has been made")
        async with listing:
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
