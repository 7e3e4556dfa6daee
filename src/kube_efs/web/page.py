"""Renders the page of a report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files

from kube_efs.report.values import ClusterReport
from kube_efs.telemetry.health import Health
from kube_efs.tunnels.status import TunnelState
from kube_efs.web import tables
from kube_efs.web.charts import growth_chart, traffic_chart, tunnels_chart, usage_chart
from kube_efs.web.html import Html, element, joined

_SECTIONS = {
    "file-systems": "File systems",
    "tunnels": "Tunnels",
    "volumes": "Volumes",
    "loads": "Use",
    "claims": "Claims",
    "events": "Events",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A report, the time at which it was read, and the state of this process.

    ``stale`` is the reason why there is no newer report; empty if this one is recent.
    """

    report: ClusterReport
    time: str
    health: Health
    leading: bool
    stale: str = ""


@cache
def style() -> str:
    """The style sheet in the page."""
    return files("kube_efs.web").joinpath("style.css").read_text(encoding="utf-8")


def render_page(seen: PageContent) -> str:
    """The page."""
    links = (element("li", element("a", words, href=f"#{name}")) for name, words in _SECTIONS.items())
    role = "this controller is the leader" if seen.leading else "this controller is not the leader"
    header = (
        element("p", "as of ", tables.moment(seen.time), ", ", role, class_="soft"),
        element("nav", element("ul", *links), aria_label="Parts of this page"),
    )
    return _document(header, _main(seen))


def render_failure(reason: str) -> str:
    """The page while there is no report."""
    return _document((), (_verdict((reason,)),))


def _document(header: Iterable[Html], content: Iterable[Html]) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", "kube-efs status"),
        # Without this link, a browser requests an icon.
        element("link", rel="icon", href="data:,"),
        element("style", Html(style())),
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("header", element("h1", "kube-efs status"), *header),
        element("main", *content, id="content"),
        _footer(),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _main(seen: PageContent) -> Iterator[Html]:
    report = seen.report
    yield _verdict(problems(seen))
    yield _figures(report)
    drawings = (tunnels_chart(report), usage_chart(report), growth_chart(report), traffic_chart(report))
    charts = [chart for chart in drawings if chart]
    if charts:
        yield element("div", *charts, class_="charts")
    yield tables.file_systems(report)
    yield tables.tunnels(report)
    yield tables.volumes(report)
    yield tables.loads(report)
    yield tables.claims(report)
    yield tables.events(report)


def problems(seen: PageContent) -> tuple[str, ...]:
    """All problems of the report and of this process."""
    report = seen.report
    return (
        *((seen.stale,) if seen.stale else ()),
        *seen.health.reasons,
        *report.problems,
        *(f"{node.node}: {text}" for node in report.nodes for text in node.problems),
        *(
            f"{node.node}: the tunnel to {tunnel.file_system_id} is {tunnel.state}"
            + (f" ({tunnel.reason})" if tunnel.reason else "")
            for node in report.nodes
            for tunnel in node.tunnels
            if tunnel.has_failed
        ),
    )


def _verdict(found: Sequence[str]) -> Html:
    text = f"Health: {len(found) or 'no'} problem{'' if len(found) == 1 else 's'}."
    items = [element("li", one) for one in found]
    return element(
        "section",
        element("p", element("strong", text)),
        element("ul", *items) if items else None,
        class_=f"verdict {'bad' if found else 'good'}",
        aria_label="Health",
    )


def _figures(report: ClusterReport) -> Html:
    tunnels = [tunnel for node in report.nodes for tunnel in node.tunnels if not tunnel.denied]
    up = sum(tunnel.state is TunnelState.UP for tunnel in tunnels)
    over = sum(bool(one.usage and one.usage.over) for one in report.volumes)
    waiting = sum(one.phase == "Pending" for one in report.claims)
    figures = {
        "File systems": (str(len(report.file_systems)), False),
        "Nodes": (str(len(report.nodes)), False),
        "Tunnels up": (f"{up} of {len(tunnels)}", up < len(tunnels)),
        "Volumes": (str(len(report.volumes)), False),
        "Over request": (str(over), over > 0),
        "Pending claims": (str(waiting), False),
    }
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, class_="bad" if is_bad else None))
            for name, (value, is_bad) in figures.items()
        ),
        class_="figures",
    )


def _footer() -> Html:
    return element(
        "footer",
        element(
            "p",
            joined(
                (
                    f"kube-efs {version('kube-efs')}. This page shows the state at the time of the request: ",
                    element("a", "reload it", href="/"),
                    ", or ",
                    element("a", "get everything as JSON", href="/status.json"),
                    ".",
                )
            ),
        ),
    )
