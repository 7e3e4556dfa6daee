"""The commands ``kube-efs doctor cluster``, ``node`` and ``claim``."""

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kube_efs.command_options import (
    KubeconfigOption,
    NamesOption,
    NamespaceOption,
    Output,
    OutputOption,
    check_region,
)

if TYPE_CHECKING:
    from kube_efs.doctor.run import Answering, Installation

_BROKEN = 1


BundleOption = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Also write objects and logs, without secrets, to this .tar.gz."),
]
RegionOption = Annotated[
    str | None,
    typer.Option(
        envvar="AWS_REGION",
        callback=check_region,
        help="Region of the file systems.",
        show_default="the controller's or nodes'",
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
        region: RegionOption = None,
        output: OutputOption = Output.TABLE,
        bundle: BundleOption = None,
    ) -> None:
        """Check the file systems, classes, claims and nodes of a cluster, with data from AWS."""
        from kube_efs.doctor.run import ClusterOptions, diagnose_cluster
        from kube_efs.kube.client import load_config

        options = ClusterOptions(
            namespace=namespace, name_set=names, config=load_config(kubeconfig), region=region
        )
        finish(diagnose_cluster(options, installation, answering(output, bundle)))

    @app.command("claim")
    def claim(
        name: Annotated[str, typer.Argument(metavar="CLAIM", help="NAMESPACE/NAME of the claim.")],
        *,
        namespace: NamespaceOption = None,
        names: NamesOption = None,
        kubeconfig: KubeconfigOption = None,
        region: RegionOption = None,
        output: OutputOption = Output.TABLE,
        bundle: BundleOption = None,
    ) -> None:
        """Check one claim, and the path between the claim and its data."""
        from kube_efs.doctor.run import ClusterOptions, diagnose_cluster
        from kube_efs.kube.client import load_config

        options = ClusterOptions(
            config=load_config(kubeconfig),
            namespace=namespace,
            name_set=names,
            claim=name,
            region=region,
        )
        finish(diagnose_cluster(options, installation, answering(output, bundle)))

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
                show_default="from the settings",
            ),
        ] = None,
        output: OutputOption = Output.TABLE,
        bundle: BundleOption = None,
    ) -> None:
        """Check this node: tunnels, ports, TLS, NFS, kernel. Run it in the agent's pod if possible."""
        from kube_efs.doctor.node_settings import node_options
        from kube_efs.doctor.run import diagnose_node

        options = node_options(agent_url=agent, driver_url=driver)
        finish(diagnose_node(options, answering(output, bundle)))

    return app


def answering(output: Output, bundle: Path | None) -> "Answering":
    """The format of the answer that these options describe."""
    from kube_efs.doctor.run import Answering

    return Answering(as_json=output is Output.JSON, bundle=bundle)


def finish(work: Coroutine[Any, Any, bool]) -> None:
    """Run the diagnosis; raises Exit if something is broken."""
    import asyncio

    if asyncio.run(work):
        raise typer.Exit(_BROKEN)
