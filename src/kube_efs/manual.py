"""What the help of a command says beside its options: exit status, environment, examples.

``--help`` shows it at the end, and manual pages are made from it (scripts/man_pages.py).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A command line, and what it does."""

    command: str
    does: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manual:
    """``exits`` has the meaning of each exit status, ``environment`` of each variable that has no option."""

    exits: Mapping[int, str]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    examples: tuple[Example, ...]


_WRONG_USAGE: Final = "incorrect usage, or an invalid setting"
_KUBECONFIG: Final = {"KUBECONFIG": "the kubeconfig, if --kubeconfig is not set"}
_AWS: Final = {"AWS_...": "credentials and endpoint, as for any AWS client"}
_SETTINGS: Final = {"KUBE_EFS_... and others": "all settings; the process reports invalid ones at the start"}


def exits(done: str, failed: str) -> Mapping[int, str]:
    """The meaning of each exit status of a command."""
    return MappingProxyType({0: done, 1: failed, 2: _WRONG_USAGE})


_PROCESS: Final = exits("the process was stopped", "the process could not continue; the log gives the reason")

MANUALS: Final[dict[str, Manual]] = {
    "controller": Manual(
        exits=_PROCESS,
        environment=_SETTINGS,
        examples=(Example(command="kube-efs controller", does="serve the claims of this cluster"),),
    ),
    "tunnel": Manual(
        exits=_PROCESS,
        environment=_SETTINGS,
        examples=(Example(command="kube-efs tunnel", does="run the tunnels of this node"),),
    ),
    "node": Manual(
        exits=_PROCESS,
        environment=_SETTINGS,
        examples=(Example(command="kube-efs node", does="mount volumes for this node's kubelet"),),
    ),
    "operator": Manual(
        exits=_PROCESS,
        environment=_SETTINGS,
        examples=(Example(command="kube-efs operator", does="manage the installation"),),
    ),
    "status": Manual(
        exits=exits("the status was printed", "the cluster does not answer, or denies access"),
        environment=_KUBECONFIG,
        examples=(
            Example(command="kube-efs status", does="tables of file systems, claims, volumes and tunnels"),
            Example(
                command="kube-efs status -n efs -o json",
                does="the same in JSON, for kube-efs in namespace efs",
            ),
        ),
    ),
    "migrate": Manual(
        exits=exits(
            "no claim has a problem", "at least one claim has a problem; the output gives the reason"
        ),
        environment=_KUBECONFIG,
        examples=(
            Example(command="kube-efs migrate", does="show the plan and change nothing"),
            Example(
                command="kube-efs migrate -n team --claim data --yes --wait 600",
                does="convert one claim when no pod uses it",
            ),
            Example(
                command="kube-efs migrate -n team --rollback --yes", does="convert claims back to NFS volumes"
            ),
        ),
    ),
    "render": Manual(
        exits=exits("the manifests were printed or written", "the manifests could not be printed or written"),
        examples=(
            Example(
                command="kube-efs render --for kubernetes --csi | kubectl apply -f -",
                does="install kube-efs with the CSI driver",
            ),
            Example(
                command="kube-efs render --for olm --directory bundle", does="write a bundle of the operator"
            ),
        ),
    ),
    "create-file-system": Manual(
        exits=exits(
            "the file system exists, and its ID was printed", "failed; repeat the command to continue"
        ),
        environment={**_AWS, **_KUBECONFIG},
        examples=(
            Example(
                command="kube-efs create-file-system --infra-id prod-x7k2p --region us-east-1 --dry-run",
                does="show what would be created in the subnets of the nodes",
            ),
        ),
    ),
    "destroy": Manual(
        exits=exits(
            "everything was removed, or there was nothing to remove",
            "something remains: --yes is missing, or AWS refused",
        ),
        environment=_AWS,
        examples=(
            Example(
                command="kube-efs destroy --infra-id prod-x7k2p --region us-east-1",
                does="list what the cluster owns in AWS; --yes removes it",
            ),
        ),
    ),
    "doctor cluster": Manual(
        exits=exits("nothing is broken", "something is broken"),
        environment={**_KUBECONFIG, **_AWS},
        examples=(
            Example(
                command="kube-efs doctor cluster", does="check everything that the cluster and AWS report"
            ),
            Example(
                command="kube-efs doctor cluster --bundle efs.tar.gz",
                does="also write an archive with objects and logs",
            ),
        ),
    ),
    "doctor claim": Manual(
        exits=exits("nothing is broken", "something is broken"),
        environment={**_KUBECONFIG, **_AWS},
        examples=(
            Example(
                command="kube-efs doctor claim team/data",
                does="check the path between this claim and its data",
            ),
        ),
    ),
    "doctor node": Manual(
        exits=exits("nothing is broken", "something is broken"),
        environment=_SETTINGS,
        examples=(Example(command="kube-efs doctor node", does="check the tunnels and mounts of this node"),),
    ),
}


def add_manuals(app: typer.Typer, manuals: Mapping[str, Manual], prefix: str = "") -> None:
    """Let the help of each command end with what its manual says."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        manual = manuals.get(f"{prefix}{name}")
        if manual is not None:
            command.epilog = "\n\n".join(_lines(manual))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_manuals(group.typer_instance, manuals, f"{group.name} ")


def _lines(manual: Manual) -> Iterator[str]:
    """Paragraphs, each of which is a line of its own in the help."""
    for status, meaning in manual.exits.items():
        yield f"Exit status {status}: {meaning}"
    for name, meaning in manual.environment.items():
        yield f"Environment {name}: {meaning}"
    for example in manual.examples:
        yield f"Example: {example.command}  # {example.does}"
