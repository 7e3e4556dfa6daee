"""The node's side of kube-efs on a real kernel with a real NFS client, each module of scenarios in a guest.

A scenario is a public coroutine function of a module in ``scenarios``. The selected ones run in a few
concurrent guests.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import filter as filter_names
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest
from tests.kernel.results import Result
from tests.kernel.scenarios import (
    certificates,
    crashes,
    many,
    network,
    publishing,
    resources,
    restarts,
    server_gone,
    tables,
)
from tests.kernel.uml import Guest, what_is_missing

# The longest first.
_MODULES = (resources, tables, crashes, network, restarts, many, certificates, publishing, server_gone)
# Each has one processor, and waits for most of the time.
_GUESTS_AT_ONCE = 4
_GUEST_SECONDS = 900.0

pytestmark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())

_PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
# `module`: `a_scenario`, `one_that_begins_so_…`, `…_one_that_ends_so`
_NAMED = re.compile(r"`(\w+)`: (`[\w…]+`(?:, `[\w…]+`)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}-{self.name}"


def _scenarios(module: ModuleType) -> Iterator[Scenario]:
    for name, function in vars(module).items():
        is_own = inspect.iscoroutinefunction(function) and function.__module__ == module.__name__
        if is_own and not name.startswith("_"):
            yield Scenario(module=module.__name__, name=name)


@dataclass(slots=True, kw_only=True)
class _Running:
    guest: Guest
    results: "Future[dict[str, Result]]"


@pytest.fixture(scope="session")
def guests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, _Running]]:
    """The running guests of the selected scenarios, by module."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_scenario":
            scenario = item.callspec.params["scenario"]
            assert isinstance(scenario, Scenario)
            names[scenario.module].append(scenario.name)
    folder = tmp_path_factory.mktemp("guests")
    with ThreadPoolExecutor(_GUESTS_AT_ONCE) as pool:
        running = {}
        for module, chosen in names.items():
            guest = Guest(module=module, scenarios=tuple(chosen), folder=folder / module.rpartition(".")[2])
            running[module] = _Running(guest=guest, results=pool.submit(guest.run, seconds=_GUEST_SECONDS))
        yield running


_SCENARIOS = [one for module in _MODULES for one in _scenarios(module)]


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=str)
def test_scenario(scenario: Scenario, guests: dict[str, _Running]) -> None:
    running = guests[scenario.module]
    result = running.results.result()[scenario.name]
    print(f"{scenario}: {result.seconds:g} s in the guest")  # noqa: T201 - shown where a test fails
    if result.error:
        pytest.fail(f"{result.error}\n{running.guest.log(scenario.name)}", pytrace=False)


def test_page_about_faults_names_exactly_the_scenarios() -> None:
    named = {
        f"{module}-{name.replace('…', '*')}"
        for module, names in _NAMED.findall(_PAGE.read_text())
        for name in names.replace("`", "").split(", ")
    }
    scenarios = [str(one) for one in _SCENARIOS]
    assert [one for one in scenarios if not any(fnmatch(one, name) for name in named)] == []
    assert [name for name in named if not filter_names(scenarios, name)] == []
