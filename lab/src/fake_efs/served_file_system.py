"""One file system of the data plane: a folder, its NFS server, and a TLS listener for each mount target."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from fake_efs.access_point_servers import AccessPointServers
from fake_efs.admission import Admission
from fake_efs.client_certificate import ClientCertificate
from fake_efs.nfs_server import NfsServer
from fake_efs.tls_front import TlsFront
from fake_efs.tls_stream import server_context
from kube_efs.model.efs.file_systems import MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId
from kube_efs.model.errors import NotYet
from tiny_ca.authority import ServerCertificate

log = structlog.get_logger()


class ServedFileSystem:
    """Follows what the EFS API says about one file system.

    ``folder`` holds its data, ``work_dir`` the NFS servers' own files. ``fronts`` are the listeners,
    ``access_points`` serve those clients that name one.
    """

    def __init__(
        self,
        file_system_id: FileSystemId,
        *,
        certificate: ServerCertificate,
        folder: Path,
        work_dir: Path,
        admission: Admission,
    ) -> None:
        self.file_system_id = file_system_id
        self.folder = folder
        self.nfs: NfsServer | None = None
        self.fronts: dict[MountTargetId, TlsFront] = {}
        self.access_points = AccessPointServers(folder, work_dir / "access-points")
        self._admission = admission
        self._work_dir = work_dir
        self._own_certificate = certificate
        self._context = server_context(certificate)

    def present(self, certificate: ServerCertificate | None) -> None:
        """Show this server certificate to new connections; None means the file system's own."""
        self._context = server_context(certificate or self._own_certificate)

    async def follow(self, mount_targets: Sequence[MountTarget]) -> dict[str, str]:
        """Serve exactly these mount targets; gives the reason for each that cannot be.

        An NFS server that has died is started again. Raises PlatformError when that is impossible.
        """
        if self.nfs is None or not self.nfs.process.running:
            if self.nfs is not None:
                log.warning("nfs_server_died", file_system=self.file_system_id, pid=self.nfs.process.pid)
            self.nfs = await NfsServer.start(self.folder, self._work_dir)
        await self.access_points.end_idle()
        wanted = {target.mount_target_id: target for target in mount_targets}
        for mount_target_id in self.fronts.keys() - wanted.keys():
            await self.fronts.pop(mount_target_id).stop()
            log.info("mount_target_closed", file_system=self.file_system_id, mount_target=mount_target_id)
        problems: dict[str, str] = {}
        for mount_target_id in wanted.keys() - self.fronts.keys():
            try:
                await self._open(wanted[mount_target_id])
            except OSError as error:
                problems[mount_target_id] = f"cannot listen on {wanted[mount_target_id].address}: {error}"
        return problems

    async def stop(self) -> None:
        """Close every listener and end the NFS servers; the data stays."""
        await asyncio.gather(*(front.stop() for front in self.fronts.values()))
        self.fronts.clear()
        await self.access_points.stop()
        if self.nfs is not None:
            await self.nfs.stop()

    async def remove(self) -> None:
        """Stop, and remove the data; raises OSError when some of it cannot be removed."""
        await self.stop()
        for folder in (self.folder, self._work_dir):
            if folder.exists():
                await asyncio.to_thread(shutil.rmtree, folder)

    async def _open(self, target: MountTarget) -> None:
        front = TlsFront(target.address, context=lambda: self._context, admit=self._admit)
        await front.start()
        self.fronts[target.mount_target_id] = front
        log.info(
            "mount_target_open",
            file_system=self.file_system_id,
            mount_target=target.mount_target_id,
            address=target.address,
        )

    @asynccontextmanager
    async def _admit(self, client: ClientCertificate) -> AsyncIterator[int]:
        """The port of the NFS server that this client may use."""
        access_point = await self._admission.admit(client, self.file_system_id)
        if access_point is not None:
            async with self.access_points.serving(access_point) as port:
                yield port
        elif self.nfs is None:
            raise NotYet("has no NFS server", field="file system", value=self.file_system_id)
        else:
            yield self.nfs.port
