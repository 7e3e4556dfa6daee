"""Commands in containers, as clients speak of them on a WebSocket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tinykube.api import ApiServer
from tinykube.api.pods import Channel, container_for_command
from tinykube.api.requests import Parameters
from tinykube.errors import NotYet
from tinykube.objects.statuses import ApiError
from tinykube.objects.storage import Stored

_PROTOCOL = "v5.channel.k8s.io"
_POD = Stored(
    1,
    {
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "any"}]},
    },
)


@pytest.mark.parametrize(
    ("query", "argv", "told"),
    [
        ({}, (), "you must specify at least one command"),
        ({"container": "other"}, ("ls",), "container other is not valid for pod one"),
        ({"tty": "true"}, ("ls",), "leave out --tty"),
        ({"stdin": "true"}, ("ls",), "leave out --stdin"),
    ],
    ids=["no command", "no such container", "a terminal", "input"],
)
def test_what_cannot_be_run_is_refused(query: dict[str, str], argv: tuple[str, ...], told: str) -> None:
    with pytest.raises(ApiError) as caught:
        container_for_command(_POD, Parameters(query), argv)
    assert caught.value.code == 400
    assert told in caught.value.message


@dataclass
class Echo:
    """A command that prints a word, and ends with the exit code 3."""

    process: Any = None
    outputs: tuple[asyncio.StreamReader, ...] = ()

    async def wait(self) -> int:
        return int(await self.process.wait())


class Commands:
    """Runs one command, whatever is wanted; raises the problem if there is one."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.command = Echo()

    @asynccontextmanager
    async def run_command(self, *order: Any) -> AsyncIterator[Echo]:
        if self.problem is not None:
            raise self.problem
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", "printf words; exit 3"), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout
        self.command.process, self.command.outputs = process, (process.stdout,)
        try:
            yield self.command
        finally:
            await process.wait()


@dataclass
class World:
    commands: Commands
    session: aiohttp.ClientSession
    url: str

    def open(self, *protocols: str) -> Any:
        return self.session.ws_connect(self.url, protocols=protocols, ssl=False)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    commands = Commands()
    async with ApiServer(pod_commands=commands) as server:
        pods = f"{server.url}/api/v1/namespaces/default/pods"
        headers = {"Authorization": f"Bearer {server.token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(pods, json=_POD.json, ssl=False) as made:
                assert made.status == 201
            yield World(commands, session, f"{pods}/one/exec?command=any")


async def _all(socket: aiohttp.ClientWebSocketResponse) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async with asyncio.timeout(10):
        async for message in socket:
            found[message.data[0]] = found.get(message.data[0], b"") + message.data[1:]
    return found


async def test_output_and_exit_code_have_their_channels(world: World) -> None:
    async with world.open(_PROTOCOL, "v4.channel.k8s.io") as socket:
        assert socket.protocol == _PROTOCOL
        found = await _all(socket)
    assert found[Channel.STDOUT] == b"words"
    status = json.loads(found[Channel.ERROR])
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


async def test_a_command_that_does_not_start_is_reported_on_the_channel_for_errors(world: World) -> None:
    world.commands.problem = NotYet('container "main" is not running')
    async with world.open(_PROTOCOL) as socket:
        status = json.loads((await _all(socket))[Channel.ERROR])
    assert (status["code"], status["reason"]) == (500, "InternalError")
    assert 'container "main" is not running' in status["message"]


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({}, "over WebSockets only"),
        ({"Upgrade": "SPDY/3.1", "Connection": "Upgrade"}, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=true"),
    ],
    ids=["plain", "SPDY"],
)
async def test_other_ways_are_refused_with_a_remedy(world: World, headers: dict[str, str], told: str) -> None:
    async with world.session.post(world.url, headers=headers, ssl=False) as answer:
        status = await answer.json()
    assert (answer.status, status["reason"]) == (400, "BadRequest")
    assert told in status["message"]


async def test_protocols_that_are_not_served_are_refused(world: World) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with world.open("channel.k8s.io"):
            pass
    assert caught.value.status == 400
