"""Commands of other distributions, such as the lab: entry points of the group ``kube_efs.commands``.

Each entry point is a ``Command`` under its name. Without the lab, its commands exist too, and say how to
install it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Final

import typer

from kube_efs.manual import Manual
from kube_efs.model.errors import PlatformError

GROUP: Final = "kube_efs.commands"
_LAB_COMMANDS: Final = MappingProxyType(
    {
        "up": "Start an embedded cluster and EFS on this machine (needs the lab).",
        "demo": "Demonstrate the life of a claim on an embedded cluster (needs the lab).",
    }
)
_ANY_ARGUMENTS: Final = MappingProxyType({"ignore_unknown_options": True, "allow_extra_args": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """``run`` is a function for typer; ``manual`` is the part of its help after the options."""

    run: Callable[..., None]
    manual: Manual


def add_commands(app: typer.Typer, found: Iterable[EntryPoint]) -> dict[str, Manual]:
    """Add the commands to the command line; returns the manual of each."""
    commands = {one.name: one.load() for one in found}
    for name, command in commands.items():
        app.command(name)(command.run)
    for name, does in _LAB_COMMANDS.items():
        if name not in commands:
            app.command(name, help=does, context_settings=dict(_ANY_ARGUMENTS))(_missing(name))
    return {name: command.manual for name, command in commands.items()}


def _missing(name: str) -> Callable[[], None]:
    def fail() -> None:
        raise PlatformError(
            "needs the lab, a separate Python package that is not installed",
            field="command",
            value=name,
            remedy="in a checkout of kube-efs run `make setup`, or `pip install ./lab`",
        )

    return fail
