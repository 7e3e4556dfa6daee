"""The command ``kube-efs migrate``; it imports what it needs when it runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from kube_efs.command_options import KubeconfigOption, NamesOption, Output, OutputOption

if TYPE_CHECKING:
    from kube_efs.migration.run import MigrateOptions

_BLOCKED = 1

ClassOption = Annotated[str | None, typer.Option("--class", help="Only claims of this StorageClass.")]
ClaimOption = Annotated[list[str] | None, typer.Option(help="Only claims of this name; repeatable.")]
NewClassOption = Annotated[
    str | None,
    typer.Option("--new-class", help="New StorageClass of the claims.", show_default="their own"),
]
RollbackOption = Annotated[bool, typer.Option("--rollback", help="Convert claims back to their NFS volumes.")]
WaitOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="Time to wait until no pod uses a claim.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Move the claims, instead of only showing the plan.")]
ServerOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=FILE_SYSTEM_ID", help="File system of an NFS server; repeatable."),
]
SystemNamespaceOption = Annotated[
    str | None,
    typer.Option(envvar="POD_NAMESPACE", help="The namespace of kube-efs.", show_default="that in use"),
]


def migrate(  # noqa: PLR0913 - one for each option
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the claims.", show_default="all")
    ] = None,
    storage_class: ClassOption = None,
    claim: ClaimOption = None,
    new_class: NewClassOption = None,
    rollback: RollbackOption = False,
    wait: WaitOption = 0,
    yes: YesOption = False,
    server: ServerOption = None,
    system_namespace: SystemNamespaceOption = None,
    names: NamesOption = None,
    kubeconfig: KubeconfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Convert NFS volumes to CSI volumes with the same data, one claim at a time.

    Without --yes, it only shows the plan. It copies and removes no data. You can interrupt it at any moment:
    the same command continues, and --rollback goes back.
    """
    from kube_efs.kube.client import load_config
    from kube_efs.migration.plan import Direction, Selection
    from kube_efs.migration.run import MigrateOptions, parse_servers

    servers = parse_servers(server or ())
    run_command(
        MigrateOptions(
            config=load_config(kubeconfig),
            system_namespace=system_namespace,
            name_set=names,
            selection=Selection(
                namespace=namespace, storage_class=storage_class, claims=frozenset(claim or ())
            ),
            direction=Direction.BACK if rollback else Direction.FORWARD,
            new_class=new_class,
            servers=servers,
            wait_seconds=wait,
            go=yes,
            as_json=output is Output.JSON,
        )
    )


def run_command(options: "MigrateOptions") -> None:
    """Run it to its end; raises Exit if a claim cannot be moved."""
    import asyncio

    from kube_efs.migration.run import run_migration

    try:
        is_well = asyncio.run(run_migration(options))
    except KeyboardInterrupt:
        if options.go:
            typer.echo("Run the same command again to continue, or with --rollback to undo.", err=True)
        raise
    if not is_well:
        raise typer.Exit(_BLOCKED)
