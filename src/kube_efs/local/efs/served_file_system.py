"""One file system of the data plane: a folder, its NFS server, and a TLS listener for each mount target."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import structlog

from kube_efs.local.authority import ServerCertificate
from kube_efs.local.efs.client_certificate import ClientCertificate
from kube_efs.local.efs.nfs_server import NfsServer
from kube_efs.local.efs.tls_front import TlsFront
from kube_efs.local.efs.tls_stream import server_context
from kube_efs.model.errors import InvalidValue, NotYet
from kube_efs.model.file_systems import MountTarget
from kube_efs.model.ids import FileSystemId, MountTargetId

log = structlog.get_logger()


class ServedFileSystem:
    """Follows what the EFS API says about one file system.

    ``folder`` holds its data, ``work_dir`` the NFS server's own files. ``fronts`` are the listeners.
    """

    def __init__(
        self,
        file_system_id: FileSystemId,
        *,
        certificate: ServerCertificate,
        folder: Path,
        work_dir: Path,
    ) -> None:
        self.file_system_id = file_system_id
        self.folder = folder
        self.nfs: NfsServer | None = None
        self.fronts: dict[MountTargetId, TlsFront] = {}
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
        """Close every listener and end the NFS server; the data stays."""
        await asyncio.gather(*(front.stop() for front in self.fronts.values()))
        self.fronts.clear()
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

    def _admit(self, client: ClientCertificate) -> int:
        """The port of the NFS server that this client may use.

        A client without a certificate may, as with an EFS file system that has no policy.
        """
        if client.file_system_id not in {None, self.file_system_id}:
            raise InvalidValue(
                f"is not {self.file_system_id}",
                field="file system of the client certificate",
                value=client.file_system_id,
            )
        if client.access_point_id is not None:
            raise InvalidValue(
                f"is no access point of {self.file_system_id}",
                field="access point of the client certificate",
                value=client.access_point_id,
            )
        if self.nfs is None:
            raise NotYet("has no NFS server", field="file system", value=self.file_system_id)
        return self.nfs.port
