"""The pictures of the pages: each page finds them, and the architecture is that of the script."""

import re
from pathlib import Path

from scripts import pictures

ROOT = Path(__file__).parents[3]
_PICTURE = re.compile(r"!\[[^\]]+\]\(([^)]+)\)")


def test_pages_show_all_pictures_and_only_those() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in _PICTURE.findall(page.read_text("utf-8"))]
    shown = {(page.parent / link).resolve() for page, link in links}
    assert {path for path in shown if path.parent == pictures.FOLDER} == set(pictures.FOLDER.iterdir())


def test_architecture_is_drawn_from_the_list() -> None:
    drawn = (pictures.FOLDER / "architecture.svg").read_text(encoding="utf-8")
    assert drawn == pictures.architecture()


def test_arrows_connect_parts_of_the_architecture() -> None:
    assert {name for begin, end, _ in pictures.ARROWS for name in (begin, end)} == set(pictures.BOXES)


def test_terminal_keeps_the_text_and_fetches_nothing() -> None:
    drawn = pictures.terminal("kube-efs status", "\x1b[32mok\x1b[0m  <orders> \n")
    assert "ok" in drawn
    assert "&lt;orders&gt;" in drawn
    assert "url(http" not in drawn
