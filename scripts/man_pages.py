"""Writes a manual page for each command into a folder: its options, and what kube_efs.manual says besides."""

import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from kube_efs.cli import ALL_MANUALS, app
from kube_efs.manual import Manual
from kube_efs.settings.base import Environment
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.fields import variables
from kube_efs.settings.node import NodeSettings
from kube_efs.settings.operator import OperatorSettings
from kube_efs.settings.tunnel import TunnelSettings

_NAME: Final = "kube-efs"
_SETTINGS: Final[Mapping[str, type[Environment]]] = {
    "controller": ControllerSettings,
    "node": NodeSettings,
    "operator": OperatorSettings,
    "tunnel": TunnelSettings,
}


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    group = get_command(app)
    commands = dict(_commands(group)) if isinstance(group, TyperGroup) else {}
    summary = "TLS-secured Amazon EFS volumes for Kubernetes and OpenShift"
    listed = "".join(
        f".TP\n.BR {_escaped(_page(name))} (1)\n{_summary(one)}\n" for name, one in commands.items()
    )
    main = f"{_head(_NAME, summary)}.SH SYNOPSIS\n.B {_escaped(_NAME)}\nCOMMAND ...\n.SH COMMANDS\n{listed}"
    return {f"{_NAME}.1": main} | {f"{_page(name)}.1": _text(name, one) for name, one in commands.items()}


def _commands(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, TyperCommand]]:
    """The commands of the group that people may see, and those of the groups in it."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, f"{prefix}{name} ")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{prefix}{name}", command


def _page(command: str) -> str:
    return f"{_NAME}-{command.replace(' ', '-')}"


def _summary(command: TyperCommand) -> str:
    return _escaped((command.help or "").partition("\n")[0].rstrip("."))


def _head(name: str, summary: str) -> str:
    return f'.TH "{name.upper()}" 1 "" "{_NAME} {version(_NAME)}"\n.SH NAME\n{_escaped(name)} \\- {summary}\n'


def _text(name: str, command: TyperCommand) -> str:
    manual = ALL_MANUALS[name]
    sections = {
        "SYNOPSIS": f".B {_escaped(f'{_NAME} {name}')}\n{_arguments(command)}\n",
        "DESCRIPTION": _escaped(" ".join((command.help or "").split())) + "\n",
        "OPTIONS": "".join(_option(one) for one in command.params if isinstance(one, TyperOption)),
        "EXIT STATUS": "".join(_entry(str(status), text) for status, text in manual.exits.items()),
        "ENVIRONMENT": "".join(_environment(name, command, manual)),
        "EXAMPLES": "".join(_entry(one.command, one.does) for one in manual.examples),
        "SEE ALSO": f".BR {_escaped(_NAME)} (1)\n",
    }
    body = "".join(f".SH {title}\n{text}" for title, text in sections.items() if text)
    return _head(_page(name), _summary(command)) + body


def _arguments(command: TyperCommand) -> str:
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    return " ".join(["[OPTION]...", *(one.metavar or str(one.name).upper() for one in arguments)])


def _option(option: TyperOption) -> str:
    takes = "" if option.is_flag else f" {option.metavar or str(option.name).upper()}"
    default = option.show_default if isinstance(option.show_default, str) else option.default
    given = f" Default: {default}." if default else ""
    return _entry(f"{', '.join(option.opts)}{takes}", f"{option.help or ''}{given}")


def _environment(name: str, command: TyperCommand, manual: Manual) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, TyperOption) and option.envvar:
            yield _entry(str(option.envvar), f"stands for {option.opts[0]}")
    kind = _SETTINGS.get(name)
    if kind is None:
        yield from (_entry(variable, meaning) for variable, meaning in manual.environment.items())
        return
    for one in variables(kind).values():
        yield _entry(one.name, f"{one.meaning} (default: {one.shown})".replace("`", ""))


def _entry(term: str, text: str) -> str:
    return f".TP\n.B {_escaped(term)}\n{_escaped(text)}\n"


def _escaped(text: str) -> str:
    """The text as roff takes it: no request at the start of a line, and hyphens that can be copied."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def main() -> None:
    """Write the pages into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
