"""The resources of a cluster at a moment, and their growth."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from kube_efs.mounts.mountinfo import read_mountinfo

KIBIBYTE: Final = 1024
MEMORY: Final = "KiB"
# The programs that are judged; the parts of the embedded cluster around them go at their own pace.
JUDGED: Final = frozenset({"kube-efs controller", "kube-efs tunnel", "kube-efs node", "stunnel"})
# Pools of connections and caches fill at their own pace.
_MORE_DESCRIPTORS: Final = 8
_MORE_KIBIBYTES: Final = 24 * 1024

Amounts = Mapping[str, Mapping[str, int]]
"""How many of each kind, by what they belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A resource, and whether its use has grown."""

    kind: str
    name: str
    before: int
    after: int
    allowed: int

    @property
    def is_leak(self) -> bool:
        return self.after - self.before > self.allowed


def take_sample(folders: Collection[Path], targets: Path) -> Amounts:
    """The current resources of the child processes, and of all processes started for the directories.

    Files are counted by directory; mounts are those at targets and in the directories.
    """
    found: dict[str, Counter[str]] = {
        kind: Counter() for kind in ("processes", "descriptors", "ports", MEMORY, "files", "mounts")
    }
    for process in _processes(folders):
        with suppress(psutil.Error):
            name, used = _name(process), process.memory_info().rss
            if name not in JUDGED:
                continue
            found["descriptors"][name] += process.num_fds()
            found["ports"][name] += sum(
                one.status == psutil.CONN_LISTEN for one in process.net_connections("tcp")
            )
            found["processes"][name] += 1
            found[MEMORY][name] += used // KIBIBYTE
    found["files"].update(_places(folders))
    for entry in read_mountinfo():
        places = (one for one in (*folders, targets) if entry.mount_point.is_relative_to(one))
        found["mounts"].update(place.name for place in places)
    return found


def compare(before: Amounts, after: Amounts, *, allowed_kibibytes: int | None = None) -> Iterator[Growth]:
    """The differences between two samples.

    Memory is compared only if the processes are the same; ``allowed_kibibytes`` is the allowed growth of
    stunnel.
    """
    for kind, then in before.items():
        if kind == MEMORY and allowed_kibibytes is None:
            continue
        for name in sorted(then.keys() | after[kind].keys()):
            allowed = {"descriptors": _MORE_DESCRIPTORS, MEMORY: _MORE_KIBIBYTES}.get(kind, 0)
            if kind == MEMORY and name == "stunnel" and allowed_kibibytes is not None:
                allowed = allowed_kibibytes
            yield Growth(
                kind=kind,
                name=name,
                before=then.get(name, 0),
                after=after[kind].get(name, 0),
                allowed=allowed,
            )


def pids_of(name: str, folder: Path) -> list[int]:
    """The processes of that name that were started for the directory, or are children of this process."""
    found = []
    for process in _processes((folder,)):
        with suppress(psutil.Error):
            if _name(process) == name:
                found.append(process.pid)
    return found


def running_for(folder: Path) -> list[str]:
    """The names of all processes that were started for the directory."""
    found = []
    for process in _processes((folder,)):
        with suppress(psutil.Error):
            found.append(_name(process))
    return sorted(found)


def _processes(folders: Iterable[Path]) -> Iterator[psutil.Process]:
    """Also those in the directory, because stunnel outlives the agent that started it."""
    this = psutil.Process()
    found = set(this.children(recursive=True))
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in argument for argument in process.cmdline() for folder in folders):
                found.add(process)
    yield from found - {this}


def _name(process: psutil.Process) -> str:
    match process.cmdline():
        case [_, "-m", "kube_efs", command, *_]:
            return f"kube-efs {command}"
        case [program, *_]:
            return Path(program).name
    return process.name()


def _places(folders: Iterable[Path]) -> Iterator[str]:
    """The directory of each file; without logs, which only grow, and files of EFS."""
    for folder in folders:
        # Unlike Path.rglob, this passes over what goes meanwhile.
        for parent, subfolders, files in os.walk(folder):
            for name in (*subfolders, *files):
                place = Path(parent, name).relative_to(folder).parts[0]
                if place != "efs" and not name.endswith((".log", ".log.1")):
                    yield place
