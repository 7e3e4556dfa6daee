"""The command ``kube-efs status``."""

import json
from dataclasses import asdict
from pathlib import Path

from kube_efs.kube.client import connect, load_config
from kube_efs.kube.installations import find_installation
from kube_efs.model.names import NameSet
from kube_efs.report.reading import read_cluster
from kube_efs.report.tables import make_console, render_cluster
from kube_efs.telemetry.logging import configure

# A user waits for the answer.
_PATIENCE_SECONDS = 3.0


async def show_status(
    kubeconfig: Path | None, *, namespace: str | None, name_set: NameSet | None, as_json: bool
) -> None:
    """Write the state of a cluster's EFS storage to standard output.

    Raises InvalidSetting when no cluster is configured, KubeError when it does not answer.
    """
    configure("WARNING")
    async with connect(load_config(kubeconfig), patience_seconds=_PATIENCE_SECONDS) as client:
        report = await read_cluster(client, await find_installation(client, namespace, name_set))
    console = make_console()
    if as_json:
        console.out(json.dumps(asdict(report), indent=2))
    else:
        console.print(render_cluster(report))
