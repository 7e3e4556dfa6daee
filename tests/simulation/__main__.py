"""``python -m tests.simulation``: many concurrent runs, or one run with its history.

A run depends only on its seed. ``PYTHONHASHSEED`` is a part of it, so this program restarts itself with it.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count, islice
from multiprocessing import get_context

from tests.simulation.planted_faults import PLANTED_FAULTS
from tests.simulation.simulation import Outcome, run
from tests.simulation.themes import theme_of

_HISTORY_LINES = 150
_RUNS_OF_A_PROCESS = 64


def main() -> int:
    """Returns the exit code: 1 after a violation."""
    options = _parser().parse_args()
    if options.plant:
        PLANTED_FAULTS[options.plant].set_up()
    if options.seed is not None:
        outcome = run(options.seed, with_logs=True)
        print("\n".join(outcome.history))
        print(outcome.violation or "everything held")
        return 1 if outcome.violation else 0
    if options.planted:
        return _find_planted(options)
    return _run_many(range(options.first, options.first + options.seeds), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed, and print its history")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="concurrent runs")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--plant", choices=sorted(PLANTED_FAULTS), help="plant this fault first")
    parser.add_argument(
        "--planted",
        action="store_true",
        help="plant each fault in turn; each must be found by one of the seeds",
    )
    return parser


def _run_many(seeds: range, options: argparse.Namespace) -> int:
    started, failed = time.perf_counter(), 0
    for outcome in outcomes(seeds, options.jobs):
        if outcome.violation is None:
            continue
        failed += 1
        print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
        if not options.keep_going:
            print("\n".join(run(outcome.seed, with_logs=True).history[-_HISTORY_LINES:]))
            print(f"seed {outcome.seed}: {outcome.violation}")
            print(f"all of it: make simulate SEED={outcome.seed}")
            return 1
    seconds = time.perf_counter() - started
    print(f"{len(seeds)} runs in {seconds:.0f} s ({len(seeds) / seconds:.1f} a second), {failed} failed")
    return 1 if failed else 0


def _find_planted(options: argparse.Namespace) -> int:
    missed = []
    for name in sorted(PLANTED_FAULTS):
        seed, tried = _find(name, options)
        print(
            f"{name}: {f'found by seed {seed}' if seed is not None else 'NOT FOUND'} ({tried} runs)",
            flush=True,
        )
        if seed is None:
            missed.append(name)
    print(f"{len(PLANTED_FAULTS) - len(missed)} of {len(PLANTED_FAULTS)} planted faults were found")
    return 1 if missed else 0


def _find(name: str, options: argparse.Namespace) -> tuple[int | None, int]:
    """The first seed that finds the planted fault, and the number of runs until then."""
    theme = PLANTED_FAULTS[name].theme
    seeds = list(
        islice(filter(lambda one: theme in {"", theme_of(one).name}, count(options.first)), options.seeds)
    )
    for tried, outcome in enumerate(outcomes(seeds, options.jobs, name), start=1):
        # A violation that also occurs without the fault proves nothing.
        if not outcome.violation or not PLANTED_FAULTS[name].leads_to.search(outcome.violation):
            continue
        if next(iter(outcomes([outcome.seed], 1))).violation is None:
            print(f"  {outcome.violation}")
            return outcome.seed, tried
    return None, len(seeds)


def outcomes(seeds: Iterable[int], jobs: int, planted: str | None = None) -> Iterator[Outcome]:
    """The outcome of each run, in order; ``planted`` is the fault that is set in the processes of the runs.

    The killed processes of a run stay in memory, so each operating system process does only a few runs.
    """
    set_up = PLANTED_FAULTS[planted].set_up if planted else None
    with get_context("fork").Pool(jobs, initializer=set_up, maxtasksperchild=_RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap(run, seeds)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
