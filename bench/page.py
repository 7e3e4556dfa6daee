"""The results as the tables and plots of docs/performance.md."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.plots import plot
from bench.results import Outcome, Results, write_results

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
PLOTS: Final = PAGE.parent / "plots"
BEGIN: Final = "<!-- begin: python -m bench -->"
END: Final = "<!-- end -->"

_HEAD: Final = "| figure | measured | goal | met | detail |\n|---|---|---|---|---|"


def publish(results: Results) -> None:
    """Write the file of the results, their plots and the page."""
    write_results(results)
    PLOTS.mkdir(exist_ok=True)
    for curve in (curve for outcome in results.rows.values() for curve in outcome.curves):
        (PLOTS / f"{curve.name}.svg").write_text(plot(curve), encoding="utf-8")
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def render(results: Results) -> str:
    """How long a run of all takes, and one table for each row that was measured."""
    sections = [_section(name, outcome) for name, outcome in results.rows.items()]
    if results.total_seconds is not None:
        sections.insert(0, f"All rows in one run: {results.total_seconds / 60:.1f} minutes.")
    return "\n\n".join(sections)


def updated(page: str, results: Results) -> str:
    """The text of the page with these results instead of those between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render(results)}\n\n{END}{after}"


def _section(name: str, outcome: Outcome) -> str:
    return "\n".join(_lines(name, outcome))


def _lines(name: str, outcome: Outcome) -> Iterator[str]:
    machine = outcome.machine
    yield f"### {name}\n"
    if outcome.figures:
        yield f"{_HEAD}\n{_rows(outcome.figures)}\n"
    for one in outcome.curves:
        yield f"![{one.title}]({PLOTS.name}/{one.name}.svg)\n"
    if outcome.failure:
        yield f"**The row failed after that**: {outcome.failure}\n"
    programs = filter(None, (machine.system, f"Python {machine.python}", machine.stunnel))
    yield (
        f"{outcome.ended}, {outcome.seconds:g} s, load average at the start {outcome.load:g}; "
        f"{machine.cores} cores ({machine.architecture}), {machine.memory_gib:g} GiB, {', '.join(programs)}"
    )


def _rows(figures: Iterable[Figure]) -> str:
    return "\n".join(
        f"| {one.name} | {_value(one)} | {one.goal} | {_met(one)} | {_cell(one.detail)} |" for one in figures
    )


def _value(figure: Figure) -> str:
    number = f"{figure.value:,.0f}" if abs(figure.value) >= 1000 else f"{figure.value:.3g}"
    return f"{number} {figure.unit}".strip()


def _met(figure: Figure) -> str:
    return {None: "", True: "yes", False: "**no**"}[figure.met]


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
