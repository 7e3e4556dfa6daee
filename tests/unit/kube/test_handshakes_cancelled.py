"""What is left of a connection to the API server that nobody waits for any more."""

import asyncio

import pytest
from lightkube import KubeConfig
from lightkube.config.models import User
from lightkube.resources.core_v1 import Namespace

from kube_efs.kube.client import connect


@pytest.mark.parametrize("cancel", [pytest.param(True, id="cancelled"), pytest.param(False, id="broken off")])
async def test_a_handshake_that_ends_closes_its_connection(cancel: bool) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        begun.set()
        if not cancel:
            writer.write(b"no TLS")
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server, asyncio.timeout(10):
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = KubeConfig.from_server(url).get()
        assert config
        async with connect(config._replace(user=User()), patience_seconds=0) as client:
            asking = asyncio.create_task(client.get(Namespace, "default"))
            await begun.wait()
            if cancel:
                asking.cancel()
            await asyncio.wait([asking])
            await closed.wait()
