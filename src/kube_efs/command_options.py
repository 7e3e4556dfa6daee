"""Options that several commands have."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kube_efs.model.efs.ids import parse_region
from kube_efs.model.errors import InvalidValue, shown
from kube_efs.model.names import NameSet


class Output(StrEnum):
    """How a command writes its output: for users or for programs."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="A table, or JSON.")]


def check_region(text: str | None) -> str | None:
    """The region, or None if it is not given; raises BadParameter, whose text names the option."""
    try:
        return parse_region(text) if text else None
    except InvalidValue as error:
        raise typer.BadParameter(f"{shown(text)} {error.problem}; {error.remedy}") from error


KubeconfigOption = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="Default: the pod's service account, KUBECONFIG or ~/.kube/config."),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        envvar="POD_NAMESPACE",
        help="The namespace of kube-efs.",
        show_default="that in use",
    ),
]
NamesOption = Annotated[
    NameSet | None,
    typer.Option(envvar="KUBE_EFS_NAMES", help="The names of kube-efs.", show_default="those in use"),
]
