"""Commands of other distributions on the command line, and those of the lab if it is not installed."""

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from kube_efs.manual import Manual, exits
from kube_efs.model.errors import PlatformError
from kube_efs.other_commands import GROUP, Command, add_commands


def _hello(name: str) -> None:
    typer.echo(f"hello {name}")


HELLO = Command(run=_hello, manual=Manual(exits=exits("it was said", "it was not"), examples=()))


def _app(*found: EntryPoint) -> typer.Typer:
    app = typer.Typer()
    add_commands(app, found)
    return app


def test_command_is_found_by_its_entry_point() -> None:
    point = EntryPoint("hello", f"{__name__}:HELLO", GROUP)
    app = typer.Typer()
    manuals = add_commands(app, [point])
    assert CliRunner().invoke(app, ["hello", "you"]).output == "hello you\n"
    assert manuals == {"hello": HELLO.manual}


@pytest.mark.parametrize("command", [["up"], ["up", "--empty"], ["demo", "--output", "json"]])
def test_commands_of_the_lab_say_how_to_install_it(command: list[str]) -> None:
    result = CliRunner().invoke(_app(), command)
    assert isinstance(result.exception, PlatformError)
    assert result.exception.value == command[0]
    assert result.exception.remedy == "in a checkout of kube-efs run `make setup`, or `pip install ./lab`"


def test_help_lists_the_commands_of_a_missing_lab() -> None:
    shown = CliRunner().invoke(_app(), ["--help"]).output
    assert "up" in shown
    assert "(needs the lab)" in " ".join(shown.replace("│", " ").split())
