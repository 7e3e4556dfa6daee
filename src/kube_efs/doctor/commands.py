"""The commands ``kube-efs doctor cluster``, ``node`` and ``claim``."""

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kube_efs.command_options import KubeconfigOption, NamesOption, NamespaceOption, Output, OutputOption

if TYPE_CHECKING:
    from kube_efs.doctor.run import Answering, Installation

_BROKEN = 1


_Bundle = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Also write objects and logs, without secrets, to this .tar.gz."),
]
_Region = Annotated[
    str | None,
    typer.Option(
        envvar="AWS_REGION", help="Region of the file systems.", show_default="the controller's or nodes'"
    ),
]


def make_doctor(installation: "Installation") -> typer.Typer:
    """The commands; ``installation`` returns the manifests to compare with the cluster."""
    app = typer.Typer(no_args_is_help=True, help="Find problems and their remedies.")

    @app.command("cluster")
    def cluster(
        *,
        namespace: NamespaceOption = None,
        names: NamesOption = None,
        kubeconfig: KubeconfigOption = None,
        region: _Region = None,
        output: OutputOption = Output.TABLE,
        bundle: _Bundle = None,
    ) -> None:
        """Check the file systems, classes, claims and nodes of a cluster, with data from AWS."""
        from kube_efs.doctor.run import ClusterOptions, diagnose_cluster

        options = ClusterOptions(namespace=namespace, name_set=names, kubeconfig=kubeconfig, region=region)
        _finish(diagnose_cluster(options, installation, _answering(output, bundle)))

    @app.command("claim")
    def claim(
        name: Annotated[str, typer.Argument(metavar="CLAIM", help="NAMESPACE/NAME of the claim.")],
        *,
        namespace: NamespaceOption = None,
        names: NamesOption = None,
        kubeconfig: KubeconfigOption = None,
        region: _Region = None,
        output: OutputOption = Output.TABLE,
        bundle: _Bundle = None,
    ) -> None:
        """Check one claim, and the path between the claim and its data."""
        from kube_efs.doctor.run import ClusterOptions, diagnose_cluster

        options = ClusterOptions(
            namespace=namespace, name_set=names, kubeconfig=kubeconfig, claim=name, region=region
        )
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
        output: OutputOption = Output.TABLE,
        bundle: _Bundle = None,
    ) -> None:
        """Check this node: tunnels, ports, TLS, NFS, kernel. Run it in the agent's pod if possible."""
        from kube_efs.doctor.node_settings import node_options
        from kube_efs.doctor.run import diagnose_node

        options = node_options(agent_url=agent, driver_url=driver)
        _finish(diagnose_node(options, _answering(output, bundle)))

    return app


def _answering(output: Output, bundle: Path | None) -> "Answering":
    from kube_efs.doctor.run import Answering

    return Answering(as_json=output is Output.JSON, bundle=bundle)


def _finish(work: Coroutine[Any, Any, bool]) -> None:
    import asyncio

    if asyncio.run(work):
        raise typer.Exit(_BROKEN)
