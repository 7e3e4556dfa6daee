"""Charts of the numbers in the tables, as SVG in the page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from kube_efs.model.sizes import format_size
from kube_efs.report.formatting import format_growth, format_usage
from kube_efs.report.loads import volume_loads
from kube_efs.report.options import VolumeOrder
from kube_efs.report.values import ClusterReport, NodeReport, VolumeReport
from kube_efs.tunnels.status import TunnelState, TunnelStatus
from kube_efs.web.html import Child, Html, element

_WIDTH: Final = 640
_ROW: Final = 44
_TEXT: Final = 16  # from the top of a row to the baseline of its text
_BAR_TOP: Final = 22
_BAR: Final = 12
_ROWS_MAX: Final = 10
_LABEL_CHARACTERS: Final = 36


def usage_chart(report: ClusterReport) -> Html | None:
    """The fullest volumes relative to their request, with a line at 100 %; None if none is measured."""
    shares = sorted(
        ((_share(one), one) for one in report.volumes if one.usage and one.requested_bytes),
        key=lambda pair: (-pair[0], pair[1].name),
    )[:_ROWS_MAX]
    if not shares:
        return None
    whole = max(1.0, shares[0][0])
    rows = [_usage_row(number, share / whole, one) for number, (share, one) in enumerate(shares)]
    lines = [_limit(number, _WIDTH / whole) for number in range(len(rows))] if whole > 1 else []
    return _figure(
        ("Fullest volumes, relative to the requests of their claims; the line is the request"), rows, *lines
    )


def _limit(number: int, place: float) -> Html:
    top = number * _ROW + _BAR_TOP
    x = _number(place)
    return element("line", x1=x, x2=x, y1=top - 1, y2=top + _BAR + 1, class_="limit")


def _share(volume: VolumeReport) -> float:
    return (
        volume.usage.used_bytes / volume.requested_bytes if volume.usage and volume.requested_bytes else 0.0
    )


def _usage_row(number: int, length: float, volume: VolumeReport) -> Html:
    tone = "bad" if volume.usage and volume.usage.over else "good"
    words = f"{format_usage(volume)} ({_share(volume):.0%})"
    bar = _bar(number, 0, length * _WIDTH, tone)
    return _labelled(number, volume.claim or volume.name, [bar], words)


def traffic_chart(report: ClusterReport) -> Html | None:
    """The volumes with most traffic through their tunnels, by direction; None if none is known."""
    known = [
        (one, one.sent_bytes, one.received_bytes or 0)
        for one in volume_loads(report, VolumeOrder.TRAFFIC)
        if one.sent_bytes is not None
    ][:_ROWS_MAX]
    most = max((sent + received for _, sent, received in known), default=0)
    if not most:
        return None
    rows = []
    for number, (load, sent, received) in enumerate(known):
        left, right = _WIDTH * sent / most, _WIDTH * received / most
        bars = [_bar(number, 0, left, "good"), _bar(number, left, right, "fair")]
        shared = ", with other volumes" if load.shares_tunnel else ""
        words = f"{format_size(sent)} sent, {format_size(received)} received{shared}"
        rows.append(_labelled(number, load.volume.claim or load.volume.name, bars, words))
    return _figure("Most traffic since the tunnels exist: sent to EFS, then received", rows)


def growth_chart(report: ClusterReport) -> Html | None:
    """The volumes that grow most in a day; None if none grows."""
    growing = [
        (one.volume, growth)
        for one in volume_loads(report, VolumeOrder.GROWTH)
        if one.volume.usage and (growth := one.volume.usage.growth_bytes_a_day or 0) > 0
    ][:_ROWS_MAX]
    if not growing:
        return None
    most = growing[0][1]
    rows = [
        _labelled(
            number,
            volume.claim or volume.name,
            [_bar(number, 0, _WIDTH * growth / most, "good")],
            f"{format_growth(volume)} a day, {format_usage(volume)}",
        )
        for number, (volume, growth) in enumerate(growing)
    ]
    return _figure("Volumes that grow most", rows)


def tunnels_chart(report: ClusterReport) -> Html | None:
    """The tunnels of each node by state, nodes with problems first; None without tunnels."""
    nodes = sorted((node for node in report.nodes if node.tunnels), key=_by_need)[:_ROWS_MAX]
    if not nodes:
        return None
    most = max(len(node.tunnels) for node in nodes)
    rows = [_tunnels_row(number, node, most) for number, node in enumerate(nodes)]
    return _figure("Tunnels of each node, by state", rows)


def _by_need(node: NodeReport) -> tuple[int, int, str]:
    tones = Counter(_tone(tunnel) for tunnel in node.tunnels)
    return -tones["bad"], -tones["fair"], node.node


def _tone(tunnel: TunnelStatus) -> str:
    if tunnel.state is TunnelState.UP:
        return "fair" if tunnel.failed_over else "good"
    return "bad" if tunnel.has_failed else "fair"


_TONE_WORDS: Final = {"good": "up", "fair": "failed over, starting or denied", "bad": "down"}


def _tunnels_row(number: int, node: NodeReport, most: int) -> Html:
    tones = Counter(_tone(tunnel) for tunnel in node.tunnels)
    left, bars = 0.0, []
    for tone in _TONE_WORDS:
        length = _WIDTH * tones[tone] / most
        if length:
            bars.append(_bar(number, left, length, tone))
        left += length
    words = ", ".join(f"{tones[tone]} {word}" for tone, word in _TONE_WORDS.items() if tones[tone])
    return _labelled(number, node.node, bars, words)


def _bar(number: int, left: float, length: float, tone: str) -> Html:
    top = number * _ROW + _BAR_TOP
    return element("rect", x=_number(left), y=top, width=_number(length), height=_BAR, class_=f"bar {tone}")


def _labelled(number: int, label: str, bars: Iterable[Child], words: str) -> Html:
    shown = label if len(label) <= _LABEL_CHARACTERS else f"…{label[1 - _LABEL_CHARACTERS :]}"
    foot = number * _ROW + _TEXT
    return element(
        "g",
        element("text", shown, x=0, y=foot),
        element("text", words, x=_WIDTH, y=foot, class_="value"),
        *bars,
    )


def _figure(title: str, rows: Sequence[Html], *more: Child) -> Html:
    height = len(rows) * _ROW - (_ROW - _BAR_TOP - _BAR - 4)
    drawing = element(
        "svg", element("title", title), *rows, *more, viewBox=f"0 0 {_WIDTH} {height}", role="img"
    )
    return element("figure", drawing, element("figcaption", title))


def _number(value: float) -> str:
    return f"{value:.1f}"
