"""The check of words: it finds them only in prose, and this tree has none."""

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.plain_english import (
    PAGE_WORDS,
    WORDS,
    Finding,
    findings,
    prose_of_manifest,
    prose_of_module,
    prose_of_page,
)

ROOT = Path(__file__).parents[3]


def _words(page: str) -> list[str]:
    return [one.word for one in findings(prose_of_page(page))]


def test_tree_contains_no_word_of_the_list() -> None:
    check = subprocess.run(
        [sys.executable, "scripts/plain_english.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_finding_has_line_word_and_alternative() -> None:
    found = list(findings(prose_of_page("# Page\n\nGive it to whoever\nasks. The mount goes\non.\n")))
    assert found == [
        Finding(line=3, word="whoever", instead=WORDS["whoever|whomever"]),
        Finding(line=4, word="goes on", instead=WORDS["(goes|go|went|going|gone) on"]),
    ]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param("The node is told its port.", ["is told"], id="longer phrase wins"),
        pytest.param(
            "Whoever asks, and whoever waits.", ["Whoever", "whoever"], id="uppercase, and twice in a line"
        ),
        pytest.param("See `whoever` and ``who ` ever, anew``.", [], id="code"),
        pytest.param("```console\n$ echo anew\n```\n\nAgain anew.", ["anew"], id="fenced block"),
        pytest.param("* a list\n\n  ```sh\n  # anew\n  ```", [], id="indented fenced block"),
        pytest.param("[pages](docs/whoever.md#anew)", [], id="target of a link"),
        pytest.param("<!-- not run: whoever -->", [], id="comment"),
        pytest.param("<!-- begin: code -->\n| anew |\n<!-- end -->", [], id="generated table"),
        pytest.param('The log says "made anew".', [], id="quoted message"),
        pytest.param(
            "It is available via a canoe, a viaduct and folderol.", ["via"], id="part of another word"
        ),
    ],
)
def test_only_prose_is_checked(page: str, words: list[str]) -> None:
    assert _words(page) == words


@pytest.mark.parametrize(
    ("module", "words"),
    [
        pytest.param('"""Ask whoever\nis there."""', ["whoever"], id="docstring"),
        pytest.param("x = 1  # made anew", ["made anew"], id="comment"),
        pytest.param("# The mount goes\n# on.", ["goes on"], id="comment of two lines"),
        pytest.param('f"{folder} is told {anew} again"', ["is told"], id="message with placeholders"),
        pytest.param('("the node is "\n "told its port")', ["is told"], id="message in two parts"),
        pytest.param('told = folder["anew"]', [], id="names and keys"),
        pytest.param('"""Gives ``whoever`` and `anew`."""', [], id="code in a docstring"),
        pytest.param("r'gone|whoever on'", ["whoever"], id="raw string"),
    ],
)
def test_only_prose_of_modules_is_checked(module: str, words: list[str]) -> None:
    assert [one.word for one in findings(prose_of_module(module))] == words


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        pytest.param("a: 1\n# Made anew.\nb: 2", ["Made anew"], id="comment"),
        pytest.param("a: 1  # as anybody tells", ["tells"], id="comment after a value"),
        pytest.param("# It goes\n# on.", ["goes on"], id="comment of two lines"),
        pytest.param("anew: told#anew", [], id="keys and values"),
        pytest.param("# See `anew`.", [], id="code in a comment"),
    ],
)
def test_only_comments_of_manifests_are_checked(manifest: str, words: list[str]) -> None:
    assert [one.word for one in findings(prose_of_manifest(manifest))] == words


def test_pages_have_more_words() -> None:
    page = "Users whom you trust."
    assert list(findings(page)) == []
    assert [one.word for one in findings(page, PAGE_WORDS)] == ["whom"]


def test_finding_in_a_module_has_the_line_of_the_file() -> None:
    [found] = findings(prose_of_module('"""One.\n\nTwo.\n"""\n\nVALUE = 1  # as anybody tells\n'))
    assert (found.line, found.word) == (6, "tells")


def test_exit_status_is_1_for_a_finding(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs").mkdir()
    script = tmp_path / "scripts" / "plain_english.py"
    script.write_text((ROOT / "scripts/plain_english.py").read_text(encoding="utf-8"))
    (tmp_path / "docs" / "page.md").write_text("Ask whoever is there.\n")
    (tmp_path / "docs" / "data.txt").write_text("whoever\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    check = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert check.returncode == 1
    assert check.stdout.startswith('docs/page.md:1: "whoever": write ')
    assert len(check.stdout.splitlines()) == 1
