"""Mounts of the CSI driver on an embedded node whose kernel has no NFS client.

``kube-efs node`` runs the program ``mount``, as ever; its ``PATH`` begins with a directory that has one which
asks here. The answer is the directory that the mount would show: of the file system or access point that the
tunnel at the given port is for, provided that an NFS server answers through that tunnel. So port, tunnel,
certificate and admission are the real ones. What is read and written does not go through them.
"""

import asyncio
import json
import random
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from fake_efs.errors import EfsError, PlatformError
from fake_efs.service import EmbeddedEfs
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.errors import InvalidValue, KubeEfsError
from kube_efs.model.volumes import LOOPBACK
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.probe import probe
from kube_efs.tunnels.reservations import TunnelSpec
from kube_efs_lab.csi_calls import CsiCalls
from tinykube.errors import NotYet
from tinykube.kubelet.csi import PublishRequest
from tinykube.kubelet.nfs import Nfs, NfsFolders, served_folder

log = structlog.get_logger(__name__)

_PROBE_SECONDS = 5.0


@asynccontextmanager
async def mount_program(efs: EmbeddedEfs, tunnel_socket: Path, folder: Path) -> AsyncIterator[Path]:
    """A directory with a program ``mount``, which works while the context is open; raises PlatformError.

    Below ``folder`` is only that and the socket; ``tunnel_socket`` is that of the node's tunnel agent.
    """
    real = shutil.which("mount")
    if real is None:
        raise PlatformError("is not installed", field="program", value="mount")
    programs, socket = folder / "bin", folder / "mounts.sock"
    await asyncio.to_thread(_write_program, programs / "mount", socket, real)
    answering = _Answering(OnDemandFolders(efs, tunnel_socket))
    server = await asyncio.start_unix_server(answering, socket)
    try:
        yield programs
    finally:
        server.close()
        await asyncio.to_thread(socket.unlink, missing_ok=True)


class CallsWithoutKernel(CsiCalls):
    """The calls of the kubelet, except that one refusal is ignored.

    The kubelet publishes volumes again. A driver that has started since finds a directory where it expects
    NFS, and refuses.
    """

    async def publish(self, socket: Path, request: PublishRequest) -> None:
        """Have a volume mounted."""
        try:
            await super().publish(socket, request)
        except NotYet as error:
            if "code = AlreadyExists" not in str(error):
                raise


class OnDemandFolders:
    """What the mount targets serve through the tunnels that CSI mounts hold, or without any."""

    def __init__(self, efs: EmbeddedEfs, tunnel_socket: Path) -> None:
        self._efs = efs
        self._tunnel_socket = tunnel_socket

    async def folder(self, server: str, port: int | None, path: str) -> Path | None:
        """The directory of an export's path; None when nobody answers at that address, else NotYet."""
        try:
            root = await self._root(server, port)
            return root and root.joinpath(*parse_directory(path).parts)
        except (EfsError, InvalidValue) as error:
            raise NotYet(f"mount.nfs4: access denied by server while mounting {path} ({error})") from error

    async def _root(self, server: str, port: int | None) -> Path | None:
        if server != LOOPBACK:
            file_system_id = self._efs.file_system_at(server)
            return self._efs.folder(file_system_id) if file_system_id else None
        spec = await self._spec(port)
        if port is None or spec is None:
            return None
        refused = self._efs.refused_clients(spec.file_system_id)
        answer = await probe(port, timeout_seconds=_PROBE_SECONDS, xid=random.getrandbits(32))
        if answer.is_denied or (not answer.ok and self._efs.refused_clients(spec.file_system_id) > refused):
            raise NotYet("mount.nfs4: access denied by server while mounting")
        if not answer.ok:
            # What mount.nfs says, with what it would not know.
            raise NotYet(f"mount.nfs4: Connection reset by peer (tunnel at port {port}: {answer.reason})")
        if spec.access_point_id is not None:
            return await self._efs.access_point_folder(spec.access_point_id)
        return self._efs.folder(spec.file_system_id)

    async def _spec(self, port: int | None) -> TunnelSpec | None:
        async with connect_tunnels(self._tunnel_socket) as client:
            return next((one.spec for one in await client.tunnels() if one.port == port), None)


class _Answering:
    """One question a connection, one answer."""

    def __init__(self, folders: NfsFolders) -> None:
        self._folders = folders

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = json.loads(await reader.readline())
            writer.write(json.dumps(await self._answer(**question)).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            log.info("mount-given-up")
        finally:
            writer.close()

    async def _answer(self, *, source: str, options: str, target: str) -> dict[str, str]:
        server, _, path = source.partition(":/")
        volume = Nfs(server=server.strip("[]"), path=f"/{path}", options=(options,))
        try:
            folder = await served_folder(self._folders, volume, Path(target))
        except (EfsError, KubeEfsError, NotYet) as error:
            return {"error": str(error)}
        log.info("folder-bound-for-mount", source=source, options=options, target=target, folder=str(folder))
        return {"folder": str(folder)}


def _write_program(path: Path, socket: Path, mount: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    module = "kube_efs_lab.mount_program"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "{socket}" "{mount}" "$@"\n')
    path.chmod(0o755)
