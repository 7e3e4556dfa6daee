"""The tables of weaknesses of older systems: each row names existing tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# How many weaknesses of the older system a page has to answer.
PAGES = {"docs/operator.md": 18, "docs/shared-volumes.md": 15}
_ROW = re.compile(r"^\| W(\d+) \|.*\| ([^|]*) \|$", re.MULTILINE)
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all tests."""
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in _TEST.findall(path.read_text())}


def _rows(page: str) -> Iterator[tuple[int, list[str]]]:
    for number, cell in _ROW.findall((ROOT / page).read_text(encoding="utf-8")):
        yield int(number), re.findall(r"`(test_\w+)`", cell)


@pytest.mark.parametrize("page", PAGES)
def test_each_weakness_names_existing_tests(page: str, tests: set[str]) -> None:
    rows = dict(_rows(page))
    assert sorted(rows) == list(range(1, PAGES[page] + 1))
    assert [number for number, names in rows.items() if not names] == []
    assert {name for names in rows.values() for name in names} - tests == set()
