"""The command line: each command parses, builds settings, and calls the one function that does the work.

A command imports what it needs when it runs, so that ``--help`` is fast.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kube_efs.command_options import (
    KubeconfigOption,
    NamesOption,
    NamespaceOption,
    Output,
    OutputOption,
    check_region,
)
from kube_efs.doctor.commands import make_doctor
from kube_efs.exit_status import FAILED, exit_status_of
from kube_efs.manual import MANUALS, add_manuals
from kube_efs.migration.command import migrate
from kube_efs.model.errors import InvalidSetting
from kube_efs.model.names import NEW_INSTALLATION, UNNAMED_INSTALLATION, Names, NameSet, names_in
from kube_efs.operator.platforms import Platform
from kube_efs.other_commands import GROUP, add_commands
from kube_efs.report.options import (
    ClaimsInOption,
    IntervalOption,
    LimitOption,
    SortOption,
    VolumeOrder,
    WatchOption,
)
from kube_efs.telemetry.loading import load_libraries

if TYPE_CHECKING:
    from kube_efs.aws.gateway import AwsGateway
    from kube_efs.doctor.checks.common import CsiOption
    from kube_efs.operator.manifests import Manifest, RenderOptions

_EFS_PROVISIONER = "efs-provisioner"
_Answer = TypeVar("_Answer")

app = typer.Typer(
    name="kube-efs",
    help="TLS-secured Amazon EFS volumes for Kubernetes and OpenShift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class ManifestFormat(StrEnum):
    """How manifests are printed."""

    YAML = "yaml"
    JSON = "json"


class RenderTarget(StrEnum):
    """What manifests are printed for."""

    KUBERNETES = "kubernetes"
    OPENSHIFT = "openshift"
    OLM = "olm"


def main() -> None:
    """The console script."""
    if len(sys.argv) == 1 and {"FILE_SYSTEM_ID", "PROVISIONER_NAME"} & os.environ.keys():
        # The image of efs-provisioner has no commands, so its manifests have no arguments.
        sys.argv.append(_EFS_PROVISIONER)
    sys.exit(exit_status_of(app))


def _finish(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    import asyncio

    return asyncio.run(work)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version
        from importlib.resources import files

        # A wheel has the revision of its sources; an editable installation has the sources themselves.
        revision = files("kube_efs").joinpath("REVISION")
        suffix = f" ({revision.read_text(encoding='utf-8').strip()})" if revision.is_file() else ""
        typer.echo(f"kube-efs {version('kube-efs')}{suffix}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def controller(
    csi_endpoint: Annotated[
        str, typer.Option(help="Serve the CSI Controller service on this socket, for csi-provisioner.")
    ] = "",
) -> None:
    """Create volumes for claims (runs in a Deployment; settings come from the environment)."""
    load_libraries()
    from kube_efs.controllers.process import run_controller
    from kube_efs.settings.controller import ControllerSettings
    from kube_efs.settings.loading import load
    from kube_efs.telemetry.logging import configure

    given = {"CSI_ENDPOINT": csi_endpoint} if csi_endpoint else {}
    settings = load(ControllerSettings, {**os.environ, **given})
    configure(settings.logging_level)
    _finish(run_controller(settings))


@app.command(_EFS_PROVISIONER, hidden=True)
def run_efs_provisioner() -> None:
    """Do what efs-provisioner did, with its environment and its permissions."""
    load_libraries()
    from kube_efs.controllers.process import run_controller
    from kube_efs.settings.controller import ControllerSettings, efs_provisioner_defaults
    from kube_efs.settings.loading import load
    from kube_efs.telemetry.logging import configure

    settings = load(ControllerSettings, {**os.environ, **efs_provisioner_defaults(os.environ)})
    configure(settings.logging_level)
    _finish(run_controller(settings))


@app.command()
def tunnel() -> None:
    """Manage this node's TLS tunnels (runs in a DaemonSet; settings come from the environment)."""
    from kube_efs.node_processes import run_tunnel_process

    raise typer.Exit(run_tunnel_process())


@app.command()
def node() -> None:
    """Mount volumes for the kubelet (runs in a DaemonSet; settings come from the environment)."""
    from kube_efs.node_processes import run_node_process

    raise typer.Exit(run_node_process())


@app.command("operator")
def run_the_operator() -> None:
    """Install and manage kube-efs as a ClusterCSIDriver specifies (runs in a Deployment)."""
    load_libraries()
    from kube_efs.operator.run import run_operator
    from kube_efs.settings.loading import load
    from kube_efs.settings.operator import OperatorSettings
    from kube_efs.telemetry.logging import configure

    settings = load(OperatorSettings)
    configure(settings.logging_level)
    _finish(run_operator(settings))


@app.command()
def status(
    claims_in: ClaimsInOption = None,
    output: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    namespace: NamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Show the file systems, ports, volumes and tunnels of a cluster."""
    from kube_efs.kube.client import load_config
    from kube_efs.report.status import show_status

    _finish(
        show_status(
            load_config(kubeconfig),
            namespace=namespace,
            name_set=names,
            claims_in=claims_in,
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
    claims_in: ClaimsInOption = None,
    output: OutputOption = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    namespace: NamespaceOption = None,
    names: NamesOption = None,
) -> None:
    """Show the volumes that hold or carry most, and the nodes and pods that use them."""
    from kube_efs.kube.client import load_config
    from kube_efs.report.top import TopOptions, show_top

    options = TopOptions(
        order=order,
        claims_in=claims_in,
        limit=limit,
        as_json=output is Output.JSON,
        watch_seconds=interval if watch else None,
    )
    _finish(show_top(load_config(kubeconfig), options, namespace=namespace, name_set=names))


app.command()(migrate)


@app.command()
def render(  # noqa: PLR0913 - one for each option
    target: Annotated[
        RenderTarget, typer.Option("--for", help="The kind of cluster, or a bundle of the operator for OLM.")
    ],
    *,
    names: Annotated[
        NameSet | None,
        typer.Option(
            help="Names of the objects. To upgrade, use those of the installation.",
            show_default="those of --namespace",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace for kube-efs.", show_default="that of --names"),
    ] = None,
    create_namespace: Annotated[
        bool,
        typer.Option("--create-namespace", help="Add the Namespace, also if its name is not the default."),
    ] = False,
    image: Annotated[
        str | None, typer.Option(help="Image of all processes.", show_default="this version's")
    ] = None,
    provisioner: Annotated[
        str, typer.Option(help="Provisioner in the storage classes.")
    ] = "gnuthought.com/efs-stunnel",
    storage_class: Annotated[
        str | None, typer.Option(help="Name of the StorageClass.", show_default="that of --names")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region of the file systems.", show_default="each node's own")
    ] = None,
    fips: Annotated[
        bool, typer.Option("--fips", help="Use FIPS endpoints of AWS, and FIPS mode in the tunnels.")
    ] = False,
    csi: Annotated[bool, typer.Option("--csi", help="Add the CSI driver efs.csi.aws.com.")] = False,
    csi_only: Annotated[
        bool, typer.Option("--csi-only", help="Only the CSI driver, without tunnel volumes.")
    ] = False,
    pod_tokens: Annotated[
        bool,
        typer.Option(help="Give the CSI driver tokens of pods. The AWS driver refuses volumes with them."),
    ] = True,
    kubelet_dir: Annotated[
        str, typer.Option(help="The kubelet's --root-dir, for the CSI driver.")
    ] = "/var/lib/kubelet",
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/NAME", help="Secret that classes of the CSI driver refer to; repeatable."
        ),
    ] = None,
    config_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/NAME", help="ConfigMap that classes of the CSI driver refer to; repeatable."
        ),
    ] = None,
    directory: Annotated[
        Path, typer.Option(file_okay=False, help="Directory for the bundle for OLM.")
    ] = Path("bundle"),
    operator: Annotated[
        bool, typer.Option("--operator", help="Only the operator, which installs everything else.")
    ] = False,
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="YAML documents, or one list in JSON.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print the manifests of an installation, for kubectl apply -f -."""
    from kube_efs.operator.manifests import RenderOptions, render_manifests, text_of
    from kube_efs.operator.operator_manifests import render_operator
    from kube_efs.settings.base import own_image

    # The operator looks for the names that its namespace has.
    has_operator = operator or target is RenderTarget.OLM
    names = names or names_in(namespace) or (NEW_INSTALLATION if has_operator else None)
    if names is None:
        remedy = (
            f"add --names {NEW_INSTALLATION} for a new installation; for an existing one its names, such as "
            f"--names {UNNAMED_INSTALLATION} for one of an earlier version"
        )
        raise InvalidSetting("needs --names", field="--namespace", value=namespace, remedy=remedy)
    options = RenderOptions(
        platform=Platform.OPENSHIFT if target is RenderTarget.OLM else Platform(target),
        names=names,
        namespace=names.names.namespace if namespace is None else namespace,
        create_namespace=create_namespace,
        image=image or own_image(),
        provisioner=provisioner,
        storage_class_name=names.names.storage_class if storage_class is None else storage_class,
        region=region,
        fips=fips,
        csi=csi or csi_only or has_operator,
        csi_only=csi_only,
        pod_tokens=pod_tokens,
        kubelet_folder=kubelet_dir,
        secrets=tuple(secret or ()),
        config_maps=tuple(config_map or ()),
    )
    if target is RenderTarget.OLM:
        _write_bundle(options, directory)
        return
    manifests = render_operator(options) if operator else render_manifests(options)
    typer.echo(text_of(manifests, as_json=output is ManifestFormat.JSON), nl=False)


def installation(names: Names, csi: "CsiOption") -> "tuple[Manifest, ...]":
    """The manifests with which the doctor compares a cluster."""
    from kube_efs.doctor.checks.common import CsiOption
    from kube_efs.operator.manifests import RenderOptions, render_manifests

    return render_manifests(
        RenderOptions(
            platform=Platform.KUBERNETES,
            names=names.name_set,
            namespace=names.namespace,
            csi=csi is not CsiOption.NONE,
            csi_only=csi is CsiOption.ONLY,
        )
    )


app.add_typer(make_doctor(installation), name="doctor")


InfraIdOption = Annotated[
    str, typer.Option("--infra-id", help="ID of the cluster, in the tag of the AWS resources that it owns.")
]


@app.command("create-file-system")
def create_a_file_system(
    infra_id: InfraIdOption,
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of the file system.", show_default="INFRA_ID-efs")
    ] = None,
    subnet: Annotated[
        list[str] | None,
        typer.Option(help="Subnet for a mount target; repeatable.", show_default="the nodes'"),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(envvar="AWS_REGION", callback=check_region, help="Region of the new file system."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Kubeconfig of the cluster, to find the subnets of its nodes."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be created.")] = False,
) -> None:
    """Create a file system for a cluster, with security group and mount targets; may be repeated."""
    from kube_efs.model.efs.ids import parse_subnet_id
    from kube_efs.operator.file_systems import FileSystemRequest, create_file_system

    request = FileSystemRequest(
        infra_id=infra_id,
        name=name or f"{infra_id}-efs",
        subnets=tuple(parse_subnet_id(one) for one in subnet or ()),
        kubeconfig=kubeconfig,
        dry_run=dry_run,
    )
    made = _finish(_in_aws(region, lambda gateway: create_file_system(gateway, request, _say)))
    if made:
        typer.echo(made)


@app.command()
def destroy(
    infra_id: InfraIdOption,
    *,
    region: Annotated[
        str | None,
        typer.Option(envvar="AWS_REGION", callback=check_region, help="Region of the file systems."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them, instead of only listing them.")] = False,
) -> None:
    """Remove access points and file systems that a cluster owns, WITH ALL DATA in them."""
    from kube_efs.operator.file_systems import describe
    from kube_efs.operator.file_systems import destroy as remove

    async def act(gateway: "AwsGateway") -> bool:
        owned = await gateway.owned.find(infra_id)
        for line in describe(owned):
            typer.echo(line)
        if owned.empty:
            _say(f"cluster {infra_id} owns nothing")
        elif yes:
            await remove(gateway, owned, _say)
        else:
            _say("nothing was removed; add --yes to remove all of this")
        return owned.empty or yes

    if not _finish(_in_aws(region, act)):
        raise typer.Exit(FAILED)


async def _in_aws(region: str | None, work: "Callable[[AwsGateway], Awaitable[_Answer]]") -> _Answer:
    from kube_efs.aws.connection import AwsOptions
    from kube_efs.aws.gateway import AwsGateway
    from kube_efs.model.efs.ids import parse_region

    if region is None:
        raise InvalidSetting("is missing", field="--region", remedy="give it, or set AWS_REGION")
    async with AwsGateway(AwsOptions(region=parse_region(region))) as gateway:
        return await work(gateway)


def _say(text: str) -> None:
    """Print progress to standard error, because programs read standard output."""
    typer.echo(text, err=True)


def _write_bundle(options: "RenderOptions", directory: Path) -> None:
    from kube_efs.operator.bundle import render_bundle

    for path, text in render_bundle(options).items():
        file = directory / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidSetting(
                f"cannot be written ({error.strerror})",
                field="--directory",
                value=str(file),
                remedy="name a writable directory",
            ) from error
        typer.echo(str(file))


ALL_MANUALS = MANUALS | add_commands(app, entry_points(group=GROUP))
add_manuals(app, ALL_MANUALS)
