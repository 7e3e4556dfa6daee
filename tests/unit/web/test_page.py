"""The text of the page."""

import re
from dataclasses import replace
from html import unescape

import pytest
from tests.unit.web.sample import EVIL, report, snapshot

from kube_efs.report.values import ClusterReport, PodReport, VolumeReport
from kube_efs.telemetry.health import Health
from kube_efs.web import tables
from kube_efs.web.charts import growth_chart, traffic_chart, tunnels_chart, usage_chart
from kube_efs.web.page import PageContent, problems, render_failure, render_page


def texts(document: str) -> str:
    """The text of a document, with single blanks."""
    body = document.rpartition("<body>")[2]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_page_shows_the_report() -> None:
    said = texts(render_page(snapshot()))
    for words in (
        "as of 2026-11-21 12:00:03 UTC , this controller is the leader",
        "Health: 3 problems.",
        "ip-10-0-2-33.ec2.internal: the tunnel to fs-4567cdef is down (connection refused)",
        "Tunnels up 3 of 5",
        "Over request 1",
        "us-east-1a us-east-1b us-east-1c unknown zone",
        "1.5 GiB, over request 1.0 GiB 2026-11-21 11:00:00 UTC",
        "at least 341.3 MiB",
        "fs-0123abcd fsap-0123abcd",
        "VolumeOverRequest web/uploads 1 1.5 GiB are in the volume",
        "PersistentVolume pv-4",
    ):
        assert words in said


def test_text_from_the_cluster_is_escaped() -> None:
    page = render_page(snapshot())
    assert page.count("&lt;script&gt;") == 3
    assert "<script" not in page
    assert EVIL in unescape(page)


def test_page_of_a_healthy_cluster_shows_no_problems() -> None:
    well = PageContent(report=ClusterReport(), time="2026-11-21T12:00:03Z", health=Health(), leading=False)
    said = texts(render_page(well))
    assert "Health: no problems." in said
    assert "this controller is not the leader" in said
    assert "<svg" not in render_page(well)


def test_problems_of_all_sources_are_shown() -> None:
    seen = replace(snapshot(), health=Health.failing("discovery is old"), stale="the data is outdated")
    assert problems(seen) == (
        "the data is outdated",
        "discovery is old",
        "fs-x: stunnel_port: is missing",
        "ip-10-0-3-71.ec2.internal: the mount table cannot be read",
        "ip-10-0-2-33.ec2.internal: the tunnel to fs-4567cdef is down (connection refused)",
    )


def test_pending_claims_are_first() -> None:
    said = texts(tables.claims(report()))
    assert said.index("web/waits") < said.index("web/uploads")


def test_number_of_rows_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_MAX", 3)
    shown = tables.volumes(report())
    assert shown.count("<tr>") == 1 + 3
    assert "1 more are not shown here." in shown


def test_empty_table_shows_that_it_is_empty() -> None:
    assert '<td colspan="6" class="none">None</td>' in tables.events(ClusterReport())


def test_chart_shows_the_fullest_volumes_and_their_request() -> None:
    chart = usage_chart(report())
    assert chart is not None
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', chart)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 640
    assert widths[1] == pytest.approx(640 * 0.9 / 1.5, abs=0.1)
    [place] = set(re.findall(r'x1="([0-9.]+)"', chart))
    assert float(place) == pytest.approx(640 / 1.5, abs=0.1)
    assert "…alytics/results-of-the-last-quarter" in chart


def test_chart_has_no_line_if_no_volume_exceeds_its_request() -> None:
    below = tuple(one for one in report().volumes if not (one.usage and one.usage.over))
    chart = usage_chart(ClusterReport(volumes=below))
    assert chart is not None
    assert "<line" not in chart


def test_charts_show_what_grows_and_what_is_used_most() -> None:
    grows, uses = growth_chart(report()), traffic_chart(replace(report(), volumes=report().volumes[2:]))
    assert grows is not None
    assert uses is not None
    assert "+256.0 MiB a day, 1.5 GiB of 1.0 GiB" in grows
    assert "web/sessions" not in grows
    assert "3.0 GiB sent, 1.0 GiB received" in uses
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', uses)]
    assert widths == [480, 160]


def test_pods_and_nodes_of_a_volume_are_shown() -> None:
    pod = PodReport(namespace="web", name="worker-0", node="ip-10-0-1-17", claim="web/sessions")
    said = texts(tables.loads(replace(report(), pods=(pod,))))
    assert "web/sessions -5 B 3.0 GiB 1.0 GiB 3 ip-10-0-1-17 web/worker-0" in said
    assert "unknown" in texts(tables.loads(report()))


def test_no_chart_is_drawn_without_values() -> None:
    bare: VolumeReport = replace(report().volumes[0], usage=None)
    assert growth_chart(ClusterReport(volumes=(bare,))) is None
    assert traffic_chart(ClusterReport(volumes=(bare,))) is None
    assert usage_chart(ClusterReport(volumes=(bare,))) is None
    assert tunnels_chart(ClusterReport()) is None


def test_nodes_with_problems_are_first_in_the_chart() -> None:
    chart = tunnels_chart(report())
    assert chart is not None
    assert re.findall(r"ip-10-0-(\d)", chart) == ["2", "3", "1"]
    assert "1 failed over, starting or denied, 1 down" in chart


def test_page_without_a_report_shows_the_reason() -> None:
    said = texts(render_failure("the cluster is <away>"))
    assert "Health: 1 problem. the cluster is <away>" in said
    assert "Volumes" not in said
