"""``kube-efs demo``: the whole way from a claim to data and back, shown and checked."""

import json
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fake_efs.policy import managed_policy
from kube_efs.report.tables import (
    claims_table,
    make_console,
    on_demand_table,
    table_of,
    tunnels_table,
    volumes_table,
)
from kube_efs.report.values import ClusterReport
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.demo_steps import Check, Demo
from kube_efs_lab.logs import logging_to
from kube_efs_lab.real_plane import plane_for
from kube_efs_lab.work_directory import parent_directory


async def run_demo(*, as_json: bool, programs: Path | None = None) -> bool:
    """Show it on standard output; gives whether every check held. Raises PlatformError before it begins.

    ``programs`` is the directory of a real control plane. The directory with all logs is kept when a
    check fails.
    """
    started = time.monotonic()
    console = make_console(quiet=as_json)
    folder = Path(tempfile.mkdtemp(prefix="kube-efs-demo-", dir=parent_directory()))
    with logging_to(folder / "demo.log"):
        checks, report = await _walk(folder, programs, console)
    seconds = time.monotonic() - started
    ok = all(check.ok for check in checks)
    if ok:
        shutil.rmtree(folder)
    if as_json:
        make_console().out(_render_json(ok, seconds, report, checks))
    elif ok:
        console.print(
            f"\nEvery check held, in {seconds:.0f} s. Try it yourself: kube-efs up", style="bold green"
        )
    else:
        console.print(f"\nNot everything held. The logs of all parts are in {folder}", style="bold red")
    return ok


async def _walk(folder: Path, programs: Path | None, console: Console) -> tuple[list[Check], ClusterReport]:
    """All checks, and the cluster as it was with all its claims."""
    checks: list[Check] = []
    console.print("Starting a Kubernetes API, a node, an AWS API, NFS servers, and kube-efs on them ...")
    async with (
        plane_for(folder, folder / "kubeconfig", programs) as plane,
        EmbeddedCluster(folder, control_plane=plane, driver_policy=managed_policy()) as cluster,
    ):
        demo = Demo(cluster)
        async for check in demo.provision():
            checks.append(check)
            _show(check, console)
        report = demo.report
        console.print()
        for table in (
            claims_table(report.claims),
            volumes_table(report.volumes),
            tunnels_table(report.nodes),
            on_demand_table(report.nodes),
        ):
            console.print(table)
        rows = [(fs, one.version, one.cipher, one.peer) for fs, one in demo.handshakes.items()]
        console.print(
            table_of("TLS to the mount targets", ["file system", "version", "cipher", "peer"], rows)
        )
        console.print()
        async for check in demo.reclaim():
            checks.append(check)
            _show(check, console)
    return checks, report


def _show(check: Check, console: Console) -> None:
    mark = ("ok      ", "green") if check.ok else ("failed  ", "bold red")
    console.print(Text.assemble(mark, (check.name, "bold"), f": {check.detail}"), soft_wrap=True)


def _render_json(ok: bool, seconds: float, report: ClusterReport, checks: list[Check]) -> str:
    claims = [
        {"name": claim.name, "phase": claim.phase, "volume": claim.volume, "reason": claim.reason}
        for claim in report.claims
    ]
    document = {
        "ok": ok,
        "seconds": round(seconds, 1),
        "claims": claims,
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(document, indent=2)
