"""The program ``kubectl-efs``, which kubectl runs as ``kubectl efs``.

The options of kubectl have their usual meaning here: ``--namespace`` is that of the claims, by default the
one of the context. In ``kube-efs``, it is the namespace of kube-efs, which is ``--system-namespace`` here.
"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kube_efs.cli import installation
from kube_efs.command_options import NamesOption, Output, OutputOption
from kube_efs.doctor.commands import BundleOption, RegionOption, answering, finish
from kube_efs.exit_status import exit_status_of
from kube_efs.kubectl.completion import complete
from kube_efs.kubectl.program import ask, options_of
from kube_efs.migration.command import (
    ClaimOption,
    ClassOption,
    NewClassOption,
    RollbackOption,
    ServerOption,
    SystemNamespaceOption,
    WaitOption,
    YesOption,
    run_command,
)
from kube_efs.report.options import IntervalOption, LimitOption, SortOption, VolumeOrder, WatchOption
from kube_efs.telemetry.loading import load_logging
from kube_efs.telemetry.uncaught import catch_uncaught

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

KubeconfigOption = Annotated[
    str | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Kubeconfig to use.", show_default="kubectl's"),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig.", show_default="the current one")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the claims.", show_default="that of the context"),
]
OnlyNamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Only claims of this namespace.", show_default="all"),
]
AllNamespacesOption = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Claims of all namespaces.")
]

_NAME = "kubectl efs"
app = typer.Typer(
    name=_NAME,
    help="Check and manage volumes of kube-efs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
doctor = typer.Typer(no_args_is_help=True, help="Find problems and their remedies.")
app.add_typer(doctor, name="doctor")


def main() -> None:
    """The program ``kubectl-efs``."""
    catch_uncaught()
    load_logging()
    sys.exit(exit_status_of(lambda: app(prog_name=_NAME)))


def main_of_completion() -> None:
    """The program ``kubectl_complete-efs``, which kubectl runs to complete a command line."""
    sys.stdout.write(complete(typer.main.get_command(app), sys.argv[1:]))


@app.command()
def status(
    *,
    namespace: OnlyNamespaceOption = None,
    output: OutputOption = Output.TABLE,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    system_namespace: SystemNamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Show the file systems, ports, volumes and tunnels of a cluster."""
    from kube_efs.report.status import show_status

    asyncio.run(
        show_status(
            _config(kubeconfig, context),
            namespace=system_namespace,
            name_set=names,
            claims_in=namespace,
            as_json=output is Output.JSON,
        )
    )


@app.command()
def top(  # noqa: PLR0913 - one for each option
    *,
    order: SortOption = VolumeOrder.SIZE,
    limit: LimitOption = 20,
    watch: WatchOption = False,
    interval: IntervalOption = 5,
    namespace: OnlyNamespaceOption = None,
    output: OutputOption = Output.TABLE,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    system_namespace: SystemNamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Show the volumes that hold or carry most, and the nodes and pods that use them."""
    from kube_efs.report.top import TopOptions, show_top

    options = TopOptions(
        order=order,
        claims_in=namespace,
        limit=limit,
        as_json=output is Output.JSON,
        watch_seconds=interval if watch else None,
    )
    config = _config(kubeconfig, context)
    asyncio.run(show_top(config, options, namespace=system_namespace, name_set=names))


@doctor.command("cluster")
def check_cluster(
    *,
    region: RegionOption = None,
    output: OutputOption = Output.TABLE,
    bundle: BundleOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    system_namespace: SystemNamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Check the file systems, classes, claims and nodes of a cluster, with data from AWS."""
    from kube_efs.doctor.run import ClusterOptions, diagnose_cluster

    options = ClusterOptions(
        config=_config(kubeconfig, context), namespace=system_namespace, name_set=names, region=region
    )
    finish(diagnose_cluster(options, installation, answering(output, bundle)))


@doctor.command("claim")
def check_claim(  # noqa: PLR0913 - one for each option
    name: Annotated[str, typer.Argument(metavar="CLAIM", help="Name of the claim.")],
    *,
    namespace: NamespaceOption = None,
    region: RegionOption = None,
    output: OutputOption = Output.TABLE,
    bundle: BundleOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    system_namespace: SystemNamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Check one claim, and the path between the claim and its data."""
    from kube_efs.doctor.run import ClusterOptions, diagnose_cluster

    options = ClusterOptions(
        config=_config(kubeconfig, context, namespace),
        namespace=system_namespace,
        name_set=names,
        claim=name,
        region=region,
    )
    finish(diagnose_cluster(options, installation, answering(output, bundle)))


@app.command()
def migrate(  # noqa: PLR0913 - one for each option
    *,
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    storage_class: ClassOption = None,
    claim: ClaimOption = None,
    new_class: NewClassOption = None,
    rollback: RollbackOption = False,
    wait: WaitOption = 0,
    yes: YesOption = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    system_namespace: SystemNamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Convert NFS volumes to CSI volumes with the same data, one claim at a time.

    Without --yes, it only shows the plan. It copies and removes no data. You can interrupt it at any moment:
    the same command continues, and --rollback goes back.
    """
    from kube_efs.migration.plan import Direction, Selection
    from kube_efs.migration.run import MigrateOptions, parse_servers

    servers = parse_servers(server or ())
    config = _config(kubeconfig, context, namespace)
    selection = Selection(
        namespace=None if all_namespaces else config.namespace or "default",
        storage_class=storage_class,
        claims=frozenset(claim or ()),
    )
    run_command(
        MigrateOptions(
            config=config,
            system_namespace=system_namespace,
            name_set=names,
            selection=selection,
            direction=Direction.BACK if rollback else Direction.FORWARD,
            new_class=new_class,
            servers=servers,
            wait_seconds=wait,
            go=yes,
            as_json=output is Output.JSON,
        )
    )


def _config(kubeconfig: str | None, context: str | None, namespace: str | None = None) -> "SingleConfig":
    """The cluster, user and namespace that kubectl would use with these options; raises InvalidSetting.

    kubectl merges all files in KUBECONFIG, so it is asked instead of the files.
    """
    import yaml

    from kube_efs.kube.errors import configured
    from kube_efs.kube.kubeconfig import read_kubeconfig

    options = options_of(kubeconfig=kubeconfig, context=context)
    found = yaml.safe_load(ask("config", "view", "--raw", "--minify", "--flatten", *options))
    if namespace:
        found["contexts"][0]["context"]["namespace"] = namespace
    with configured():
        return read_kubeconfig([(found, Path())])
