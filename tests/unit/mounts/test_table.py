"""Questions to the mount table, the number of readings, and the parsed lines."""

import asyncio
import os
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.unmounting import unmount

from kube_efs.model.errors import PlatformError
from kube_efs.mounts import table
from kube_efs.mounts.mountinfo import MountEntry, parse_mountinfo, read_once
from kube_efs.mounts.table import MountTable

Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
A, B = Path("/a"), Path("/b")
IS_SILENT = pytest.mark.parametrize("answer", [None, True], ids=["silent kernel", "kernel that answers"])


def line(place: str, source: str = "127.0.0.1:/", number: int = 1) -> str:
    return f"{number} 1 0:50 / {place} rw - nfs4 {source} rw,port=22000\n"


@dataclass(slots=True)
class Readings:
    """Each reading returns the next text, then always the last one; ``answers`` are those of the kernel."""

    texts: list[str]
    is_whole: bool = True
    answers: dict[Path, bool | None] = field(default_factory=dict)
    count: int = 0
    failure: OSError | None = None

    def read(self) -> tuple[bytes, bool]:
        self.count += 1
        if self.failure:
            raise self.failure
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return os.fsencode(text), self.is_whole

    def table(self) -> MountTable:
        return MountTable(read=self.read, ask=self.answers.get)


@pytest.mark.parametrize(
    ("text", "place", "source"),
    [
        pytest.param(line("/a", "there") + line("/b"), "/a", "there", id="mounted"),
        pytest.param(line("/a", "first") + line("/b") + line("/a", "last"), "/a", "last", id="several"),
        pytest.param("", "/a", None, id="empty table"),
        pytest.param(
            line("/a/b") + line("/ab") + line("/"), "/a", None, id="only parents, children and siblings"
        ),
        pytest.param(
            line("/x", "/a") + "1 1 0:5 /a /x rw - tmpfs /a rw\n", "/a", None, id="mounts of the source"
        ),
        pytest.param(line(r"/a\040b\134c\011d"), "/a b\\c\td", "127.0.0.1:/", id="escapes"),
        pytest.param(line("/a#b") + line(r"/a\043c"), "/a#c", "127.0.0.1:/", id="ambiguous escape"),
        pytest.param(line(r"/a\\040b"), "/a b", None, id="no escape"),
        pytest.param(line("/ä\udcff"), "/ä\udcff", "127.0.0.1:/", id="not UTF-8"),
        pytest.param(line("/a//deleted"), "/a", None, id="removed in another namespace"),
        pytest.param(line("/a//deleted"), "/a/deleted", None, id="name like the mark"),
        pytest.param("1 1 0:50 / /a rw\n\nx\n1 2 3 4 /a x x x\n", "/a", None, id="invalid lines"),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
async def test_topmost_mount_at_the_path_is_found(
    text: str, place: str, source: str | None, is_whole: bool
) -> None:
    found = await Readings([text], is_whole).table().mounted_at(Path(place))
    assert (found and found.source) == source


@pytest.mark.parametrize("is_whole", [True, False], ids=["still", "changing"])
async def test_answer_of_the_kernel_avoids_readings(is_whole: bool) -> None:
    readings = Readings([line("/a")], is_whole, {A: True, B: False})
    mounts = readings.table()
    assert (await mounts.is_mounted(A), await mounts.is_mounted(B), await mounts.mounted_at(B)) == (
        True,
        False,
        None,
    )
    assert readings.count == 0
    assert await mounts.mounted_at(A)
    assert readings.count == 1


@IS_SILENT
async def test_mount_in_one_reading_is_sufficient_while_the_table_changes(answer: bool | None) -> None:
    readings = Readings([line("/a")], is_whole=False, answers={A: answer})
    assert await readings.table().mounted_at(A)
    assert readings.count == 1


@IS_SILENT
async def test_mount_missing_in_a_reading_is_found_by_the_next(answer: bool | None) -> None:
    readings = Readings(["", line("/b"), line("/a")], is_whole=False, answers={A: answer})
    assert await readings.table().mounted_at(A)
    assert readings.count == 3


async def test_changing_table_must_miss_a_mount_several_times_without_an_answer_of_the_kernel() -> None:
    readings = Readings([line("/b")], is_whole=False)
    assert await readings.table().is_mounted(A) is False
    assert readings.count == 5


async def test_mount_point_missing_in_the_table_is_an_error() -> None:
    with pytest.raises(
        PlatformError, match="mounts: '/a' is a mount point that is missing in the mount table"
    ):
        await Readings([""], answers={A: True}).table().mounted_at(A)


async def test_unreadable_table_is_an_error_and_is_read_again_later() -> None:
    readings = Readings([line("/a")], failure=FileNotFoundError(2, "No such file or directory"))
    mounts = readings.table()
    with pytest.raises(PlatformError) as caught:
        await mounts.mounted_at(A)
    assert str(caught.value) == (
        "mounts: '/proc/self/mountinfo' cannot be read (No such file or directory); mount /proc"
    )
    readings.failure = None
    assert await mounts.mounted_at(A)


async def test_mounted_paths_are_those_of_any_reading() -> None:
    texts = [line("/a") + line("/b"), line("/a"), line("/c"), line("/d")]
    places = {Path(name) for name in ("/a", "/b", "/c", "/d")}
    readings = Readings(texts)
    found = await readings.table().mounted_among(places, readings=3, pause_seconds=0)
    assert found == places - {Path("/d")}
    assert readings.count == 3


@pytest.mark.parametrize("mark", ["//deleted", r"\040(deleted)"])
async def test_mount_point_removed_in_another_namespace_counts_as_mounted(mark: str) -> None:
    found = await Readings([line(f"/pods/x{mark}")]).table().mounted_among([Path("/pods/x"), A])
    assert found == {Path("/pods/x")}


@pytest.mark.parametrize(("answer", "is_mounted"), [(True, True), (None, True), (False, False)])
async def test_missing_path_counts_as_mounted_while_the_table_changes_unless_the_kernel_denies_it(
    answer: bool | None, is_mounted: bool
) -> None:
    readings = Readings([line("/b")], is_whole=False, answers={A: answer})
    assert (await readings.table().mounted_among([A, B]) == {A, B}) == is_mounted
    assert (await Readings([line("/b")], answers={A: answer}).table().mounted_among([A, B])) == {B}


@pytest.mark.parametrize(("is_whole", "count"), [(True, 1), (False, 5)])
async def test_mounts_of_a_source_are_found(is_whole: bool, count: int) -> None:
    name = "fs-1.efs.us-east-1.amazonaws.com"
    text = (
        line("/a", f"{name}:/x\\040y", 1)
        + line("/b", f"{name}:/x", 2)
        + line("/c", f"{name}:/x\\040y", 3)
        + line(f"/{name}:/x\\040y", "other", 4)
    )
    readings = Readings([text, ""], is_whole)
    found = await readings.table().mounted_from(f"{name}:/x y")
    assert [entry.mount_point for entry in found] == [Path("/a"), Path("/c")]
    assert readings.count == count


@dataclass(slots=True)
class Gated:
    """Readings that wait; each shows a mount at its number."""

    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    begun: int = 0

    def read(self) -> tuple[bytes, bool]:
        self.begun += 1
        text = line(f"/{self.begun}").encode()
        assert self.gate.acquire(timeout=30)
        return text, True

    async def has_begun(self, count: int) -> bool:
        return self.begun == count


async def question(mounts: MountTable) -> "asyncio.Task[frozenset[Path]]":
    """A pending call, whose answer is the number of the reading it used."""
    numbers = [Path(f"/{number}") for number in range(1, 10)]
    task = asyncio.create_task(mounts.mounted_among(numbers, readings=1))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_calls_during_a_reading_share_the_next_one(eventually: Eventually) -> None:
    gated = Gated()
    mounts = MountTable(read=gated.read)
    first = await question(mounts)
    await eventually(lambda: gated.has_begun(1))
    later = [await question(mounts) for _ in range(20)]
    gated.gate.release()
    await eventually(lambda: gated.has_begun(2))
    latest = await question(mounts)
    gated.gate.release(2)
    assert await first == {Path("/1")}
    assert await asyncio.gather(*later) == [{Path("/2")}] * 20
    assert await latest == {Path("/3")}
    assert gated.begun == 3


async def test_only_lines_of_requested_paths_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []

    def parse(text: str) -> tuple[MountEntry, ...]:
        parsed.append(text)
        return parse_mountinfo(text)

    monkeypatch.setattr(table, "parse_mountinfo", parse)
    lines = [
        line(f"/pods/{number}/volumes/kubernetes.io~csi/pv/mount", number=number) for number in range(6100)
    ]
    readings = Readings(["".join(lines)], is_whole=False)
    mounts = readings.table()
    places = [Path(f"/pods/{number}/volumes/kubernetes.io~csi/pv/mount") for number in range(0, 6100, 305)]
    found = await asyncio.gather(*(mounts.mounted_at(place) for place in places))
    assert [one.mount_point for one in found if one] == places
    assert readings.count <= 2
    assert sum(text.count(" - nfs4 ") for text in parsed) == len(places) == 20


@contextmanager
def changing_mounts() -> Iterator[Path]:
    """A directory with a permanent mount, while another one is mounted and unmounted all the time."""
    with tempfile.TemporaryDirectory(prefix="table-") as name:
        folder, is_over = Path(name), threading.Event()
        subprocess.run(["mount", "-t", "tmpfs", "none", name], check=True)
        subprocess.run(["mount", "--make-private", name], check=True)

        def change() -> None:
            while not is_over.is_set():
                subprocess.run(["mount", "-t", "tmpfs", "none", str(folder / "foreign")], check=True)
                unmount(folder / "foreign")

        for one in ("foreign", "stays", "free"):
            (folder / one).mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(folder / "stays")], check=True)
        changing = threading.Thread(target=change)
        changing.start()
        try:
            yield folder
        finally:
            is_over.set()
            changing.join()
            unmount(folder, "--recursive")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_real_table_is_read_once_while_foreign_mounts_change() -> None:
    readings = 0

    def read() -> tuple[bytes, bool]:
        nonlocal readings
        readings += 1
        text, _ = read_once()
        return text, False  # as if the foreign mount had always come in between

    async def ask(folder: Path) -> None:
        nonlocal readings
        mounts = MountTable(read=read)
        for _ in range(50):
            readings = 0
            there = await mounts.mounted_at(folder / "stays")
            assert there
            assert there.file_system_type == "tmpfs"
            assert await mounts.mounted_at(folder / "free") is None
            assert readings == 1

    with changing_mounts() as folder:
        asyncio.run(ask(folder))
