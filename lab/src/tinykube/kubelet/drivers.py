"""CSI drivers of this node: they show a socket in a folder, and are asked there who they are.

As in pkg/kubelet/pluginmanager. The folder is looked through time and again; what is called is the same.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from tinykube.client.calls import ERRORS
from tinykube.errors import InvalidValue, NotYet
from tinykube.kubelet.host_folders import HostFolders
from tinykube.kubelet.plugins import NodeInfo, PluginCalls, PluginInfo

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.2
_FIRST_BACK_OFF_SECONDS = 0.5
_LAST_BACK_OFF_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A registered driver, and what it says of this node."""

    name: str
    socket: Path
    node: NodeInfo


class DriverBook(Protocol):
    """Where the cluster reads which drivers a node has."""

    async def add(self, driver: Driver) -> None:
        """Enter it, or enter it anew; raises InvalidValue for what contradicts the Node."""

    async def remove(self, name: str) -> None:
        """Take it out."""


@dataclass(frozen=True, slots=True)
class _Socket:
    """A socket of one process: the next one's has the same path, but is another."""

    path: Path
    inode: int
    made_at: int


class Drivers:
    """The drivers whose sockets are in the folder, while ``run`` runs."""

    def __init__(self, folder: Path, calls: PluginCalls, book: DriverBook, host: HostFolders) -> None:
        self._folder = folder
        self._calls = calls
        self._host = host
        self._book = book
        self._registered: dict[_Socket, Driver] = {}
        self._failures: dict[_Socket, _Failure] = {}

    def get(self, name: str) -> Driver:
        """The driver of that name; raises NotYet."""
        for driver in self._registered.values():
            if driver.name == name:
                return driver
        raise NotYet(
            "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "
            f"driver name {name} not found in the list of registered CSI drivers"
        )

    async def run(self) -> None:
        """Follow the folder, which is made if it is not there, until cancelled."""
        await asyncio.to_thread(self._folder.mkdir, mode=0o750, parents=True, exist_ok=True)
        while True:
            await self._look(await asyncio.to_thread(_sockets, self._folder))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self, there: frozenset[_Socket]) -> None:
        for gone in self._registered.keys() - there:
            await self._forget(gone)
        self._failures = {socket: failure for socket, failure in self._failures.items() if socket in there}
        now = asyncio.get_running_loop().time()
        for socket in there - self._registered.keys():
            failure = self._failures.get(socket)
            if failure is None or failure.next_try <= now:
                await self._try(socket, failure)

    async def _try(self, socket: _Socket, failure: "_Failure | None") -> None:
        try:
            driver = await self._register(socket.path)
        except ERRORS as error:
            log.warning("driver-not-registered", socket=str(socket.path), reason=str(error))
            pause = min(2 * failure.pause, _LAST_BACK_OFF_SECONDS) if failure else _FIRST_BACK_OFF_SECONDS
            self._failures[socket] = _Failure(asyncio.get_running_loop().time() + pause, pause)
        else:
            self._failures.pop(socket, None)
            self._registered[socket] = driver
            log.info("driver-registered", driver=driver.name, node_id=driver.node.node_id)

    async def _register(self, socket: Path) -> Driver:
        info = await self._calls.plugin_info(socket)
        try:
            driver = await self._introduced(info)
            await self._book.add(driver)
        except ERRORS as error:
            with suppress(NotYet):  # what went wrong first is what counts
                await self._calls.notify_registration(socket, error=str(error))
            raise
        await self._calls.notify_registration(socket)
        return driver

    async def _introduced(self, info: PluginInfo) -> Driver:
        """What serves at the endpoint that a plugin has named; raises InvalidValue for what is of no use."""
        if info.kind != "CSIPlugin":
            raise InvalidValue("is no kind of plugin that this node takes", field="type", value=info.kind)
        if not any(version.lstrip("v").startswith("1.") for version in info.versions):
            versions = ", ".join(info.versions)
            raise InvalidValue("has no 1.x", field="supported_versions", value=versions)
        socket = self._host.here(info.endpoint).resolve()  # which may be shorter, as paths of sockets must be
        return Driver(name=info.name, socket=socket, node=await self._calls.node_info(socket))

    async def _forget(self, socket: _Socket) -> None:
        driver = self._registered[socket]
        try:
            await self._book.remove(driver.name)
        except ERRORS as error:
            log.warning("driver-not-forgotten", driver=driver.name, reason=str(error))
        else:
            del self._registered[socket]
            log.info("driver-gone", driver=driver.name)


@dataclass(frozen=True, slots=True)
class _Failure:
    next_try: float
    pause: float


def _sockets(folder: Path) -> frozenset[_Socket]:
    """Those in the folder itself that do not hide."""
    found = set()
    for path in folder.resolve().iterdir():  # which may be shorter, as paths of sockets must be
        with suppress(FileNotFoundError):
            if path.is_socket() and not path.name.startswith("."):
                state = path.stat()
                found.add(_Socket(path, state.st_ino, state.st_ctime_ns))
    return frozenset(found)
