"""The answer of the kernel about a path, without access to the mounted file system."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unmounting import unmount

from kube_efs.mounts import table
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.mounts.table import is_mount_point

FUSE = Path("/dev/fuse")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory with an unusual name; everything is unmounted from it at the end."""
    place = tmp_path / "a b\\c#"
    place.mkdir()
    yield place
    while any(entry.mount_point == place for entry in read_mountinfo()):
        subprocess.run(["umount", "--lazy", "--no-canonicalize", "--internal-only", str(place)], check=True)


@needs_root
@pytest.mark.parametrize(
    "options", [pytest.param(["-t", "tmpfs", "none"], id="tmpfs"), pytest.param(["--bind"], id="bind mount")]
)
def test_path_is_a_mount_point_until_its_last_unmount(place: Path, options: list[str]) -> None:
    assert is_mount_point(place) is False
    source = [] if options[0] == "-t" else [str(place.parent)]
    for _ in range(2):
        subprocess.run(["mount", *options, *source, str(place)], check=True)
        assert is_mount_point(place) is True
    unmount(place)
    assert is_mount_point(place) is True
    unmount(place)
    assert is_mount_point(place) is False


def test_everything_else_is_not_a_mount_point(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/proc")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("file", "file/below", "link", "missing", "missing/below", "circle/below", "x" * 256):
        assert is_mount_point(tmp_path / name) is False


def test_kernel_without_the_call_gives_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_OPENAT2", 4095)  # a number that no call has
    assert is_mount_point(tmp_path) is None


def test_no_file_stays_open(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    before = _descriptors_of(tmp_path, place, Path("/"), Path("/proc"))
    for one in (place, Path("/proc"), tmp_path / "missing"):
        is_mount_point(one)
    assert _descriptors_of(tmp_path, place, Path("/"), Path("/proc")) == before


@needs_root
@pytest.mark.skipif(not FUSE.exists(), reason="the kernel has no FUSE")
def test_unresponsive_file_system_does_not_delay_the_answer(place: Path) -> None:
    # A server of FUSE that has not said a word: a program that enters the mount waits until it is aborted.
    with FUSE.open("r+b", buffering=0) as server:
        options = f"fd={server.fileno()},rootmode=40000,user_id=0,group_id=0"
        command = ["mount", "--internal-only", "-i", "-t", "fuse", "-o", options, "none", str(place)]
        subprocess.run(command, check=True, pass_fds=[server.fileno()])
        found: list[bool | None] = []
        entering = threading.Thread(target=lambda: _enter(place), daemon=True)
        entering.start()
        asking = threading.Thread(target=lambda: found.append(is_mount_point(place)), daemon=True)
        asking.start()
        asking.join(timeout=30)
        assert found == [True]
        assert entering.is_alive()  # so the file system really is one that does not answer
    entering.join(timeout=30)


def _enter(place: Path) -> None:
    with suppress(OSError):  # when the server has gone
        place.stat()


def _descriptors_of(*places: Path) -> int:
    """How many descriptors lead there; what earlier tests have left elsewhere is closed at any moment."""
    found = []
    for one in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(one.readlink())
    return sum(path in places for path in found)
