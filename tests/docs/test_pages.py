"""What pages quote exists, and every command is run by a test or has a marker with the reason."""

import re
from pathlib import Path

import pytest
from tests.docs.blocks import PAGES, SHELL, blocks_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_has_a_reason(page: str) -> None:
    assert [f"{page}:{one.line}: {one.problem}" for one in blocks_of(page) if one.problem] == []


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_pages_quote_exist(page: str) -> None:
    named = re.findall(r"\b(?:lab/)?tests/[\w/]+(?:\.(?:py|yaml|c))?", (ROOT / page).read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_marked_as_run_on_another_page_are_on_that_page(page: str) -> None:
    for block in blocks_of(page):
        if block.elsewhere:
            run = [one for other in blocks_of(block.elsewhere) if other.is_run for one in other.commands]
            missing = [one.text for one in block.commands if not any(one.is_part_of(other) for other in run)]
            assert missing == [], block.elsewhere


@pytest.mark.parametrize("page", PAGES)
def test_named_test_reads_its_commands_from_the_page(page: str) -> None:
    for block in blocks_of(page):
        if block.runner:
            reads = "manifests_for" if block.language == "yaml" else "commands_for"
            assert f'{reads}("{page}", "{block.runner}")' in (ROOT / block.runner).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_in_pages_exist(page: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    lines = [line for one in blocks_of(page) if one.language == SHELL for line in one.text.splitlines()]
    told = re.findall(r"`(?:[A-Z_]+=\S+ )?make ([a-z-]+)", (ROOT / page).read_text())
    told += [line.split()[1] for line in lines if line.startswith("make ")]
    assert [target for target in told if target not in targets] == []
