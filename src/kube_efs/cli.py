"""The command line: each command parses, builds settings, and calls the one function that does the work.

Exit status: 0 for success, 1 for a failure, 2 for wrong usage or invalid settings. A command imports what it
needs when it runs, so that ``--help`` is fast.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kube_efs.doctor.commands import make_doctor
from kube_efs.manual import MANUALS, add_manuals
from kube_efs.migration.command import migrate
from kube_efs.model.errors import InvalidSetting, KubeEfsError
from kube_efs.operator.platforms import Platform
from kube_efs.other_commands import GROUP, add_commands
from kube_efs.telemetry.loading import load_logging
from kube_efs.telemetry.uncaught import log_uncaught

if TYPE_CHECKING:
    from kube_efs.aws.gateway import AwsGateway
    from kube_efs.operator.manifests import Manifest, RenderOptions

_FAILED = 1
_WRONG_USAGE = 2
_Answer = TypeVar("_Answer")

app = typer.Typer(
    name="kube-efs",
    help="TLS-secured Amazon EFS volumes for Kubernetes and OpenShift.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Output(StrEnum):
    """How a command writes its output: for users or for programs."""

    TABLE = "table"
    JSON = "json"


class ManifestFormat(StrEnum):
    """How manifests are printed."""

    YAML = "yaml"
    JSON = "json"


class RenderTarget(StrEnum):
    """What manifests are printed for."""

    KUBERNETES = "kubernetes"
    OPENSHIFT = "openshift"
    OLM = "olm"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table, or JSON.")]


def main() -> None:
    """The console script; an error of kube-efs is printed as one line with a remedy, never as a traceback."""
    try:
        app()
    except KubeEfsError as error:
        _print_error(error)
        sys.exit(_WRONG_USAGE if isinstance(error, InvalidSetting) else _FAILED)
    except Exception as error:  # noqa: BLE001 - Python would print its text with secrets
        log_uncaught(error)
        sys.exit(_FAILED)


def _print_error(error: KubeEfsError) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), (str(error), "red")))


def _finish(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    import asyncio

    return asyncio.run(work)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kube-efs {version('kube-efs')}")
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
    load_logging()
    from kube_efs.controllers.process import run_controller
    from kube_efs.settings import ControllerSettings, load
    from kube_efs.telemetry.logging import configure

    settings = load(ControllerSettings, **({"CSI_ENDPOINT": csi_endpoint} if csi_endpoint else {}))
    configure(settings.logging_level)
    _finish(run_controller(settings))


@app.command()
def tunnel() -> None:
    """Manage this node's TLS tunnels (runs in a DaemonSet; settings come from the environment)."""
    load_logging()
    from kube_efs.telemetry.logging import configure

    if os.getpid() == 1:  # its end would end all processes of the container, stunnel too
        from kube_efs.tunnels.supervisor import supervise

        configure("INFO")
        raise typer.Exit(supervise([sys.executable, "-m", "kube_efs", "tunnel"]))

    from kube_efs.settings import TunnelSettings, load
    from kube_efs.tunnels.run import run_tunnel

    settings = load(TunnelSettings)
    configure(settings.logging_level)
    _finish(run_tunnel(settings))


@app.command()
def node() -> None:
    """Mount volumes for the kubelet (runs in a DaemonSet; settings come from the environment)."""
    load_logging()
    from kube_efs.csi.run_node import run_node
    from kube_efs.settings import NodeSettings, load
    from kube_efs.telemetry.logging import configure

    settings = load(NodeSettings)
    configure(settings.logging_level)
    _finish(run_node(settings))


@app.command("operator")
def run_the_operator() -> None:
    """Install and manage kube-efs as a ClusterCSIDriver specifies (runs in a Deployment)."""
    load_logging()
    from kube_efs.operator.run import run_operator
    from kube_efs.settings import OperatorSettings, load
    from kube_efs.telemetry.logging import configure

    settings = load(OperatorSettings)
    configure(settings.logging_level)
    _finish(run_operator(settings))


@app.command()
def status(
    output: OutputOption = Output.TABLE,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Default: the pod's service account, KUBECONFIG or ~/.kube/config."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", envvar="POD_NAMESPACE", help="The namespace of kube-efs.")
    ] = "openshift-efs-stunnel",
) -> None:
    """Show the file systems, ports, volumes and tunnels of a cluster."""
    from kube_efs.report.status import show_status

    _finish(show_status(kubeconfig, namespace, as_json=output is Output.JSON))


app.command()(migrate)


@app.command()
def render(  # noqa: PLR0913 - one for each option
    target: Annotated[
        RenderTarget, typer.Option("--for", help="The kind of cluster, or a bundle of the operator for OLM.")
    ],
    *,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace for kube-efs.")
    ] = "openshift-efs-stunnel",
    image: Annotated[
        str | None, typer.Option(help="Image of all processes.", show_default="this version's")
    ] = None,
    provisioner: Annotated[
        str, typer.Option(help="Provisioner in the storage classes.")
    ] = "gnuthought.com/efs-stunnel",
    storage_class: Annotated[str, typer.Option(help="Name of the StorageClass.")] = "efs-stunnel",
    region: Annotated[
        str | None, typer.Option(help="Region of the file systems.", show_default="each instance's own")
    ] = None,
    csi: Annotated[bool, typer.Option("--csi", help="Add the CSI driver efs.csi.aws.com.")] = False,
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
    from kube_efs.settings import own_image

    options = RenderOptions(
        platform=Platform.OPENSHIFT if target is RenderTarget.OLM else Platform(target),
        namespace=namespace,
        image=image or own_image(),
        provisioner=provisioner,
        storage_class_name=storage_class,
        region=region,
        csi=csi or operator or target is RenderTarget.OLM,
        kubelet_folder=kubelet_dir,
        secrets=tuple(secret or ()),
        config_maps=tuple(config_map or ()),
    )
    if target is RenderTarget.OLM:
        _write_bundle(options, directory)
        return
    manifests = render_operator(options) if operator else render_manifests(options)
    typer.echo(text_of(manifests, as_json=output is ManifestFormat.JSON), nl=False)


def _installation(namespace: str, csi: bool) -> "tuple[Manifest, ...]":
    from kube_efs.operator.manifests import RenderOptions, render_manifests

    return render_manifests(RenderOptions(platform=Platform.KUBERNETES, namespace=namespace, csi=csi))


app.add_typer(make_doctor(_installation), name="doctor")


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
        str | None, typer.Option(envvar="AWS_REGION", help="Region of the new file system.")
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
        str | None, typer.Option(envvar="AWS_REGION", help="Region of the file systems.")
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
        raise typer.Exit(_FAILED)


async def _in_aws(region: str | None, work: "Callable[[AwsGateway], Awaitable[_Answer]]") -> _Answer:
    from kube_efs.aws.connection import AwsOptions
    from kube_efs.aws.gateway import AwsGateway
    from kube_efs.model.efs.ids import parse_region

    async with AwsGateway(AwsOptions(region=parse_region(region, field="AWS_REGION"))) as gateway:
        return await work(gateway)


def _say(text: str) -> None:
    """Print progress to standard error, because programs read standard output."""
    typer.echo(text, err=True)


def _write_bundle(options: "RenderOptions", directory: Path) -> None:
    from kube_efs.operator.bundle import render_bundle

    for path, text in render_bundle(options).items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        typer.echo(str(file))


ALL_MANUALS = MANUALS | add_commands(app, entry_points(group=GROUP))
add_manuals(app, ALL_MANUALS)
