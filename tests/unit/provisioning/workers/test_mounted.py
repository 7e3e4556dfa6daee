"""Directories of file systems that are mounted in this process's namespace, with real mounts."""

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.provisioning.orders import stands
from tests.unmounting import unmount

from kube_efs.model.copies import COPIES, CopyProgress, CopyTerms
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import (
    InvalidValue,
    NotYet,
    PlatformError,
    RemovalRefused,
    WorkerFailed,
    WorkerRefused,
)
from kube_efs.model.trash import TrashReport
from kube_efs.model.volumes import Location
from kube_efs.mounts.mountinfo import read_mountinfo
from kube_efs.provisioning.workers import copying, file_system
from kube_efs.provisioning.workers import mounted as mounted_workers
from kube_efs.provisioning.workers.contract import Protection
from kube_efs.provisioning.workers.mounted import Mounted, MountedDirectories, find_mounted
from kube_efs.provisioning.workers.orders import EmptyingTerms, MeasuringTerms
from kube_efs.provisioning.workers.trash import TRASH

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

FILE_SYSTEM = FileSystemId("fs-1")
WHOLE = Location(file_system_id=FILE_SYSTEM, directory=Directory())
# All processes share the mounts, also another run of these tests.
SERVER = f"fs-1.efs.test-{os.getpid()}.amazonaws.com"
OTHER_SERVER = f"fs-2.efs.test-{os.getpid()}.amazonaws.com"
ROOT = Directory()
OWNED = Permissions(mode=0o2771, gid=2001, enforced=True)

Mount = Callable[[str, str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a tmpfs with that source on a directory of that name, until the test ends."""

    def mount(source: str, name: str) -> Path:
        point = tmp_path / name
        point.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", source, str(point)], check=True, capture_output=True)
        return point

    yield mount
    for entry in reversed(read_mountinfo()):
        if entry.mount_point.is_relative_to(tmp_path):
            unmount(entry.mount_point)


def at(path: str, file_system_id: FileSystemId = FILE_SYSTEM) -> Location:
    return Location(file_system_id=file_system_id, directory=parse_directory(path))


@asynccontextmanager
async def working(*mounts: Mounted, seconds: float = 20) -> AsyncIterator[MountedDirectories]:
    async with asyncio.timeout(20), MountedDirectories(mounts, timeout_seconds=seconds) as directories:
        yield directories


async def found(source: str = f"{SERVER}:/") -> Mounted:
    return await find_mounted(FILE_SYSTEM, server=source.partition(":")[0])


# --- finding


@pytest.mark.parametrize(
    ("source", "base"), [("/", "/"), ("/persistentvolumes", "/persistentvolumes"), ("/a//b/", "/a/b")]
)
async def test_mount_of_the_server_is_found(mount: Mount, source: str, base: str) -> None:
    mount(f"{SERVER}.cn:/", "china")
    point = mount(f"{SERVER}:{source}", "a b")
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER)
    assert (mounted.file_system_id, mounted.mount_point, mounted.base) == (
        FILE_SYSTEM,
        point,
        parse_directory(base),
    )
    assert (mounted.device, mounted.inode) == (point.stat().st_dev, point.stat().st_ino)


async def test_first_of_several_mounts_is_used_and_logged(mount: Mount) -> None:
    first = mount(f"{SERVER}:/b", "first")
    second = mount(f"{SERVER}:/a", "second")
    with capture_logs() as logs:
        mounted = await find_mounted(FILE_SYSTEM, server=SERVER)
    assert (mounted.mount_point, str(mounted.base)) == (first, "/b")
    assert [(line["event"], line["taken"], line["others"]) for line in logs] == [
        ("mounted-more-than-once", str(first), [str(second)])
    ]


async def test_error_lists_all_mounts_when_the_server_is_not_mounted(mount: Mount) -> None:
    other = mount(f"{SERVER}.cn:/", "china")
    with pytest.raises(PlatformError) as caught:
        await find_mounted(FILE_SYSTEM, server=SERVER)
    error = caught.value
    assert (error.field, error.value) == ("server", SERVER)
    assert error.problem.startswith("is not mounted in this pod, which has ")
    assert f"{SERVER}.cn:/:{other}" in error.problem
    assert "proc:/proc" in error.problem
    assert error.remedy == "mount it as an NFS volume of the pod, or set where it is mounted"


async def test_configured_mount_path_can_have_another_server(mount: Mount) -> None:
    mount(f"{SERVER}:/", "other")
    point = mount("127.0.0.1:/a", "tunnelled")
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point)
    assert (mounted.mount_point, str(mounted.base), mounted.source) == (point, "/a", "127.0.0.1:/a")


@pytest.mark.parametrize("source", ["127.0.0.1:/", "none"], ids=["access point", "bind mount"])
async def test_configured_base_of_a_mount_path_is_used(mount: Mount, source: str) -> None:
    point, base = mount(source, "x"), parse_directory("/app/data")
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=base)
    assert (mounted.mount_point, mounted.base, mounted.source) == (point, base, source)


async def test_export_of_the_server_overrides_the_configured_base(mount: Mount) -> None:
    point = mount(f"{SERVER}:/app/data", "x")
    with capture_logs() as logs:
        for said in ("/app/data", "/elsewhere"):
            mounted = await find_mounted(
                FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory(said)
            )
            assert str(mounted.base) == "/app/data"
    assert [(log["event"], log["said"]) for log in logs] == [("mount-has-another-directory", "/elsewhere")]


async def test_mount_of_the_base_is_used_among_several(mount: Mount) -> None:
    mount(f"{SERVER}:/b", "first")
    second = mount(f"{SERVER}:/a", "second")
    with capture_logs() as logs:
        mounted = await find_mounted(FILE_SYSTEM, server=SERVER, base=parse_directory("/a"))
    assert (mounted.mount_point, logs) == (second, [])
    with pytest.raises(PlatformError) as caught:
        await find_mounted(FILE_SYSTEM, server=SERVER, base=parse_directory("/c"))
    assert caught.value.problem.startswith("is not mounted with its directory /c in this pod, which has ")


async def test_base_can_be_below_the_mount(mount: Mount) -> None:
    root = mount(f"{SERVER}:/", "root")
    part = mount(f"{SERVER}:/a", "part")
    for base, expected in [("/b/c", (root, "/")), ("/a/b", (part, "/a")), ("/ab", (root, "/"))]:
        with capture_logs() as logs:
            mounted = await find_mounted(FILE_SYSTEM, server=SERVER, base=parse_directory(base))
        assert ((mounted.mount_point, str(mounted.base)), logs) == (expected, [])
    async with working(mounted) as directories:
        await directories.make(at("/ab/data"), OWNED)
        assert (root / "ab/data").is_dir()
        await directories.remove(at("/ab/data"), parse_directory("/ab"), stands)
        assert not (root / "ab/data").exists()


@pytest.mark.parametrize(
    ("source", "problem", "remedy"),
    [
        (None, "is not a mount point in this pod", "mount the file system there"),
        ("none", "is not a mount of an NFS server in this pod", "configure which directory is mounted there"),
    ],
    ids=["no mount", "no export"],
)
async def test_mount_path_without_an_export_is_an_error(
    mount: Mount, tmp_path: Path, source: str | None, problem: str, remedy: str
) -> None:
    point = mount(source, "x") if source else tmp_path
    with pytest.raises(PlatformError) as caught:
        await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point)
    error = caught.value
    assert (error.field, error.value, error.remedy) == ("mount path", str(point), remedy)
    assert error.problem.startswith(f"{problem}, which has ")


async def test_covered_mount_is_an_error(mount: Mount) -> None:
    point = mount(f"{SERVER}:/", "x")
    mount("none", "x")
    with pytest.raises(PlatformError) as caught:
        await find_mounted(FILE_SYSTEM, server=SERVER)
    assert str(caught.value) == (f"mount: {str(point)!r} is covered by another mount; unmount what covers it")


# --- working


async def test_directories_are_created_listed_and_removed_below_the_mount(mount: Mount) -> None:
    point = mount(f"{SERVER}:/a/b", "x")
    async with working(await found()) as directories:
        await directories.make(at("/a/b/data-pvc-U"), OWNED)
        made = (point / "data-pvc-U").stat()
        assert (made.st_mode & 0o7777, made.st_uid, made.st_gid) == (0o2771, 0, 2001)
        assert await directories.children(at("/a/b")) == [FoundDirectory(name="data-pvc-U", gid=2001)]
        (point / "data-pvc-U/file").touch()
        await directories.remove(at("/a/b/data-pvc-U"), parse_directory("/a/b"), stands)
        assert await directories.children(at("/a/b")) == []
        assert await directories.children(at("/a/b/none")) == []
    assert [entry.name for entry in point.iterdir()] == [TRASH]
    assert [entry.name for entry in (point / TRASH).glob("*/*")] == ["file"]


async def test_mode_of_plain_directories_does_not_depend_on_the_umask(mount: Mount) -> None:
    point = mount(f"{SERVER}:/", "x")
    former = os.umask(0o077)
    try:
        async with working(await found()) as directories:
            await asyncio.gather(
                *(directories.make(at(f"/d{number}"), Permissions()) for number in range(40))
            )
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(former)
    modes = {entry.name: entry.stat().st_mode & 0o7777 for entry in point.iterdir() if entry.name != TRASH}
    assert modes == {f"d{number}": 0o777 for number in range(40)}


async def test_concurrent_removals_are_all_completed(mount: Mount) -> None:
    point = mount(f"{SERVER}:/", "x")
    for number in range(40):
        (point / f"d{number}/deep/deeper").mkdir(parents=True)
        (point / f"d{number}/deep/file").touch()
    async with working(await found()) as directories:
        with capture_logs() as logs:
            removals = (
                directories.remove(at(f"/d{number}"), ROOT, stands, tenant="4fa1") for number in range(40)
            )
            await asyncio.gather(*removals, directories.empty(WHOLE, EmptyingTerms()))
            await directories.empty(WHOLE, EmptyingTerms())
    assert [entry.name for entry in point.rglob("*")] == [TRASH]
    assert logs == []


async def test_nested_directories_are_accepted(mount: Mount) -> None:
    point = mount(f"{SERVER}:/a/b", "x")
    (point / "pv/foo").mkdir(parents=True)
    async with working(await found()) as directories:
        await directories.remove(at("/a/b/pv/foo"), parse_directory("/a"), stands)
    assert [entry.name for entry in (point / "pv").iterdir()] == []


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/foo/pv", id="another directory"),
        pytest.param("/a/bc/d", id="sibling with the same prefix"),
        pytest.param("/a/b", id="mount root"),
        pytest.param("/a", id="parent of the mount"),
        pytest.param("/a/c", id="sibling of the mount"),
    ],
)
async def test_nothing_outside_the_mount_is_changed(mount: Mount, path: str) -> None:
    point = mount(f"{SERVER}:/a/b", "x")
    for name in ("c/d", "pv", "d", "foo/pv", "a/b"):
        (point / name).mkdir(parents=True)
    before = sorted(point.rglob("*"))
    async with working(await found()) as directories:
        with pytest.raises(RemovalRefused) as refused:
            await directories.remove(at(path), ROOT, stands)
        assert (refused.value.field, refused.value.value) == ("directory", f"fs-1:{path}")
        with pytest.raises(InvalidValue) as invalid:
            await directories.make(at(path), OWNED)
        assert str(invalid.value) == (
            f"directory: 'fs-1:{path}' is not strictly below the directory that is mounted in this pod; "
            "check the path of its volume and the pod's mounts"
        )
    assert [path for path in sorted(point.rglob("*")) if path.name != TRASH] == before


async def test_nothing_outside_the_base_is_removed(mount: Mount) -> None:
    point = mount(f"{SERVER}:/a", "x")
    (point / "c").mkdir()
    (point / "base").mkdir()
    async with working(await found()) as directories:
        for path in ("/a/c", "/a/base"):
            with pytest.raises(RemovalRefused) as caught:
                await directories.remove(at(path), parse_directory("/a/base"), stands)
            assert caught.value.problem == "is not strictly inside the base directory"
    assert {entry.name for entry in point.iterdir()} - {TRASH} == {"base", "c"}


async def test_other_file_system_has_no_mount(mount: Mount) -> None:
    mount(f"{SERVER}:/", "x")
    async with working(await found()) as directories:
        for action in (
            directories.make(at("/a", FileSystemId("fs-2")), OWNED),
            directories.children(at("/", FileSystemId("fs-2"))),
        ):
            with pytest.raises(InvalidValue) as caught:
                await action
            assert caught.value.problem == "is not strictly below the directory that is mounted in this pod"


async def test_one_file_system_can_have_several_mounts(mount: Mount) -> None:
    first, second = mount(f"{SERVER}:/a", "first"), mount(f"{SERVER}:/b", "second")
    parts = [await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point) for point in (first, second)]
    async with working(*parts) as directories:
        await directories.make(at("/a/data"), OWNED)
        await directories.make(at("/b/data"), OWNED)
    assert [(point / "data").is_dir() for point in (first, second)] == [True, True]


async def test_measurement_uses_the_mount_of_each_directory_and_skips_nested_mounts(mount: Mount) -> None:
    first, second = mount(f"{SERVER}:/a", "first"), mount(f"{SERVER}:/b", "second")
    parts = [await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point) for point in (first, second)]
    for point, size in ((first, 8192), (second, 4096)):
        (point / "data").mkdir()
        (point / "data" / "file").write_bytes(b"x" * size)
    (first / "data" / "below").mkdir()
    (mount("elsewhere", "first/data/below") / "large").write_bytes(b"x" * 1_000_000)
    async with working(*parts) as directories:
        assert directories.holds(at("/b/data"))
        assert not directories.holds(at("/c/data"))
        wanted = [parse_directory("/a/data"), parse_directory("/b/data"), parse_directory("/b/none")]
        measured = await directories.measure(WHOLE, wanted, MeasuringTerms())
        with pytest.raises(InvalidValue, match="is not strictly below"):
            await directories.measure(WHOLE, [parse_directory("/c/data")], MeasuringTerms())
    assert [one.directory for one in measured] == wanted
    assert [one.size.used_bytes if one.size else None for one in measured] == [8192, 4096, None]
    assert "No such file or directory" in measured[2].problem


async def test_link_is_not_followed(mount: Mount, tmp_path: Path) -> None:
    point = mount(f"{SERVER}:/", "x")
    (tmp_path / "outside/data").mkdir(parents=True)
    (point / "link").symlink_to(tmp_path / "outside")
    async with working(await found()) as directories:
        with pytest.raises(WorkerRefused) as caught:
            await directories.remove(at("/link/data"), ROOT, stands)
        assert caught.value.remedy == "check it; a volume's directory is never a link"
        with pytest.raises(WorkerFailed):
            await directories.make(at("/link/more"), OWNED)
    assert [entry.name for entry in (tmp_path / "outside").iterdir()] == ["data"]


async def test_emptying_the_trash_does_not_delay_other_work(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = mount(f"{SERVER}:/", "x")
    (point / TRASH / "old/deep").mkdir(parents=True)
    begun, go_on = threading.Event(), threading.Event()
    rmdir = os.rmdir
    removed: list[FileSystemId] = []

    def slow(*arguments: Any, **folders: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        rmdir(*arguments, **folders)

    monkeypatch.setattr(os, "rmdir", slow)
    async with working(await found(), seconds=5) as directories:
        directories.on_removed(removed.append)
        emptying = asyncio.create_task(directories.empty(WHOLE, EmptyingTerms(seconds=60)))
        await asyncio.to_thread(begun.wait, 20)
        await directories.make(at("/data"), OWNED)
        await directories.remove(at("/data"), ROOT, stands)
        assert removed == [FILE_SYSTEM]
        go_on.set()
        report = await emptying
    assert (report.entries, report.removed) == (0, 3)
    assert directories.roots() == {WHOLE}


async def test_emptying_stops_at_its_next_step_on_close(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = mount(f"{SERVER}:/", "x")
    for number in range(100):
        (point / TRASH / f"old/{number}").mkdir(parents=True)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    rmdir, empty = os.rmdir, file_system.empty_trash

    def slow(*arguments: Any, **folders: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        rmdir(*arguments, **folders)

    def noticing(*arguments: Any) -> Any:
        try:
            return empty(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(os, "rmdir", slow)
    monkeypatch.setattr(file_system, "empty_trash", noticing)
    async with working(await found()) as directories:
        emptying = asyncio.create_task(directories.empty(WHOLE, EmptyingTerms(seconds=60)))
        await asyncio.to_thread(begun.wait, 20)
        emptying.cancel()
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 20)
    assert len(list((point / TRASH / "old").iterdir())) == 99


async def test_each_mount_of_a_file_system_has_a_trash(mount: Mount) -> None:
    first, second = mount(f"{SERVER}:/a", "first"), mount(f"{SERVER}:/b", "second")
    parts = [await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point) for point in (first, second)]
    for point in (first, second):
        (point / TRASH / "old").mkdir(parents=True)
    async with working(*parts) as directories:
        report = await directories.empty(WHOLE, EmptyingTerms())
    assert report == TrashReport(removed=2)


async def test_trash_that_is_not_a_directory_blocks_no_other_work(mount: Mount) -> None:
    point = mount(f"{SERVER}:/", "x")
    (point / TRASH).touch()
    async with working(await found()) as directories:
        with pytest.raises(WorkerRefused, match="is not a directory"):
            await directories.empty(WHOLE, EmptyingTerms())
        await directories.make(at("/data"), OWNED)


# --- mounts that change or hang

RESTART = "restart the pod, so that its volumes are mounted again"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            lambda mount, point: unmount(point), "has nothing mounted instead of {source}", id="mount lost"
        ),
        pytest.param(
            lambda mount, point: mount(f"{OTHER_SERVER}:/", "x"),
            f"has {OTHER_SERVER}:/ mounted instead of {{source}}",
            id="covered by another mount",
        ),
        pytest.param(
            lambda mount, point: mount(f"{SERVER}:/", "x"),
            "is another mount of {source} than at the start",
            id="same export mounted again",
        ),
    ],
)
async def test_nothing_is_written_when_the_mount_changed(
    mount: Mount, change: Callable[[Mount, Path], object], problem: str
) -> None:
    point = mount(f"{SERVER}:/", "x")
    (point / "data").mkdir()
    wanted = f"mount: {str(point)!r} {problem.format(source=f'{SERVER}:/')}; {RESTART}"
    async with working(await found()) as directories:
        await directories.make(at("/before"), OWNED)
        await directories.remove(at("/before"), ROOT, stands)
        change(mount, point)
        (point / "data").mkdir(exist_ok=True)
        for action in (
            directories.make(at("/new"), OWNED),
            directories.remove(at("/data"), ROOT, stands),
            directories.children(at("/")),
        ):
            with pytest.raises(WorkerFailed) as caught:
                await action
            assert str(caught.value) == wanted
    assert [entry.name for entry in point.iterdir()] == ["data"]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Blocks calls for directories named hang until the event, as an unreachable NFS server does."""
    answers = threading.Event()
    make = file_system.make_directory

    def make_or_hang(root: Path, directory: Directory, permissions: Permissions) -> bool:
        if directory.parts[-1].startswith("hang"):
            answers.wait(20)
        return make(root, directory, permissions)

    monkeypatch.setattr(file_system, "make_directory", make_or_hang)
    yield answers
    answers.set()


async def test_unresponsive_server_is_an_error_within_a_bounded_time(
    mount: Mount, hanging: threading.Event
) -> None:
    point, other = mount(f"{SERVER}:/", "x"), mount(f"{OTHER_SERVER}:/", "y")
    second = await find_mounted(FileSystemId("fs-2"), server=OTHER_SERVER)
    before = threading.active_count()
    async with working(await found(), second, seconds=2) as directories:
        hung = asyncio.gather(
            *(directories.make(at(f"/hang{number}"), OWNED) for number in range(20)), return_exceptions=True
        )
        await directories.make(at("/data", FileSystemId("fs-2")), OWNED)
        errors = await hung
        assert threading.active_count() - before <= 4 + 1 + 2
        hanging.set()
        await directories.remove(at("/none"), ROOT, stands)
    said = f"mount: {str(point)!r} did not answer within 2 s; check that its mount targets are reachable"
    assert {(type(error), str(error)) for error in errors} == {(WorkerFailed, said)}
    assert (other / "data").is_dir()


async def test_removal_that_was_given_up_before_its_first_step_never_begins(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = mount(f"{SERVER}:/", "x")
    (point / "data").mkdir()
    answers, check = threading.Event(), mounted_workers._check

    def check_late(mounted: Mounted) -> None:
        answers.wait(20)
        check(mounted)

    async with working(await found(), seconds=3) as directories:
        monkeypatch.setattr(mounted_workers, "_check", check_late)
        with pytest.raises(WorkerFailed, match="did not answer"):
            await directories.remove(at("/data"), ROOT, stands)
        with pytest.raises(WorkerFailed, match="did not answer"):
            await directories.settled(at("/data"))
        answers.set()
        await directories.settled(at("/data"))
    assert (point / "data").is_dir()


async def test_removal_after_one_that_hung_is_confirmed_when_it_can_begin(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = mount(f"{SERVER}:/", "x")
    for name in ("hang", "protected"):
        (point / name).mkdir()
    answers, move = threading.Event(), file_system.move_to_trash

    def move_or_hang(root: Path, directory: Directory, **options: Any) -> None:
        if directory.parts[-1] == "hang":
            answers.wait(20)
        move(root, directory, **options)

    monkeypatch.setattr(file_system, "move_to_trash", move_or_hang)
    confirmed_after_the_answer = []

    async def confirm() -> None:
        confirmed_after_the_answer.append(answers.is_set())
        raise RemovalRefused("is retained", field="volume", value="protected")

    async with working(await found(), seconds=3) as directories:
        with pytest.raises(WorkerFailed, match="did not answer"):
            await directories.remove(at("/hang"), ROOT, stands)
        with pytest.raises(WorkerFailed, match="did not answer"):
            await directories.remove(at("/protected"), ROOT, confirm)
        assert confirmed_after_the_answer == []
        answers.set()
        with pytest.raises(RemovalRefused):
            await directories.remove(at("/protected"), ROOT, confirm)
    assert confirmed_after_the_answer == [True]
    assert (point / "protected").is_dir()


async def test_operation_cancelled_before_its_start_is_not_done_later(
    mount: Mount, hanging: threading.Event
) -> None:
    point = mount(f"{SERVER}:/", "x")
    async with working(await found(), seconds=1) as directories:
        hung = [directories.make(at(f"/hang{number}"), OWNED) for number in range(4)]
        await asyncio.gather(*hung, directories.make(at("/late"), OWNED), return_exceptions=True)
        hanging.set()
        await directories.make(at("/next"), OWNED)
        assert (point / "next").is_dir()
        assert not (point / "late").exists()


async def test_cancelled_attempt_never_overrides_a_later_one(mount: Mount, hanging: threading.Event) -> None:
    point = mount(f"{SERVER}:/", "x")
    async with working(await found(), seconds=1) as directories:
        with pytest.raises(WorkerFailed, match="did not answer"):
            await directories.make(at("/hang"), Permissions(mode=0o2771, gid=2001, enforced=True))
        with pytest.raises(WorkerFailed) as caught:
            await directories.make(at("/hang"), Permissions(mode=0o2771, gid=2002, enforced=True))
        hanging.set()
        while True:
            with suppress(WorkerFailed):
                await directories.make(at("/hang"), Permissions(mode=0o2771, gid=2002, enforced=True))
                break
    assert caught.value.problem == "is still being created by an earlier attempt that was abandoned"
    assert (point / "hang").stat().st_gid == 2002


# --- copies

TERMS = CopyTerms(key="pvc-1", source=parse_directory("/pvs/old"))


async def test_copy_is_made_inside_the_mount(mount: Mount) -> None:
    point = mount(SERVER, "efs")
    (point / "old").mkdir()
    (point / "old/file").write_text("data")
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with MountedDirectories([mounted]) as directories:
        copied = await directories.copy(at("/pvs/new"), TERMS)
        assert copied.progress == CopyProgress(entries=1, copied_bytes=4)
        assert (point / "new/file").read_text() == "data"
        assert await directories.copy_progress(at("/pvs/new")) is None
        with pytest.raises(InvalidValue, match="/elsewhere"):
            await directories.copy(at("/pvs/new"), replace(TERMS, source=parse_directory("/elsewhere")))
        removed: list[FileSystemId] = []
        directories.on_removed(removed.append)
        await directories.discard_copy(at("/pvs/new"), "pvc-1")
        assert not (point / COPIES / "pvc-1").exists()
        assert removed == [FILE_SYSTEM]


async def test_copy_begins_only_when_its_source_is_confirmed(mount: Mount) -> None:
    point = mount(SERVER, "efs")
    events: list[str] = []
    (point / "old").mkdir()

    @asynccontextmanager
    async def reserve() -> AsyncIterator[None]:
        events.append("reserved")
        try:
            yield
        finally:
            events.append("free")

    async def confirm() -> None:
        events.append("asked")
        if len(events) > 3:
            raise NotYet("is being removed", field="volume")

    protection = Protection(reserved=reserve, confirm=confirm)
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with MountedDirectories([mounted]) as directories:
        await directories.copy(at("/pvs/new"), TERMS, protection=protection)
        assert events == ["reserved", "asked", "free"]
        with pytest.raises(NotYet):
            await directories.copy(at("/pvs/second"), replace(TERMS, key="pvc-2"), protection=protection)
    assert not (point / "second").exists()


async def test_copy_has_ended_when_the_directories_are_closed(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then another process may become the leader, and continue it."""
    point, reached, goes_on = mount(SERVER, "efs"), asyncio.Event(), threading.Event()
    (point / "old").mkdir()
    (point / "old/file").write_text("data")
    loop, former, ended = asyncio.get_running_loop(), file_system.copy_directory, threading.Event()

    def slow(*arguments: int) -> int:
        loop.call_soon_threadsafe(reached.set)
        assert goes_on.wait(10)
        return sendfile(*arguments)

    def copied(*arguments: Any) -> Any:
        try:
            return former(*arguments)
        finally:
            ended.set()

    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", slow)
    monkeypatch.setattr(file_system, "copy_directory", copied)
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with MountedDirectories([mounted]) as directories:
        copying = asyncio.ensure_future(directories.copy(at("/pvs/new"), TERMS))
        await reached.wait()
        copying.cancel()
        # The thread continues only when the directories wait for it.
        loop.call_soon(goes_on.set)
    assert ended.is_set()
    assert not (point / "new").exists()


async def test_stopped_copy_ends_at_its_next_file_and_continues_later(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    point, reached, goes_on = mount(SERVER, "efs"), threading.Event(), threading.Event()
    (point / "old").mkdir()
    (point / "old/file").write_text("data")
    former = os.sendfile

    def slow(*arguments: int) -> int:
        reached.set()
        assert goes_on.wait(10)
        return former(*arguments)

    monkeypatch.setattr(os, "sendfile", slow)
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with MountedDirectories([mounted]) as directories:
        copying = asyncio.ensure_future(directories.copy(at("/pvs/new"), TERMS))
        await asyncio.to_thread(reached.wait, 10)
        await directories.stop_copy(at("/pvs/new"))
        goes_on.set()
        with pytest.raises(WorkerFailed, match="was stopped"):
            await copying
        assert not (point / "new").exists()
        await directories.copy(at("/pvs/new"), TERMS)
        assert (point / "new/file").read_text() == "data"


async def test_stopped_copy_does_not_wait_for_its_turn(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    point, reached, goes_on = mount(SERVER, "efs"), threading.Event(), threading.Event()
    (point / "old").mkdir()

    def slow(*_: object) -> None:
        reached.set()
        assert goes_on.wait(10)

    monkeypatch.setattr(file_system, "copy_directory", slow)
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with MountedDirectories([mounted]) as directories:
        first = asyncio.ensure_future(directories.copy(at("/pvs/new"), TERMS))
        await asyncio.to_thread(reached.wait, 10)
        second = asyncio.ensure_future(directories.copy(at("/pvs/second"), replace(TERMS, key="pvc-2")))
        await asyncio.sleep(0)
        await directories.stop_copy(at("/pvs/second"))
        with pytest.raises(WorkerFailed, match="was stopped"):
            await second
        assert not first.done()
        goes_on.set()
        await first


@pytest.mark.parametrize("files", [0, 1, 2])
async def test_copy_that_is_given_up_is_not_completed(
    mount: Mount, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Its source may be removed from then on, and would count as empty."""
    point, reached, goes_on = mount(SERVER, "efs"), threading.Event(), threading.Event()
    (point / "old").mkdir()
    for number in range(files):
        (point / f"old/{number}").write_text("data")
    opened_source = copying._opened_source

    @contextmanager
    def slow(*arguments: Any) -> Iterator[int | None]:
        with opened_source(*arguments) as found:
            reached.set()
            assert goes_on.wait(10)
            yield found

    monkeypatch.setattr(copying, "_opened_source", slow)
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with MountedDirectories([mounted]) as directories:
        attempt = asyncio.ensure_future(directories.copy(at("/pvs/new"), TERMS))
        assert await asyncio.to_thread(reached.wait, 10)
        attempt.cancel()
        await asyncio.wait([attempt])
        goes_on.set()
        # The only thread is busy until the end of the copy.
        await asyncio.get_running_loop().run_in_executor(directories._mounts[0]._copier, lambda: None)
        assert not (point / "new").exists()
        assert await directories.copy_progress(at("/pvs/new")) is None
        monkeypatch.undo()
        await directories.copy(at("/pvs/new"), TERMS)
        assert len(list((point / "new").iterdir())) == files


async def test_copy_whose_server_answers_late_does_not_begin_after_it_was_discarded(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    point, reached, goes_on = mount(SERVER, "efs"), threading.Event(), threading.Event()
    (point / "old").mkdir()
    (point / "old/file").write_text("data")
    former = mounted_workers._check

    def slow(mounted: Mounted) -> None:
        if not reached.is_set():
            reached.set()
            assert goes_on.wait(10)
        former(mounted)

    monkeypatch.setattr(mounted_workers, "_check", slow)
    mounted = await find_mounted(FILE_SYSTEM, server=SERVER, mount_point=point, base=parse_directory("/pvs"))
    async with working(mounted) as directories:
        copying = asyncio.ensure_future(directories.copy(at("/pvs/new"), TERMS))
        await asyncio.to_thread(reached.wait, 10)
        copying.cancel()
        await asyncio.wait([copying])
        await directories.discard_copy(at("/pvs/new"), "pvc-1")
        goes_on.set()
        # It has the same thread, so the first one has ended then.
        await directories.copy(at("/pvs/second"), replace(TERMS, key="pvc-2"))
        assert not (point / "new").exists()
        assert not (point / COPIES / "pvc-1").exists()
