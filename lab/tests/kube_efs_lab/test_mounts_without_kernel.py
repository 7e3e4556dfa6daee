"""The program ``mount`` of an embedded node, run as the CSI driver runs it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from fake_efs.errors import InvalidValue
from fake_efs.service import EmbeddedEfs
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import MountFailed
from kube_efs.mounts.mount import SystemMounter
from kube_efs.mounts.mountinfo import MountEntry, read_mountinfo
from kube_efs_lab.mounts_without_kernel import mount_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")

SERVER = "fs-0123abcd.efs.us-east-1.amazonaws.com"


class OneFileSystem:
    """An EFS that answers at one name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file_system_at(self, server: str) -> FileSystemId | None:
        return FileSystemId("fs-0123abcd") if server == SERVER else None

    def folder(self, file_system_id: FileSystemId) -> Path:
        if not self._folder.exists():
            raise InvalidValue("is not served", field="file system", value=file_system_id)
        return self._folder


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    folder = tmp_path / "efs"
    (folder / "data").mkdir(parents=True)
    return folder


@pytest.fixture
async def programs(tmp_path: Path, exports: Path) -> AsyncIterator[Path]:
    efs: Any = OneFileSystem(exports)
    async with mount_program(cast("EmbeddedEfs", efs), tmp_path / "no.sock", tmp_path) as programs:
        yield programs


@pytest.fixture
def mounter(programs: Path) -> SystemMounter:
    return SystemMounter(program=str(programs / "mount"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "target"
    folder.mkdir()
    return folder


def mounted_on(target: Path) -> list[MountEntry]:
    return [entry for entry in read_mountinfo() if entry.mount_point == target]


@pytest.mark.parametrize(("options", "read_only"), [("hard", False), ("hard,ro", True)])
async def test_the_folder_that_the_server_would_serve_is_bound(
    mounter: SystemMounter, exports: Path, target: Path, options: str, read_only: bool
) -> None:
    await mounter.mount(f"{SERVER}:/data", target, f"nfsvers=4.1,{options}")
    try:
        (exports / "data/file").write_text("hello")
        assert (target / "file").read_text() == "hello"
        [entry] = mounted_on(target)
        assert entry.is_read_only is read_only
    finally:
        await mounter.unmount(target)
    assert mounted_on(target) == []


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (f"{SERVER}:/none", f"mounting {SERVER}:/none failed, reason given by server: No such file"),
        ("nowhere.example.com:/data", "Failed to resolve server nowhere.example.com"),
        ("10.0.0.1:/data", "Connection refused for 10.0.0.1:/data"),
    ],
    ids=["no such directory", "no such name", "nobody at the address"],
)
async def test_what_a_mount_would_fail_with(
    mounter: SystemMounter, target: Path, source: str, text: str
) -> None:
    with pytest.raises(MountFailed) as caught:
        await mounter.mount(source, target, "nfsvers=4.1,port=1")
    assert "ended with status 32: " in caught.value.problem
    assert text in caught.value.problem
    assert mounted_on(target) == []


async def test_a_tunnel_that_its_agent_does_not_know_leads_nowhere(
    mounter: SystemMounter, target: Path
) -> None:
    with pytest.raises(MountFailed, match="tunnel agent"):
        await mounter.mount("127.0.0.1:/", target, "nfsvers=4.1,port=1")


async def test_a_cluster_that_has_ended_mounts_nothing(tmp_path: Path, exports: Path, target: Path) -> None:
    efs: Any = OneFileSystem(exports)
    async with mount_program(cast("EmbeddedEfs", efs), tmp_path / "no.sock", tmp_path) as programs:
        pass
    with pytest.raises(MountFailed, match="the embedded cluster does not answer"):
        await SystemMounter(program=str(programs / "mount")).mount(f"{SERVER}:/data", target, "hard")
