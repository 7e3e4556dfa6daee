"""NFS volumes: mounted by the kernel where it can, else the exported directory of this very machine."""

import asyncio
import ipaddress
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Protocol

from tinykube.errors import NotYet

_MOUNT_SECONDS = 110.0
_UNMOUNT_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nfs:
    """An exported directory of an NFS server; ``options`` are those of mount(8)."""

    server: str
    path: str
    read_only: bool = False
    options: tuple[str, ...] = ()


class NfsFolders(Protocol):
    """Knows the directories of this machine that NFS servers export."""

    async def folder(self, server: str, port: int | None, path: str) -> Path | None:
        """The exported path below the directory that is exported; it need not exist.

        None when there is no such server; raises NotYet, in the words of mount.nfs(8), when it refuses.
        """


class NfsMounter(Protocol):
    """Makes the data of an NFS volume available under some path of this machine."""

    async def mount(self, volume: Nfs, target: Path) -> Path:
        """The path to bind into containers: ``target``, an existing directory, or another.

        Raises NotYet in the words of mount.nfs(8).
        """

    async def unmount(self, target: Path) -> None:
        """Undo it; does nothing where nothing is mounted."""


class KernelNfs:
    """Mounts with the kernel's NFS client, through mount(8)."""

    async def mount(self, volume: Nfs, target: Path) -> Path:
        """Mount the volume on the target."""
        if str(target) not in mount_points():
            arguments = mount_arguments(volume, target)
            code, output = await _run("mount", arguments, _MOUNT_SECONDS)
            if code:
                raise NotYet(_failure(arguments, code, output))
        return target

    async def unmount(self, target: Path) -> None:
        """Unmount, lazily when somebody still holds on to it or the server is gone."""
        if str(target) in mount_points():
            code, _ = await _run("umount", (str(target),), _UNMOUNT_SECONDS)
            if code:
                await detach(target)


class FolderNfs:
    """Where the kernel cannot mount: the directory that the server would serve."""

    def __init__(self, folders: NfsFolders) -> None:
        self._folders = folders

    async def mount(self, volume: Nfs, target: Path) -> Path:
        """The exported directory; failures are those that a real mount would have."""
        try:
            return await served_folder(self._folders, volume, target)
        except NotYet as error:
            text = _failure(mount_arguments(volume, target), 32, error.problem)
            raise NotYet(text) from error

    async def unmount(self, target: Path) -> None:
        """Nothing is mounted outside the containers."""


class NoNfs:
    """A node without mount.nfs(8), such as one of Bottlerocket."""

    async def mount(self, volume: Nfs, target: Path) -> Path:
        """Fail as the program ``mount`` does there: raises NotYet."""
        helper = (
            f"mount: {target}: bad option; for several filesystems (nfs, cifs) you might need a"
            " /sbin/mount.<type> helper program."
        )
        raise NotYet(_failure(mount_arguments(volume, target), 32, helper))

    async def unmount(self, target: Path) -> None:
        """Nothing is ever mounted."""


async def served_folder(folders: NfsFolders, volume: Nfs, target: Path) -> Path:
    """The directory that the server would serve; raises NotYet in the words of mount.nfs(8)."""
    folder = await folders.folder(volume.server, port_of(volume.options), volume.path)
    if folder is None:
        raise NotYet(_unreachable(volume, target))
    reason = await asyncio.to_thread(_reason, folder, len(PurePosixPath(volume.path).parts) - 1)
    if reason:
        what = f"{volume.server}:{volume.path}"
        raise NotYet(f"mount.nfs: mounting {what} failed, reason given by server: {reason}")
    return folder


async def detach(target: Path) -> None:
    """Remove whatever is mounted there, though it may be in use or its server gone."""
    if str(target) in mount_points():
        await _run("umount", ("-l", "-f", str(target)), _UNMOUNT_SECONDS)


@cache
def kernel_has_nfs() -> bool:
    """Whether this kernel can mount NFS version 4, perhaps with a module that is loaded for it.

    The first call may have to wait for that.
    """
    if not _knows_nfs() and shutil.which("modprobe"):
        command = ("modprobe", "--quiet", "nfsv4")
        subprocess.run(command, capture_output=True, check=False, timeout=_UNMOUNT_SECONDS)
    return _knows_nfs()


def _knows_nfs() -> bool:
    return "nfs4" in Path("/proc/filesystems").read_text(encoding="ascii").split()


def mount_points() -> frozenset[str]:
    """Where something is mounted on this machine; names with blanks and the like are left escaped."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return frozenset(line.split(" ")[4] for line in table.splitlines())


def port_of(options: Iterable[str]) -> int | None:
    """The port among mount options, which may come several in one text."""
    for option in ",".join(options).split(","):
        name, _, value = option.partition("=")
        if name.strip() == "port" and value.isdigit():
            return int(value)
    return None


def mount_arguments(volume: Nfs, target: Path) -> tuple[str, ...]:
    """What mount(8) is called with; an IPv6 address is put in brackets."""
    server = f"[{volume.server}]" if ":" in volume.server else volume.server
    options = [*volume.options, *(["ro"] if volume.read_only else [])]
    chosen = ("-o", ",".join(options)) if options else ()
    return ("-t", "nfs", *chosen, f"{server}:{volume.path}", str(target))


def _unreachable(volume: Nfs, target: Path) -> str:
    """What mount.nfs says of a server that is not there: no such name, or nobody at the address."""
    try:
        ipaddress.ip_address(volume.server)
    except ValueError:
        return f"mount.nfs: Failed to resolve server {volume.server}: Name or service not known"
    return f"mount.nfs: Connection refused for {volume.server}:{volume.path} on {target}"


def _reason(folder: Path, depth: int) -> str:
    """What a server would say about a path so many directories below its export; empty for a good one."""
    # A server leaves links to its client: one that led out of the export here would not do so there.
    if any(path.is_symlink() for path in (folder, *folder.parents)[:depth]):
        return "Not a directory"
    if not folder.exists():
        return "No such file or directory"
    return "" if folder.is_dir() else "Not a directory"


def _failure(arguments: tuple[str, ...], code: int, output: str) -> str:
    return (
        f"mount failed: exit status {code}\nMounting command: mount\n"
        f"Mounting arguments: {' '.join(arguments)}\nOutput: {output}"
    )


async def _run(program: str, arguments: Iterable[str], seconds: float) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return 32, f"{program}: timed out after {seconds:.0f} seconds"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace").strip()
