"""Copies of directories on a real file system: every kind of file, interruptions, refusals."""

import errno
import os
import random
import shutil
import stat
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unmounting import unmount

from kube_efs.model.copies import COPIES, SNAPSHOTS, Copied, CopyProgress, CopyTerms, FileOwner
from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.errors import CopyDiffers, KubeEfsError, WorkerFailed, WorkerRefused
from kube_efs.provisioning.workers import copying, tree_copy
from kube_efs.provisioning.workers.opening import OPEN_DIRECTORY
from kube_efs.provisioning.workers.trash import TRASH

SOURCE, TARGET = parse_directory("/claims/old"), parse_directory("/claims/new")
TERMS = CopyTerms(key="pvc-1", source=SOURCE)
DAY = 86_400
# Changes of the file system until the only file of a copy is complete, but not the copy.
_ALMOST_ALL = 27
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set owners and make devices")


@pytest.fixture
def efs(tmp_path: Path) -> Iterator[Path]:
    """A file system with a source, on tmpfs if possible, which has extended attributes."""
    made = tmp_path / "efs"
    made.mkdir()
    mounted = os.geteuid() == 0
    if mounted:
        assert os.system(f"mount -t tmpfs none {made}") == 0
    (made / "claims/old").mkdir(parents=True)
    yield made
    if mounted:
        unmount(made)


def copied(
    efs: Path,
    terms: CopyTerms = TERMS,
    target: Directory = TARGET,
    report: Callable[[CopyProgress], None] = lambda _: None,
) -> Copied:
    descriptor = os.open(efs, OPEN_DIRECTORY)
    try:
        return copying.copy_tree(descriptor, target, terms, report)
    finally:
        os.close(descriptor)


def at_first(happens: Callable[[], None]) -> Callable[..., None]:
    """Something that happens only at the first call, not at those during it either."""
    calls = count()

    def called(*_: object) -> None:
        if next(calls) == 0:
            happens()

    return called


def described(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a copy keeps, by the path below the directory."""
    found: dict[str, tuple[object, ...]] = {}
    inodes: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        state, name = path.lstat(), str(path.relative_to(folder))
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            # Of several names of a file, the first one stands for all.
            content = (path.read_bytes(), inodes.setdefault(state.st_ino, name), state.st_nlink)
        attributes = () if path.is_symlink() else tuple(sorted(os.listxattr(path)))
        values = tuple(os.getxattr(path, one) for one in attributes)
        owned = (state.st_mode, state.st_uid, state.st_gid, state.st_rdev)
        found[name] = (*owned, state.st_mtime_ns, content, attributes, values)
    return found


def filled(folder: Path) -> None:
    """Write every kind of file below the directory."""
    (folder / "sub/deeper").mkdir(parents=True)
    (folder / "sub/empty").mkdir(mode=0o711)
    (folder / "large").write_bytes(random.Random(1).randbytes(3_000_000))
    (folder / "sub/small").write_text("x")
    os.link(folder / "sub/small", folder / "sub/deeper/second name")
    (folder / "sub/nothing").touch(mode=0o640)
    (folder / "sub/link").symlink_to("../../elsewhere")
    (folder / "sub/line\nbreak").write_text("y")
    os.setxattr(folder / "sub/small", "user.colour", b"red")
    os.mkfifo(folder / "sub/pipe", 0o604)
    for number, path in enumerate(sorted(folder.rglob("*"))):
        os.utime(path, ns=(1_000_000_007 * number, 1_234_567_891 * number + 11), follow_symlinks=False)


def test_a_copy_has_all_that_the_source_has(efs: Path) -> None:
    filled(efs / "claims/old")
    done = copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")
    assert done.progress.entries == 10
    assert done.progress.copied_bytes == 3_000_002


@root_only
def test_owners_modes_and_devices_are_kept(efs: Path) -> None:
    filled(efs / "claims/old")
    os.chown(efs / "claims/old/sub", 7, 8)
    os.chown(efs / "claims/old/sub/link", 9, 10, follow_symlinks=False)
    os.chown(efs / "claims/old/large", 1, 2)
    (efs / "claims/old/large").chmod(0o6755)
    os.mknod(efs / "claims/old/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


@root_only
@pytest.mark.parametrize(
    ("owner", "source_owner"),
    [
        pytest.param(None, (1005, 1006), id="directory"),
        pytest.param(FileOwner(uid=1005, gid=1006), (0, 0), id="identity"),
    ],
)
def test_the_owner_of_the_source_becomes_the_owner_of_the_copy(
    efs: Path, owner: FileOwner | None, source_owner: tuple[int, int]
) -> None:
    for name, uid, gid in (("own", 1005, 1006), ("group", 33, 1006), ("other", 33, 44)):
        (efs / f"claims/old/{name}").touch()
        os.chown(efs / f"claims/old/{name}", uid, gid)
    os.chown(efs / "claims/old", *source_owner)
    (efs / "claims/new").mkdir()
    (efs / "claims/new").chmod(0o2770)
    os.chown(efs / "claims/new", 2001, 2002)
    copied(efs, CopyTerms(key="a", source=SOURCE, owner=owner, maps_owner=True))
    found = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in (efs / "claims/new").iterdir()}
    assert found == {"own": (2001, 2002), "group": (33, 2002), "other": (33, 44)}
    top = (efs / "claims/new").stat()
    assert (top.st_uid, top.st_gid, stat.S_IMODE(top.st_mode)) == (2001, 2002, 0o2770)


def test_without_a_directory_for_it_the_copy_is_like_the_source(efs: Path) -> None:
    (efs / "claims/old").chmod(0o1750)
    copied(efs)
    assert stat.S_IMODE((efs / "claims/new").stat().st_mode) == 0o1750


class _Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_after(calls: int) -> Iterator[Callable[[], bool]]:
    """Let that many changes of the file system happen, and no more; gives whether it came to that."""
    left, reached = calls, False
    names = (
        "mkdir open link symlink mknod chown fchown chmod fchmod utime rename sendfile fsync unlink rmdir "
        "setxattr"
    )
    former = {name: getattr(os, name) for name in names.split()}

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            nonlocal left, reached
            if left <= 0:
                reached = True
                raise _Killed
            left -= 1
            return call(*arguments, **options)

        return guarded

    for name, call in former.items():
        setattr(os, name, counted(call))
    try:
        yield lambda: reached
    finally:
        for name, call in former.items():
            setattr(os, name, call)


@settings(max_examples=40)
@given(kills=st.lists(st.integers(min_value=0, max_value=250), max_size=4))
def test_a_copy_that_is_killed_at_any_moment_continues(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int]
) -> None:
    efs = tmp_path_factory.mktemp("efs")
    (efs / "claims/old").mkdir(parents=True)
    filled(efs / "claims/old")
    (efs / "claims/new").mkdir()
    for calls in kills:
        with killed_after(calls) as was_killed, suppress(_Killed):
            copied(efs)
        is_complete = any((efs / "claims/new").iterdir())
        assert is_complete or was_killed()
        # Nobody ever sees a part of it.
        assert not is_complete or described(efs / "claims/new") == described(efs / "claims/old")
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_an_interrupted_copy_does_not_repeat_complete_files(efs: Path) -> None:
    filled(efs / "claims/old")
    with killed_after(60) as was_killed, pytest.raises(_Killed):
        copied(efs)
    assert was_killed()
    assert copied(efs).progress.copied_bytes < 3_000_002


def test_an_interrupted_copy_does_not_look_into_complete_directories(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(efs / "claims/old")
    ended_before_its_rename(efs)
    listed, former = [], os.scandir

    def scandir(folder: int) -> Any:
        listed.append(Path(f"/proc/self/fd/{folder}").readlink().name)
        return former(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    copied(efs)
    assert {name.split("-")[0] for name in listed} == {"new", "old", "tree", "links"}


def ended_before_its_rename(efs: Path) -> None:
    """An attempt that has copied all files."""
    blocker = efs / "claims/new/blocker"
    blocker.parent.mkdir()
    with pytest.raises(WorkerRefused):
        copied(efs, report=lambda _: blocker.touch())
    blocker.unlink()


def test_hard_links_survive_an_attempt_that_ends_before_its_rename(efs: Path) -> None:
    (efs / "claims/old/sub").mkdir()
    (efs / "claims/old/file").write_text("x")
    os.link(efs / "claims/old/file", efs / "claims/old/sub/second name")
    ended_before_its_rename(efs)
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_a_file_with_the_most_links_survives_an_attempt_that_ends_before_its_rename(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/file").write_text("x")
    os.link(efs / "claims/old/file", efs / "claims/old/second name")
    ended_before_its_rename(efs)

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(os, "link", refused)
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_a_copy_can_be_stopped_while_it_removes_its_names_of_links(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(efs / "claims/old")
    for number in range(3):
        (efs / f"claims/old/file {number}").touch()
        os.link(efs / f"claims/old/file {number}", efs / f"claims/old/second name {number}")
    monkeypatch.setattr(tree_copy, "_CHUNK", 1)
    former, removed = os.unlink, []

    def unlink(*arguments: Any, **options: Any) -> None:
        former(*arguments, **options)
        removed.append(arguments)

    def report(_: CopyProgress) -> None:
        if removed:
            raise WorkerFailed("was stopped", field="copy")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        with pytest.raises(WorkerFailed, match="was stopped"):
            copied(efs, report=report)
    assert len(removed) == 1
    assert not (efs / "claims/new").exists()
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_changes_between_two_attempts_are_copied(efs: Path) -> None:
    filled(efs / "claims/old")
    with killed_after(45), pytest.raises(_Killed):
        copied(efs)
    (efs / "claims/old/large").unlink()
    (efs / "claims/old/sub/small").write_text("changed")
    (efs / "claims/old/sub/nothing").unlink()
    (efs / "claims/old/sub/nothing").mkdir()
    (efs / "claims/old/sub/empty").rmdir()
    (efs / "claims/old/sub/empty").write_text("a file now")
    (efs / "claims/old/sub/pipe").unlink()
    if os.geteuid() == 0:
        os.chown(efs / "claims/old/sub/line\nbreak", 7, 8)
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def list_by_position(monkeypatch: pytest.MonkeyPatch, listed: Callable[[str], None] = lambda _: None) -> None:
    """A server that counts entries: after a removal, its next answer omits the one that moved up.

    ``listed`` is called with each name that was taken from the listing.
    """
    former = os.scandir

    @contextmanager
    def by_position(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        def entries() -> Iterator[os.DirEntry[str]]:
            position = 0
            while position < len(names := sorted(os.listdir(folder))):
                with former(folder) as listing:
                    entry = next(one for one in listing if one.name == names[position])
                yield entry
                listed(entry.name)
                position += 1

        yield entries()

    monkeypatch.setattr(os, "scandir", by_position)
    monkeypatch.setattr(tree_copy, "_CHUNK", 1)


def test_names_that_a_listing_omits_do_not_stay_in_the_copy(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(efs / "claims/old")
    for number in range(10):
        (efs / f"claims/old/file {number}").touch()
    with killed_after(90), pytest.raises(_Killed):
        copied(efs)
    gone = list((efs / "claims/old").glob("file *"))
    for path in gone:
        path.unlink()
    partial = next((efs / ".kube-efs-copies").rglob("tree-*"))
    assert sum((partial / path.name).exists() for path in gone) > 2
    with monkeypatch.context() as patched:
        list_by_position(patched)
        copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_names_that_a_listing_of_the_source_omits_are_copied(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = efs / "claims/old"
    for name in ("1", "2", "3", "4"):
        (old / name).write_text(name)
    (old / "5").mkdir()
    os.utime(old, (1, 1))

    def vanish(name: str) -> None:
        if name == "2":
            (old / "1").unlink(missing_ok=True)

    with monkeypatch.context() as patched:
        list_by_position(patched, vanish)
        copied(efs)
    assert {path.name for path in (efs / "claims/new").iterdir()} >= {path.name for path in old.iterdir()}


def test_directories_that_an_open_listing_omits_are_copied(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing stays open while the first of many directories are copied."""
    old = efs / "claims/old"
    for name in ("1", "2", "3", "4", "5"):
        (old / name / "below").mkdir(parents=True)
    os.utime(old, (1, 1))

    def vanish(name: str) -> None:
        if name == "2":
            shutil.rmtree(old / "1", ignore_errors=True)

    with monkeypatch.context() as patched:
        patched.setattr(tree_copy, "_FOLDERS_MAX", 1)
        list_by_position(patched, vanish)
        copied(efs)
    copies = {path.name: path for path in (efs / "claims/new").iterdir()}
    assert copies.keys() >= {"2", "3", "4", "5"}
    assert all((path / "below").is_dir() for path in copies.values())


@pytest.mark.parametrize("calls", range(0, 200, 25))
def test_a_copy_of_many_directories_that_is_killed_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    monkeypatch.setattr(tree_copy, "_CHUNK", 1)
    monkeypatch.setattr(tree_copy, "_FOLDERS_MAX", 2)
    efs = tmp_path / "efs"  # Not a mount: a killed copy leaves descriptors in this process.
    for number in range(5):
        (efs / f"claims/old/{number}/below").mkdir(parents=True)
        (efs / f"claims/old/{number}/file").write_text("x")
        os.link(efs / f"claims/old/{number}/file", efs / f"claims/old/{number}/below/second name")
    with killed_after(calls), suppress(_Killed):
        copied(efs)
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_a_file_that_is_already_copied_is_not_copied_again_by_a_second_listing(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/file").write_text("x")
    os.utime(efs / "claims/old", (1, 1))

    def change() -> None:
        with (efs / "claims/old/file").open("a") as file:
            file.write("y")
        (efs / "claims/old/file 2").touch()

    with monkeypatch.context() as patched:
        list_by_position(patched, at_first(change))
        progress = copied(efs).progress
    assert progress == CopyProgress(entries=2, copied_bytes=1)


def while_copying(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let it happen when the first data is copied."""
    once, former = at_first(happens), os.sendfile

    def send(*given: int) -> int:
        once()
        return former(*given)

    monkeypatch.setattr(os, "sendfile", send)


def test_a_directory_that_is_renamed_before_it_is_copied_is_not_missing(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = efs / "claims/old"
    for name in ("one", "two"):
        (old / name).mkdir()
        (old / name / "file").write_text(name)
    last = [entry.name for entry in os.scandir(old)][-1]
    with monkeypatch.context() as patched:
        while_copying(patched, partial(os.rename, old / last, old / "renamed"))
        copied(efs)
    assert (efs / "claims/new/renamed/file").read_text() == last


def test_a_directory_that_is_replaced_by_a_link_meanwhile_is_copied_as_that(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = efs / "claims/old"
    (old / "current").mkdir()
    (old / "current/data").write_text("first")
    (old / "file").write_text("first")

    def switch() -> None:
        (old / "current").rename(old / "v1")
        (old / "current").symlink_to("v1")

    with monkeypatch.context() as patched:
        while_copying(patched, switch)
        copied(efs)
    assert (efs / "claims/new/current").readlink() == Path("v1")
    assert (efs / "claims/new/v1/data").read_text() == "first"


def test_a_directory_with_a_stale_handle_is_not_missing(efs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (efs / "claims/old/sub").mkdir()
    (efs / "claims/old/sub/file").write_text("x")
    former, opened = os.open, count()

    def open_stale(name: Any, flags: int, *mode: int, **options: Any) -> int:
        if name == "sub" and next(opened) == 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return former(name, flags, *mode, **options)

    monkeypatch.setattr(os, "open", open_stale)
    with pytest.raises(WorkerFailed, match="Stale file handle"):
        copied(efs)
    copied(efs)
    assert (efs / "claims/new/sub/file").read_text() == "x"


def test_a_copy_in_progress_shows_regularly_that_it_is_continued(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would count as abandoned after seven days."""
    filled(efs / "claims/old")
    monkeypatch.setattr(copying, "_RENEWED_SECONDS", 0.0)
    key, times = efs / COPIES / TERMS.key, []

    def age(_progress: CopyProgress) -> None:
        times.append(key.stat().st_mtime)
        os.utime(key, (1, 1))

    copied(efs, report=age)
    assert any(one > 1 for one in times[1:-1])


def test_a_directory_that_always_changes_is_copied(efs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a busy mail server; otherwise it would never have a snapshot."""
    busy = efs / "claims/old/busy"
    busy.mkdir()
    (busy / "file").touch()
    seconds = count()

    def change(name: str) -> None:
        if name == "file":
            os.utime(busy, (1, next(seconds)))

    with monkeypatch.context() as patched:
        list_by_position(patched, change)
        copied(efs)
    assert next(seconds) > 1  # it was listed again
    assert described(efs / "claims/new").keys() == described(efs / "claims/old").keys()


def test_a_finished_copy_is_not_repeated_into_a_volume_in_use(efs: Path) -> None:
    (efs / "claims/old/file").write_text("old")
    first = copied(efs)
    (efs / "claims/new/file").write_text("written by its user")
    (efs / "claims/old/file").write_text("newer")
    assert copied(efs).finished == first.finished
    assert (efs / "claims/new/file").read_text() == "written by its user"
    (efs / "claims/new/file").unlink()
    copied(efs)
    assert not (efs / "claims/new/file").exists()


def test_an_attempt_that_continues_late_changes_nothing_in_the_volume(efs: Path) -> None:
    """Its process stands still for a while, and another attempt finishes the copy."""
    for name in ("one", "two"):
        (efs / f"claims/old/{name}").mkdir()
        (efs / f"claims/old/{name}/file").write_text("old")
    new = efs / "claims/new"

    def finished_and_used() -> None:
        copied(efs)
        for name in ("one", "two"):
            (new / name / "file").write_text("of a user")
            (new / name / "made").write_text("of a user")

    with pytest.raises(WorkerFailed, match=r"pvc-1.*was taken over by another attempt"):
        copied(efs, report=at_first(finished_and_used))
    found = {str(path.relative_to(new)): path.read_text() for path in new.rglob("*") if path.is_file()}
    assert found == dict.fromkeys(("one/file", "one/made", "two/file", "two/made"), "of a user")


def test_an_attempt_that_continues_late_removes_no_file_that_it_has_seen_before(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/file").write_text("old")
    with killed_after(_ALMOST_ALL), pytest.raises(_Killed):
        copied(efs)
    (efs / "claims/old/file").write_text("newer")  # So the late attempt must replace what there is.
    former, target = tree_copy.stat_or_none, efs / "claims/new/file"

    def finished_and_used() -> None:
        copied(efs)
        target.write_text("of a user")

    finish = at_first(finished_and_used)

    def seen(name: str, folder: int) -> os.stat_result | None:
        found = former(name, folder)
        if Path(f"/proc/self/fd/{folder}").readlink().name.startswith("tree-") and name == "file":
            finish()
        return found

    monkeypatch.setattr(tree_copy, "stat_or_none", seen)
    with pytest.raises(WorkerFailed, match="was taken over"):
        copied(efs)
    assert target.read_text() == "of a user"


def test_an_attempt_stops_when_another_one_has_taken_over(efs: Path) -> None:
    """Otherwise both work on the same files, and the first rename shows what the other one has not ended."""
    filled(efs / "claims/old")

    def stopped(_: CopyProgress) -> None:
        raise WorkerFailed("was stopped", field="copy")

    def taken_over() -> None:
        with pytest.raises(WorkerFailed, match="was stopped"):
            copied(efs, report=stopped)

    with pytest.raises(WorkerFailed, match="was taken over"):
        copied(efs, report=at_first(taken_over))
    assert not (efs / "claims/new").exists()
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_a_directory_with_contents_is_refused_and_stays(efs: Path) -> None:
    (efs / "claims/old/file").write_text("old")
    (efs / "claims/new").mkdir()
    (efs / "claims/new/file").write_text("of somebody else")
    for _ in range(2):
        with pytest.raises(WorkerRefused, match=r"/claims/new.*exists and is not empty"):
            copied(efs)
    assert (efs / "claims/new/file").read_text() == "of somebody else"


def test_a_directory_with_contents_is_refused_before_anything_is_copied(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/new/of somebody else").mkdir(parents=True)
    monkeypatch.setattr(copying, "TreeCopier", None)
    with pytest.raises(WorkerRefused, match=r"/claims/new.*exists and is not empty"):
        copied(efs)


def test_an_empty_directory_of_others_is_refused_but_not_a_finished_copy(efs: Path) -> None:
    place = efs / "claims/new"
    place.mkdir(parents=True)
    with pytest.raises(WorkerRefused, match=r"/claims/new.*exists and is used by another volume"):
        copied(efs, replace(TERMS, in_use=True))
    assert place.is_dir()
    copied(efs)
    assert copied(efs, replace(TERMS, in_use=True)).progress.entries == 0


@pytest.mark.parametrize("thing", ["file", "link"])
def test_a_link_or_file_in_its_place_is_refused(efs: Path, thing: str) -> None:
    place = efs / "claims/new"
    place.symlink_to("old") if thing == "link" else place.touch()
    with pytest.raises(WorkerRefused, match="is a link or file"):
        copied(efs)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("/", "/new"),
        ("/claims", "/claims/new"),
        ("/claims/old", "/claims/old"),
        ("/claims/old/x", "/claims/old"),
    ],
)
def test_a_directory_is_not_copied_into_itself(efs: Path, source: str, target: str) -> None:
    terms = CopyTerms(key="a", source=parse_directory(source))
    with pytest.raises(WorkerRefused, match="is, contains or is inside"):
        copied(efs, terms, parse_directory(target))


def test_a_missing_source_is_refused_unless_it_may_be_empty(efs: Path) -> None:
    missing = parse_directory("/claims/missing")
    with pytest.raises(WorkerRefused, match=r"/claims/missing.*does not exist"):
        copied(efs, CopyTerms(key="a", source=missing))
    copied(efs, CopyTerms(key="b", source=missing, may_be_missing=True))
    assert list((efs / "claims/new").iterdir()) == []


def test_a_copy_of_a_missing_source_that_is_given_up_is_not_completed(efs: Path) -> None:
    def give_up(_progress: CopyProgress) -> None:
        raise WorkerFailed("was stopped", field="copy", value="new")

    terms = CopyTerms(key="b", source=parse_directory("/claims/missing"), may_be_missing=True)
    with pytest.raises(WorkerFailed, match="was stopped"):
        copied(efs, terms, report=give_up)
    assert not (efs / "claims/new").exists()


def test_a_source_that_is_missing_after_a_part_was_copied_is_refused(efs: Path) -> None:
    (efs / "claims/old/order").write_text("paid")
    with killed_after(_ALMOST_ALL), pytest.raises(_Killed):
        copied(efs)
    shutil.rmtree(efs / "claims/old")
    with pytest.raises(WorkerRefused, match="does not exist any more, and only a part of it was copied"):
        copied(efs, CopyTerms(key=TERMS.key, source=SOURCE, may_be_missing=True))
    assert not (efs / "claims/new").exists()


def test_a_source_behind_a_link_is_refused(efs: Path) -> None:
    (efs / "link").symlink_to("claims")
    with pytest.raises(WorkerRefused, match=r"/link/old.*cannot be read"):
        copied(efs, CopyTerms(key="a", source=parse_directory("/link/old")))


def test_an_attempt_with_another_source_begins_again(efs: Path) -> None:
    filled(efs / "claims/old")
    with killed_after(40), pytest.raises(_Killed):
        copied(efs)
    (efs / "claims/other").mkdir()
    (efs / "claims/other/file").write_text("other")
    copied(efs, CopyTerms(key=TERMS.key, source=parse_directory("/claims/other")))
    assert described(efs / "claims/new") == described(efs / "claims/other")


@pytest.mark.parametrize("in_reverse", [False, True])
def test_a_copy_of_another_source_that_is_killed_at_any_moment_keeps_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_reverse: bool
) -> None:
    """A file of the first would count as copied here, because the sizes and times of both are the same."""

    def list_in_order(folder: int) -> list[str]:
        return sorted(listdir(folder), reverse=in_reverse)

    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", list_in_order)
    other = CopyTerms(key=TERMS.key, source=parse_directory("/claims/other"))
    for name, content in (("old", "x"), ("other", "y")):
        folder = tmp_path / "claims" / name
        folder.mkdir(parents=True)
        (folder / "file").write_text(content)
        os.utime(folder / "file", (1, 1))
    was_complete = False
    for calls in count():
        with killed_after(_ALMOST_ALL), pytest.raises(_Killed):
            copied(tmp_path)
        assert next((tmp_path / COPIES / TERMS.key).glob("tree-*/file")).read_text() == "x"
        with killed_after(calls), suppress(_Killed):
            copied(tmp_path, other)
            was_complete = True
        copied(tmp_path, other)
        assert (tmp_path / "claims/new/file").read_text() == "y"
        if was_complete:
            break
        shutil.rmtree(tmp_path / "claims/new")
        shutil.rmtree(tmp_path / COPIES)


def test_a_finished_copy_belongs_to_one_source(efs: Path) -> None:
    copied(efs)
    (efs / "claims/other").mkdir()
    terms = CopyTerms(key=TERMS.key, source=parse_directory("/claims/other"))
    with pytest.raises(CopyDiffers, match=r"pvc-1.*copy of another directory"):
        copied(efs, terms)


def test_a_file_that_cannot_be_read_fails_the_copy_with_its_name(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/sub").mkdir()
    (efs / "claims/old/sub/file").write_text("x")

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "sendfile", denied)
    with pytest.raises(WorkerFailed, match=r"sub/file.*Permission denied"):
        copied(efs)
    assert not (efs / "claims/new").exists()


def test_a_failed_copy_closes_no_directory_while_a_thread_works_in_it(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the process opens a directory, and the number becomes that of another volume."""
    sub = efs / "claims/old/sub"
    sub.mkdir()
    for name in ("one", "two"):
        (sub / name).write_text("x")
    bad = next(sub.iterdir()).name  # The copy begins with it, too.
    tasks: list[Future[Any]] = []
    unfinished: list[str] = []
    ends = threading.Event()
    sendfile, close = os.sendfile, os.close

    class Threads(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
            tasks.append(super().submit(*arguments, **options))
            return tasks[-1]

        def shutdown(self, *arguments: Any, **options: Any) -> None:
            ends.set()
            super().shutdown(*arguments, **options)

    def sent(out: int, data: int, *numbers: int) -> int:
        if Path(f"/proc/self/fd/{data}").readlink().name == bad:
            raise PermissionError(13, "Permission denied")
        assert ends.wait(10)  # It is still in progress when the other one has failed.
        return sendfile(out, data, *numbers)

    def closed(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "sub":
            unfinished.extend("sub" for task in tasks if not task.done())
            ends.set()
        close(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "ThreadPoolExecutor", Threads)
        patched.setattr(os, "sendfile", sent)
        patched.setattr(os, "close", closed)
        with pytest.raises(WorkerFailed, match=rf"sub/{bad}.*Permission denied"):
            copied(efs)
    assert len(tasks) == 2
    assert unfinished == []


def test_a_file_whose_data_was_not_stored_is_copied_again(efs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS client writes data later, and reports only at the fsync or the close that it has lost some."""
    (efs / "claims/old/file").write_text("data")

    def lost(copy: int) -> None:
        os.pwrite(copy, bytes(2), 1)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lost)
        with pytest.raises(WorkerFailed, match=r"file.*Input/output error"):
            copied(efs)
    copied(efs)
    assert (efs / "claims/new/file").read_text() == "data"


def test_files_that_vanish_meanwhile_are_left_out(efs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "third"):
        (efs / "claims/old" / name).write_text("x" * 10)
    former = os.sendfile

    def stale(out: int, data: int, offset: int, count: int) -> int:
        if Path(f"/proc/self/fd/{data}").readlink().name.split(" ")[0] == "second":
            (efs / "claims/old/second").unlink(missing_ok=True)
            raise OSError(116, "Stale file handle")
        return former(out, data, offset, count)

    monkeypatch.setattr(os, "sendfile", stale)
    copied(efs)
    assert sorted(path.name for path in (efs / "claims/new").iterdir()) == ["first", "third"]


def test_a_tree_that_is_too_deep_fails_with_its_depth(efs: Path) -> None:
    (efs / "claims/old").joinpath(*["d"] * 210).mkdir(parents=True)
    with pytest.raises(KubeEfsError, match="deeper than 200 directories"):
        copied(efs)


def peak_bytes_of_a_copy(efs: Path, directories: int) -> int:
    for number in range(directories):
        (efs / f"claims/old/{directories}/{number}").mkdir(parents=True)
    source = parse_directory(f"/claims/old/{directories}")
    tracemalloc.start()
    try:
        copied(
            efs, CopyTerms(key=f"pvc-{directories}", source=source), parse_directory(f"/claims/{directories}")
        )
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_directories_in_a_directory(efs: Path) -> None:
    """Worker pods have no limit of memory, and a tenant makes as many directories as EFS stores."""
    few, many = peak_bytes_of_a_copy(efs, 1200), peak_bytes_of_a_copy(efs, 4800)
    assert len(list((efs / "claims/4800").iterdir())) == 4800
    assert many < few + 256 * 1024


def test_our_own_directories_are_not_copied(efs: Path) -> None:
    for name in copying.OURS:
        (efs / "claims/old" / name).mkdir()
    copied(efs)
    assert list((efs / "claims/new").iterdir()) == []


@pytest.mark.parametrize(("target", "mode"), [(f"/{SNAPSHOTS}/a", 0o700), ("/team/a", 0o755)])
def test_only_root_can_enter_the_directory_of_snapshots(efs: Path, target: str, mode: int) -> None:
    copied(efs, target=parse_directory(target))
    assert stat.S_IMODE((efs / target[1:]).parent.stat().st_mode) == mode
    assert stat.S_IMODE((efs / COPIES).stat().st_mode) == 0o700


class _Clock:
    """The clock of the server, which need not agree with the one here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        self._former = os.utime
        monkeypatch.setattr(os, "utime", self._utime)

    def _utime(self, place: Any, *times: Any, **options: Any) -> None:
        if not times and "ns" not in options:
            times = ((self.now, self.now),)
        self._former(place, *times, **options)


def discard_abandoned(efs: Path) -> None:
    descriptor = os.open(efs, OPEN_DIRECTORY)
    try:
        copying.discard_abandoned(descriptor)
    finally:
        os.close(descriptor)


def test_abandoned_copies_get_into_the_trash_by_the_clock_of_the_server(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/file").write_text("x")
    with killed_after(20), pytest.raises(_Killed):
        copied(efs)
    clock = _Clock(monkeypatch)
    os.utime(efs / COPIES / TERMS.key)
    for days in (0, 6):
        clock.now += days * DAY
        discard_abandoned(efs)
        assert (efs / COPIES / TERMS.key).exists()
    clock.now += 2 * DAY
    discard_abandoned(efs)
    assert list((efs / COPIES).iterdir()) == []
    assert len(list((efs / TRASH).iterdir())) == 1


@pytest.fixture
def abandoned(efs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An abandoned copy that lacks only its rename."""
    filled(efs / "claims/old")
    ended_before_its_rename(efs)
    clock = _Clock(monkeypatch)
    os.utime(efs / COPIES / TERMS.key)
    clock.now += 8 * DAY
    return efs / COPIES / TERMS.key


def test_a_copy_that_continues_at_that_moment_is_put_back_and_never_in_the_trash(
    efs: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = os.rename

    def renamed(*arguments: Any, **options: Any) -> None:
        if abandoned.exists():
            os.utime(abandoned)
        former(*arguments, **options)
        assert not (efs / TRASH).exists() or not any((efs / TRASH).iterdir())

    monkeypatch.setattr(os, "rename", renamed)
    discard_abandoned(efs)
    assert next(abandoned.glob("tree-*/large")).exists()


def test_a_copy_that_has_begun_again_is_not_replaced_by_the_abandoned_one(
    efs: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = os.rename

    def renamed(*arguments: Any, **options: Any) -> None:
        if abandoned.exists():
            os.utime(abandoned)
        former(*arguments, **options)
        if not abandoned.exists():
            (abandoned / "tree").mkdir(parents=True)

    monkeypatch.setattr(os, "rename", renamed)
    discard_abandoned(efs)
    assert list((efs / COPIES).iterdir()) == [abandoned]
    assert list((abandoned / "tree").iterdir()) == []
    assert len(list((efs / TRASH).iterdir())) == 1


def test_an_attempt_whose_copy_is_discarded_at_its_beginning_fails_and_the_next_one_is_complete(
    efs: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = os.utime
    discard = at_first(lambda: discard_abandoned(efs))

    def utime(*arguments: Any, **options: Any) -> None:
        discard()
        former(*arguments, **options)

    monkeypatch.setattr(os, "utime", utime)
    with pytest.raises(WorkerFailed, match=r"pvc-1.*or removed"):
        copied(efs)
    assert list((efs / "claims/new").iterdir()) == []
    copied(efs)
    assert described(efs / "claims/new") == described(efs / "claims/old")


def test_a_copy_that_is_removed_after_its_last_file_does_not_become_a_volume(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/file").write_text("x")
    former = os.rmdir

    def removed(*arguments: Any, **options: Any) -> None:
        former(*arguments, **options)
        (efs / COPIES / TERMS.key).rename(efs / "trash")

    monkeypatch.setattr(os, "rmdir", removed)
    with pytest.raises(WorkerFailed, match=r"pvc-1.*or removed"):
        copied(efs)
    assert not (efs / "claims/new").exists()


def test_an_attempt_that_is_taken_over_right_before_its_rename_does_not_make_the_volume(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check and the rename are one step, because the name of the tree belongs to the attempt."""
    (efs / "claims/old/file").write_text("x")
    former = os.rename

    def stopped(_: CopyProgress) -> None:
        raise WorkerFailed("was stopped", field="copy")

    def taken_over() -> None:
        (efs / "claims/old/file").write_text("newer")
        with pytest.raises(WorkerFailed, match="was stopped"):
            copied(efs, report=stopped)

    take_over = at_first(taken_over)

    def renamed(source: str, target: str, **options: Any) -> None:
        if target == "new":
            take_over()
        former(source, target, **options)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(WorkerFailed, match="was taken over"):
        copied(efs)
    assert not (efs / "claims/new").exists()
    copied(efs)
    assert (efs / "claims/new/file").read_text() == "newer"


def test_of_two_attempts_that_begin_at_the_same_moment_one_has_the_copy_at_most(
    efs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (efs / "claims/old/file").write_text("x")
    former = os.mkdir

    def finished_and_emptied() -> None:
        copied(efs)
        (efs / "claims/new/file").unlink()

    finish = at_first(finished_and_emptied)

    def made(name: str, *arguments: Any, **options: Any) -> None:
        if name.startswith("tree-"):
            finish()
        former(name, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", made)
    copied(efs)
    assert list((efs / "claims/new").iterdir()) == []


def test_a_copy_that_another_process_discards_does_not_end_the_round(
    efs: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: ["gone", *former(folder), "gone, too"])
    discard_abandoned(efs)
    assert not abandoned.exists()
