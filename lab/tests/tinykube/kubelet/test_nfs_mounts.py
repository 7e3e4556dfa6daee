import os
from pathlib import Path

import pytest

from tinykube.errors import NotYet
from tinykube.kubelet import nfs
from tinykube.kubelet.nfs import KernelNfs, Nfs, kernel_has_nfs, mount_arguments, mount_points, port_of
from tinykube.kubelet.syscalls import MountFlag, mount

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@pytest.mark.parametrize(
    ("options", "port"),
    [
        ((), None),
        (("port=20490",), 20490),
        (("nfsvers=4.1", "port=20490"), 20490),
        (("nfsvers=4.1,port=20490,hard",), 20490),
        (("mountport=1", "port=x"), None),
    ],
)
def test_port(options: tuple[str, ...], port: int | None) -> None:
    assert port_of(options) == port


@pytest.mark.parametrize(
    ("volume", "arguments"),
    [
        (Nfs(server="127.0.0.1", path="/a"), ("-t", "nfs", "127.0.0.1:/a", "/t")),
        (
            Nfs(server="::1", path="/", options=("hard", "port=1"), read_only=True),
            ("-t", "nfs", "-o", "hard,port=1,ro", "[::1]:/", "/t"),
        ),
    ],
    ids=["plain", "IPv6, read-only"],
)
def test_mount_arguments(volume: Nfs, arguments: tuple[str, ...]) -> None:
    assert mount_arguments(volume, Path("/t")) == arguments


@root_only
@pytest.mark.skipif(kernel_has_nfs(), reason="a kernel with NFS would also ask the missing server")
async def test_failed_mount_says_what_mount_says(tmp_path: Path) -> None:
    with pytest.raises(NotYet) as caught:
        await KernelNfs().mount(Nfs(server="127.0.0.1", path="/x", options=("port=1",)), tmp_path)
    lines = caught.value.problem.splitlines()
    assert lines[0].startswith("mount failed: exit status ")
    assert lines[2] == f"Mounting arguments: -t nfs -o port=1 127.0.0.1:/x {tmp_path}"
    assert lines[3].startswith("Output: mount")


@root_only
async def test_unmount_takes_off_what_is_mounted(target: Path) -> None:
    mount("tmpfs", str(target), "tmpfs", MountFlag.NOSUID)
    assert str(target) in mount_points()
    await KernelNfs().unmount(target)
    assert str(target) not in mount_points()


@root_only
async def test_mounted_target_is_not_mounted_again(target: Path) -> None:
    mount("tmpfs", str(target), "tmpfs", MountFlag.NOSUID)
    try:
        assert await KernelNfs().mount(Nfs(server="127.0.0.1", path="/"), target) == target
    finally:
        await KernelNfs().unmount(target)


async def test_program_that_hangs_is_ended() -> None:
    code, output = await nfs._run("sleep", ("100",), 0.05)
    assert (code, output) == (32, "sleep: timed out after 0 seconds")
