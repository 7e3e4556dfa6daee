"""The command ``kube-efs migrate``; it imports what it needs when it runs."""

from typing import Annotated

import typer

from kube_efs.command_options import KubeconfigOption, NamesOption, Output, OutputOption

_BLOCKED = 1


def migrate(  # noqa: PLR0913 - one for each option
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the claims.", show_default="all")
    ] = None,
    storage_class: Annotated[
        str | None, typer.Option("--class", help="Only claims of this StorageClass.")
    ] = None,
    claim: Annotated[list[str] | None, typer.Option(help="Only claims of this name; repeatable.")] = None,
    new_class: Annotated[
        str | None,
        typer.Option("--new-class", help="New StorageClass of the claims.", show_default="their own"),
    ] = None,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Convert claims back to their NFS volumes.")
    ] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time to wait until no pod uses a claim.")
    ] = 0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Move the claims, instead of only showing the plan.")
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE_SYSTEM_ID", help=("File system of an NFS server; repeatable.")),
    ] = None,
    system_namespace: Annotated[
        str | None,
        typer.Option(
            envvar="POD_NAMESPACE", help="The namespace of kube-efs.", show_default="that of its names"
        ),
    ] = None,
    names: NamesOption = None,
    kubeconfig: KubeconfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Convert NFS volumes to CSI volumes with the same data, one claim at a time.

    Without --yes, it only shows the plan. It copies and removes no data. You can interrupt it at any moment:
    the same command continues, and --rollback goes back.
    """
    import asyncio

    from kube_efs.migration.plan import Direction, Selection
    from kube_efs.migration.run import MigrateOptions, parse_servers, run_migration

    options = MigrateOptions(
        kubeconfig=kubeconfig,
        system_namespace=system_namespace,
        name_set=names,
        selection=Selection(namespace=namespace, storage_class=storage_class, claims=frozenset(claim or ())),
        direction=Direction.BACK if rollback else Direction.FORWARD,
        new_class=new_class,
        servers=parse_servers(server or ()),
        wait_seconds=wait,
        go=yes,
        as_json=output is Output.JSON,
    )
    try:
        is_well = asyncio.run(run_migration(options))
    except KeyboardInterrupt:
        if yes:
            typer.echo("Run the same command again to continue, or with --rollback to undo.", err=True)
        raise
    if not is_well:
        raise typer.Exit(_BLOCKED)
