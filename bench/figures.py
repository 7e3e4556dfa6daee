"""What a row of the benchmarks gives: figures, each with the least that it must reach."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value that was measured; ``met`` is None for one without a goal, which explains another."""

    name: str
    value: float
    unit: str = ""
    goal: str = ""
    met: bool | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of a curve, in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What becomes a plot; ``name`` is that of its file, too."""

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures that are measured together, in an empty directory, each given as soon as it is known."""

    name: str
    measure: Callable[[Path], AsyncIterator[Figure | Curve]]


def exactly(name: str, value: float, wanted: float, unit: str = "", detail: str = "") -> Figure:
    """A figure that must be this."""
    return Figure(name=name, value=value, unit=unit, goal=f"{wanted:g}", met=value == wanted, detail=detail)


def at_most(name: str, value: float, limit: float, unit: str = "", detail: str = "") -> Figure:
    """A figure that must not be above a limit."""
    return Figure(name=name, value=value, unit=unit, goal=f"≤ {limit:g}", met=value <= limit, detail=detail)


def at_least(name: str, value: float, limit: float, unit: str = "", detail: str = "") -> Figure:
    """A figure that must not be below a limit."""
    return Figure(name=name, value=value, unit=unit, goal=f"≥ {limit:g}", met=value >= limit, detail=detail)


def plain(name: str, value: float, unit: str = "", detail: str = "") -> Figure:
    """A figure without a goal."""
    return Figure(name=name, value=value, unit=unit, detail=detail)
