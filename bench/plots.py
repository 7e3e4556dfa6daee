"""Curves as SVG, readable on a light and on a dark page."""

import math
from collections.abc import Iterator
from typing import Final

from bench.figures import Curve, Line

from kube_efs.web.html import Html, element, joined

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 32, 48
_TICKS: Final = 5
_COLOURS: Final = ("#2f7ed8", "#d9730d", "#2a9d5c", "#b0408f")
_STYLE: Final = Html(
    "text{font:12px sans-serif;fill:#777}.title{font-weight:bold}"
    ".grid{stroke:#999;stroke-opacity:.35}.line{fill:none;stroke-width:2}"
)


def plot(curve: Curve) -> str:
    """The drawing, with both axes from 0."""
    points = [point for line in curve.lines for point in line.points]
    scale_x, scale_y = (_scale(max(one[axis] for one in points)) for axis in (0, 1))
    frame = _Frame(scale_x[-1], scale_y[-1])
    return element(
        "svg",
        element("title", curve.title),
        element("style", _STYLE),
        element("text", curve.title, x=_LEFT, y=_TOP - 12, class_="title"),
        joined(_vertical(frame, scale_x, curve.x)),
        joined(_horizontal(frame, scale_y, curve.y)),
        joined(_drawn(frame, number, line) for number, line in enumerate(curve.lines)),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
    )


class _Frame:
    """Where values lie in the drawing."""

    def __init__(self, most_x: float, most_y: float) -> None:
        self._most_x, self._most_y = most_x, most_y

    def x(self, value: float) -> float:
        return round(_LEFT + value / self._most_x * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self._most_y * (_HEIGHT - _TOP - _BOTTOM), 1)


def _scale(most: float) -> list[float]:
    """Round values from 0 until one that is not below the most."""
    rough = max(most, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]


def _vertical(frame: _Frame, scale: list[float], label: str) -> Iterator[Html]:
    foot = _HEIGHT - _BOTTOM
    for value in scale:
        x = frame.x(value)
        yield element("line", x1=x, x2=x, y1=_TOP, y2=foot, class_="grid")
        yield element("text", f"{value:,g}", x=x, y=foot + 16, text_anchor="middle")
    yield element("text", label, x=_WIDTH - _RIGHT, y=_HEIGHT - 10, text_anchor="end")


def _horizontal(frame: _Frame, scale: list[float], label: str) -> Iterator[Html]:
    for value in scale:
        y = frame.y(value)
        yield element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield element("text", f"{value:,g}", x=_LEFT - 6, y=y + 4, text_anchor="end")
    yield element("text", label, x=_WIDTH - _RIGHT, y=_TOP - 12, text_anchor="end")


def _drawn(frame: _Frame, number: int, line: Line) -> Html:
    colour = _COLOURS[number % len(_COLOURS)]
    points = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in line.points)
    place = _LEFT + 12
    return joined(
        (
            element("polyline", points=points, stroke=colour, class_="line"),
            element("text", line.name, x=place, y=_TOP + 18 + 16 * number, style=f"fill:{colour}"),
        )
    )
