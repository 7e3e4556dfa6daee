"""The parts of a command's help after its options: exit status, environment, examples.

``--help`` ends with them, and ``scripts/man_pages.py`` writes manual pages from them.
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
    """``exits`` explains each exit status, ``environment`` each variable without an option."""

    exits: Mapping[int, str]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    examples: tuple[Example, ...]


_WRONG_USAGE: Final = "wrong usage, or an invalid setting"
_KUBECONFIG: Final = {"KUBECONFIG": "the cluster, if --kubeconfig is not given"}
_AWS: Final = {"AWS_...": "credentials and endpoint, as of every AWS client"}
_SETTINGS: Final = {"KUBE_EFS_... and others": "all settings; invalid ones are reported at the start"}


def exits(done: str, failed: str) -> Mapping[int, str]:
    """The meaning of each exit status of a command."""
    return MappingProxyType({0: done, 1: failed, 2: _WRONG_USAGE})


_PROCESS: Final = exits("it was stopped", "it could not continue; the log gives the reason")

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
        exits=exits("the cluster answered", "the cluster did not answer, or denied access"),
        environment=_KUBECONFIG,
        examples=(
            Example(command="kube-efs status", does="tables of file systems, claims, volumes and tunnels"),
            Example(
                command="kube-efs status -n efs -o json",
                does="the same in JSON, for kube-efs in namespace efs",
            ),
        ),
    ),
    "top": Manual(
        exits=exits("the cluster answered", "the cluster did not answer, or denied access"),
        environment=_KUBECONFIG,
        examples=(
            Example(command="kube-efs top", does="the largest volumes, their traffic and their pods"),
            Example(command="kube-efs top --sort growth --watch", does="those that grow most, until Ctrl-C"),
        ),
    ),
    "migrate": Manual(
        exits=exits(
            "every claim can be moved, or was moved",
            "a claim cannot be moved; each such claim has its reason",
        ),
        environment=_KUBECONFIG,
        examples=(
            Example(command="kube-efs migrate", does="show the plan and change nothing"),
            Example(
                command="kube-efs migrate -n team --claim data --yes --wait 600",
                does="move one claim, when no pod uses it",
            ),
            Example(
                command="kube-efs migrate -n team --rollback --yes", does="move claims back to NFS volumes"
            ),
        ),
    ),
    "render": Manual(
        exits=exits("the manifests were printed", "the manifests could not be printed"),
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
            "the file system exists, and its ID was printed",
            "the file system is not complete; repeat the command to continue",
        ),
        environment={**_AWS, **_KUBECONFIG},
        examples=(
            Example(
                command="kube-efs create-file-system --infra-id prod-x7k2p --region us-east-1 --dry-run",
                does="show what would be created, for the nodes' subnets",
            ),
        ),
    ),
    "destroy": Manual(
        exits=exits(
            "everything was removed, or the cluster owned nothing",
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
        exits=exits("no problem was found", "a problem was found, or there is no answer"),
        environment={**_KUBECONFIG, **_AWS},
        examples=(
            Example(command="kube-efs doctor cluster", does="check everything in the cluster and in AWS"),
            Example(
                command="kube-efs doctor cluster --bundle efs.tar.gz",
                does="also write objects and logs, for support",
            ),
        ),
    ),
    "doctor claim": Manual(
        exits=exits("no problem was found", "a problem was found, or there is no answer"),
        environment={**_KUBECONFIG, **_AWS},
        examples=(
            Example(
                command="kube-efs doctor claim team/data",
                does="find out why a claim has no volume, or no data",
            ),
        ),
    ),
    "doctor node": Manual(
        exits=exits("no problem was found", "a problem was found"),
        environment=_SETTINGS,
        examples=(Example(command="kube-efs doctor node", does="check the tunnels and mounts of this node"),),
    ),
}


def add_manuals(app: typer.Typer, manuals: Mapping[str, Manual], prefix: str = "") -> None:
    """Append the manual of each command to its help."""
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        manual = manuals.get(f"{prefix}{name}")
        if manual is not None:
            command.epilog = "\n\n".join(_lines(manual))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_manuals(group.typer_instance, manuals, f"{group.name} ")


def _lines(manual: Manual) -> Iterator[str]:
    """The paragraphs, each of which is one line in the help."""
    for status, meaning in manual.exits.items():
        yield f"Exit status {status}: {meaning}"
    for name, meaning in manual.environment.items():
        yield f"Environment {name}: {meaning}"
    for example in manual.examples:
        yield f"Example: {example.command}  # {example.does}"
