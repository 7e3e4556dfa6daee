"""The NFS servers of a file system's access points: one process for each that has connections.

Clients mount ``/`` and are to find the access point's root there with its identity, which is a property of
a whole server; starting one takes 50 ms and some megabytes.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from fake_efs.access_points import EmbeddedAccessPoint, RootFolder, ensure_root
from fake_efs.nfs_server import NfsServer
from kube_efs.model.csi.volume_handles import AccessPointId

# Longer than a client's lease: whoever comes back later has to open its files anew anyway.
IDLE_SECONDS = 120.0

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class _Slot:
    """What serves an access point; changed only under ``lock``, but for the number of connections."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    nfs: NfsServer | None = None
    root: RootFolder | None = None
    connections: int = 0
    idle_since: float = 0.0

    async def end(self) -> None:
        """End the server, if there is one."""
        if self.nfs is not None:
            await self.nfs.stop()
            self.nfs = None


class AccessPointServers:
    """Starts servers when they are asked for; ``end_idle`` is to be called now and then.

    ``folder`` is the file system's data, ``work_dir`` gets a folder for each access point.
    """

    def __init__(
        self,
        folder: Path,
        work_dir: Path,
        *,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._work_dir = work_dir
        self.idle_seconds = idle_seconds
        self._clock = clock
        self._slots: defaultdict[AccessPointId, _Slot] = defaultdict(_Slot)

    @property
    def running(self) -> frozenset[AccessPointId]:
        """The access points that have a server at the moment."""
        return frozenset(name for name, slot in self._slots.items() if slot.nfs is not None)

    @asynccontextmanager
    async def serving(self, access_point: EmbeddedAccessPoint) -> AsyncIterator[int]:
        """The port of the access point's server, which is kept up while the context is open.

        Raises InvalidValue when the root directory cannot be used, PlatformError or OSError when there
        can be no server.
        """
        slot = self._slots[access_point.access_point_id]
        async with slot.lock:
            nfs = await self._ensure(slot, access_point)
            slot.connections += 1
        try:
            yield nfs.port
        finally:
            slot.connections -= 1
            slot.idle_since = self._clock()

    async def end_idle(self) -> None:
        """End the servers that have had no connection for a while."""
        for name, slot in list(self._slots.items()):
            if slot.nfs is None or slot.connections or slot.lock.locked():
                continue
            if self._clock() - slot.idle_since >= self.idle_seconds:
                async with slot.lock:  # which nobody has, so that nothing happens in between
                    await slot.end()
                log.debug("access_point_server_ended", access_point=name)

    async def stop(self) -> None:
        """End every server."""
        await asyncio.gather(*(slot.end() for slot in self._slots.values()))

    async def _ensure(self, slot: _Slot, access_point: EmbeddedAccessPoint) -> NfsServer:
        root = await ensure_root(self._folder, access_point)
        if slot.nfs is not None and slot.nfs.process.running and slot.root == root:
            return slot.nfs
        # A server keeps to a root directory that somebody has removed, even if there is a new one.
        await slot.end()
        if access_point.secondary_gids:
            log.warning("secondary_gids_not_enforced", access_point=access_point.access_point_id)
        work_dir = self._work_dir / access_point.access_point_id
        slot.nfs = await NfsServer.start(root.path, work_dir, user=access_point.user)
        slot.root = root
        slot.idle_since = self._clock()
        return slot.nfs
