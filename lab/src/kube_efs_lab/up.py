"""``kube-efs up``: an embedded cluster to play with, until Ctrl-C."""

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fake_efs.errors import PlatformError
from kube_efs.report.reading import read_cluster
from kube_efs.report.tables import make_console, render_cluster
from kube_efs.signals import run_until_stopped
from kube_efs_lab.cluster import DIRECTORY_PROVISIONER, EmbeddedCluster
from kube_efs_lab.control_plane import ControlPlane
from kube_efs_lab.logs import logging_to
from kube_efs_lab.manifests import (
    DIRECTORY_CLASS,
    STORAGE_CLASS,
    STORAGE_CLASS_NAME,
    access_point_class,
    apply,
)
from kube_efs_lab.program import Program
from kube_efs_lab.programs import NAMES
from kube_efs_lab.real_plane import plane_for

_REFRESH_SECONDS = 1.0
_RESTART_SECONDS = 1.0
# Somebody looks on.
_OFTEN = {"KUBE_EFS_RESYNC_SECONDS": "2"}


async def run_up(kubeconfig: Path, *, empty: bool = False, programs: Path | None = None) -> None:
    """Run the cluster until SIGINT or SIGTERM; its kubeconfig is there meanwhile. Raises PlatformError.

    An ``empty`` one has nothing of kube-efs, which can be installed in it. ``programs`` is the directory of a
    real control plane.
    """
    with tempfile.TemporaryDirectory(prefix="kube-efs-up-") as name, logging_to(Path(name) / "up.log"):
        folder = Path(name)

        async def work() -> None:
            async with plane_for(folder, kubeconfig, programs) as plane:
                await _run(folder, plane, make_console(), empty=empty)

        await run_until_stopped(work())


async def _run(folder: Path, plane: ControlPlane, console: Console, *, empty: bool) -> None:
    console.print("Starting ...")
    settings = _OFTEN if empty else {}
    async with EmbeddedCluster(
        folder, control_plane=plane, settings=settings, installed=not empty
    ) as cluster:
        if not empty:
            points = access_point_class(cluster.file_system_ids[0])
            await apply(cluster.client, [STORAGE_CLASS, DIRECTORY_CLASS, points])
        console.print(_empty_usage(cluster) if empty else _usage(cluster), soft_wrap=True)
        running = () if empty else (cluster.controller, cluster.tunnel, cluster.node)
        try:
            async with asyncio.TaskGroup() as tasks:
                for program in running:
                    tasks.create_task(_keep_running(program, console))
                tasks.create_task(_show(cluster, console))
        finally:
            console.print("Stopping ...")


async def _keep_running(program: Program, console: Console) -> None:
    """Start the process again whenever it ends, as the kubelet does with one in a pod."""
    while True:
        code = await program.ended()
        console.print(f"{program.name} has ended (exit code {code}); starting it again")
        await asyncio.sleep(_RESTART_SECONDS)
        with suppress(PlatformError):
            await program.start()


def _usage(cluster: EmbeddedCluster) -> str:
    return f"""
The cluster is there, with three StorageClasses: {STORAGE_CLASS_NAME}, whose volumes go through tunnels, slow
of the provisioner {DIRECTORY_PROVISIONER}, whose volumes have a group id each, and efs-sc-1 of the CSI driver
efs.csi.aws.com, whose volumes have an access point each. In another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  kubectl get storageclass,pvc,pv
  kubectl apply -f your-claim.yaml
  kube-efs status

The AWS API is at {cluster.efs.endpoint_url}, for making file systems and mount targets with any credentials.
The logs of all parts are in {cluster.folder}. Ctrl-C ends everything and removes the data.
"""


def _empty_usage(cluster: EmbeddedCluster) -> str:
    file_systems = " and ".join(cluster.file_system_ids)
    return f"""
The cluster is there, with nothing of kube-efs in it. Its file systems are {file_systems}.
In another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  kube-efs render --for kubernetes --csi | kubectl apply -f -

The AWS API is at {cluster.efs.endpoint_url}, for making file systems and mount targets with any credentials.
The logs of all parts are in {cluster.folder}. Ctrl-C ends everything and removes the data.
"""


async def _show(cluster: EmbeddedCluster, console: Console) -> None:
    """Keep the tables up to date on a terminal, until cancelled; elsewhere nobody sees them."""
    if not console.is_terminal:
        await asyncio.Event().wait()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(render_cluster(await read_cluster(cluster.client, NAMES)), refresh=True)
            await asyncio.sleep(_REFRESH_SECONDS)
