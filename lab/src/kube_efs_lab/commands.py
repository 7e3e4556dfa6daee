"""What the lab adds to the command line of kube-efs: ``up`` and ``demo``.

What a command needs is imported when it runs, so that ``kube-efs --help`` is there at once.
"""

from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from kube_efs.manual import Example, Manual, exits
from kube_efs.other_commands import Command

T = TypeVar("T")


class Output(StrEnum):
    """How the demo answers: for people or for programs."""

    TABLE = "table"
    JSON = "json"


ControlPlaneOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="KUBEBUILDER_ASSETS",
        file_okay=False,
        resolve_path=True,
        help="Use the etcd, kube-apiserver and kube-controller-manager in this directory.",
        show_default="the embedded control plane",
    ),
]


def _up(
    kubeconfig: Annotated[
        Path,
        typer.Option(
            dir_okay=False, resolve_path=True, help="File for the kubeconfig of the embedded cluster."
        ),
    ] = Path(".kube-efs/kubeconfig"),
    empty: Annotated[
        bool, typer.Option("--empty", help="Start a cluster without kube-efs, to install it there.")
    ] = False,
    control_plane: ControlPlaneOption = None,
) -> None:
    """Start an embedded cluster and EFS on this machine, until Ctrl-C."""
    from kube_efs_lab.up import run_up

    _run(run_up(kubeconfig, empty=empty, programs=control_plane))


def _demo(
    output: Annotated[Output, typer.Option("--output", "-o", help="A table, or JSON.")] = Output.TABLE,
    control_plane: ControlPlaneOption = None,
) -> None:
    """Demonstrate the life of a claim on an embedded cluster, and check each step."""
    from kube_efs_lab.demo import run_demo

    if not _run(run_demo(as_json=output is Output.JSON, programs=control_plane)):
        raise typer.Exit(1)


def _run(command: Coroutine[Any, Any, T]) -> T:
    """Run it; its errors become those that the command line shows."""
    import asyncio

    from fake_efs.errors import EfsError
    from kube_efs.model.errors import PlatformError

    try:
        return asyncio.run(command)
    except EfsError as error:
        raise PlatformError(str(error)) from error


_CONTROL_PLANE: Final = {"KUBEBUILDER_ASSETS": "the same as --control-plane"}

up: Final = Command(
    run=_up,
    manual=Manual(
        exits=exits("the cluster was stopped", "a requirement is missing on this machine"),
        environment=_CONTROL_PLANE,
        examples=(
            Example(command="kube-efs up", does="start a cluster until Ctrl-C, with .kube-efs/kubeconfig"),
            Example(
                command="kube-efs up --kubeconfig /tmp/kubeconfig",
                does="write the kubeconfig to another file",
            ),
            Example(
                command="kube-efs up --empty", does="start a cluster without kube-efs, to install it there"
            ),
            Example(
                command="kube-efs up --control-plane /usr/local/kubebuilder/bin",
                does="use a real etcd, kube-apiserver and kube-controller-manager",
            ),
        ),
    ),
)
demo: Final = Command(
    run=_demo,
    manual=Manual(
        exits=exits("every check passed", "a check failed, or a requirement is missing on this machine"),
        environment=_CONTROL_PLANE,
        examples=(Example(command="kube-efs demo --output json", does="print the checks as JSON"),),
    ),
)
