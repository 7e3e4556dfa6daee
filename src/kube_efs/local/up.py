"""``kube-efs up``: an embedded cluster to play with, until Ctrl-C."""

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from kube_efs.local.cluster import NAMESPACE, EmbeddedCluster
from kube_efs.local.logs import logging_to
from kube_efs.local.manifests import STORAGE_CLASS, apply
from kube_efs.report.reading import read_cluster
from kube_efs.report.tables import make_console, render_cluster

_REFRESH_SECONDS = 1.0


async def run_up(kubeconfig: Path) -> None:
    """Run the cluster until SIGINT or SIGTERM; its kubeconfig is there meanwhile. Raises PlatformError."""
    console = make_console()
    with (
        tempfile.TemporaryDirectory(prefix="kube-efs-up-") as name,
        logging_to(Path(name) / "up.log"),
        _told_to_stop() as told,
    ):
        console.print("Starting ...")
        async with EmbeddedCluster(Path(name), kubeconfig=kubeconfig) as cluster:
            await apply(cluster.client, [STORAGE_CLASS])
            console.print(_usage(cluster), soft_wrap=True)
            await _show(cluster, console, told)
            console.print("Stopping ...")


@contextmanager
def _told_to_stop() -> Iterator[asyncio.Event]:
    """Set at the first signal that ends a process."""
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    try:
        yield told
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _usage(cluster: EmbeddedCluster) -> str:
    return f"""
The cluster is there, with the StorageClass efs-stunnel. In another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  kubectl get storageclass,pvc,pv
  kubectl apply -f your-claim.yaml
  kube-efs status

The logs of all parts are in {cluster.folder}. Ctrl-C ends everything and removes the data.
"""


async def _show(cluster: EmbeddedCluster, console: Console, told: asyncio.Event) -> None:
    """Keep the tables up to date on a terminal; elsewhere there is nobody to look at them."""
    if not console.is_terminal:
        await told.wait()
        return
    with Live(Group(), console=console, auto_refresh=False) as live:
        while not told.is_set():
            live.update(render_cluster(await read_cluster(cluster.client, NAMESPACE)), refresh=True)
            try:
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await told.wait()
            except TimeoutError:
                continue
