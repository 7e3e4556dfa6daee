"""One file system's NFS server: an NFS-Ganesha process that exports a directory, for NFSv4 over loopback."""

import asyncio
import os
import shutil
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from fake_efs.errors import PlatformError
from fake_efs.process import ChildProcess

MINOR_VERSIONS = (0, 1)  # of NFS 4, those of EFS

_PROGRAM = "ganesha.nfsd"
_RUNTIME_FOLDER = Path("/var/run/ganesha")  # compiled into Ganesha
_VFS_MODULE = "*/ganesha/libfsalvfs.so"
_NOT_EXPORTED = (
    "init_export_root :EXPORT :CRIT",  # an overlay
    "Could not create export",  # tmpfs, which Ganesha 6 does not export; Ganesha 4 did
)
_LIBRARY_FOLDERS = (Path("/usr/lib"), Path("/usr"))
_READY_SECONDS = 60.0
_PROBE_SECONDS = 2.0
_PROBE_PAUSE_SECONDS = 0.05

# NFS_Port 0: the kernel picks a free port, which is asked back of it. Attr_Expiration_Time 0: the embedded
# kubelet and its pods change the directory directly, and NFS clients must see that at once. Numeric owners,
# minor versions and transfer sizes are those of EFS ("Mounting EFS file systems", "Quotas" of its guide).
# Lease_Lifetime: what is usual; with less, mounts that nobody uses would call every few seconds.
# Scope and owner are a server's own: with the same, a kernel takes two servers for two ways to one
# (RFC 8881, 2.10.5) and sends the files of both to the first, as soon as they gave it the same client id,
# which servers do that were started in the same second.
# Allow_Set_Io_Flusher_Fail: else Ganesha 6 does not start without CAP_SYS_RESOURCE, as in a container.
# Ganesha 4 ignores the name.
_CONFIGURATION = """\
NFS_CORE_PARAM {{
  NFS_Port = 0; Protocols = 4; Bind_addr = 127.0.0.1;
  Enable_NLM = false; Enable_RQUOTA = false; Allow_Set_Io_Flusher_Fail = true;
}}
NFSv4 {{
  Grace_Period = 1; Lease_Lifetime = 90; Graceless = true;
  RecoveryBackend = fs; RecoveryRoot = {recovery};
  Minor_Versions = {minor_versions}; Only_Numeric_Owners = true;
  Server_Scope = {recovery}; Server_Owner = {recovery};
}}
EXPORT {{
  Export_Id = 1; Path = {folder}; Pseudo = /;
  Access_Type = RW; {squash} SecType = sys; Protocols = 4; Transports = TCP;
  MaxRead = 1048576; MaxWrite = 1048576; Attr_Expiration_Time = 0;
  FSAL {{ Name = VFS; }}
}}
"""

# The NULL call of NFS version 4 as one record (RFC 5531, section 11), and how long its answer is at least.
_NULL_CALL = struct.pack(">11I", 0x8000_0028, 1, 0, 2, 100003, 4, 0, 0, 0, 0, 0)
_ANSWER_BYTES = 28

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixUser:
    """A user and group by number."""

    uid: int
    gid: int


def check_platform() -> None:
    """Raise PlatformError, with the remedy, when Ganesha cannot run here."""
    if shutil.which(_PROGRAM) is None:
        raise PlatformError(
            "is not installed", field="program", value=_PROGRAM, remedy="apt install nfs-ganesha"
        )
    if not any(any(folder.glob(_VFS_MODULE)) for folder in _LIBRARY_FOLDERS):
        raise PlatformError(
            "is not installed", field="program", value="libfsalvfs.so", remedy="apt install nfs-ganesha-vfs"
        )
    if os.geteuid() != 0:
        raise PlatformError("cannot serve NFS", field="user id", value=os.geteuid(), remedy="run as root")


class NfsServer:
    """Ganesha on a directory; ``port`` is where it answers, and changes when it is started again."""

    def __init__(self, process: ChildProcess, port: int) -> None:
        self.process = process
        self.port = port

    @classmethod
    async def start(
        cls,
        folder: Path,
        work_dir: Path,
        *,
        user: PosixUser | None = None,
        minor_versions: Sequence[int] = MINOR_VERSIONS,
    ) -> Self:
        """Export ``folder``; returns once the server answers.

        With ``user`` every client is that user, and of that group alone, whatever it says itself; Ganesha
        has no way to give it more groups. ``work_dir`` gets the configuration, the log and the recovery
        state. Raises PlatformError.
        """
        recovery = work_dir / "recovery"
        for needed in (folder, recovery, _RUNTIME_FOLDER):
            needed.mkdir(parents=True, exist_ok=True)
        log_file = work_dir / "ganesha.log"
        if log_file.exists():  # the reason of an earlier end may be in it
            log_file.replace(work_dir / "ganesha.previous.log")
        configuration = work_dir / "ganesha.conf"
        configuration.write_text(render_configuration(folder, recovery, user, minor_versions))
        options = ("-F", "-f", str(configuration), "-L", str(log_file), "-p", str(work_dir / "ganesha.pid"))
        process = await ChildProcess.start(_PROGRAM, *options, log_file=log_file)
        try:
            port = await process.listening_port(timeout_seconds=_READY_SECONDS)
            await _until_answered(process, port)
            _check_export(folder, log_file)
        except BaseException:
            await process.kill()
            raise
        log.debug("nfs_server_ready", folder=str(folder), port=port, pid=process.pid)
        return cls(process, port)

    async def stop(self) -> None:
        """End the server within about a second."""
        await self.process.stop()


def render_configuration(
    folder: Path,
    recovery: Path,
    user: PosixUser | None = None,
    minor_versions: Sequence[int] = MINOR_VERSIONS,
) -> str:
    """Ganesha's configuration; raises PlatformError for a path that it cannot hold."""
    squash = "Squash = No_Root_Squash;"
    if user is not None:
        squash = f"Squash = All_Squash; Anonymous_uid = {user.uid}; Anonymous_gid = {user.gid};"
    return _CONFIGURATION.format(
        folder=_quoted(folder),
        recovery=_quoted(recovery),
        squash=squash,
        minor_versions=", ".join(map(str, minor_versions)),
    )


def _quoted(path: Path) -> str:
    text = str(path)
    if not path.is_absolute() or '"' in text or "\\" in text or not text.isprintable():
        raise PlatformError(
            "cannot be exported", field="work directory", value=text, remedy="use an absolute, plain path"
        )
    return f'"{text}"'


def _check_export(folder: Path, log_file: Path) -> None:
    # Ganesha runs on with an empty root when it cannot export, and says so only in its log.
    log_text = log_file.read_text(errors="replace")
    if any(sign in log_text for sign in _NOT_EXPORTED):
        raise PlatformError(
            "is on a file system that NFS cannot export",
            field="work directory",
            value=str(folder),
            remedy="use a directory on ext4 or XFS, not on tmpfs or an overlay (the root of a container)",
        )


async def _until_answered(process: ChildProcess, port: int) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while process.running and time.monotonic() < deadline:
        with suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_PROBE_SECONDS):
                return await _call(port)
        await asyncio.sleep(_PROBE_PAUSE_SECONDS)
    raise process.failure("does not answer")


async def _call(port: int) -> None:
    """Call the server, and wait for an answer; what it says does not matter."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_NULL_CALL)
        await reader.readexactly(_ANSWER_BYTES)
    finally:
        writer.close()
