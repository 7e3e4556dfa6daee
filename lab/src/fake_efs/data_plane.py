"""The data plane: what the APIs of EFS and S3 Files say exists is what can be mounted."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from fake_efs.access_points import AccessPointServers
from fake_efs.admission import Admission
from fake_efs.client_certificate import ClientCertificate
from fake_efs.errors import AwsError, EfsError, InvalidValue, NotYet
from fake_efs.file_systems import FileSystem, Kind, MountTarget, dns_name, server_names
from fake_efs.nfs_server import NfsServer
from fake_efs.tls_front import TlsFront, server_context
from tiny_ca.authority import Authority, ServerCertificate

log = structlog.get_logger()
_POLL_SECONDS = 0.5


class ServedFileSystem:
    """Follows what the EFS API says about one file system.

    ``folder`` holds its data, ``work_dir`` the NFS servers' own files. ``fronts`` are the listeners,
    ``access_points`` serve those clients that name one.
    """

    def __init__(
        self,
        file_system_id: str,
        kind: Kind,
        *,
        certificate: ServerCertificate,
        folder: Path,
        work_dir: Path,
        admission: Admission,
    ) -> None:
        self.file_system_id = file_system_id
        self.kind = kind
        self.folder = folder
        self.nfs: NfsServer | None = None
        self.fronts: dict[str, TlsFront] = {}
        self.access_points = AccessPointServers(
            folder, work_dir / "access-points", minor_versions=kind.minor_versions
        )
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
            self.nfs = await NfsServer.start(
                self.folder, self._work_dir, minor_versions=self.kind.minor_versions
            )
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
        access_point = await self._admission.admit(client, self.file_system_id, self.kind)
        if access_point is not None:
            async with self.access_points.serving(access_point) as port:
                yield port
        elif self.nfs is None:
            raise NotYet("has no NFS server", field="file system", value=self.file_system_id)
        else:
            yield self.nfs.port


class DataPlane:
    """Serves the file systems that ``discover`` reports, and removes those that are gone.

    ``discover`` gives all file systems with their mount targets, or raises AwsError; only a complete
    answer is acted on. ``admission`` says who may connect to them. Data is kept under ``work_dir/data``,
    one directory for each file system.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Sequence[FileSystem]]],
        *,
        authority: Authority,
        region: str,
        work_dir: Path,
        admission: Admission,
    ) -> None:
        self._discover = discover
        self._authority = authority
        self._region = region
        self._work_dir = work_dir
        self._admission = admission
        self._served: dict[str, ServedFileSystem] = {}
        self._problems: dict[str, str] = {}
        self._pass = asyncio.Lock()
        self._poller: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the API."""
        self._poller = asyncio.create_task(self._poll(), name="embedded-efs-data-plane")

    async def stop(self) -> None:
        """Close every listener and end every NFS server."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        await asyncio.gather(*(served.stop() for served in self._served.values()))
        self._served.clear()

    async def settle(self) -> None:
        """Do now what the API says; raises AwsError, or NotYet naming the first thing that is not served."""
        await self._converge()
        for subject, reason in self._problems.items():
            raise NotYet(reason, field="data plane", value=subject)

    def served(self, file_system_id: str) -> ServedFileSystem:
        """The file system as it is served; raises InvalidValue when it is not."""
        try:
            return self._served[file_system_id]
        except KeyError as error:
            raise InvalidValue("is not served", field="file system", value=file_system_id) from error

    def front(self, mount_target_id: str) -> TlsFront:
        """The listener of a mount target; raises InvalidValue when there is none."""
        for served in self._served.values():
            if mount_target_id in served.fronts:
                return served.fronts[mount_target_id]
        raise InvalidValue("is not served", field="mount target", value=mount_target_id)

    def file_system_at(self, server: str) -> str | None:
        """The file system that is served at an address, or under its DNS name; None when there is none."""
        for file_system_id, served in self._served.items():
            # The name of a file system without mount targets leads nowhere.
            names = {front.address for front in served.fronts.values()}
            if server in names or (names and server == dns_name(file_system_id, self._region, served.kind)):
                return file_system_id
        return None

    async def _poll(self) -> None:
        while True:
            try:
                await self._converge()
            except AwsError as error:
                log.warning("data_plane_poll_failed", reason=str(error))
            await asyncio.sleep(_POLL_SECONDS)

    async def _converge(self) -> None:
        async with self._pass:
            systems = {system.file_system_id: system for system in await self._discover()}
            problems: dict[str, str] = {}
            async with asyncio.TaskGroup() as group:
                for file_system_id in self._served.keys() - systems.keys():
                    group.create_task(self._remove(file_system_id, problems))
                for system in systems.values():
                    group.create_task(self._follow(system, problems))
            for subject, reason in problems.items() - self._problems.items():
                log.error("data_plane_problem", subject=subject, reason=reason)
            self._problems = problems

    async def _follow(self, system: FileSystem, problems: dict[str, str]) -> None:
        file_system_id = system.file_system_id
        if file_system_id not in self._served:
            self._served[file_system_id] = ServedFileSystem(
                file_system_id,
                system.kind,
                certificate=self._authority.issue(server_names(file_system_id, self._region, system.kind)),
                folder=self._work_dir / "data" / file_system_id,
                work_dir=self._work_dir / "nfs" / file_system_id,
                admission=self._admission,
            )
        try:
            problems.update(await self._served[file_system_id].follow(system.mount_targets))
        except (EfsError, OSError) as error:
            problems[file_system_id] = str(error)

    async def _remove(self, file_system_id: str, problems: dict[str, str]) -> None:
        try:
            await self._served[file_system_id].remove()
        except OSError as error:
            problems[file_system_id] = f"cannot be removed: {error}"
        else:
            del self._served[file_system_id]
            log.info("file_system_removed", file_system=file_system_id)
