"""How drivers become known to the kubelet, and are forgotten."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx2
import pytest
from lab.tests.tinykube.kubelet.csi_plugin import NAME, Plugin, Rpc

from kube_efs_lab.csi_calls import CsiCalls
from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.drivers import Driver, Drivers
from tinykube.kubelet.host_folders import HostFolders
from tinykube.kubelet.plugins import NodeInfo

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


@dataclass
class Book:
    """What was entered; ``failures`` are raised before that, one after the other."""

    drivers: dict[str, Driver] = field(default_factory=dict)
    added: int = 0
    failures: list[Exception] = field(default_factory=list)

    async def add(self, driver: Driver) -> None:
        if self.failures:
            raise self.failures.pop()
        self.drivers[driver.name] = driver
        self.added += 1

    async def remove(self, name: str) -> None:
        if self.failures:
            raise self.failures.pop()
        del self.drivers[name]


@asynccontextmanager
async def following(plugin: Plugin, book: Book) -> AsyncIterator[Drivers]:
    drivers = Drivers(plugin.registry, CsiCalls(), book, HostFolders())
    running = asyncio.create_task(drivers.run())
    try:
        yield drivers
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_driver_is_registered_by_what_it_says_of_itself(
    plugin: Plugin, eventually: Eventually
) -> None:
    book = Book()
    plugin.topology = {"zone": "a"}
    plugin.capabilities = [Rpc.SINGLE_NODE_MULTI_WRITER]
    async with following(plugin, book) as drivers, plugin.running():
        await eventually(lambda: is_known(drivers))
        assert plugin.told == [(True, "")]
        assert drivers.get(NAME) == book.drivers[NAME]
        assert book.drivers[NAME] == Driver(
            name=NAME,
            socket=plugin.socket,
            node=NodeInfo(node_id="i-1", most_volumes=7, topology={"zone": "a"}, knows_single_writers=True),
        )


async def is_known(drivers: Drivers) -> bool:
    with suppress(NotYet):
        return bool(drivers.get(NAME))
    return False


async def is_told(plugin: Plugin, times: int = 1) -> bool:
    return len(plugin.told) >= times


async def test_one_that_ends_is_forgotten_and_its_successor_registered(
    plugin: Plugin, eventually: Eventually
) -> None:
    book = Book()

    async def is_forgotten() -> bool:
        return not book.drivers

    async with following(plugin, book) as drivers:
        async with plugin.running():
            await eventually(lambda: is_told(plugin))
        book.failures = [httpx2.ConnectError("is away")]  # which is retried
        await eventually(is_forgotten)
        with pytest.raises(NotYet, match=f"driver name {NAME} not found in the list of registered CSI"):
            drivers.get(NAME)
        async with plugin.running():
            await eventually(lambda: is_known(drivers))
            assert len(plugin.told) == 2


async def test_a_socket_that_was_replaced_is_another_driver(plugin: Plugin, eventually: Eventually) -> None:
    book, successor = Book(), Plugin(plugin.socket.parent)
    async with following(plugin, book), plugin.running():
        await eventually(lambda: is_told(plugin))
        async with successor.running():
            await eventually(lambda: is_told(successor))
    assert book.added == 2


async def test_hidden_sockets_and_files_are_passed_over(plugin: Plugin, eventually: Eventually) -> None:
    hidden = Plugin(plugin.socket.parent)
    plugin.registry.mkdir()
    (plugin.registry / "file").touch()
    async with following(plugin, Book()), hidden.running(name="hidden-reg.sock"):
        (plugin.registry / "hidden-reg.sock").rename(plugin.registry / ".hidden-reg.sock")
        hidden.told.clear()
        async with plugin.running():
            await eventually(lambda: is_told(plugin))
        assert hidden.told == []


@pytest.mark.parametrize(
    ("kind", "versions", "text"),
    [
        ("DevicePlugin", ["1.0.0"], "is no kind of plugin that this node takes"),
        ("CSIPlugin", ["0.3.0"], "has no 1.x"),
    ],
    ids=["of another kind", "too old"],
)
async def test_what_is_of_no_use_is_told_so(
    plugin: Plugin, eventually: Eventually, kind: str, versions: list[str], text: str
) -> None:
    plugin.kind, plugin.versions = kind, versions
    async with following(plugin, Book()) as drivers, plugin.running():
        await eventually(lambda: is_told(plugin))
        [(registered, error), *_] = plugin.told
        assert not registered
        assert text in error
        with pytest.raises(NotYet):
            drivers.get(NAME)


async def test_a_registration_that_failed_is_tried_again(plugin: Plugin, eventually: Eventually) -> None:
    book = Book(failures=[InvalidValue("collides", field="topology", value="b")])
    async with following(plugin, book), plugin.running():
        await eventually(lambda: is_told(plugin, 2))
        assert [registered for registered, _ in plugin.told] == [False, True]
        assert "topology: 'b' collides" in plugin.told[0][1]
