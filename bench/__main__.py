"""``python -m bench [ROW ...]``: measure the rows, or those named, and write down what came of them.

A row that takes very long is measured only when it is named.

The results go to bench/results/latest.json, where those of other rows stay, and to docs/performance.md, plots
to docs/plots.
Ends with 1 when a row failed; a goal that is missed is a result.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import api_writes, claims, connections, data_planes, node, reloads, throughput, tunnels, workers
from bench.figures import Curve, Figure, Row
from bench.page import publish
from bench.results import Clock, Outcome, Results, read_results
from bench.scale import row as scale
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kube_efs_lab.logs import logging_to

ROWS: Final = (
    api_writes.ROW,
    workers.ROW,
    node.ROW,
    tunnels.ROW,
    reloads.ROW,
    throughput.ROW,
    connections.ROW,
    data_planes.ROW,
    claims.ROW,
)
ONLY_BY_NAME: Final = (scale.ROW,)


async def measure(row: Row, folder: Path) -> Outcome:
    """What comes of the row; a failure of any kind is reported and ends only this row."""
    clock, measured = Clock(), list[Figure | Curve]()
    try:
        async for one in row.measure(folder):
            measured.append(one)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other rows continue
        return clock.outcome(measured, f"{type(error).__name__}: {error}")
    return clock.outcome(measured, "")


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
    known = {row.name: row for row in (*ROWS, *ONLY_BY_NAME)}
    unknown = wanted - known.keys()
    if unknown:
        console.print(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return 2
    begun = time.monotonic()
    outcomes = run([row for name, row in known.items() if name in wanted] or ROWS, console)
    # Rows that are no more have no place beside those of a whole run.
    kept = {row.name: read_results().rows.get(row.name) for row in ONLY_BY_NAME}
    rows = outcomes | {name: outcome for name, outcome in kept.items() if outcome}
    whole = Results(rows=rows, total_seconds=round(time.monotonic() - begun, 1))
    publish(read_results().updated(outcomes) if wanted else whole)
    return int(any(outcome.failure for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
