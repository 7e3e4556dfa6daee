"""CSI drivers of this node: they show a socket in a folder, and are asked there who they are.

As in pkg/kubelet/pluginmanager. The folder is looked through time and again; what is called is the same.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import grpc.aio
import structlog

from kube_efs.csi.protocol import csi_pb2, registration_pb2
from kube_efs.csi.protocol.csi_pb2_grpc import NodeStub
from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationStub
from kube_efs.model.errors import InvalidValue, KubeEfsError, NotYet
from tinykube.kubelet.calls import ANSWER_SECONDS, connected
from tinykube.kubelet.host_folders import HostFolders

if TYPE_CHECKING:  # the generated module has this name for type checkers only
    from kube_efs.csi.protocol.registration_pb2_grpc import RegistrationAsyncStub

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.2
_FIRST_BACK_OFF_SECONDS = 0.5
_LAST_BACK_OFF_SECONDS = 10.0
_Rpc = csi_pb2.NodeServiceCapability.RPC


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A registered driver, by what it says of itself; ``most_volumes`` zero sets no limit."""

    name: str
    socket: Path
    node_id: str
    most_volumes: int
    topology: Mapping[str, str]
    knows_single_writers: bool


class DriverBook(Protocol):
    """Where the cluster reads which drivers a node has."""

    async def add(self, driver: Driver) -> None:
        """Enter it, or enter it anew; raises KubeError, and InvalidValue for what contradicts the Node."""

    async def remove(self, name: str) -> None:
        """Take it out; raises KubeError."""


@dataclass(frozen=True, slots=True)
class _Socket:
    """A socket of one process: the next one's has the same path, but is another."""

    path: Path
    inode: int
    made_at: int


class Drivers:
    """The drivers whose sockets are in the folder, while ``run`` runs."""

    def __init__(self, folder: Path, book: DriverBook, host: HostFolders) -> None:
        self._folder = folder
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
        except KubeEfsError as error:
            log.warning("driver-not-registered", socket=str(socket.path), reason=str(error))
            pause = min(2 * failure.pause, _LAST_BACK_OFF_SECONDS) if failure else _FIRST_BACK_OFF_SECONDS
            self._failures[socket] = _Failure(asyncio.get_running_loop().time() + pause, pause)
        else:
            self._failures.pop(socket, None)
            self._registered[socket] = driver
            log.info("driver-registered", driver=driver.name, node_id=driver.node_id)

    async def _register(self, socket: Path) -> Driver:
        async with connected(socket) as channel:
            stub = RegistrationStub(channel)
            info = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=ANSWER_SECONDS)
            try:
                driver = await _introduced(info, self._host)
                await self._book.add(driver)
            except KubeEfsError as error:
                with suppress(grpc.aio.AioRpcError):  # what went wrong first is what counts
                    await _tell(stub, error=str(error))
                raise
            await _tell(stub)
        return driver

    async def _forget(self, socket: _Socket) -> None:
        driver = self._registered[socket]
        try:
            await self._book.remove(driver.name)
        except KubeEfsError as error:
            log.warning("driver-not-forgotten", driver=driver.name, reason=str(error))
        else:
            del self._registered[socket]
            log.info("driver-gone", driver=driver.name)


@dataclass(frozen=True, slots=True)
class _Failure:
    next_try: float
    pause: float


async def _tell(stub: "RegistrationAsyncStub", *, error: str = "") -> None:
    status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
    await stub.NotifyRegistrationStatus(status, timeout=ANSWER_SECONDS)


async def _introduced(info: registration_pb2.PluginInfo, host: HostFolders) -> Driver:
    """What serves at the endpoint that a plugin has named; raises InvalidValue for what is of no use here."""
    if info.type != "CSIPlugin":
        raise InvalidValue("is no kind of plugin that this node takes", field="type", value=info.type)
    if not any(version.lstrip("v").startswith("1.") for version in info.supported_versions):
        versions = ", ".join(info.supported_versions)
        raise InvalidValue("has no 1.x", field="supported_versions", value=versions)
    socket = host.here(info.endpoint).resolve()  # which may be shorter, as paths of sockets must be
    async with connected(socket) as channel:
        stub = NodeStub(channel)
        node = await stub.NodeGetInfo(csi_pb2.NodeGetInfoRequest(), timeout=ANSWER_SECONDS)
        answer = await stub.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest(), timeout=ANSWER_SECONDS)
    return Driver(
        name=info.name,
        socket=socket,
        node_id=node.node_id,
        most_volumes=node.max_volumes_per_node,
        topology=dict(node.accessible_topology.segments),
        knows_single_writers=any(
            one.rpc.type == _Rpc.SINGLE_NODE_MULTI_WRITER for one in answer.capabilities
        ),
    )


def _sockets(folder: Path) -> frozenset[_Socket]:
    """Those in the folder itself that do not hide."""
    found = set()
    for path in folder.resolve().iterdir():  # which may be shorter, as paths of sockets must be
        with suppress(FileNotFoundError):
            if path.is_socket() and not path.name.startswith("."):
                state = path.stat()
                found.add(_Socket(path, state.st_ino, state.st_ctime_ns))
    return frozenset(found)
