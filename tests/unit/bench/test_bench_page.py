"""The performance page matches the file of results, and goals are evaluated."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench.figures import Figure, at_least, at_most, exactly, plain
from bench.page import BEGIN, END, PAGE, updated
from bench.results import Clock, Results, read_results, write_results


@pytest.mark.parametrize(
    ("figure", "goal", "met"),
    [
        pytest.param(exactly("calls", 1, 1), "1", True, id="at the goal"),
        pytest.param(exactly("calls", 1.05, 1), "1", False, id="above the goal"),
        pytest.param(at_most("writes", 2, 2), "≤ 2", True, id="at the maximum"),
        pytest.param(at_most("writes", 2.01, 2), "≤ 2", False, id="above the maximum"),
        pytest.param(at_least("claims", 60, 60), "≥ 60", True, id="at the minimum"),
        pytest.param(at_least("claims", 59.9, 60), "≥ 60", False, id="below the minimum"),
        pytest.param(plain("memory", 5, "MB"), "", None, id="no goal"),
    ],
)
def test_goal_is_evaluated(figure: Figure, goal: str, met: bool | None) -> None:
    assert (figure.goal, figure.met) == (goal, met)


def test_page_shows_missed_goals_and_failures() -> None:
    missed = at_most("pods", 12_345, 6, "pods", "of | one burst")
    results = Results(rows={"workers": Clock().outcome([missed], "TimeoutError: no more")})

    page = updated(f"before\n{BEGIN}\nold\n{END}\nafter\n", results)

    assert page.startswith(f"before\n{BEGIN}\n\n### workers\n")
    assert page.endswith(f"\n\n{END}\nafter\n")
    assert "| pods | 12,345 pods | ≤ 6 | **no** | of \\| one burst |" in page
    assert "**The row failed after that**: TimeoutError: no more" in page
    assert "old" not in page


def test_page_names_the_programs_of_a_row() -> None:
    outcome = Clock().outcome([plain("one", 1)], "")
    machine = replace(
        outcome.machine, python="3.13.5", system="Debian 13", stunnel="stunnel 5.74 with OpenSSL 3.5.9"
    )

    page = updated(f"{BEGIN}\n{END}\n", Results(rows={"node": replace(outcome, machine=machine)}))

    assert " GiB, Debian 13, Python 3.13.5, stunnel 5.74 with OpenSSL 3.5.9\n" in page


def test_newer_rows_replace_older_ones_and_others_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "latest.json"
    assert read_results(file) == Results(rows={})
    first, second, third = (Clock().outcome([plain("one", number)], "") for number in range(3))
    write_results(Results(rows={"a": first, "b": second}), file)

    write_results(read_results(file).updated({"b": third}), file)

    assert read_results(file) == Results(rows={"a": first, "b": third})


def test_page_matches_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert updated(page, read_results()) == page
