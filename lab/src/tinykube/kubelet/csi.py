"""CSI drivers of this node, and their volumes.

Drivers show a socket in a directory and say there who they are, as in pkg/kubelet/pluginmanager. Volumes
are published at ``volumes/kubernetes.io~csi/NAME/mount``, as by the kubelet of Kubernetes.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog
from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource
from lightkube.models.core_v1 import CSIPersistentVolumeSource
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.core_v1 import Node
from lightkube.types import PatchType

from tinykube.client.calls import ERRORS, unless_exists
from tinykube.errors import NotYet
from tinykube.kubelet.nfs import detach, mount_points
from tinykube.kubelet.node import HostFolders
from tinykube.kubelet.pod_tokens import PodContext

log = structlog.get_logger(__name__)

# The library's own class takes no null for a list, which the API server gives for an empty one.
_CsiNode = create_global_resource("storage.k8s.io", "v1", "CSINode", "csinodes")
_NODE_IDS = "csi.volume.kubernetes.io/nodeid"
_FOLDER = "kubernetes.io~csi"
_LOOK_SECONDS = 0.2
_RETRY_SECONDS = 0.5
# The protocol's words for access modes, for drivers with the capability SINGLE_NODE_MULTI_WRITER.
_ACCESS_MODES = {
    "ReadOnlyMany": "MULTI_NODE_READER_ONLY",
    "ReadWriteMany": "MULTI_NODE_MULTI_WRITER",
    "ReadWriteOnce": "SINGLE_NODE_MULTI_WRITER",
    "ReadWriteOncePod": "SINGLE_NODE_SINGLE_WRITER",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """A volume to mount, and where; ``access_mode`` is the name of it in the protocol."""

    handle: str
    target: str
    access_mode: str
    options: tuple[str, ...]
    context: Mapping[str, str]
    read_only: bool


class PluginCalls(Protocol):
    """The calls of the plugin registration and of the CSI node service; each raises NotYet when it fails.

    Who starts a kubelet gives it the calls: tinykube has no copy of the protocol of CSI.
    """

    async def plugin_info(self, socket: Path) -> tuple[str, str]:
        """Ask a plugin for its name and for the socket that it serves at."""
        ...

    async def notify_registration(self, socket: Path) -> None:
        """Tell a plugin that it is registered."""

    async def node_info(self, socket: Path) -> tuple[str, Mapping[str, str]]:
        """Ask a CSI driver for this node's id and topology."""
        ...

    async def publish(self, socket: Path, request: PublishRequest) -> None:
        """Have a volume mounted."""

    async def unpublish(self, socket: Path, handle: str, target: str) -> None:
        """Have a volume unmounted."""


class _Socket(NamedTuple):
    """A socket of one process: the next one's has the same path, but is another."""

    path: Path
    inode: int
    made_at: int


class Drivers:
    """The drivers with sockets in the directory while ``run`` runs, also in the CSINode and on the Node."""

    def __init__(
        self, client: AsyncClient, node: str, folder: Path, calls: PluginCalls, host: HostFolders
    ) -> None:
        self._client = client
        self._node = node
        self._folder = folder
        self._calls = calls
        self._host = host
        # Each with the driver's name, and the socket at which it is called.
        self._registered: dict[_Socket, tuple[str, Path]] = {}

    def socket_of(self, name: str) -> Path:
        """Where the driver of that name is called; raises NotYet."""
        for driver, socket in self._registered.values():
            if driver == name:
                return socket
        raise NotYet(
            "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "
            f"driver name {name} not found in the list of registered CSI drivers"
        )

    async def run(self) -> None:
        """Follow the directory, which is created if it is missing, until cancelled."""
        await asyncio.to_thread(self._folder.mkdir, mode=0o750, parents=True, exist_ok=True)
        while True:
            there = await asyncio.to_thread(_sockets, self._folder)
            for socket in there ^ self._registered.keys():
                try:
                    await (self._register(socket) if socket in there else self._forget(socket))
                except ERRORS as error:
                    log.warning("driver-not-registered", socket=str(socket.path), reason=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _forget(self, socket: _Socket) -> None:
        name, _ = self._registered[socket]
        await self._write_drivers({"name": name, "$patch": "delete"})
        del self._registered[socket]
        log.info("driver-gone", driver=name)

    async def _register(self, socket: _Socket) -> None:
        name, endpoint = await self._calls.plugin_info(socket.path)
        # Which may be shorter when resolved, as paths of sockets must be.
        called_at = self._host.here(endpoint).resolve()
        node_id, topology = await self._calls.node_info(called_at)
        await self._write_node(name, node_id, topology)
        keys = sorted(topology) or None
        await self._write_drivers({"name": name, "nodeID": node_id, "topologyKeys": keys})
        await self._calls.notify_registration(socket.path)
        self._registered[socket] = name, called_at
        log.info("driver-registered", driver=name, node_id=node_id)

    async def _write_node(self, name: str, node_id: str, topology: Mapping[str, str]) -> None:
        """Write the driver's id and topology on the Node, and make the CSINode, which goes with it."""
        found = await self._client.get(Node, self._node)
        known = found.metadata or ObjectMeta()
        ids = {**json.loads((known.annotations or {}).get(_NODE_IDS, "{}")), name: node_id}
        text = json.dumps(ids, separators=(",", ":"), sort_keys=True)
        metadata = {"labels": dict(topology), "annotations": {_NODE_IDS: text}}
        await self._client.patch(Node, self._node, {"metadata": metadata}, patch_type=PatchType.MERGE)
        owner = OwnerReference(apiVersion="v1", kind="Node", name=self._node, uid=known.uid or "")
        made = ObjectMeta(name=self._node, ownerReferences=[owner])
        await unless_exists(self._client.create(_CsiNode(metadata=made, spec={"drivers": []})))

    async def _write_drivers(self, entry: dict[str, Any]) -> None:
        await self._client.patch(
            _CsiNode, self._node, {"spec": {"drivers": [entry]}}, patch_type=PatchType.STRATEGIC
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publication:
    """A published volume: what its driver is given, to which the pod adds its context each time."""

    driver: str
    request: PublishRequest
    get_context: Callable[[], Awaitable[PodContext]]


class CsiVolumes:
    """Has volumes published and unpublished by the drivers of this node.

    Volumes are not attached and not staged. Of the pod, drivers get tokens if their CSIDriver asks for them.
    """

    def __init__(self, calls: PluginCalls, drivers: Drivers, host: HostFolders) -> None:
        self._calls = calls
        self._drivers = drivers
        self._host = host
        # By the directory of a pod's volumes, and the target.
        self._published: dict[Path, dict[Path, _Publication]] = {}

    async def publish(
        self,
        name: str,
        source: CSIPersistentVolumeSource,
        directory: Path,
        *,
        access_mode: str,
        options: tuple[str, ...],
        read_only: bool,
        get_context: Callable[[], Awaitable[PodContext]],
    ) -> Path:
        """The mounted volume, below the directory of the pod's volumes; raises NotYet.

        ``get_context`` gives what the driver gets of the pod, each time.
        """
        target = directory / _FOLDER / name.replace("/", "~") / "mount"
        # Two volumes of a pod may be the same claim.
        if str(target) not in await asyncio.to_thread(mount_points):
            self._drivers.socket_of(source.driver)
            await asyncio.to_thread(target.parent.mkdir, mode=0o750, parents=True, exist_ok=True)
            request = PublishRequest(
                handle=source.volumeHandle,
                target=self._host.there(target),
                access_mode=_ACCESS_MODES.get(access_mode, "SINGLE_NODE_WRITER"),
                options=options,
                context=source.volumeAttributes or {},
                read_only=read_only,
            )
            publication = _Publication(driver=source.driver, request=request, get_context=get_context)
            self._published.setdefault(directory, {})[target] = publication
            await self._publish(publication, await get_context())
        return target

    async def publish_again(self, directory: Path) -> None:
        """Publish what is published below the directory, if its driver wants this; raises NotYet."""
        for publication in tuple(self._published.get(directory, {}).values()):
            context = await publication.get_context()
            if context.again:
                await self._publish(publication, context)

    async def _publish(self, publication: _Publication, context: PodContext) -> None:
        request, socket = publication.request, self._drivers.socket_of(publication.driver)
        await self._calls.publish(socket, replace(request, context={**request.context, **context.attributes}))

    async def unpublish_all(self, directory: Path) -> None:
        """End what is published below the directory of a pod's volumes, however long the drivers take.

        When cancelled, what is still mounted is removed without them.
        """
        published = self._published.pop(directory, {})
        try:
            for publication in published.values():
                await self._unpublish(publication)
        except asyncio.CancelledError:
            for target in published:
                await detach(target)
            raise

    async def _unpublish(self, publication: _Publication) -> None:
        request = publication.request
        while True:
            try:
                socket = self._drivers.socket_of(publication.driver)
                await self._calls.unpublish(socket, request.handle, request.target)
            except ERRORS as error:
                log.warning("volume-not-unpublished", target=request.target, reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


def _sockets(folder: Path) -> frozenset[_Socket]:
    """Those in the directory itself that do not hide."""
    found = set()
    for path in folder.resolve().iterdir():  # which may be shorter, as paths of sockets must be
        with suppress(FileNotFoundError):
            if path.is_socket() and not path.name.startswith("."):
                state = path.stat()
                found.add(_Socket(path, state.st_ino, state.st_ctime_ns))
    return frozenset(found)
