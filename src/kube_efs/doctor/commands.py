"""The commands ``kube-efs doctor cluster``, ``node`` and ``claim``."""

from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kube_efs.doctor.run import Answering, Installation

_BROKEN = 1


class DoctorOutput(StrEnum):
    """How the doctor writes its output: for users or for programs."""

    TABLE = "table"
    JSON = "json"


_Output = Annotated[DoctorOutput, typer.Option("--output", "-o", help="A table, or JSON.")]
_Bundle = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Also write objects and logs, without secrets, to this .tar.gz."),
]
_Kubeconfig = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Default: the pod's service account, KUBECONFIG or ~/.kube/config."),
]
_Namespace = Annotated[
    str, typer.Option("--namespace", "-n", envvar="POD_NAMESPACE", help="The namespace of kube-efs.")
]
_Region = Annotated[
    str | None,
    typer.Option(
        envvar="AWS_REGION", help="Region of the file systems.", show_default="the controller's or nodes'"
    ),
]
_DEFAULT_NAMESPACE = "openshift-efs-stunnel"


def make_doctor(installation: "Installation") -> typer.Typer:
    """The commands; ``installation`` returns the manifests to compare with the cluster."""
    app = typer.Typer(no_args_is_help=True, help="Find problems and their remedies.")

    @app.command("cluster")
    def cluster(
        *,
        namespace: _Namespace = _DEFAULT_NAMESPACE,
        kubeconfig: _Kubeconfig = None,
        region: _Region = None,
        output: _Output = DoctorOutput.TABLE,
        bundle: _Bundle = None,
    ) -> None:
        """Check the file systems, classes, claims and nodes of a cluster, with data from AWS."""
        from kube_efs.doctor.run import ClusterOptions, diagnose_cluster

        options = ClusterOptions(namespace=namespace, kubeconfig=kubeconfig, region=region)
        _finish(diagnose_cluster(options, installation, _answering(output, bundle)))

    @app.command("claim")
    def claim(
        name: Annotated[str, typer.Argument(metavar="CLAIM", help="NAMESPACE/NAME of the claim.")],
        *,
        namespace: _Namespace = _DEFAULT_NAMESPACE,
        kubeconfig: _Kubeconfig = None,
        region: _Region = None,
        output: _Output = DoctorOutput.TABLE,
        bundle: _Bundle = None,
    ) -> None:
        """Check one claim, and the path between the claim and its data."""
        from kube_efs.doctor.run import ClusterOptions, diagnose_cluster

        options = ClusterOptions(namespace=namespace, kubeconfig=kubeconfig, claim=name, region=region)
        _finish(diagnose_cluster(options, installation, _answering(output, bundle)))

    @app.command("node")
    def node(
        *,
        agent: Annotated[
            str | None,
            typer.Option(
                metavar="URL",
                help="URL of the tunnel agent's health endpoint.",
                show_default="from the settings",
            ),
        ] = None,
        driver: Annotated[
            str | None,
            typer.Option(
                metavar="URL",
                help="URL of the health endpoint of the CSI driver.",
                show_default="none, or port 9812",
            ),
        ] = None,
        output: _Output = DoctorOutput.TABLE,
        bundle: _Bundle = None,
    ) -> None:
        """Check this node: tunnels, ports, TLS, NFS, kernel. Run it in the agent's pod if possible."""
        from kube_efs.doctor.node_settings import node_options
        from kube_efs.doctor.run import diagnose_node

        options = node_options(agent_url=agent, driver_url=driver)
        _finish(diagnose_node(options, _answering(output, bundle)))

    return app


def _answering(output: DoctorOutput, bundle: Path | None) -> "Answering":
    from kube_efs.doctor.run import Answering

    return Answering(as_json=output is DoctorOutput.JSON, bundle=bundle)


def _finish(work: Coroutine[Any, Any, bool]) -> None:
    import asyncio

    if asyncio.run(work):
        raise typer.Exit(_BROKEN)
