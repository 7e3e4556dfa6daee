"""The site: every page is in the navigation, no link is broken, and a browser shows all pages as they are."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from tests.integration.browser import PROGRAM, Page, browser
from tests.scenarios.steps import eventually

ROOT = Path(__file__).parents[2]
_FETCHED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//""")
# A fenced block that has become a line of text.
_LOST_BLOCK = re.compile(r"<p>(?:<code>(?:console|json|sh|yaml)\n|```)")


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
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html").as_posix() for path in docs.rglob("*.md")}
    assert pages - {path.relative_to(site).as_posix() for path in site.rglob("*.html")} == set()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert [page for page in pages if f'href="{page}"' not in home and page != "index.html"] == []


def test_blocks_and_numbers_within_lists_are_shown(site: Path) -> None:
    shown = {page.name: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert [name for name, text in shown.items() if _LOST_BLOCK.search(text)] == []
    steps = shown["eks.html"].partition('id="steps"')[2].partition("<h2")[0]
    assert steps.count("<ol>") == 1
    assert re.findall(r"<li>\s*<p>([A-Z]\w+)", steps) == ["Save", "Create", "Install", "Create"]
    assert re.findall(r"<pre><code>(.*)\n", steps) == [
        "{",
        "aws iam create-role --role-name efs-controller --assume-role-policy-document file://trust.json",
        "$ kube-efs render --for kubernetes --csi | kubectl apply -f -",
        "apiVersion: storage.k8s.io/v1",
        "$ kubectl apply -f claim.yaml",
    ]


def test_site_loads_nothing_from_other_servers(site: Path) -> None:
    found = {page.name: _FETCHED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert {page: links for page, links in found.items() if links} == {}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//", styles) == []


@pytest.fixture(scope="module")
def pages(site: Path) -> list[str]:
    found = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(path.as_posix() for path in found if path.parts[0] != "project")


@pytest_asyncio.fixture
async def shown(site: Path, tmp_path: Path) -> AsyncIterator[tuple[Page, str]]:
    """A browser, and the address of the site."""
    async with _served(site, tmp_path) as served:
        yield served


@asynccontextmanager
async def _served(site: Path, tmp_path: Path) -> AsyncGenerator[tuple[Page, str], None]:
    if PROGRAM is None:
        pytest.skip("there is no Chromium (Debian: chromium-headless-shell)")
    application = web.Application()
    application.router.add_static("/", site)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        server = web.TCPSite(runner, "127.0.0.1", 0)
        await server.start()
        port = runner.addresses[0][1]
        async with browser(tmp_path) as page:
            yield page, f"http://127.0.0.1:{port}/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("width", [360, 1280])
async def test_every_page_fits_the_screen_with_all_its_pictures(
    pages: list[str], shown: tuple[Page, str], width: int
) -> None:
    page, url = shown
    await page.resize(width, 800)
    problems = {}
    for name in pages:
        await page.visit(url + name)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        broken = await page.evaluate(
            "[...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
        )
        problems[name] = (wide > width and wide, broken, page.complaints.copy())
    assert {name: found for name, found in problems.items() if any(found)} == {}


async def test_site_has_a_light_and_a_dark_theme(shown: tuple[Page, str]) -> None:
    page, url = shown
    grounds = {}
    for scheme in ("light", "dark"):
        await page.prefer(scheme)
        await page.visit(url + "index.html")
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds[scheme] = sum(map(int, re.findall(r"\d+", ground)[:3]))
    assert grounds["dark"] < 128 * 3 < grounds["light"]


async def test_search_finds_a_page(shown: tuple[Page, str]) -> None:
    page, url = shown
    await page.visit(url + "index.html?q=stunnel")
    found = "[...document.querySelectorAll('#mkdocs-search-results article a')].map((one) => one.href)"
    links = await eventually(lambda: page.evaluate(found), what="the search has results")
    assert any(link.startswith(f"{url}tunnels.html") for link in links)


async def test_reader_of_a_published_site_can_choose_the_version(tmp_path: Path) -> None:
    published, config = tmp_path / "published", tmp_path / "mkdocs.yml"
    published.mkdir()
    places = {
        "docs_dir": ROOT / "docs",
        "hooks": [ROOT / "scripts/docs_site.py"],
        "site_dir": tmp_path / "site",
    }
    config.write_text(json.dumps({"INHERIT": ROOT / "mkdocs.yml", **places}, default=str))
    _run(published, "git", "init", "--quiet")
    for key in ("name", "email"):
        _run(published, "git", "config", f"user.{key}", "test@example.com")
    _run(published, "git", "commit", "--quiet", "--allow-empty", "--message", "docs: start")
    for version in ("0.1.0", "0.2.0"):
        # As in docs/releasing.md. mike publishes in the repository of its working directory.
        mike = ["mike", "deploy", "--config-file", str(config)]
        _run(published, *mike, "--update-aliases", "--alias-type", "copy", version, "latest")
    _run(published, "git", "checkout", "--quiet", "gh-pages")
    menu = "document.querySelector('[aria-label=Version]')"
    options = f"[...({menu}?.options ?? [])].map((one) => [one.text, one.selected])"
    async with _served(published, tmp_path) as (page, url):
        for folder in ("latest", "0.2.0"):
            await page.visit(f"{url}{folder}/how-to/eks.html")
            found = await eventually(partial(page.evaluate, options), what="the menu of versions")
            assert found == [["0.2.0", True], ["0.1.0", False]]
        await page.follow(f"{menu}.value = '0.1.0', {menu}.dispatchEvent(new Event('change'))")
        assert await page.evaluate("location.pathname") == "/0.1.0/"


def _run(folder: Path, *command: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
