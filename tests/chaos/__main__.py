"""``python -m tests.chaos soak|chaos``: everything at once on an embedded cluster; ends with 1 if that fails.

``soak`` checks the memory of the processes; it runs for SOAK_SECONDS (600). ``chaos`` kills them at any
moment and sends invalid calls to their sockets; it runs for CHAOS_SECONDS (120), and CHAOS_SEED determines
its choices. At the end, nothing may be left behind and nothing may be missing.
"""

import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from lightkube.resources.core_v1 import ConfigMap, Event, PersistentVolume, PersistentVolumeClaim, Pod
from rich.console import Console
from rich.table import Table
from tests.chaos.fuzzing import Fuzzer, Known, Sockets, make_wrong_targets
from tests.chaos.kept import KeptVolumes
from tests.chaos.measuring import Amounts, Growth, compare, running_for, take_sample
from tests.chaos.planting import places_in, places_in_files, planted
from tests.chaos.workload import Workload
from tests.scenarios import steps
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims

from kube_efs.tunnels.stunnel.assignment import SHARD_SIZE
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.logs import logging_to
from kube_efs_lab.program import Program

_PROBE_SECONDS: Final = 1
_FOLLOWING_SECONDS: Final = 30.0
_LOOKS_AT_DESCRIPTORS: Final = 12
# What changes a little later than what the agent promises.
_STEADY: Final = ("processes", "ports", "files", "mounts")
_SETTINGS: Final = {
    # The least that there is, so that tunnels come and go.
    "KUBE_EFS_TUNNEL_IDLE_SECONDS": "10",
    # Each tunnel has a connection between two reloads.
    "KUBE_EFS_PROBE_INTERVAL_SECONDS": str(_PROBE_SECONDS),
    "KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR": "true",
}
_SOAK_KEPT: Final = {"tunnel": 1, "directory": 1, "csi": 20}
_CHAOS_KEPT: Final = {"tunnel": 3, "directory": 3, "csi": 6}
# Of 16 KiB that a tunnel can lose at a reload; and what threads and buffers vary by.
_KIBIBYTES_A_TUNNEL_AND_RELOAD: Final = 4
_MORE_KIBIBYTES: Final = 2048
_WARM_UP_SECONDS: Final = 5.0


@dataclass(slots=True, kw_only=True)
class Run:
    """A cluster under load; ``failures`` lists the problems."""

    folder: Path
    cluster: EmbeddedCluster
    work: Workload
    kept: KeptVolumes
    chance: random.Random
    console: Console
    failures: list[str]

    @property
    def targets(self) -> Path:
        return self.folder / "targets"

    async def sample(self, before: Amounts | None = None) -> Amounts:
        """The state of everything after the load has ended, and stunnel and the disk have followed.

        With ``before``, unused connections get time to close.
        """
        await self.work.quiet()
        deadline = time.monotonic() + _FOLLOWING_SECONDS
        last: Amounts = {}
        while True:
            now = await self._sample()
            is_steady = all(last.get(kind) == now[kind] for kind in _STEADY)
            if is_steady or time.monotonic() > deadline:
                return {**now, "descriptors": await self._descriptors(now, before)}
            last = now
            await asyncio.sleep(2 * _PROBE_SECONDS)

    async def _descriptors(self, sample: Amounts, before: Amounts | None) -> Mapping[str, int]:
        """The minimum of many samples: probes keep descriptors for a moment, pools for 15 s."""
        least = dict(sample["descriptors"])
        deadline = time.monotonic() + _FOLLOWING_SECONDS
        looks = 0
        while looks < _LOOKS_AT_DESCRIPTORS or (
            before and _are_more(before, least) and time.monotonic() < deadline
        ):
            await asyncio.sleep(_PROBE_SECONDS / 3)
            now = (await self._own_amounts())["descriptors"]
            least = {name: min(count, now.get(name, 0)) for name, count in least.items()}
            looks += 1
        return least

    async def _sample(self) -> Amounts:
        amounts = dict(await self._own_amounts())
        access_points, directories = Counter[str](), Counter[str]()
        async with Aws.of(self.cluster) as aws:
            for system in self.cluster.file_system_ids:
                access_points[system] = len(await aws.ids(system))
                folder = self.cluster.efs.folder(system)
                directories.update(await asyncio.to_thread(_directories, folder, system))
        return amounts | {"access points": access_points, "directories": directories}

    async def _own_amounts(self) -> Amounts:
        folders = (self.folder / "cluster", self.cluster._folders.sockets)
        return await asyncio.to_thread(take_sample, folders, self.targets)

    def judge(self, title: str, growths: Iterable[Growth]) -> None:
        """Print what has grown, and record the failures."""
        judged = list(growths)
        table = Table("kind", "of", "before", "after", "may grow by", "", title=title)
        for one in judged:
            verdict = "[bold red]LEAK" if one.is_leak else "[green]ok"
            table.add_row(one.kind, one.name, str(one.before), str(one.after), str(one.allowed), verdict)
            if one.is_leak:
                self.failures.append(f"{one.kind} of {one.name}: {one.before} before, {one.after} after")
        self.console.print(table)


async def soak(run: Run, seconds: float) -> None:
    """Run the load without faults: after a fifth of the time to warm up, memory must not grow."""
    reloads = "kube_efs_stunnel_reloads_total"
    await run.work.run(seconds * 0.2, roughly=False)
    before, reloads_before = await run.sample(), await steps.metric(run.cluster.tunnel, reloads)
    await run.work.run(seconds * 0.8, roughly=False)
    after = await run.sample(before)
    done = int(await steps.metric(run.cluster.tunnel, reloads) - reloads_before)
    run.console.print(f"worked: {dict(run.work.done)}, {done} reloads of stunnel")
    # A reload is of one shard.
    reloaded = min(after["ports"]["stunnel"], SHARD_SIZE)
    allowed = _KIBIBYTES_A_TUNNEL_AND_RELOAD * reloaded * done + _MORE_KIBIBYTES
    run.judge("undisturbed", compare(before, after, allowed_kibibytes=allowed))


async def chaos(run: Run, seconds: float) -> None:
    """Run the load while processes are killed and sockets get invalid calls."""
    async with _controller_on_a_socket(run) as (controller, socket):
        run.work.programs = (*run.work.programs, controller)
        wrong = await asyncio.to_thread(make_wrong_targets, run.targets)
        kept = [one.target for one in run.kept.volumes if one.target]
        handles = [one.handle for one in run.kept.volumes if one.handle]
        fuzzer = Fuzzer(
            Sockets(
                driver=run.cluster._folders.driver_socket, agent=run.cluster.tunnel_socket, controller=socket
            ),
            Known(
                handles=[*handles, *run.cluster.file_system_ids],
                file_systems=run.cluster.file_system_ids,
                zones=[subnet.zone for subnet in run.cluster.efs.subnets],
                kept=kept,
                targets=run.targets,
            ),
            random.Random(run.chance.random()),
        )
        await run.work.run(_WARM_UP_SECONDS, roughly=False)
        before = await run.sample()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.work.run(seconds, roughly=True))
            tasks.create_task(fuzzer.run(seconds))
        await fuzzer.settle()
        after = await run.sample(before)
        run.console.print(f"worked: {dict(run.work.done)}")
        run.console.print(f"{fuzzer.answers.total()} calls answered: {dict(fuzzer.answers.most_common())}")
        run.judge("ended and killed", compare(before, after))
        run.failures += [f"{times} times: {failure}" for failure, times in Counter(fuzzer.failures).items()]
        there = {*run.targets.iterdir(), *(run.targets / "fuzzed").rglob("*")}
        own = {run.targets / "fuzzed", *wrong, *kept}
        run.failures += [f"left: {path}" for path in sorted(there - own)]
        run.failures += [f"gone: {path}" for path in sorted(own - there)]
        run.failures += [f"secret: {found}" async for found in _secrets_shown(run)]
    died, killed = await asyncio.to_thread(_stunnel_deaths, run.folder), run.work.done["killed stunnel"]
    if died > killed:
        run.failures.append(f"stunnel died {died} times, of which it was killed {killed} times")
    run.failures += [f"not foreseen: {found}" for found in await asyncio.to_thread(_unforeseen, run.folder)]


@asynccontextmanager
async def _controller_on_a_socket(run: Run) -> AsyncIterator[tuple[Program, Path]]:
    """A second controller, which is the leader in its own namespace and serves the CSI Controller service."""
    socket = run.cluster._folders.sockets / "controller.sock"
    settings = {
        "CSI_ENDPOINT": f"unix://{socket}",
        "KUBE_EFS_BACKENDS": "csi",
        "KUBE_EFS_SHARED_VOLUMES": "false",
        # It needs worker pods. Nobody mounts the volumes made here, so EFS makes no directories for them.
        "KUBE_EFS_DELETE_ACCESS_POINT_ROOT_DIR": "false",
        "POD_NAMESPACE": "default",
        "POD_NAME": "csi-controller-0",
    }
    program = run.cluster.controller.replica(run.cluster.folder / "csi-controller.log", settings)
    try:
        await program.start()
        await program.ready()
        yield program, socket
    finally:
        await program.stop()


async def _secrets_shown(run: Run) -> AsyncIterator[str]:
    """The places that show planted secrets."""
    cluster = run.cluster
    found = await asyncio.to_thread(places_in_files, _logs(run.folder))
    for file, places in found.items():
        yield f"{file}: {dict(places)}"
    async with aiohttp.ClientSession() as session:
        for program in run.work.programs:
            async with session.get(f"{program.health_url}/metrics") as answer:
                if places := places_in(await answer.text()):
                    yield f"metrics of {program.name}: {dict(places)}"
        async with session.get(f"{cluster.tunnel.health_url}/tunnels") as answer:
            if places := places_in(await answer.text()):
                yield f"state of tunnels: {dict(places)}"
    shown: tuple[AsyncIterable[Any], ...] = (
        *(
            cluster.client.list(kind, namespace="*")
            for kind in (Event, ConfigMap, PersistentVolumeClaim, Pod)
        ),
        cluster.client.list(PersistentVolume),
    )
    for objects in shown:
        async for one in objects:
            if places := places_in(json.dumps(one.to_dict(), default=str)):
                yield f"{type(one).__name__} {one.metadata.name}: {dict(places)}"


def _unforeseen(folder: Path) -> Iterator[str]:
    """Unexpected errors in the logs of the processes: the event and the end of the stack."""
    found = Counter[str]()
    for file in _logs(folder):
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                entry = json.loads(line) if '"exception"' in line and line.startswith("{") else {}
                # gRPC's own words about garbage, and about callers that went away while they were answered.
                if entry and not entry["logger"].startswith("grpc."):
                    end = str(entry["exception"]).strip().rpartition("\n")[2]
                    found[f"{file.name}: {entry.get('event')}: {end[:200]}"] += 1
    return iter([f"{times} times: {text}" for text, times in found.items()])


def _stunnel_deaths(folder: Path) -> int:
    """How often an agent reported the end of stunnel."""
    return (folder / "cluster" / "tunnel.log").read_text(encoding="utf-8").count('"event": "stunnel-died"')


def _are_more(before: Amounts, descriptors: Mapping[str, int]) -> bool:
    then, now = before["descriptors"], descriptors
    return any(one.is_leak for one in compare({"descriptors": then}, {"descriptors": now}))


def _logs(folder: Path) -> list[Path]:
    """The logs of kube-efs's processes and of stunnel, without those of the cluster."""
    cluster = folder / "cluster"
    return [*cluster.glob("*.log"), *(cluster / "tunnel").glob("*.log*")]


def _directories(folder: Path, system: str) -> list[str]:
    """The file system of each directory.

    An empty root of an access point does not count: EFS recreates it when the tunnel of a volume that was
    just removed is probed again.
    """
    return [
        system
        for parent, subfolders, files in os.walk(folder)
        if parent != str(folder) and (subfolders or files or not Path(parent).name.startswith("pvc-"))
    ]


async def run_on_cluster(
    what: str, seconds: float, folder: Path, chance: random.Random, console: Console
) -> bool:
    """Run the function on a new cluster; returns whether there was no failure."""
    failures: list[str] = []
    settings = _SETTINGS | {"LOGGING_LEVEL": "DEBUG", "AWS_SECRET_ACCESS_KEY": planted("environment")}
    targets = folder / "targets"
    targets.mkdir()
    async with EmbeddedCluster(folder / "cluster", settings=settings) as cluster:
        claims = await Claims.of(cluster)
        kept = KeptVolumes(cluster, claims, targets, random.Random(chance.random()))
        work = Workload(cluster, claims, kept, random.Random(chance.random()))
        await work.prepare()
        await kept.make(work.classes, _SOAK_KEPT if what == "soak" else _CHAOS_KEPT)
        run = Run(
            folder=folder,
            cluster=cluster,
            work=work,
            kept=kept,
            chance=chance,
            console=console,
            failures=failures,
        )
        try:
            await (soak(run, seconds) if what == "soak" else chaos(run, seconds))
            failures += work.failures
            failures += await kept.problems()
        finally:
            await kept.unpublish()
    failures += [f"left running: {name}" for name in running_for(folder)]
    for failure in failures:
        console.print(f"failed: {failure}", style="bold red", markup=False)
    return not failures


def main(what: str) -> None:
    seconds = float(os.environ.get(f"{what.upper()}_SECONDS") or {"soak": 600, "chaos": 120}[what])
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    console = Console(width=max(100, Console().width))
    console.print(f"{what} for {seconds:g} s, CHAOS_SEED={seed}")
    folder = Path(tempfile.mkdtemp(prefix=f"kube-efs-{what}-"))
    with logging_to(folder / "cluster-around.log"):
        ok = asyncio.run(run_on_cluster(what, seconds, folder, random.Random(seed), console))
    if ok:
        shutil.rmtree(folder)
        console.print("Nothing was left, and nothing missing.", style="bold green")
    else:
        console.print(f"The logs of all parts are in {folder}; CHAOS_SEED={seed}", style="bold red")
    sys.exit(not ok)


main(sys.argv[1])
