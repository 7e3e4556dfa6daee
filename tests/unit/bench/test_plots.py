"""Plots of curves: every point is inside, scales are round, and texts are escaped."""

import re
from xml.etree import ElementTree

import pytest
from bench.figures import Curve, Line
from bench.plots import _scale, plot

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("most", "scale"),
    [
        (10_000, [0, 2_000, 4_000, 6_000, 8_000, 10_000]),
        (312.4, [0, 100, 200, 300, 400]),
        (0.7, [0, 0.2, 0.4, 0.6, 0.8]),
        (5, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_scales_are_round_and_include_the_maximum(most: float, scale: list[float]) -> None:
    assert _scale(most) == pytest.approx(scale)


def test_curve_is_drawn_from_its_points() -> None:
    lines = (Line(name="a<b", points=((0, 0), (5, 100))), Line(name="c", points=((0, 0), (10, 50))))
    drawing = ElementTree.fromstring(
        plot(Curve(name="claims", title="claims & volumes", x="seconds", y="claims", lines=lines))
    )

    polylines = [one.attrib["points"] for one in drawing.iter(f"{_SVG}polyline")]
    places = [[float(number) for number in re.split("[ ,]", one)] for one in polylines]
    width, height = (float(number) for number in drawing.attrib["viewBox"].split()[2:])
    assert len(places) == len(lines)
    assert places[0][:2] == places[1][:2]
    assert places[0][2] < places[1][2] <= width
    assert 0 <= places[0][3] < places[1][3] < places[0][1] <= height
    assert "a<b" in [one.text for one in drawing.iter(f"{_SVG}text")]
