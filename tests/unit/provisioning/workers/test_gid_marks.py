"""Marks of group IDs: controllers that share a file system never assign one ID twice."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_efs.model.efs.directories import Permissions, parse_directory
from kube_efs.model.errors import GidTaken, RemovalRefused, WorkerFailed
from kube_efs.provisioning.workers import gid_marks
from kube_efs.provisioning.workers.file_system import list_children, make_directory, move_to_trash

OWN = Permissions(mode=0o2771, gid=2000, enforced=True, own_group=True)


def make(root: Path, path: str, gid: int = 2000) -> None:
    make_directory(
        root, parse_directory(path), Permissions(mode=0o2771, gid=gid, enforced=True, own_group=True)
    )


def gid_of(root: Path, path: str) -> int:
    return (root / path.lstrip("/")).stat().st_gid


def test_id_is_assigned_only_to_the_first_directory(tmp_path: Path) -> None:
    make(tmp_path, "/pvs/a")
    with pytest.raises(GidTaken, match="group ID: 2000 belongs to a; another ID is tried"):
        make(tmp_path, "/pvs/b")
    assert not (tmp_path / "pvs/b").exists()
    make(tmp_path, "/pvs/b", 2001)
    assert (gid_of(tmp_path, "/pvs/a"), gid_of(tmp_path, "/pvs/b")) == (2000, 2001)


def test_directory_can_be_created_again(tmp_path: Path) -> None:
    for _ in range(2):
        make(tmp_path, "/pvs/a")
    assert gid_of(tmp_path, "/pvs/a") == 2000


def test_id_is_free_when_its_directory_is_removed(tmp_path: Path) -> None:
    make(tmp_path, "/pvs/a")
    move_to_trash(tmp_path, parse_directory("/pvs/a"), base=parse_directory("/pvs"))
    make(tmp_path, "/pvs/b")
    with pytest.raises(GidTaken):
        make(tmp_path, "/pvs/a")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(("", "/a/one"), ("", "/b/two"), id="two bases of one mount"),
        pytest.param(("", "/a/one"), ("a", "/two"), id="only the base mounted"),
        pytest.param(("", "/a/one"), ("", "/two"), id="root and a base"),
    ],
)
def test_controllers_with_different_mounts_of_one_file_system_share_no_id(
    tmp_path: Path, first: tuple[str, str], second: tuple[str, str]
) -> None:
    (tmp_path / "a").mkdir()
    for one, other in ((first, second), (second, first)):
        make(tmp_path / one[0], one[1])
        with pytest.raises(GidTaken):
            make(tmp_path / other[0], other[1])
        move_to_trash(tmp_path / one[0], parse_directory(one[1]), base=parse_directory("/"))


def test_directory_keeps_its_group_despite_a_mark_of_another(tmp_path: Path) -> None:
    make(tmp_path, "/a")
    (tmp_path / "b").mkdir()
    (tmp_path / gid_marks.MARKS / "2000" / "of-b").symlink_to("b")
    make(tmp_path, "/a")
    assert gid_of(tmp_path, "/a") == 2000


def test_marks_are_neither_listed_nor_removed(tmp_path: Path) -> None:
    make(tmp_path, "/pvs/a")
    assert [one.name for one in list_children(tmp_path, parse_directory("/pvs"))] == ["a"]
    assert [one.name for one in list_children(tmp_path, parse_directory("/"))] == ["pvs"]
    for path in (f"/{gid_marks.MARKS}", f"/pvs/{gid_marks.MARKS}", f"/pvs/{gid_marks.MARKS}/2000"):
        with pytest.raises(RemovalRefused, match="is the directory of group IDs"):
            move_to_trash(tmp_path, parse_directory(path), base=parse_directory("/"))
    assert (tmp_path / gid_marks.MARKS).stat().st_mode & 0o777 == 0o700


def test_link_in_place_of_the_marks_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / gid_marks.MARKS).symlink_to(elsewhere)
    with pytest.raises(WorkerFailed, match="a link or file is in the way"):
        make(root, "/a")
    assert not list(elsewhere.iterdir())


# --- concurrent creations

_CALLS = ("mkdir", "symlink", "listdir", "readlink", "stat", "unlink")


class _Crash(BaseException):
    """The process is killed here."""


class Turns:
    """Threads that run one at a time, from one system call to the next."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._running: str | None = None
        self._killed: set[str] = set()
        self._threads: dict[threading.Thread, str] = {}
        self._alive: set[str] = set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start a thread that waits for its turn."""

        def run() -> None:
            try:
                self._wait(name)
                work()
            except _Crash:
                pass
            finally:
                self._alive.discard(name)
                self._end()

        thread = threading.Thread(target=run, daemon=True)
        self._threads[thread] = name
        self._alive.add(name)
        thread.start()

    @property
    def alive(self) -> list[str]:
        return sorted(self._alive)

    def step(self, name: str, *, kill: bool = False) -> None:
        """Let the thread make its next system call, or kill it before."""
        if kill:
            self._killed.add(name)
        with self._turn:
            self._running = name
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: self._running is None, timeout=30)

    def pause(self) -> None:
        """Wait for the next turn; called before each system call."""
        name = self._threads.get(threading.current_thread())
        if name is not None:
            self._end()
            self._wait(name)

    def _wait(self, name: str) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._running == name, timeout=30)
        if name in self._killed:
            raise _Crash

    def _end(self) -> None:
        with self._turn:
            self._running = None
            self._turn.notify_all()


@contextmanager
def _taking_turns(turns: Turns) -> Iterator[None]:
    """Makes threads pause before each system call that others can observe."""

    def pausing(call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any, **kwargs: Any) -> Any:
            turns.pause()
            return call(*args, **kwargs)

        return paused

    calls = {name: getattr(os, name) for name in dir(os)}
    patched = SimpleNamespace(**{**calls, **{name: pausing(calls[name]) for name in _CALLS}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gid_marks, "os", patched)
        try:
            yield
        finally:
            for name in turns.alive:
                turns.step(name, kill=True)


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(data=st.data())
def test_concurrent_creations_never_share_an_id(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Three directories are created with one ID by threads that are killed and try again, in any order.

    A directory that no thread creates may be removed at any moment.
    """
    root, turns = tmp_path_factory.mktemp("root"), Turns()
    has: set[str] = set()
    makers: dict[str, str] = {}

    def work(path: str) -> Callable[[], None]:
        def attempt() -> None:
            try:
                make_directory(root, parse_directory(path), OWN)
            except GidTaken:
                has.discard(path)
            else:
                has.add(path)

        return attempt

    with _taking_turns(turns):
        for number in range(data.draw(st.integers(5, 60))):
            free = [one for one in ("/pvs/a", "/pvs/b", "/c") if one not in [makers[t] for t in turns.alive]]
            what = data.draw(st.sampled_from(["start", "step", "step", "step", "step", "kill", "remove"]))
            if what == "start" and free:
                path = data.draw(st.sampled_from(free))
                makers[f"maker-{number}"] = path
                turns.start(f"maker-{number}", work(path))
            elif what in {"step", "kill"} and turns.alive:
                turns.step(data.draw(st.sampled_from(turns.alive)), kill=what == "kill")
            elif what == "remove" and free:
                path = data.draw(st.sampled_from(free))
                has.discard(path)
                move_to_trash(root, parse_directory(path), base=parse_directory("/"))
            assert len(has) <= 1
        while turns.alive:
            turns.step(turns.alive[0])
            assert len(has) <= 1
