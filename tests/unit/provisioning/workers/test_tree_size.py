"""The size of a directory, on real files."""

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kube_efs.model.efs.directories import Directory, parse_directory
from kube_efs.model.errors import WorkerFailed
from kube_efs.provisioning.workers.orders import MeasuringTerms
from kube_efs.provisioning.workers.tree_size import Pace, measure_all, measure_tree

ROOT = Directory()
ALL = parse_directory("/all")


def unhurried() -> Pace:
    return Pace(entries_per_second=1e9, seconds=60)


def fill(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


@pytest.fixture
def all_kinds(tmp_path: Path) -> Path:
    """A directory with files, directories, hard links, symbolic links, a sparse file and a pipe."""
    top = tmp_path / "all"
    first = fill(top / "first", 100_000)
    fill(top / "below" / "deep" / "second", 5_000)
    os.link(first, top / "below" / "the-same")
    fill(tmp_path / "outside" / "large", 1_000_000)
    (top / "link-to-file").symlink_to(tmp_path / "outside" / "large")
    (top / "link-to-folder").symlink_to(tmp_path / "outside")
    with (top / "hole").open("wb") as file:
        file.truncate(10_000_000)
    os.mkfifo(top / "pipe")
    return tmp_path


def test_size_matches_du(all_kinds: Path) -> None:
    found = measure_tree(all_kinds, ALL, unhurried())
    shown = subprocess.run(
        ["du", "--summarize", "--block-size=1", str(all_kinds / "all")],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert found.used_bytes == int(shown.stdout.split()[0])
    # all, below, deep; first, second, two links, hole, pipe; a hard link is not counted again.
    assert (found.entries, found.complete) == (9, True)


def test_root_of_the_file_system_can_be_measured(all_kinds: Path) -> None:
    assert measure_tree(all_kinds, ROOT, unhurried()).used_bytes > 1_100_000


@pytest.mark.parametrize("path", ["/missing", "/all/link-to-folder", "/all/first", "/all/link-to-folder/x"])
def test_only_directories_can_be_measured(all_kinds: Path, path: str) -> None:
    with pytest.raises(WorkerFailed, match="could not be measured") as failure:
        measure_tree(all_kinds, parse_directory(path), unhurried())
    assert failure.value.value == path


def test_measurement_of_any_depth_uses_a_bounded_number_of_descriptors(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        child = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = child
    os.close(here)
    found = measure_tree(tmp_path, ROOT, unhurried())
    assert not found.complete
    assert 200 <= found.entries < 300


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> bool:
        self.now += seconds
        return False


def test_pace_limits_entries_per_second_and_total_time() -> None:
    clock = Clock()
    pace = Pace(entries_per_second=100, seconds=2, sleep=clock.sleep, clock=clock)
    steps = 1
    while pace.step():
        steps += 1
    assert clock.now == pytest.approx(2, abs=0.1)
    assert steps == pytest.approx(200, abs=10)


def test_measurement_that_times_out_gives_a_partial_size(tmp_path: Path) -> None:
    for number in range(200):
        fill(tmp_path / str(number), 10)
    clock = Clock()
    pace = Pace(entries_per_second=100, seconds=1, sleep=clock.sleep, clock=clock)
    found = measure_tree(tmp_path, ROOT, pace)
    assert not found.complete
    assert 90 <= found.entries <= 111


def test_directories_are_measured_in_order_and_a_missing_one_is_reported(all_kinds: Path) -> None:
    directories = [ALL, parse_directory("/missing"), parse_directory("/outside")]
    found = list(measure_all(all_kinds, directories, MeasuringTerms(entries_per_second=100_000)))
    assert [one.directory for one in found] == directories
    assert [one.size is not None for one in found] == [True, False, True]
    assert "No such file or directory" in found[1].problem


def test_directories_without_time_left_are_omitted(all_kinds: Path) -> None:
    assert list(measure_all(all_kinds, [ALL], MeasuringTerms(total_seconds=0))) == []


def test_measurement_stops_at_once_on_request(all_kinds: Path) -> None:
    closed = threading.Event()
    closed.set()
    began = time.monotonic()
    slow = MeasuringTerms(entries_per_second=1)
    [found] = measure_all(all_kinds, [ALL, parse_directory("/outside")], slow, closed.wait)
    assert found.size is not None
    assert not found.size.complete
    assert time.monotonic() - began < slow.total_seconds / 2
