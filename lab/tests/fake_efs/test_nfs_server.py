"""The NFS server's configuration, and what it needs of the machine."""

import asyncio
import sys
from pathlib import Path

import pytest

from fake_efs.errors import PlatformError
from fake_efs.nfs_server import PosixUser, check_platform, render_configuration

EXPECTED = """\
NFS_CORE_PARAM {
  NFS_Port = 0; Protocols = 4; Bind_addr = 127.0.0.1;
  Enable_NLM = false; Enable_RQUOTA = false; Allow_Set_Io_Flusher_Fail = true;
}
NFSv4 {
  Grace_Period = 1; Lease_Lifetime = 90; Graceless = true;
  RecoveryBackend = fs; RecoveryRoot = "/srv/nfs state";
  Minor_Versions = 0, 1; Only_Numeric_Owners = true;
  Server_Scope = "/srv/nfs state"; Server_Owner = "/srv/nfs state";
}
EXPORT {
  Export_Id = 1; Path = "/srv/data"; Pseudo = /;
  Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP;
  MaxRead = 1048576; MaxWrite = 1048576; Attr_Expiration_Time = 0;
  FSAL { Name = VFS; }
}
"""


def test_configuration() -> None:
    assert render_configuration(Path("/srv/data"), Path("/srv/nfs state")) == EXPECTED


def test_configuration_of_an_identity() -> None:
    expected = EXPECTED.replace(
        "Squash = No_Root_Squash;", "Squash = All_Squash; Anonymous_uid = 0; Anonymous_gid = 4294967295;"
    )
    user = PosixUser(uid=0, gid=4294967295)
    assert render_configuration(Path("/srv/data"), Path("/srv/nfs state"), user) == expected


@pytest.mark.parametrize(
    "path",
    ["data", '/a"; } EXPORT { Path = "/b', "/a\nb", "/a\\"],
    ids=["relative", "quote", "new line", "backslash"],
)
def test_paths_that_could_be_read_otherwise_are_refused(path: str) -> None:
    with pytest.raises(PlatformError) as caught:
        render_configuration(Path(path), Path("/work"))
    assert (caught.value.field, caught.value.value) == ("work directory", path)


def test_a_missing_program_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
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
from fake_efs.nfs_server import NfsServer
asyncio.run(NfsServer.start(Path.cwd() / "overlay" / "data", Path.cwd() / "nfs"))
"""


async def test_a_disk_that_cannot_be_exported_is_reported(tmp_path: Path) -> None:
    # The root of a container is such a disk, and Ganesha itself starts all the same.
    arguments = ("sh", "-c", OVERLAY, "sh", str(tmp_path), sys.executable, EXPORT_OVERLAY)
    process = await asyncio.create_subprocess_exec(
        "unshare", "--mount", *arguments, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    last_line = errors.decode().splitlines()[-1]
    assert "PlatformError: work directory: " in last_line
    assert "is on a file system that NFS cannot export; use a directory on ext4" in last_line
