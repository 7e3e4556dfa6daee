"""The page about faults: it names exactly the scenarios of the kernel, and existing tests of a real node."""

import re
from fnmatch import filter as filter_names
from fnmatch import fnmatch
from pathlib import Path

from tests.kernel.test_kernel import SCENARIOS

_ROOT = Path(__file__).parents[2]
# `module`: `a_scenario`, `one_that_begins_so_…`, `…_one_that_ends_so`, `a_test[its parameter]`
_NAMED = re.compile(r"`(\w+)`: (`[\w…]+(?:\[[^`]*\])?`(?:, `[\w…]+`)*)")
_TEST = re.compile(r"^async def test_(\w+)", re.MULTILINE)


def _named() -> set[str]:
    """What the page names, as patterns of ``module-name``."""
    page = (_ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    return {
        f"{module}-{name.partition('[')[0].replace('…', '*')}"
        for module, names in _NAMED.findall(page)
        for name in names.replace("`", "").split(", ")
    }


def test_page_names_exactly_the_scenarios_of_the_kernel() -> None:
    named = {name for name in _named() if not name.startswith("test_")}
    scenarios = [str(one) for one in SCENARIOS]
    assert [one for one in scenarios if not any(fnmatch(one, name) for name in named)] == []
    assert [name for name in named if not filter_names(scenarios, name)] == []


def test_page_names_existing_tests_of_a_real_node_and_all_of_their_faults() -> None:
    named = {name for name in _named() if name.startswith("test_")}
    tests = [
        f"{path.stem}-{name}"
        for path in (_ROOT / "tests" / "kubelet").glob("test_*.py")
        for name in _TEST.findall(path.read_text(encoding="utf-8"))
    ]
    assert [name for name in named if not filter_names(tests, name)] == []
    faults = filter_names(tests, "test_faults-*") + filter_names(tests, "test_drains-*")
    assert [one for one in faults if not any(fnmatch(one, name) for name in named)] == []
