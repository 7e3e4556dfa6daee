"""The site: every page is in the navigation, no link is broken, and nothing is loaded from other servers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FETCHED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//""")


def _build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--config-file",
            folder / "mkdocs.yml",
            "-d",
            site,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    built = _build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages - {path.stem for path in site.glob("*.html")} == set()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert [page for page in pages if f'href="{page}.html"' not in home and page != "index"] == []


def test_site_loads_nothing_from_other_servers(site: Path) -> None:
    found = {page.name: _FETCHED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert {page: links for page, links in found.items() if links} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//", styles) == []


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        pytest.param("See [this](nowhere.md).", "nowhere.md", id="missing page"),
        pytest.param("See [this](other.md#nowhere).", "#nowhere", id="missing heading"),
        pytest.param("See [this](../nowhere.yaml).", "nowhere.yaml", id="missing file"),
    ],
)
def test_broken_link_fails(page: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copy(ROOT / "scripts/docs_site.py", tmp_path / "scripts")
    (tmp_path / "docs/index.md").write_text("# Home\n\n## All\n\n* [Other](other.md)\n")
    (tmp_path / "docs/other.md").write_text(f"# Other\n\n{page}\n")
    built = _build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert complaint in built.stderr
