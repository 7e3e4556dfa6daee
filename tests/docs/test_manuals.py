"""Help and manual pages: every command has exit statuses, environment and valid examples."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from kube_efs.cli import ALL_MANUALS, app

ROOT = Path(__file__).parents[2]


def _commands(group: object, prefix: str = "") -> Iterator[tuple[str, TyperCommand]]:
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, f"{prefix}{name} ")
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield f"{prefix}{name}", command


COMMANDS = dict(_commands(get_command(app)))


def test_each_command_has_a_manual() -> None:
    assert set(COMMANDS) == set(ALL_MANUALS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_ends_with_exit_statuses_and_examples(name: str) -> None:
    answer = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert answer.exit_code == 0
    shown = " ".join(answer.output.split())
    for status, meaning in ALL_MANUALS[name].exits.items():
        assert f"Exit status {status}: {meaning}" in shown
    for variable, meaning in ALL_MANUALS[name].environment.items():
        assert f"Environment {variable}: {meaning}" in shown
    for example in ALL_MANUALS[name].examples:
        assert f"Example: {example.command} # {example.does}" in shown


@pytest.mark.parametrize("name", sorted(ALL_MANUALS))
def test_examples_are_valid_calls_of_their_command(name: str) -> None:
    assert set(ALL_MANUALS[name].exits) == {0, 1, 2}
    assert ALL_MANUALS[name].examples
    for example in ALL_MANUALS[name].examples:
        program, *words = shlex.split(example.command.partition("|")[0])
        path = name.split()
        assert (program, words[: len(path)]) == ("kube-efs", path)
        COMMANDS[name].make_context(name, words[len(path) :])  # fails for what it does not take


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual pages, written as `make docs` does."""
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "scripts/man_pages.py", folder], timeout=120, check=True)
    return folder


def test_each_command_has_a_page_with_all_its_options(pages: Path) -> None:
    files = {f"kube-efs-{name.replace(' ', '-')}.1": command for name, command in COMMANDS.items()}
    assert {page.name for page in pages.iterdir()} == {"kube-efs.1", *files}
    main = (pages / "kube-efs.1").read_text(encoding="utf-8").replace("\\-", "-")
    for name, command in files.items():
        text = (pages / name).read_text(encoding="utf-8").replace("\\-", "-")
        missing = [
            one for option in command.params for one in option.opts if one[0] == "-" and one not in text
        ]
        assert missing == []
        assert re.findall(r"^\.SH (EXIT STATUS|EXAMPLES)$", text, flags=re.MULTILINE) == [
            "EXIT STATUS",
            "EXAMPLES",
        ]
        assert f".BR {name.removesuffix('.1')} (1)" in main


@pytest.mark.skipif(shutil.which("groff") is None, reason="the program groff is not installed")
def test_groff_reports_no_error_in_the_pages(pages: Path) -> None:
    files = sorted(map(str, pages.iterdir()))
    checked = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", *files],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert checked.stderr == ""
