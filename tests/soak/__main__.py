"""``make soak``: everything at once for a while on an embedded cluster; ends with 1 when anything is left.

The time is SOAK_SECONDS (600): a tenth to warm up, then half of the rest undisturbed, in which memory must
not grow, and half in which the processes are ended and killed. What is used is compared when all is quiet.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.scenarios.directory_steps import Claims
from tests.soak.measuring import Growth, Sample, compare, running_for, take_sample
from tests.soak.workload import Workload

from kube_efs.local.cluster import EmbeddedCluster
from kube_efs.local.logs import logging_to

# The least that there is, so that tunnels come and go.
_SETTINGS = {"KUBE_EFS_TUNNEL_IDLE_SECONDS": "10"}


async def soak(folder: Path, seconds: float, console: Console) -> bool:
    """Whether nothing was left and everything came to be."""
    async with EmbeddedCluster(folder / "cluster", settings=_SETTINGS) as cluster:
        sockets = cluster._folders.tunnel_socket.parent
        work = Workload(cluster, cluster._folders.tunnel_socket, await Claims.of(cluster))
        await work.prepare()
        samples: list[Sample] = []
        for share, roughly in ((0.1, False), (0.45, False), (0.45, True)):
            await work.run(seconds * share, roughly=roughly)
            await work.quiet()
            samples.append(await asyncio.to_thread(take_sample, (folder / "cluster", sockets)))
            console.print(f"{'roughly ' if roughly else ''}worked: {dict(work.done)}")
    warm, steady, rough = samples
    undisturbed = list(compare(warm, steady, same_processes=True))
    restarted = list(compare(warm, rough, same_processes=False))
    console.print(_table("undisturbed", undisturbed), _table("ended and killed", restarted))
    for failure in work.failures:
        console.print(f"failed: {failure}", style="bold red")
    left = running_for(folder)
    if left:
        console.print(f"left running: {', '.join(left)}", style="bold red")
    return not (work.failures or left or any(one.is_leak for one in (*undisturbed, *restarted)))


def _table(title: str, growths: Iterable[Growth]) -> Table:
    table = Table("kind", "of", "before", "after", "may grow by", "", title=title)
    for one in growths:
        verdict = "[bold red]LEAK" if one.is_leak else "[green]ok"
        table.add_row(one.kind, one.name, str(one.before), str(one.after), str(one.allowed), verdict)
    return table


def main() -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    console = Console(width=max(100, Console().width))
    folder = Path(tempfile.mkdtemp(prefix="kube-efs-soak-"))
    with logging_to(folder / "soak.log"):
        ok = asyncio.run(soak(folder, seconds, console))
    if ok:
        shutil.rmtree(folder)
        console.print("Nothing was left.", style="bold green")
    else:
        console.print(f"Something was left; the logs of all parts are in {folder}", style="bold red")
    sys.exit(not ok)


main()
