"""``kube-efs up``: an embedded cluster to play with, until Ctrl-C."""

import asyncio
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fake_efs.errors import PlatformError
from kube_efs.operator.manifests import RenderOptions, render_asset, text_of, values_of
from kube_efs.operator.platforms import Platform
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
from kube_efs_lab.programs import NAMES, NODE
from kube_efs_lab.real_plane import plane_for
from kube_efs_lab.work_directory import parent_directory
from tinykube.ports import free_port

_REFRESH_SECONDS = 1.0
_RESTART_SECONDS = 1.0
_STATUS_SECONDS = 30.0
_LOOK_SECONDS = 0.2
# Somebody looks on.
_OFTEN = {"KUBE_EFS_RESYNC_SECONDS": "2"}


async def run_up(kubeconfig: Path, *, empty: bool = False, programs: Path | None = None) -> None:
    """Run the cluster until SIGINT or SIGTERM; its kubeconfig is there meanwhile. Raises PlatformError.

    An ``empty`` one has nothing of kube-efs, which can be installed in it. ``programs`` is the directory of a
    real control plane. Beside the kubeconfig is the file ``env``, with the variables for another terminal.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kube-efs-up-", dir=parent_directory()) as name,
        logging_to(Path(name) / "up.log"),
    ):
        folder, variables = Path(name), kubeconfig.with_name("env")

        async def work() -> None:
            try:
                async with plane_for(folder, kubeconfig, programs) as plane:
                    await _run(folder, plane, variables, make_console(), empty=empty)
            finally:
                variables.unlink(missing_ok=True)

        await run_until_stopped(work())


async def _run(folder: Path, plane: ControlPlane, variables: Path, console: Console, *, empty: bool) -> None:
    console.print("Starting ...")
    page = free_port()
    settings = {"KUBE_EFS_STATUS_PAGE": "true", "KUBE_EFS_STATUS_PAGE_PORT": str(page)}
    async with EmbeddedCluster(
        folder, control_plane=plane, settings=_OFTEN if empty else settings, installed=not empty
    ) as cluster:
        running = () if empty else (cluster.controller, cluster.tunnel, cluster.node)
        if not empty:
            points = access_point_class(cluster.file_system_ids[0])
            await apply(cluster.client, [STORAGE_CLASS, DIRECTORY_CLASS, points, _observing()])
            await _first_status(cluster)
        _write_variables(variables, cluster, empty=empty)
        usage = _empty_usage(cluster, variables) if empty else _usage(cluster, variables, page)
        console.print(usage, soft_wrap=True)

        async def keep_running(program: Program) -> None:
            """Start the process again whenever it ends, as the kubelet does with one in a pod."""
            while True:
                code = await program.ended()
                console.print(f"{program.name} has ended (exit code {code}); starting it again")
                await asyncio.sleep(_RESTART_SECONDS)
                with suppress(PlatformError):
                    await program.start()
                    _write_variables(variables, cluster, empty=empty)
                    console.print(f"{program.name} serves its metrics at {_metrics(program)} now")

        try:
            async with asyncio.TaskGroup() as tasks:
                for program in running:
                    tasks.create_task(keep_running(program))
                tasks.create_task(_show(cluster, console))
        finally:
            console.print("Stopping ...")


async def _first_status(cluster: EmbeddedCluster) -> None:
    """Wait until the node has reported its tunnels, which the doctor expects; a late one does no harm."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_STATUS_SECONDS):
            while not (await read_cluster(cluster.client, NAMES)).nodes:  # noqa: ASYNC110 - asked from outside
                await asyncio.sleep(_LOOK_SECONDS)


def _observing() -> str:
    """The permissions that the controller needs for its status page."""
    values = values_of(RenderOptions(platform=Platform.KUBERNETES, namespace=NAMES.namespace))
    return text_of(render_asset("observing-rbac", values), as_json=False)


def _write_variables(file: Path, cluster: EmbeddedCluster, *, empty: bool) -> None:
    """Write what commands in another terminal need: the cluster, AWS, and for ``doctor node`` the node."""
    needed = {**cluster.efs.environment(), "KUBECONFIG": str(cluster.kubeconfig)}
    if not empty:
        needed |= {
            "NODE_NAME": NODE,
            "STUNNEL_CONF_PATH": str(cluster.stunnel_conf),
            "KUBE_EFS_CA_FILE": str(cluster.efs.ca_file),
            "KUBE_EFS_TUNNEL_SOCKET": str(cluster.tunnel_socket),
            "KUBE_EFS_HEALTH_PORT": cluster.tunnel.health_url.rpartition(":")[2],
        }
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(needed.items())]
    file.write_text("".join(lines), encoding="utf-8")


def _metrics(program: Program) -> str:
    return f"{program.health_url}/metrics"


def _usage(cluster: EmbeddedCluster, variables: Path, page: int) -> str:
    return f"""
The cluster is there, with three StorageClasses: {STORAGE_CLASS_NAME}, whose volumes go through tunnels, slow
of the provisioner {DIRECTORY_PROVISIONER}, whose volumes have a group id each, and efs-sc-1 of the CSI driver
efs.csi.aws.com, whose volumes have an access point each. In another terminal:

  . {variables}
  kubectl get storageclass,pvc,pv
  kubectl apply -f your-claim.yaml
  kube-efs status
  kube-efs doctor cluster
  kube-efs doctor node --driver {cluster.node.health_url}

  status page              http://127.0.0.1:{page}/
  metrics, controller      {_metrics(cluster.controller)}
  metrics, tunnel agent    {_metrics(cluster.tunnel)}
  metrics, driver          {_metrics(cluster.node)}
{_ending(cluster)}"""


def _empty_usage(cluster: EmbeddedCluster, variables: Path) -> str:
    file_systems = " and ".join(cluster.file_system_ids)
    return f"""
The cluster is there, with nothing of kube-efs in it. Its file systems are {file_systems}.
In another terminal:

  . {variables}
  kube-efs render --for kubernetes --csi | kubectl apply -f -
{_ending(cluster)}"""


def _ending(cluster: EmbeddedCluster) -> str:
    return f"""
The AWS API is at {cluster.efs.endpoint_url}, for creating file systems and mount targets.
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
