"""The root file system of a container: the machine's own, under a layer in memory that takes all writes."""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tinykube.kubelet.launch import Bind, Launch
from tinykube.kubelet.syscalls import (
    MountFlag,
    attach_mount,
    clone_mount,
    mount,
    pivot_root,
)

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
# Made afresh in each container, or left to its own layer so that it can write there.
_OWN = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp")  # noqa: S108 - names, not files
_PLAIN = MountFlag.NOSUID | MountFlag.NODEV


def enter(launch: Launch) -> None:
    """Make the container's root the root of this process, which is alone in its mount namespace.

    Raises OSError, with the path that could not be mounted.
    """
    # What is bound is looked up before the root is another, and mounted after it: so targets with links
    # lead to where the container sees them, and sources to where the machine does. A copy that is to pass
    # mounts on must be made while its original does.
    sharing = {bind: _open_source(bind) for bind in launch.binds if bind.shares_mounts}
    mount("none", "/", flags=MountFlag.REC | MountFlag.PRIVATE)
    trees = [(bind, sharing.get(bind) or _open_source(bind)) for bind in launch.binds]
    mount("tmpfs", launch.scratch, "tmpfs", _PLAIN, "mode=0755")
    root = Path(launch.scratch) / "root"
    root.mkdir()
    upper, work = Path(launch.scratch) / "upper", Path(launch.scratch) / "work"
    upper.mkdir()
    work.mkdir()
    mount("overlay", str(root), "overlay", 0, f"lowerdir=/,upperdir={upper},workdir={work}")
    _bind_other_mounts(root, hidden=(launch.hidden, *_OWN))
    _mount_system(root)
    pivot_root(str(root))
    for bind, tree in trees:
        if bind.for_all:
            _open_way(Path(bind.target))
        _attach(bind.target, tree)
    if launch.read_only_root:
        mount("none", "/", flags=MountFlag.REMOUNT | MountFlag.BIND | MountFlag.RDONLY)


def _mount_system(root: Path) -> None:
    """/proc of the container's own processes, /sys to read, and a /dev that is not the machine's."""
    proc, sys, dev = (root / name for name in ("proc", "sys", "dev"))
    for directory in (proc, sys, dev):
        directory.mkdir(exist_ok=True)
    mount("proc", str(proc), "proc", _PLAIN | MountFlag.NOEXEC)
    attach_mount(clone_mount("/sys", read_only=True), str(sys))
    mount("tmpfs", str(dev), "tmpfs", MountFlag.NOSUID, "mode=0755")
    for name in _DEVICES:
        (dev / name).touch()
        attach_mount(clone_mount(f"/dev/{name}"), str(dev / name))
    for name, target in _DEVICE_LINKS.items():
        (dev / name).symlink_to(target)
    for name, kind, options in (("pts", "devpts", "ptmxmode=0666"), ("shm", "tmpfs", "mode=1777")):
        (dev / name).mkdir()
        mount(kind, str(dev / name), kind, MountFlag.NOSUID | MountFlag.NOEXEC, options)


def _bind_other_mounts(root: Path, hidden: Iterable[str]) -> None:
    """Show what else is mounted on the machine, to read: an overlay has but one file system below it."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    covered = list(hidden)
    for point in sorted(line.split(" ")[4] for line in table.splitlines()):
        if point == "/" or any(point == path or point.startswith(f"{path}/") for path in covered):
            continue
        covered.append(point)
        # A mount that cannot be shown (gone, stale, not ours) is no reason not to start.
        with suppress(OSError):
            tree = clone_mount(point, read_only=True)
            _attach(f"{root}{point}", tree)


def _open_source(bind: Bind) -> int:
    return clone_mount(bind.source, read_only=bind.read_only)


def _open_way(path: Path) -> None:
    """Let everybody pass through the directories above, as far as they are the container's own copies."""
    own = Path("/").stat().st_dev
    for folder in path.parents:
        with suppress(FileNotFoundError):
            found = folder.stat()
            if found.st_dev == own:
                folder.chmod(stat.S_IMODE(found.st_mode) | 0o111)


def _attach(target: str, tree: int) -> None:
    """Mount a tree on a path, which is made a directory or file like the tree's root where missing."""
    path = Path(target)
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    attach_mount(tree, target)
