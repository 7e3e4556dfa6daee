"""Clients of the embedded EFS that a person could be: NFS without a mount, and a TLS handshake."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from fake_efs.errors import PlatformError
from kube_efs.model.efs.directories import Directory
from kube_efs.model.errors import TunnelError
from tiny_ca.authority import trusting

_NFS_PORT = 2049
_SECONDS = 10.0


class TunnelClient:
    """Reads and writes files behind a loopback port of this machine with libnfs, so without mounting.

    Each call opens a connection of its own, as the user that the client is made for: a user and group id,
    this process's if None. Raises PlatformError when libnfs's tools are missing, TunnelError when one of
    them fails or takes more than ten seconds.
    """

    def __init__(self, port: int, *, user: tuple[int, int] | None = None) -> None:
        self._port = port
        self._user = "" if user is None else f"&uid={user[0]}&gid={user[1]}"

    async def write(self, source: Path, directory: Directory, name: str) -> None:
        """Copy a local file into the directory."""
        await _run("nfs-cp", str(source), self._url(directory, name))

    async def read(self, directory: Directory, name: str) -> bytes:
        """The contents of a file."""
        return await _run("nfs-cat", self._url(directory, name))

    async def names(self, directory: Directory) -> frozenset[str]:
        """Names of what is in a directory."""
        listing = await _run("nfs-ls", self._url(directory))
        return frozenset(line.split()[-1] for line in listing.decode().splitlines() if line.strip())

    def _url(self, directory: Directory, name: str = "") -> str:
        path = "/".join([*directory.parts, *filter(None, [name])])
        # libnfs takes the export up to the last slash: "//" is the root of the server.
        options = f"version=4&nfsport={self._port}&mountport={self._port}{self._user}"
        return f"nfs://127.0.0.1//{path}?{options}"


async def _run(program: str, *arguments: str) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError as error:
        remedy = "install libnfs-utils"
        raise PlatformError("is not installed", field="program", value=program, remedy=remedy) from error
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    except BaseException as error:
        process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise TunnelError(f"took longer than {_SECONDS:.0f} s", field=program) from error
        raise
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise TunnelError(f"failed ({reason})", field=program, value=arguments[-1])
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What a mount target and a client agreed on; ``peer`` is the first name in the verified certificate."""

    version: str
    cipher: str
    peer: str


async def shake_hands(address: str, name: str, ca_file: Path) -> Handshake:
    """A TLS handshake with a mount target, verified as the tunnels do it; raises TunnelError."""
    context = trusting(await asyncio.to_thread(ca_file.read_text))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(address, _NFS_PORT, ssl=context, server_hostname=name)
    except (OSError, TimeoutError) as error:
        raise TunnelError(f"made no TLS connection ({error})", field=name, value=address) from error
    try:
        tls = writer.get_extra_info("ssl_object")
        names = [value for kind, value in tls.getpeercert()["subjectAltName"] if kind == "DNS"]
        return Handshake(version=tls.version(), cipher=tls.cipher()[0], peer=names[0])
    finally:
        writer.transport.abort()
