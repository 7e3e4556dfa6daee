"""The status page in a browser: its requests, appearance and accessibility."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests.integration.browser import PROGRAM, Page, browser
from tests.unit.web.sample import EVIL, report

from kube_efs.report.values import ClusterReport
from kube_efs.web.server import Sources, StatusPage

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium (Debian: chromium-headless-shell)"),
]

CHECKS = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")
SCHEMES = ("light", "dark")
# Whatever a person can reach with the keyboard.
FOCUSABLE = "[...document.querySelectorAll('a[href], [tabindex=\"0\"]')]"


@dataclass(frozen=True, slots=True)
class Seen:
    """A browser, and the address of the page."""

    page: Page
    url: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Seen]:
    async def read() -> ClusterReport:
        return report()

    async with (
        StatusPage("127.0.0.1", 0, Sources(read=read, leading=lambda: True)) as server,
        browser(tmp_path_factory.mktemp("browser")) as page,
    ):
        yield Seen(page, f"http://127.0.0.1:{server.port}/")


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_page_is_accessible_in_both_color_schemes(seen: Seen, scheme: str) -> None:
    await seen.page.prefer(scheme)
    await seen.page.visit(seen.url)
    assert await seen.page.evaluate(CHECKS) == []
    ground = await seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 23, 29)"}[scheme]


async def test_accessibility_checks_find_defects(seen: Seen) -> None:
    # The page's own policy forbids styles, but not those that DevTools sets.
    await seen.page.visit(seen.url)
    await seen.page.evaluate("""
        document.querySelector('h1').style.color = '#ddd';
        document.querySelector('rect').style.fill = '#fefefe';
        document.querySelector('th').removeAttribute('scope');
        document.querySelector('h2').outerHTML = '<h4>later</h4>';
    """)
    await seen.page.prefer("light")
    found = await seen.page.evaluate(CHECKS)
    for start in ("a level of headings is left out: <h4>", "has no name: <section", "has no scope: <th>"):
        assert any(problem.startswith(start) for problem in found), start
    assert sum(problem.startswith("has contrast 1.") for problem in found) == 2


async def test_page_loads_nothing_else_and_logs_no_error(seen: Seen) -> None:
    await seen.page.visit(seen.url)
    assert seen.page.complaints == []
    assert [url for url in seen.page.requests if not url.startswith("data:")] == [seen.url]


async def test_page_shows_its_content_as_text(seen: Seen) -> None:
    await seen.page.visit(seen.url)
    words = await seen.page.evaluate("document.body.innerText")
    for expected in ("Health: 3 problems.", "ip-10-0-1-17.ec2.internal", "1.5 GiB, over request", EVIL):
        assert expected in words
    assert await seen.page.evaluate("document.scripts.length") == 0
    bars = "[...document.querySelectorAll('rect')].map((bar) => bar.getBoundingClientRect().width)"
    assert all(width > 0 for width in await seen.page.evaluate(bars))
    # A policy that forbids the style sheet would leave it in the page all the same.
    assert await seen.page.evaluate("getComputedStyle(document.querySelector('table')).borderCollapse") == (
        "collapse"
    )


async def test_page_can_be_used_with_the_keyboard_only(seen: Seen) -> None:
    await seen.page.visit(seen.url)
    number = await seen.page.evaluate(f"{FOCUSABLE}.length")
    order, outlined = [], []
    for _ in range(number):
        await seen.page.press("Tab")
        order.append(await seen.page.evaluate(f"{FOCUSABLE}.indexOf(document.activeElement)"))
        outlined.append(await seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert order == list(range(number))
    assert set(outlined) == {"solid"}


async def test_first_tab_stop_skips_the_navigation(seen: Seen) -> None:
    await seen.page.visit(seen.url)
    before = await seen.page.evaluate("document.querySelector('.skip').getBoundingClientRect().right")
    await seen.page.press("Tab")
    after = await seen.page.evaluate("document.activeElement.getBoundingClientRect().left")
    assert before <= 0 <= after
    assert await seen.page.evaluate("document.activeElement.hash") == "#content"


@pytest.mark.parametrize("width", [320, 1280])
async def test_only_tables_scroll_horizontally(seen: Seen, width: int) -> None:
    await seen.page.resize(width, 800)
    await seen.page.visit(seen.url)
    assert await seen.page.evaluate("document.documentElement.scrollWidth") <= width
