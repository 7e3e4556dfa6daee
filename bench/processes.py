"""The daemons of kube-efs on a cluster, and what they use."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import psutil
from tests.integration.tunnel_node import stunnels_of

from kube_efs_lab.cluster import EmbeddedCluster

_MEGABYTE: Final = 1_000_000
_MILLISECONDS: Final = 1000
_SCHEDULED_TIME: Final = 2  # CPUCLOCK_SCHED of the kernel
# What is idle when all processes together use so little of a core, for so long.
_IDLE_SHARE: Final = 0.25
_IDLE_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 120.0
# What a real cluster has where the embedded one is quicker, so that nobody waits.
ORDINARY_SETTINGS: Final[Mapping[str, str]] = {
    "EFS_POLLING_INTERVAL": "300",
    "PROVISION_BACKOFF_INTERVAL": "60",
    "KUBE_EFS_PROBE_INTERVAL_SECONDS": "10",
}


def daemons(cluster: EmbeddedCluster) -> dict[str, int]:
    """Their process ids, by the names that people know them by."""
    found = {one.name: one.pid for one in (cluster.controller, cluster.node, cluster.tunnel)}
    stunnels = stunnels_of(cluster.folder / "tunnel" / "stunnel.conf")
    return found | {f"stunnel {number}": pid for number, pid in enumerate(stunnels, start=1)}


def resident_megabytes(pids: Iterable[int]) -> float:
    """The memory of processes that is in RAM, libraries that they share with others included."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / _MEGABYTE


def megabytes_in_parts(pids: Iterable[int]) -> float:
    """The same, of what several processes share only each one's part (PSS)."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / _MEGABYTE


async def cores_used(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """The share of a core that each of the processes uses in so many seconds."""
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    await asyncio.sleep(seconds)
    return {name: (cpu_seconds(pid) - before[name]) / seconds for name, pid in pids.items()}


async def quiet() -> None:
    """Wait until what was begun before has ended; raises TimeoutError when it does not.

    A control plane has work for long after the last claim of many was Bound.
    """
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            before = cpu_by_program().total()
            await asyncio.sleep(_IDLE_SECONDS)
            if cpu_by_program().total() - before <= _IDLE_SHARE * _IDLE_SECONDS * _MILLISECONDS:
                return


def cpu_by_program() -> Counter[str]:
    """Milliseconds of CPU that this process and those below it have used, by what they run."""
    used: Counter[str] = Counter()
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            name = "bench and kubelet" if process == this else _program(process)
            used[name] += round(cpu_seconds(process.pid) * _MILLISECONDS)
    return used


@contextmanager
def separated(programs: Collection[str]) -> Iterator[str]:
    """Give these programs half of the processors and all other processes the rest, as machines of their own.

    Processes that start later have the processors of their parent. Gives what was done, for people.
    """
    processors = sorted(os.sched_getaffinity(0))
    own, others = processors[: len(processors) // 2], processors[len(processors) // 2 :]
    if not own or not programs:
        yield "all programs share the processors"
        return
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended
            _pin(process, own if process.name() in programs else others)
    try:
        yield f"{', '.join(programs)} on {len(own)} of {len(processors)} processors, all others on the rest"
    finally:
        _pin(this, processors)


def _pin(process: psutil.Process, processors: Sequence[int]) -> None:
    for thread in process.threads():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, processors)


def _program(process: psutil.Process) -> str:
    match process.cmdline():
        case [_, "-m", "kube_efs", command, *_]:
            return f"kube-efs {command}"
        case [_, "-m", "fake_efs.aws_server", *_]:
            return "moto"
    return process.name()


def cpu_seconds(pid: int) -> float:
    """All the time of a core that the process has used since it began.

    /proc only has hundredths of a second, so this is the clock of the process: clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | _SCHEDULED_TIME)
