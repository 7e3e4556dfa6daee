"""The data plane: what the EFS API says exists is what can be mounted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from fake_efs.admission import Admission
from fake_efs.names import server_names
from fake_efs.served_file_system import ServedFileSystem
from fake_efs.tls_front import TlsFront
from kube_efs.model.efs.file_systems import FileSystem, dns_name
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, Region
from kube_efs.model.errors import AwsError, InvalidValue, KubeEfsError, NotYet
from tiny_ca.authority import Authority

POLL_SECONDS = 0.5

log = structlog.get_logger()


class DataPlane:
    """Serves the file systems that ``discover`` tells of, and removes those that are gone.

    ``discover`` gives all file systems with their mount targets, or raises AwsError; only a complete
    answer is acted on. ``admission`` says who may connect to them. Data is kept under ``work_dir/data``,
    one folder a file system.
    """

    def __init__(
        self,
        discover: Callable[[], Awaitable[Sequence[FileSystem]]],
        *,
        authority: Authority,
        region: Region,
        work_dir: Path,
        admission: Admission,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._discover = discover
        self._authority = authority
        self._region = region
        self._work_dir = work_dir
        self._admission = admission
        self._poll_seconds = poll_seconds
        self._served: dict[FileSystemId, ServedFileSystem] = {}
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

    def served(self, file_system_id: FileSystemId) -> ServedFileSystem:
        """The file system as it is served; raises InvalidValue when it is not."""
        try:
            return self._served[file_system_id]
        except KeyError as error:
            raise InvalidValue("is not served", field="file system", value=file_system_id) from error

    def front(self, mount_target_id: MountTargetId) -> TlsFront:
        """The listener of a mount target; raises InvalidValue when there is none."""
        for served in self._served.values():
            if mount_target_id in served.fronts:
                return served.fronts[mount_target_id]
        raise InvalidValue("is not served", field="mount target", value=mount_target_id)

    def file_system_at(self, server: str) -> FileSystemId | None:
        """The file system that is served at an address, or under its DNS name; None when there is none."""
        for file_system_id, served in self._served.items():
            # The name of a file system without mount targets leads nowhere.
            names = {front.address for front in served.fronts.values()}
            if server in names or (names and server == dns_name(file_system_id, self._region)):
                return file_system_id
        return None

    async def _poll(self) -> None:
        while True:
            try:
                await self._converge()
            except AwsError as error:
                log.warning("data_plane_poll_failed", reason=str(error))
            await asyncio.sleep(self._poll_seconds)

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
                certificate=self._authority.issue(server_names(file_system_id, self._region)),
                folder=self._work_dir / "data" / file_system_id,
                work_dir=self._work_dir / "nfs" / file_system_id,
                admission=self._admission,
            )
        try:
            problems.update(await self._served[file_system_id].follow(system.usable_mount_targets))
        except (KubeEfsError, OSError) as error:
            problems[file_system_id] = str(error)

    async def _remove(self, file_system_id: FileSystemId, problems: dict[str, str]) -> None:
        try:
            await self._served[file_system_id].remove()
        except OSError as error:
            problems[file_system_id] = f"cannot be removed: {error}"
        else:
            del self._served[file_system_id]
            log.info("file_system_removed", file_system=file_system_id)
