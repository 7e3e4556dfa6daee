"""Creating and removing directories on a real file system, despite links, mounts and replacements."""

import errno
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.provisioning.workers.descriptors import descriptors_below
from tests.unit.strategies import file_names
from tests.unmounting import unmount

from kube_efs.model.directory_volumes import permissions_for
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, parse_directory
from kube_efs.model.errors import InvalidValue, PlatformError, RemovalRefused, WorkerFailed, WorkerRefused
from kube_efs.model.trash import StuckEntry, TrashReport
from kube_efs.provisioning.workers import file_system
from kube_efs.provisioning.workers.file_system import (
    empty_trash,
    list_children,
    make_directory,
    move_to_trash,
)
from kube_efs.provisioning.workers.trash import TRASH

ROOT = Directory()
PLAIN = Permissions()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


def make(root: Path, path: str, permissions: Permissions = PLAIN) -> bool:
    return make_directory(root, parse_directory(path), permissions)


def move(root: Path, path: str, base: str = "/", tenant: str = "") -> bool:
    return move_to_trash(root, parse_directory(path), base=parse_directory(base), tenant=tenant)


def empty(root: Path) -> TrashReport:
    return empty_trash(root, lambda: True)


def remove(root: Path, path: str, base: str = "/") -> bool:
    """Move the directory into the trash, and empty that."""
    moved = move(root, path, base)
    empty(root)
    return moved


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def tree(root: Path) -> set[str]:
    """Every path below the root except the trash directory; links are not followed."""
    found = {
        str(Path(folder, name).relative_to(root))
        for folder, folders, files in os.walk(root)
        for name in [*folders, *files]
    }
    return found - {TRASH}


@pytest.fixture
def mask() -> Iterator[Callable[[int], None]]:
    def set_to(value: int) -> None:
        os.umask(value)

    before = os.umask(0o022)
    yield set_to
    os.umask(before)


# --- making


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mask: Callable[[int], None], umask: int) -> None:
    mask(umask)
    assert make(tmp_path, "/team/data")
    assert (mode(tmp_path / "team"), mode(tmp_path / "team/data")) == (0o755, 0o777)
    assert os.umask(umask) == umask


def test_existing_directory_keeps_its_mode_and_contents(tmp_path: Path) -> None:
    (tmp_path / "team/data").mkdir(parents=True)
    (tmp_path / "team/data/file").write_text("kept")
    (tmp_path / "team/data").chmod(0o700)
    (tmp_path / "team").chmod(0o711)
    assert not make(tmp_path, "/team/data")
    assert (mode(tmp_path / "team"), mode(tmp_path / "team/data")) == (0o711, 0o700)
    assert (tmp_path / "team/data/file").read_text() == "kept"


def test_root_always_exists(tmp_path: Path) -> None:
    assert not make_directory(tmp_path, ROOT, PLAIN)


@pytest.mark.parametrize("at", ["team", "team/data", "team/data/deep"], ids=["first", "middle", "last"])
@pytest.mark.parametrize("what", ["link", "link to nothing", "file", "socket"])
def test_path_with_a_link_or_file_is_refused(tmp_path: Path, at: str, what: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / at).parent.mkdir(parents=True)
    outside.mkdir()
    _plant(root / at, what, outside)
    with pytest.raises(WorkerRefused) as caught:
        make(root, "/team/data/deep")
    error = caught.value
    assert (error.field, error.value) == ("directory", "/team/data/deep")
    assert error.problem.startswith("could not be created (")
    assert error.remedy == "a link or file is in the way; move it"
    assert tree(outside) == set()


def _plant(path: Path, what: str, target: Path) -> None:
    if what == "link":
        path.symlink_to(target)
    elif what == "link to nothing":
        path.symlink_to("nowhere")
    elif what == "socket":
        os.mknod(path, stat.S_IFSOCK)
    else:
        path.write_text("in the way")


def test_missing_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlatformError) as caught:
        make(tmp_path / "none", "/team/data")
    assert str(caught.value) == (
        f"root: '{tmp_path}/none' cannot be opened (No such file or directory); mount the file system there"
    )


@given(st.lists(file_names(max_size=30), min_size=1, max_size=4))
def test_any_name_is_created_and_removed_literally(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    root, path = tmp_path_factory.mktemp("root"), "/" + "/".join(names)
    directory = parse_directory(path)
    assert make_directory(root, directory, PLAIN)
    assert (root / path[1:]).is_dir()
    assert not make_directory(root, directory, PLAIN)
    (root / path[1:] / "file").touch()
    assert remove(root, path)
    assert tree(root) == {str(Path(*directory.parts[:depth])) for depth in range(1, len(directory.parts))}


def access(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


@needs_root
@pytest.mark.parametrize("umask", [0o022, 0o777])
@pytest.mark.parametrize(
    ("permissions", "found"),
    [
        pytest.param(Permissions(mode=0o2771, gid=2001, enforced=True), (0o2771, 0, 2001), id="group"),
        pytest.param(Permissions(mode=0o750, uid=7, gid=8), (0o750, 7, 8), id="user and group"),
        pytest.param(Permissions(mode=0o1770, uid=7), (0o1770, 7, 0), id="user"),
        pytest.param(Permissions(mode=0o777, enforced=True), (0o777, 0, 0), id="enforced mode"),
        pytest.param(Permissions(mode=0o2775), (0o2775, 0, 0), id="setgid without owners"),
        pytest.param(
            Permissions(mode=0o2771, uid=0, gid=2**32 - 2), (0o2771, 0, 2**32 - 2), id="largest group"
        ),
    ],
)
def test_new_directory_has_the_requested_mode_and_owners(
    tmp_path: Path,
    mask: Callable[[int], None],
    umask: int,
    permissions: Permissions,
    found: tuple[int, int, int],
) -> None:
    mask(umask)
    assert make(tmp_path, "/team/data", permissions)
    assert access(tmp_path / "team/data") == found
    assert access(tmp_path / "team") == (0o755, 0, 0)


@needs_root
def test_enforcement_changes_an_existing_directory_but_not_its_contents(tmp_path: Path) -> None:
    data = tmp_path / "team/data"
    (data / "inner").mkdir(parents=True)
    data.chmod(0o700)
    os.chown(data, 5, 5)
    assert not make(tmp_path, "/team/data", Permissions(mode=0o2771, gid=2001, enforced=True))
    assert access(data) == (0o2771, 5, 2001)
    assert access(data / "inner") == (0o755, 0, 0)


@needs_root
def test_existing_directory_keeps_its_owners_without_enforcement(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o711)
    assert not make(tmp_path, "/data", Permissions(mode=0o2771, uid=7, gid=2001))
    assert access(tmp_path / "data") == (0o711, 0, 0)


@needs_root
def test_setgid_parent_decides_only_unspecified_permissions(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, 55)
    tmp_path.chmod(0o2777)
    make(tmp_path, "/plain")
    make(tmp_path, "/forced", Permissions(mode=0o777, enforced=True))
    make(tmp_path, "/owned", Permissions(mode=0o770, gid=66))
    assert access(tmp_path / "plain") == (0o2777, 0, 55)
    assert access(tmp_path / "forced") == (0o777, 0, 55)
    assert access(tmp_path / "owned") == (0o770, 0, 66)


OWNED = Permissions(mode=0o2771, gid=2001, enforced=True)
ROOT_ACCESS = "the file system's policy must allow root access (elasticfilesystem:ClientRootAccess)"


def _refused(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("call", ["fchown", "fchmod"])
def test_refusal_of_the_server_leaves_no_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    # No file system of the test machine refuses root.
    monkeypatch.setattr(os, call, _refused)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(WorkerFailed) as caught:
        make(tmp_path, "/team/data", OWNED)
    assert str(caught.value) == (
        f"directory: '/team/data' could not be created (Operation not permitted); {ROOT_ACCESS}"
    )
    assert tree(tmp_path) == {"team"}


@pytest.mark.parametrize(
    ("call", "found"),
    [("fchown", "mode 2771 and owners 0:0"), ("fchmod", "mode 0700 and owners 0:2001")],
    ids=["owners", "mode"],
)
@needs_root
def test_change_that_the_server_ignores_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, found: str
) -> None:
    monkeypatch.setattr(os, call, lambda *_: None)
    with pytest.raises(WorkerFailed) as caught:
        make(tmp_path, "/data", OWNED)
    assert str(caught.value) == (
        f"directory: '/data' has {found}, because the server did not apply "
        f"mode 2771 and owners any:2001; {ROOT_ACCESS}"
    )
    assert tree(tmp_path) == set()


def test_existing_directory_is_kept_when_the_server_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(os, "fchown", _refused)
    with pytest.raises(WorkerFailed):
        make(tmp_path, "/data", OWNED)
    assert tree(tmp_path) == {"data"}


@pytest.mark.parametrize("what", ["a file in it", "another in its place", "a link in its place"])
def test_new_directory_in_use_is_kept_when_the_server_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    data = tmp_path / "data"

    def use_then_refuse(*_: object) -> None:
        if what == "a file in it":
            (data / "file").touch()
        else:
            data.rename(tmp_path / "moved")
            if what == "another in its place":
                data.mkdir()
            else:
                data.symlink_to("moved")
        _refused()

    monkeypatch.setattr(os, "fchown", use_then_refuse)
    with pytest.raises(WorkerFailed):
        make(tmp_path, "/data", OWNED)
    assert tree(tmp_path) == ({"data", "data/file"} if what == "a file in it" else {"data", "moved"})


def test_new_directory_is_inaccessible_until_its_owners_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    change = os.fchown

    def look_then_change(descriptor: int, uid: int, gid: int) -> None:
        seen.append(mode(tmp_path / "data"))
        change(descriptor, uid, gid)

    monkeypatch.setattr(os, "fchown", look_then_change)
    make(tmp_path, "/data", OWNED)
    assert seen == [0o700]


def test_next_enforced_attempt_completes_a_killed_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    make(tmp_path, "/data", OWNED)
    assert access(tmp_path / "data") == (0o2771, os.getuid(), 2001)


def test_mkdir_sets_the_mode_of_a_plain_directory(
    tmp_path: Path, mask: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mask(0)
    for call in ("fchmod", "fchown", "chmod"):
        monkeypatch.setattr(os, call, _refused)
    assert make(tmp_path, "/team/data")
    assert (mode(tmp_path / "team"), mode(tmp_path / "team/data")) == (0o755, 0o777)


def test_interrupted_attempt_leaves_the_mode_of_the_class(
    tmp_path: Path, mask: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a kill after mkdir: no later attempt may enforce the mode, when the class now says "keep".
    mask(0)
    monkeypatch.setattr(file_system, "_give", lambda *_: None)
    assert make(tmp_path, "/team/data", Permissions(mode=0o770, enforced=True))
    assert mode(tmp_path / "team/data") == 0o770


@pytest.mark.parametrize("reason", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_directory_that_has_the_mode_needs_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    # Without root access, EFS lets only the owner of a directory change it.
    def refuse(*_: object) -> None:
        raise OSError(reason, os.strerror(reason))

    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    monkeypatch.setattr(os, "fchmod", refuse)
    assert not make(tmp_path, "/data", Permissions(enforced=True))


def test_refusal_without_root_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 65532)
    with pytest.raises(
        WorkerFailed, match=r"; run the provisioner as root \(securityContext.runAsUser: 0\)$"
    ):
        make(tmp_path, "/data")


@pytest.mark.parametrize("found", [0o2775, 0o6700, 0o3777])
def test_existing_directory_keeps_setgid_as_with_chmod(tmp_path: Path, found: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(found)
    subprocess.run(["chmod", "777", data], check=True)
    wanted = mode(data)
    data.chmod(found)
    make(tmp_path, "/data", Permissions(enforced=True))
    assert mode(data) == wanted


def test_repeated_creation_clears_an_inherited_setgid_as_the_chmod_of_go(tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)
    # As after a crash between mkdir, which inherits setgid, and the change of the mode.
    (tmp_path / "data").mkdir()
    assert mode(tmp_path / "data") & stat.S_ISGID
    make(tmp_path, "/data", permissions_for(None))
    assert mode(tmp_path / "data") == 0o777


# --- listing


@needs_root
def test_children_are_plain_directories_with_their_groups(tmp_path: Path) -> None:
    base = tmp_path / "base"
    for name in ("b", "a", ".hidden", TRASH, "é"):
        (base / name).mkdir(parents=True)
    os.chown(base / "a", 0, 2001)
    (base / "file").touch()
    (base / "link").symlink_to("a")
    os.mkfifo(base / "pipe")
    assert list_children(tmp_path, parse_directory("/base")) == [
        FoundDirectory(name=".hidden", gid=0),
        FoundDirectory(name="a", gid=2001),
        FoundDirectory(name="b", gid=0),
        FoundDirectory(name="é", gid=0),
    ]
    assert [child.name for child in list_children(tmp_path, ROOT)] == ["base"]


@pytest.mark.parametrize("path", ["/none", "/none/none", "/empty"])
def test_missing_or_empty_directory_has_no_children(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    assert list_children(tmp_path, parse_directory(path)) == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("path", ["/way", "/way/inner"])
@pytest.mark.parametrize("what", ["link", "file"])
def test_list_of_children_follows_no_link(tmp_path: Path, path: str, what: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    (outside / "inner/secret").mkdir(parents=True)
    _plant(root / "way", what, outside)
    with pytest.raises(WorkerFailed) as caught:
        list_children(root, parse_directory(path))
    assert str(caught.value) == (
        f"directory: {path!r} could not be listed (Not a directory); a link or file is in the way; move it"
    )


# --- removing


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with the data of two volumes; the files beside it must never change."""
    root = tmp_path / "root"
    for name in ("team/data/deep", "team/other", "team2/data"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("content")
    (tmp_path / "outside/precious").mkdir(parents=True)
    (tmp_path / "outside/precious/file").write_text("content")
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return tmp_path / "outside"


OTHERS = {"team", "team/other", "team/other/file", "team2", "team2/data", "team2/data/file"}
DATA = {"team/data", "team/data/deep", "team/data/deep/file"}


def test_directory_is_removed_with_its_contents_and_nothing_else(root: Path, outside: Path) -> None:
    data = root / "team/data"
    (data / "link").symlink_to(outside)
    (data / "deep/link").symlink_to("../../other")
    os.link(root / "team/other/file", data / "hard")
    os.mkfifo(data / "pipe")
    (data / "no access").mkdir(mode=0)
    assert remove(root, "/team/data")
    assert tree(root) == OTHERS
    assert (root / "team/other/file").read_text() == "content"
    assert tree(outside) == {"precious", "precious/file"}


def test_missing_directory_is_not_an_error(root: Path) -> None:
    assert not remove(root, "/team/none")
    assert not remove(root, "/none/none")
    assert tree(root) == OTHERS | DATA


def test_second_removal_changes_nothing(root: Path) -> None:
    assert remove(root, "/team/data")
    assert not remove(root, "/team/data")
    assert tree(root) == OTHERS


@pytest.mark.parametrize(
    ("path", "base"),
    [
        pytest.param("/", "/", id="root"),
        pytest.param("/team", "/team", id="base"),
        pytest.param("/team", "/team/data", id="parent of the base"),
        pytest.param("/", "/team", id="root above the base"),
        pytest.param("/team2/data", "/team", id="sibling of the base"),
        pytest.param("/team2/data", "/tea", id="sibling with the same prefix"),
    ],
)
def test_only_paths_strictly_inside_the_base_are_removed(root: Path, path: str, base: str) -> None:
    with pytest.raises(RemovalRefused) as caught:
        remove(root, path, base)
    assert str(caught.value) == (
        f"directory: {path!r} is not strictly inside the base directory; "
        f"only directories below {base} are removed"
    )
    assert tree(root) == OTHERS | DATA


@pytest.mark.parametrize("path", [f"/{TRASH}", f"/{TRASH}/something"])
def test_removal_of_the_trash_directory_is_refused(root: Path, path: str) -> None:
    with pytest.raises(RemovalRefused) as caught:
        remove(root, path)
    assert caught.value.problem == "is the trash directory"


@pytest.mark.parametrize("path", ["/team/../team/data", "/team/..", "/..", "/../outside"])
def test_path_with_parent_components_is_invalid(root: Path, path: str) -> None:
    with pytest.raises(InvalidValue):
        remove(root, path)


@pytest.mark.parametrize("what", ["link", "link to nothing", "file", "socket"])
@pytest.mark.parametrize(
    ("at", "path"), [("team/x", "/team/x"), ("x", "/x/precious"), ("team/x", "/team/x/precious")]
)
def test_link_or_file_is_neither_removed_nor_followed(
    root: Path, outside: Path, at: str, path: str, what: str
) -> None:
    _plant(root / at, what, outside)
    with pytest.raises(RemovalRefused) as caught:
        remove(root, path)
    assert str(caught.value) == (
        f"directory: {path!r} is or is below a link or file (x); "
        "check it; a volume's directory is never a link"
    )
    assert (root / at).is_symlink() or (root / at).exists()
    assert tree(outside) == {"precious", "precious/file"}
    assert tree(root) == OTHERS | DATA | {at}


def test_link_inside_the_file_system_is_not_followed(root: Path) -> None:
    (root / "alias").symlink_to("team")
    with pytest.raises(RemovalRefused):
        remove(root, "/alias/data")
    assert tree(root) == OTHERS | DATA | {"alias"}


@pytest.mark.parametrize("what", ["link", "file"])
def test_trash_that_is_not_a_directory_is_refused(root: Path, outside: Path, what: str) -> None:
    _plant(root / TRASH, what, outside)
    with pytest.raises(RemovalRefused) as caught:
        remove(root, "/team/data")
    assert str(caught.value) == (
        f"trash directory: '{TRASH}' is not a directory; remove the entry {TRASH} at the top of the file "
        "system"
    )
    assert tree(outside) == {"precious", "precious/file"}
    assert tree(root) == OTHERS | DATA


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Mounts a new file system that contains a file on a directory, until the test ends.

    With ``bound``, it bind-mounts that directory instead.
    """

    def mount(point: Path, bound: Path | None = None) -> None:
        if bound is not None:
            subprocess.run(["mount", "--bind", str(bound), str(point)], check=True, capture_output=True)
            return
        subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True, capture_output=True)
        (point / "precious").write_text("content")

    yield mount
    # The mount points may have moved with their parent directories.
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed([point for point in mounts if Path(point).is_relative_to(tmp_path)]):
        unmount(Path(point))


@needs_root
@pytest.mark.parametrize(
    ("at", "path"), [("team/data", "/team/data"), ("team", "/team/data")], ids=["directory", "parent"]
)
def test_other_file_system_is_refused(root: Path, mounted: Callable[..., None], at: str, path: str) -> None:
    mounted(root / at)
    (root / path[1:]).mkdir(exist_ok=True)
    with pytest.raises(RemovalRefused) as caught:
        remove(root, path)
    assert str(caught.value) == (f"directory: {path!r} is another file system; unmount what is mounted there")
    assert (root / at / "precious").read_text() == "content"


@needs_root
@pytest.mark.parametrize("same", [False, True], ids=["another file system", "bind mount"])
def test_nested_mount_is_not_entered(
    root: Path, outside: Path, mounted: Callable[..., None], same: bool
) -> None:
    mounted(root / "team/data/deep", bound=outside / "precious" if same else None)
    kept = "file" if same else "precious"
    assert move(root, "/team/data")
    report = empty(root)
    assert (report.entries, report.stuck) == (1, 1)
    assert [(one.path, one.reason) for one in report.examples] == [("deep", "Device or resource busy")]
    (found,) = (root / TRASH).glob(f"*/deep/{kept}")
    assert found.read_text() == "content"


@needs_root
def test_stuck_trash_entry_does_not_block_others(root: Path, mounted: Callable[..., None]) -> None:
    (root / TRASH / "old/busy").mkdir(parents=True)
    mounted(root / TRASH / "old/busy")
    assert move(root, "/team/data")
    assert empty(root) == TrashReport(
        entries=1,
        stuck=1,
        removed=3,
        examples=(StuckEntry(entry="old", path="busy", reason="Device or resource busy"),),
    )
    assert not tree(root) & DATA


def test_directory_replaced_during_the_removal_is_moved_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another process can act between the check of the directory and its renaming.
    checked = file_system._checked_leaf

    def check_then_replace(*arguments: object) -> tuple[int, int]:
        found = checked(*arguments)  # type: ignore[arg-type]
        (root / "team/data").rename(root / "team/moved")
        (root / "team/data").symlink_to("/")
        return found

    monkeypatch.setattr(file_system, "_checked_leaf", check_then_replace)
    with pytest.raises(RemovalRefused) as caught:
        remove(root, "/team/data")
    assert str(caught.value) == (
        "directory: '/team/data' was replaced in the meantime; check which process renames directories there"
    )
    assert (root / "team/data").is_symlink()
    assert (root / "team/moved/deep/file").read_text() == "content"
    assert list((root / TRASH).iterdir()) == []


@pytest.mark.parametrize("back", [errno.ENOTEMPTY, None], ids=["name in use again", "killed before"])
def test_replacement_of_the_directory_is_never_emptied(
    root: Path, monkeypatch: pytest.MonkeyPatch, back: int | None
) -> None:
    """The rename moves whatever has the name; the trash entry's name contains the expected inode."""
    checked, rename = file_system._checked_leaf, os.rename

    def check_then_replace(*arguments: object) -> tuple[int, int]:
        found = checked(*arguments)  # type: ignore[arg-type]
        (root / "team/data").rename(root / "team/moved")
        (root / "team2/data").rename(root / "team/data")
        return found

    def rename_once(source: str, target: str, **folders: int) -> None:
        if target == "data":
            raise OSError(back, "") if back else KeyboardInterrupt
        rename(source, target, **folders)

    monkeypatch.setattr(file_system, "_checked_leaf", check_then_replace)
    monkeypatch.setattr(os, "rename", rename_once)
    with pytest.raises((WorkerFailed, KeyboardInterrupt)):
        move(root, "/team/data")
    monkeypatch.undo()

    report = empty(root)
    assert (report.entries, report.stuck, report.removed) == (1, 1, 0)
    (example,) = report.examples
    assert example.path == ""
    assert example.reason == "is not the directory that had to be removed; move it back to its place"
    assert (root / TRASH / example.entry / "file").read_text() == "content"


def test_removal_only_renames_the_directory(root: Path) -> None:
    assert move(root, "/team/data", tenant="4fa1")
    (entry,) = (root / TRASH).iterdir()
    assert re.fullmatch(rf"4fa1\.{entry.stat().st_ino:x}-[0-9a-f]{{32}}", entry.name)
    assert (entry / "deep/file").read_text() == "content"
    assert tree(root) - {f"{TRASH}/{entry.name}{rest}" for rest in ("", "/deep", "/deep/file")} == OTHERS
    assert not move(root, "/team/data", tenant="4fa1")


def test_next_run_removes_what_an_interrupted_run_left(root: Path, outside: Path) -> None:
    (root / TRASH / "old/deep").mkdir(parents=True)
    (root / TRASH / "old/deep/file").touch()
    (root / TRASH / "file").touch()
    (root / TRASH / "link").symlink_to(outside)
    assert not remove(root, "/team/none")
    assert list((root / TRASH).iterdir()) == []
    assert tree(outside) == {"precious", "precious/file"}


def test_trash_that_vanishes_during_a_removal_is_a_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People remove it to make room. The volume must not count as removed."""
    rename = os.rename

    def remove_trash_first(source: str, target: str, **folders: int) -> None:
        (root / TRASH).rmdir()
        rename(source, target, **folders)

    with monkeypatch.context() as late:
        late.setattr(os, "rename", remove_trash_first)
        with pytest.raises(WorkerFailed, match="the trash has vanished"):
            move(root, "/team/data")
    assert move(root, "/team/data")


def test_trash_of_interrupted_runs_can_be_emptied_separately(root: Path, outside: Path) -> None:
    (root / TRASH / "old/deep").mkdir(parents=True)
    (root / TRASH / "link").symlink_to(outside)
    empty(root)
    assert list((root / TRASH).iterdir()) == []
    assert tree(root) == OTHERS | DATA
    assert tree(outside) == {"precious", "precious/file"}


def test_killed_run_leaves_the_directory_complete_or_removed(root: Path) -> None:
    """Kills the run at every system call that changes something; the next run completes the work."""
    for step in range(1, 30):
        data = root / "team/data"
        (data / "deep").mkdir(parents=True, exist_ok=True)
        (data / "deep/file").write_text("content")
        finished = _removal_killed_at(root, step)
        assert not data.exists() or tree(root) >= DATA
        remove(root, "/team/data")
        assert tree(root) == OTHERS
        if finished:
            return
    raise AssertionError("the removal has more steps than expected")


def _removal_killed_at(root: Path, step: int) -> bool:
    """Whether the removal ended before that step."""
    program = f"""
import os, sys
from pathlib import Path
from kube_efs.model.efs.directories import parse_directory
from kube_efs.provisioning.workers.file_system import empty_trash, move_to_trash
left = [{step}]
def killing(call):
    def killed(*a, **k):
        left[0] -= 1
        if not left[0]:
            os._exit(9)
        return call(*a, **k)
    return killed
for name in ("mkdir", "rename", "unlink", "rmdir"):
    setattr(os, name, killing(getattr(os, name)))
move_to_trash(Path(sys.argv[1]), parse_directory("/team/data"), base=parse_directory("/"))
empty_trash(Path(sys.argv[1]), lambda: True)
"""
    return subprocess.run([sys.executable, "-c", program, str(root)], check=False).returncode == 0


def test_directory_of_any_depth_is_removed(root: Path) -> None:
    """Deeper than the limits of Python's stack, path length and open files."""
    here = os.open(root / "team/data", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d" * 20, dir_fd=here)
        deeper = os.open("d" * 20, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    assert remove(root, "/team/data")
    assert tree(root) == OTHERS


def test_directory_with_a_name_of_full_length_is_removed(root: Path) -> None:
    name = "é" * 127
    (root / "team" / name).mkdir()
    assert remove(root, f"/team/{name}")
    assert tree(root) == OTHERS | DATA


def test_all_descriptors_are_closed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "x").symlink_to("team")
    make(root, "/team/new/deep")
    make(root, "/team/new/owned", OWNED)
    list_children(root, parse_directory("/team"))
    list_children(root, parse_directory("/none"))
    empty(root)
    remove(root, "/team/new")
    remove(root, "/none/none")
    for path in ("/x/data", "/x", f"/{TRASH}"):
        with pytest.raises(RemovalRefused):
            remove(root, path)
    with pytest.raises(WorkerFailed):
        make(root, "/x/data")
    with pytest.raises(WorkerFailed):
        list_children(root, parse_directory("/x/data"))
    monkeypatch.setattr(os, "fchown", _refused)
    with pytest.raises(WorkerFailed):
        make(root, "/team/refused", OWNED)
    assert descriptors_below(root) == []
