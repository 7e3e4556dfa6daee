"""Events between two discoveries, also if a discovery is slow."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from tests.scenarios import csi_steps, steps
from tests.scenarios.steps import Cluster
from tests.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

_LISTING = "/2015-02-01/file-systems"


async def test_claim_for_an_unknown_file_system_is_served_when_it_appears(cluster: Cluster) -> None:
    client = cluster.client
    namespace, storage_class = await steps.new_namespace(client), await steps.new_class(client)
    listing = asyncio.Lock()
    async with (
        _aws_api(cluster.efs.endpoint_url, listing) as url,
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


@asynccontextmanager
async def _aws_api(upstream: str, listing: asyncio.Lock) -> AsyncGenerator[str, None]:
    """The address of an AWS API that lists file systems only while ``listing`` is free."""
    async with aiohttp.ClientSession(upstream, auto_decompress=False) as session:

        async def pass_on(request: web.Request) -> web.Response:
            sent = session.request(
                request.method, request.path_qs, headers=request.headers, data=await request.read()
            )
            async with sent as answer:
                headers = {"Content-Type": answer.content_type}
                return web.Response(status=answer.status, body=await answer.read(), headers=headers)

        async def list_file_systems(request: web.Request) -> web.Response:
            async with listing:
                return await pass_on(request)

        application = web.Application()
        application.router.add_get(_LISTING, list_file_systems)
        application.router.add_route("*", "/{path:.*}", pass_on)
        async with serving(application) as url:
            yield url
