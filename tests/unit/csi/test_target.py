"""Target paths and their directories: checked, resolved, created and removed."""

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unmounting import unmount

from kube_efs.csi.target import make_target, parse_target, remove_target, resolve_target
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.errors import MountFailed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "is missing", id="empty"),
        pytest.param("a/b", "is not an absolute path below /", id="relative"),
        pytest.param("/", "is not an absolute path below /", id="root"),
        pytest.param("//", "is not an absolute path below /", id="root with slashes"),
        pytest.param("/pods/../etc", "is not an absolute path below /", id="path with .."),
        pytest.param("/pods/a\nb", "has control characters", id="line break"),
        pytest.param("/pods/\0", "has control characters", id="NUL byte"),
        pytest.param("/x" * 2048, "is longer than 4095 bytes", id="long path"),
        pytest.param("/pods/" + "é" * 128, "has a name longer than 255 bytes", id="long name"),
        pytest.param("/pods/" + "x" * 256 + "/mount", "has a name longer than 255 bytes", id="long parent"),
        pytest.param("/pods/\udc80", "has control characters", id="not UTF-8"),
    ],
)
def test_invalid_targets_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_target(text, field="target_path")
    assert (caught.value.field, caught.value.problem) == ("target_path", problem)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1))
def test_every_other_name_is_accepted(name: str) -> None:
    assume(name not in {".", ".."} and len(name.encode()) <= 255)
    assert parse_target(f"/pods/{name}", field="target_path").name == name


def test_links_in_parents_are_followed_whether_or_not_the_target_exists(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pods")
    (tmp_path / "pods" / "target").symlink_to("/etc")
    assert resolve_target(tmp_path / "link" / "target") == tmp_path / "pods" / "target"
    assert resolve_target(tmp_path / "link" / "a" / "b") == tmp_path / "pods" / "a" / "b"


def test_target_is_created_with_its_parents_and_removed_without_them(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    make_target(target)
    make_target(target)
    assert target.stat().st_mode & 0o777 == 0o755
    remove_target(target)
    remove_target(target)
    assert not target.exists()
    assert target.parent.exists()


def test_files_and_links_are_refused_as_targets(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    deep = tmp_path.joinpath(*["x" * 255] * 17)
    for target, problem in {
        tmp_path / "file": "is a file; remove it",
        tmp_path / "link": "is a link; remove the link",
        tmp_path / "dangling": "is a link; remove the link",
        tmp_path / "file" / "below": "is below a file; remove the file",
        tmp_path / "circle" / "below": "is below a link that leads back to itself; remove the link",
        deep: "is too long; give a shorter path",
    }.items():
        with pytest.raises(InvalidArgument) as caught:
            make_target(target)
        assert str(caught.value).endswith(problem)
        assert (caught.value.field, caught.value.value) == ("target_path", str(target))
        assert len(str(caught.value)) < 400
        if target.name != "file":
            with pytest.raises(InvalidArgument, match=re.escape(problem)):
                remove_target(target)
    assert remove_target(tmp_path / "file")  # nothing is mounted there, and the file may belong to someone
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "dangling", "circle"}


def test_another_error_of_the_disk_is_a_failed_mount(tmp_path: Path) -> None:
    # A directory of the kernel's, in which nothing can be made.
    with pytest.raises(MountFailed, match="cannot be created"):
        make_target(Path("/proc/self/target"))


def test_target_outside_of_the_directory_of_the_driver_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With MicroK8s, /var/lib/kubelet is a link, so the driver is registered with this directory, too."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MountFailed, match=r"Read-only file system.*--kubelet-dir"):
        make_target(tmp_path / "mount")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_mounted_target_is_not_removed_and_reported(tmp_path: Path) -> None:
    target = tmp_path / "mount"
    make_target(target)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(target)], check=True)
    try:
        assert not remove_target(target)
    finally:
        unmount(target)
    assert remove_target(target)
    assert not target.exists()
