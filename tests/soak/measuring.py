"""What everything that belongs to a cluster uses at a moment, and what of that has grown."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

MEBIBYTE: Final = 1024 * 1024
# The programs that are judged; the parts of the embedded cluster around them go at their own pace.
JUDGED: Final = frozenset({"kube-efs controller", "kube-efs tunnel", "kube-efs node", "stunnel"})
# Pools of connections and caches fill at their own pace.
MORE_DESCRIPTORS: Final = 8
MORE_MEBIBYTES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the programs use, by their names, and files by the folder that they are in."""

    processes: Mapping[str, int]
    descriptors: Mapping[str, int]
    ports: Mapping[str, int]
    mebibytes: Mapping[str, int]
    files: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One thing of which there is more than there was."""

    kind: str
    name: str
    before: int
    after: int
    allowed: int

    @property
    def is_leak(self) -> bool:
        return self.after - self.before > self.allowed


def take_sample(folders: Iterable[Path]) -> Sample:
    """What the processes below this one, and all that were started for the folders, use now."""
    processes, descriptors, ports = Counter[str](), Counter[str](), Counter[str]()
    memory = Counter[str]()
    for process in _processes(folders):
        with suppress(psutil.Error):
            name, used = _name(process), process.memory_info().rss
            if name not in JUDGED:
                continue
            descriptors[name] += process.num_fds()
            ports[name] += sum(one.status == psutil.CONN_LISTEN for one in process.net_connections("tcp"))
            processes[name] += 1
            memory[name] += used
    return Sample(
        processes=processes,
        descriptors=descriptors,
        ports=ports,
        mebibytes={name: used // MEBIBYTE for name, used in memory.items()},
        files=Counter(_places(folders)),
    )


def compare(before: Sample, after: Sample, *, same_processes: bool) -> Iterator[Growth]:
    """All there was and is; memory only while the processes are the same."""
    kinds = {
        "processes": (before.processes, after.processes, 0),
        "ports": (before.ports, after.ports, 0),
        "files": (before.files, after.files, 0),
        "descriptors": (before.descriptors, after.descriptors, MORE_DESCRIPTORS),
    }
    if same_processes:
        kinds["MiB"] = (before.mebibytes, after.mebibytes, MORE_MEBIBYTES)
    for kind, (then, now, allowed) in kinds.items():
        for name in sorted(then.keys() | now.keys()):
            yield Growth(
                kind=kind, name=name, before=then.get(name, 0), after=now.get(name, 0), allowed=allowed
            )


def running_for(folder: Path) -> list[str]:
    """The names of all processes that were started for the folder."""
    found = []
    for process in _processes((folder,)):
        with suppress(psutil.Error):
            found.append(_name(process))
    return sorted(found)


def _processes(folders: Iterable[Path]) -> Iterator[psutil.Process]:
    """stunnel outlives the agent that started it, so it is known by its folder."""
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
    """For each file the folder that it is in; logs only grow, and what EFS keeps is its own."""
    for folder in folders:
        for path in folder.rglob("*"):
            place = path.relative_to(folder).parts[0]
            if place != "efs" and not path.name.endswith((".log", ".log.1")):
                yield place
