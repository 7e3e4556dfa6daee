"""Emptying the trash on a real file system: trees of every shape, stuck entries, turns, crashes."""

import itertools
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.provisioning.workers.descriptors import descriptors_below, open_descriptors
from tests.unmounting import unmount

from kube_efs.model.trash import TrashReport
from kube_efs.provisioning.workers import trash
from kube_efs.provisioning.workers.opening import OPEN_DIRECTORY
from kube_efs.provisioning.workers.trash import SLICE, entry_name, tenant_of

FORGOTTEN = "0123456789abcdef" * 2


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A trash directory, on tmpfs if possible: disks of test machines are slow for many files."""
    made = tmp_path / "trash"
    made.mkdir()
    mounted = os.geteuid() == 0
    if mounted:
        subprocess.run(["mount", "-t", "tmpfs", "none", str(made)], check=True, capture_output=True)
    yield made
    if mounted:
        unmount(made)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, OPEN_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def emptied(folder: Path, may_go_on: Callable[[], bool] = lambda: True) -> TrashReport:
    with opened(folder) as descriptor:
        return trash.empty(descriptor, may_go_on)


def steps(number: int) -> Callable[[], bool]:
    """A clock that allows that many steps."""
    left = itertools.count(number, -1)
    return lambda: next(left) > 0


def entry(folder: Path, tenant: str = "", files: int = 0) -> Path:
    made = folder / entry_name(tenant)
    made.mkdir()
    for number in range(files):
        (made / str(number)).touch()
    return made


# --- names


@given(st.from_regex(r"[a-z0-9]{0,12}", fullmatch=True), st.none() | st.integers(0, 2**64 - 1))
def test_entry_name_contains_its_tenant(tenant: str, inode: int | None) -> None:
    name = entry_name(tenant, inode)
    assert tenant_of(name) == tenant
    assert trash._inode_meant(name) == inode
    assert entry_name(tenant, inode) != name


@pytest.mark.parametrize(
    "name", [FORGOTTEN, "file", "a.b", f"Team.{FORGOTTEN}", f".{FORGOTTEN}", f"a.b.{FORGOTTEN}"]
)
def test_entry_with_an_unknown_name_has_no_tenant_and_is_removed(folder: Path, name: str) -> None:
    (folder / name / "deep").mkdir(parents=True)
    assert tenant_of(name) == ""
    assert emptied(folder) == TrashReport(removed=2)
    assert list(folder.iterdir()) == []


# --- shapes


def test_huge_directory_is_removed_in_little_memory(folder: Path) -> None:
    """Seventy thousand names of 200 bytes need more than 16 MB if all are read at once."""
    huge = entry(folder)
    with opened(huge) as descriptor:
        for number in range(70_000):
            os.close(os.open(f"{number:0200}", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    program = """
import os, resource, sys
from kube_efs.provisioning.workers import trash
def kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = kib()
report = trash.empty(os.open(sys.argv[1], trash.OPEN_DIRECTORY), lambda: True)
print(report.entries, report.removed, kib() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], check=True, capture_output=True, text=True
    )
    left, removed, grown_kib = map(int, done.stdout.split())
    assert (left, removed) == (0, 70_001)
    assert grown_kib < 4 * 1024


def deep(folder: Path, depth: int) -> None:
    """Create directories deeper than the longest path."""
    here = os.open(folder, OPEN_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=here)
        deeper = os.open("d" * 20, OPEN_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


def test_many_deep_directories_create_few_trash_entries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = entry(folder, "a")
    side = top.joinpath(*["s"] * 31)
    side.mkdir(parents=True)
    for number in range(700):
        (side / f"{number}/x").mkdir(parents=True)
    deep(side / "0/x", 100)
    most, rename = 0, os.rename

    def counting(*arguments: Any, **folders: Any) -> None:
        nonlocal most
        rename(*arguments, **folders)
        most = max(most, sum(1 for _ in folder.iterdir()))

    monkeypatch.setattr(os, "rename", counting)
    assert emptied(folder).entries == 0
    assert list(folder.iterdir()) == []
    assert 2 <= most <= 6


def test_deep_directory_needs_few_descriptors(folder: Path) -> None:
    deep(entry(folder), 2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 80, hard))
    try:
        assert emptied(folder).entries == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(folder.iterdir()) == []


def test_names_omitted_from_a_list_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may omit names of a directory that changes while it is listed."""
    entry(folder, "a", 100)
    scandir = os.scandir

    class Leaving:
        def __init__(self, folder: int) -> None:
            self._listing = scandir(folder)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return itertools.islice(iter(list(self._listing)), 0, None, 2)

        def __exit__(self, *_: object) -> None:
            self._listing.close()

    monkeypatch.setattr(os, "scandir", Leaving)
    with opened(folder) as descriptor:
        trash.empty(descriptor, lambda: True)
    monkeypatch.undo()
    assert list(folder.iterdir()) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "trash"
    (outside / "data").mkdir(parents=True)
    folder.mkdir()
    (entry(folder, "a") / "link").symlink_to(outside)
    (folder / entry_name("a")).symlink_to(outside)
    assert emptied(folder).entries == 0
    assert (outside / "data").is_dir()


# --- stuck entries


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """Neither root nor a server on its behalf can remove the file meanwhile."""
    if shutil.which("chattr") is None:
        pytest.skip("chattr cannot be found; it is in Debian's package e2fsprogs")
    if subprocess.run(["chattr", "+i", str(path)], check=False, capture_output=True).returncode:
        pytest.skip("the file system of temporary files has no immutable files")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_stuck_file_is_reported_and_blocks_no_other(tmp_path: Path) -> None:
    held, other = entry(tmp_path, "a"), entry(tmp_path, "b", 10)
    for number in range(20):
        (held / f"{number}/deeper").mkdir(parents=True)
        (held / f"{number}/deeper/file").touch()
    kept = held / "7/deeper/file"
    with immutable(kept):
        report = emptied(tmp_path)
        assert (report.entries, report.stuck, report.unfinished) == (1, 1, False)
        (example,) = report.examples
        assert str(example) == f"{held.name}/7/deeper/file (Operation not permitted)"
        assert not other.exists()
        assert [str(path.relative_to(held)) for path in sorted(held.rglob("*"))] == [
            "7",
            "7/deeper",
            "7/deeper/file",
        ]
        assert emptied(tmp_path) == TrashReport(entries=1, stuck=1, examples=report.examples)
    assert emptied(tmp_path) == TrashReport(removed=4)


def test_stuck_entries_are_counted_and_a_few_are_reported(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for number in range(15):
        entry(folder, f"t{number}", 2)
    with read_only(folder):
        report = emptied(folder)
    assert (report.entries, report.stuck, report.removed) == (15, 15, 0)
    assert {one.reason for one in report.examples} == {"Read-only file system"}
    assert len(report.examples) == 10


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(folder)], check=True, capture_output=True)

    mount("--bind", str(folder))
    try:
        mount("-o", "remount,ro,bind")
        yield
    finally:
        unmount(folder)


def test_stuck_entry_takes_a_limited_number_of_steps(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    entry(folder, "a", 3000)
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return True

    with read_only(folder):
        assert emptied(folder, count).stuck == 1
    assert looks < 1100


def test_entry_removed_concurrently_is_not_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of a former leader may work on the same trash."""
    for number in range(5):
        (entry(folder, "a", 3) / f"below-{number}").mkdir()
    for name in ("unlink", "rmdir"):
        monkeypatch.setattr(os, name, _done_by_another(getattr(os, name)))
    report = emptied(folder)
    assert (report.entries, report.stuck) == (0, 0)


def _done_by_another(call: Callable[..., None]) -> Callable[..., None]:
    def done(*arguments: Any, **folders: Any) -> None:
        call(*arguments, **folders)
        raise FileNotFoundError(2, "No such file or directory")

    return done


# --- turns


def test_small_directory_does_not_wait_for_a_huge_one_of_another_tenant(folder: Path) -> None:
    huge, small = entry(folder, "a", 20 * SLICE), entry(folder, "b", 1)
    report = emptied(folder, steps(2 * (SLICE + 10)))
    assert not small.exists()
    assert (report.entries, report.stuck, report.unfinished) == (1, 0, True)
    assert huge.is_dir()


def test_small_directory_does_not_wait_for_a_huge_one_of_its_tenant(folder: Path) -> None:
    entry(folder, "a", 20 * SLICE)
    small = entry(folder, "a", 1)
    emptied(folder, steps(2 * (SLICE + 10)))
    assert not small.exists()


def test_many_entries_of_a_tenant_do_not_delay_another(folder: Path) -> None:
    for _ in range(100):
        entry(folder, "a", SLICE)
    small = [entry(folder, "b", 1) for _ in range(3)]
    emptied(folder, steps(4 * (SLICE + 10) + 150))
    assert not any(one.exists() for one in small)


def test_later_runs_remove_the_rest(folder: Path) -> None:
    for tenant in ("a", "b"):
        (entry(folder, tenant, 700) / "below/deeper").mkdir(parents=True)
    reports: list[TrashReport] = []
    while not reports or reports[-1].entries:
        reports.append(emptied(folder, steps(100)))
    assert sum(report.removed for report in reports) == 2 * 703
    assert 14 < len(reports) < 40
    assert all(report.removed for report in reports)


def test_nothing_is_removed_without_time_left(folder: Path) -> None:
    entry(folder, "a", 3)
    assert emptied(folder, lambda: False) == TrashReport(entries=1)


# --- crashes

_CALLS = ("open", "scandir", "unlink", "rmdir", "rename", "stat")


@pytest.mark.parametrize(
    "fault", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_next_run_finishes_after_any_failed_call_and_changes_nothing_outside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    outside = folder / "volume"
    (outside / "data").mkdir(parents=True)
    (outside / "data/file").write_text("content")
    for number in itertools.count(1):
        crashed = folder / f"trash-{number}"
        crashed.mkdir()
        _fill(crashed, outside)
        with opened(crashed) as descriptor, monkeypatch.context() as patch:
            left = itertools.count(number, -1)
            for name in _CALLS:
                patch.setattr(os, name, _failing(getattr(os, name), left, fault))
            with suppress(OSError, KeyboardInterrupt):
                trash.empty(descriptor, lambda: True)
        assert descriptors_below(folder) == []
        assert (outside / "data/file").read_text() == "content"
        assert (outside / "data/file").stat().st_nlink == 1 + sum(1 for _ in crashed.rglob("hard"))
        assert emptied(crashed).entries == 0
        assert list(crashed.iterdir()) == []
        if next(left) > 0:
            assert number > 60
            return


def _fill(folder: Path, outside: Path) -> None:
    top = folder / entry_name("a")
    top.joinpath(*["d"] * 35).mkdir(parents=True)
    (top / "d/file").touch()
    (top / "d/link").symlink_to(outside)
    os.link(outside / "data/file", top / "d/hard")
    meant = folder / "meant"
    meant.mkdir()
    meant.rename(folder / entry_name("b", meant.stat().st_ino))


def _failing(call: Callable[..., Any], left: Iterator[int], fault: BaseException) -> Callable[..., Any]:
    def once(*arguments: Any, **options: Any) -> Any:
        if next(left) == 1:
            raise fault
        return call(*arguments, **options)

    return once
