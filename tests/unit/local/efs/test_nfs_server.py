"""The NFS server's configuration, its preconditions, and the NULL call that finds out whether it answers."""

import asyncio
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kube_efs.local.efs.nfs_server import call_null, check_platform, render_configuration
from kube_efs.model.errors import InvalidSetting, NotYet, PlatformError

EXPECTED = """\
NFS_CORE_PARAM {
  NFS_Port = 0; Protocols = 4; Bind_addr = 127.0.0.1;
  Enable_NLM = false; Enable_RQUOTA = false;
}
NFSv4 {
  Grace_Period = 1; Lease_Lifetime = 10; Graceless = true;
  RecoveryBackend = fs; RecoveryRoot = "/work/nfs state";
  Minor_Versions = 0, 1; Only_Numeric_Owners = true;
}
EXPORT {
  Export_Id = 1; Path = "/work/data"; Pseudo = /;
  Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP;
  MaxRead = 1048576; MaxWrite = 1048576; Attr_Expiration_Time = 0;
  FSAL { Name = VFS; }
}
"""


def test_configuration() -> None:
    assert render_configuration(Path("/work/data"), Path("/work/nfs state")) == EXPECTED


@pytest.mark.parametrize(
    "path",
    ["data", '/a"; } EXPORT { Path = "/b', "/a\nb", "/a\\"],
    ids=["relative", "quote", "new line", "backslash"],
)
def test_paths_that_could_be_read_otherwise_are_refused(path: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        render_configuration(Path(path), Path("/work"))
    assert (caught.value.field, caught.value.value) == ("work directory", path)


def test_a_missing_program_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PlatformError, match=r"'ganesha.nfsd' is not installed; apt install nfs-ganesha"):
        check_platform()


OVERLAY = """
set -e
cd "$1"; mkdir lower upper work overlay nfs
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay
exec "$2" -c "$3"
"""
EXPORT_OVERLAY = """
import asyncio
from pathlib import Path
from kube_efs.local.efs.nfs_server import NfsServer
asyncio.run(NfsServer.start(Path.cwd() / "overlay" / "data", Path.cwd() / "nfs"))
"""


async def test_a_disk_that_cannot_be_exported_is_told(tmp_path: Path) -> None:
    # The root of a container is such a disk, and Ganesha itself starts all the same.
    arguments = ("sh", "-c", OVERLAY, "sh", str(tmp_path), sys.executable, EXPORT_OVERLAY)
    process = await asyncio.create_subprocess_exec(
        "unshare", "--mount", *arguments, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20):
        _, errors = await process.communicate()
    last_line = errors.decode().splitlines()[-1]
    assert "PlatformError: work directory: " in last_line
    assert "is on a file system that NFS cannot export; use a folder on ext4" in last_line


Answer = Callable[[bytes], bytes]


async def answering(answer: Answer, use: Callable[[int], Awaitable[None]]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readexactly(44)))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await use(server.sockets[0].getsockname()[1])


def accepted(call: bytes, status: int = 0) -> bytes:
    return struct.pack(">I", 0x80000018) + call[4:8] + struct.pack(">5I", 1, 0, 0, 0, status)


async def test_an_accepted_null_call_is_an_answer() -> None:
    await answering(accepted, call_null)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(
            lambda call: accepted(call, status=1), "refuses the NULL call", id="program unavailable"
        ),
        pytest.param(
            lambda call: accepted(b"0000" + call[::-1]), "refuses the NULL call", id="answer to another call"
        ),
        pytest.param(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n\r\n", "refuses the NULL call", id="HTTP"),
        pytest.param(lambda _: b"short", "does not answer", id="cut off"),
        pytest.param(lambda _: b"", "does not answer", id="closed"),
    ],
)
async def test_other_answers_are_none(answer: Answer, problem: str) -> None:
    async def call(port: int) -> None:
        with pytest.raises(NotYet, match=problem):
            await call_null(port)

    await answering(answer, call)
