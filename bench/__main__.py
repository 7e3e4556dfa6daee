"""``python -m bench [ROW ...]``: measure all rows or those named, and write down what came of them.

The results go to bench/results/latest.json, where those of other rows stay, and to docs/performance.md.
Ends with 1 when a row failed; a goal that is missed is a result.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import api_writes, claims, node, reloads, scale, throughput
from bench.figures import Figure, Row
from bench.page import PAGE, updated
from bench.results import Clock, Outcome, read_results, write_results
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kube_efs.local.logs import logging_to

ROWS: Final = (
    api_writes.ROW,
    claims.WORKERS,
    claims.ROW,
    node.ROW,
    reloads.ROW,
    throughput.ROW,
    scale.ROW,
)


async def measure(row: Row, folder: Path) -> Outcome:
    """What comes of the row; a failure of any kind is told and ends only this row."""
    clock, figures = Clock(), list[Figure]()
    try:
        async for figure in row.measure(folder):
            figures.append(figure)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other rows go on
        return clock.outcome(figures, f"{type(error).__name__}: {error}")
    return clock.outcome(figures, "")


def run(rows: Sequence[Row], console: Console) -> dict[str, Outcome]:
    """The outcomes of rows, measured one after the other."""
    outcomes: dict[str, Outcome] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for row in rows:
            task = progress.add_task(row.name, total=1)
            with tempfile.TemporaryDirectory(prefix="bench-") as name, logging_to(Path(name) / "bench.log"):
                outcomes[row.name] = asyncio.run(measure(row, Path(name)))
            progress.update(task, completed=1)
            console.print(_table(row.name, outcomes[row.name]))
    return outcomes


def _table(name: str, outcome: Outcome) -> Table:
    table = Table("figure", "measured", "goal", "met", "detail", title=name, caption=outcome.failure)
    verdicts = {None: "", True: "[green]yes", False: "[bold red]no"}
    for one in outcome.figures:
        table.add_row(one.name, f"{one.value:g} {one.unit}", one.goal, verdicts[one.met], one.detail)
    return table


def main() -> int:
    """Measure, write, and tell; the exit status."""
    console = Console(width=max(120, Console().width))
    wanted = set(sys.argv[1:])
    unknown = wanted - {row.name for row in ROWS}
    if unknown:
        console.print(
            f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in ROWS)}"
        )
        return 2
    outcomes = run([row for row in ROWS if not wanted or row.name in wanted], console)
    results = read_results().updated(outcomes)
    write_results(results)
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    return int(any(outcome.failure for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
