"""The command ``kube-efs status``."""

import json
from dataclasses import asdict

from lightkube.config.kubeconfig import SingleConfig

from kube_efs.kube.client import connect
from kube_efs.kube.installations import find_installation
from kube_efs.model.names import NameSet
from kube_efs.report.reading import read_cluster
from kube_efs.report.tables import make_console, render_cluster
from kube_efs.telemetry.logging import configure

# A user waits for the answer.
_PATIENCE_SECONDS = 3.0


async def show_status(
    config: SingleConfig,
    *,
    namespace: str | None,
    name_set: NameSet | None,
    claims_in: str | None,
    as_json: bool,
) -> None:
    """Write the state of a cluster's EFS storage to standard output.

    With ``claims_in``, only claims of this namespace and their volumes. Raises KubeError when the cluster
    does not answer.
    """
    configure("WARNING")
    async with connect(config, patience_seconds=_PATIENCE_SECONDS) as client:
        report = await read_cluster(client, await find_installation(client, namespace, name_set))
    if claims_in:
        report = report.only(claims_in)
    console = make_console()
    if as_json:
        console.out(json.dumps(asdict(report), indent=2))
    else:
        console.print(render_cluster(report))
