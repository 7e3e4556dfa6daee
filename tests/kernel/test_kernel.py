"""The node's side of kube-efs on a real kernel with a real NFS client, each module of scenarios in a guest.

A scenario is a public coroutine function of a module in ``scenarios``. It runs with each data plane, unless
it is about one of them. The selected ones run in a few concurrent guests.
"""

import inspect
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from scripts.images import mounted_image, own_image
from tests.kernel.results import Result
from tests.kernel.scenarios import (
    certificates,
    crashes,
    data_planes,
    image,
    many,
    network,
    publishing,
    resources,
    restarts,
    s3_files,
    server_gone,
    tables,
)
from tests.kernel.uml import Guest, what_is_missing

from kube_efs.tunnels.data_plane import DataPlaneName
from kube_efs.tunnels.relay import serving

# The longest first, so that none of them is left alone at the end.
_MODULES = (
    crashes,
    resources,
    publishing,
    many,
    data_planes,
    image,
    network,
    tables,
    restarts,
    certificates,
    server_gone,
    s3_files,
)
# They are about the program and the configurations of stunnel, its shards, both data planes at once, or the
# relay of the image.
_OF_ONE_DATA_PLANE = (resources, many, data_planes, image)
# Each has one processor, and waits for most of the time.
_GUESTS_AT_ONCE = 4
_GUEST_SECONDS = 900.0

pytestmark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}-{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A scenario with a data plane; ``relay`` is in its name, because ``kernel`` is in that of every test."""

    scenario: Scenario
    data_plane: DataPlaneName

    def __str__(self) -> str:
        return f"{self.scenario}-relay" if self.data_plane is DataPlaneName.KERNEL else str(self.scenario)

    @property
    def guest(self) -> tuple[str, DataPlaneName]:
        """The guest that it runs in, together with other scenarios of its module."""
        return self.scenario.module, self.data_plane


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
) -> Iterator[dict[tuple[str, DataPlaneName], _Running]]:
    """The running guests of the selected scenarios; without an image, none for those that need it."""
    names: defaultdict[tuple[str, DataPlaneName], list[str]] = defaultdict(list)
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_scenario":
            run = item.callspec.params["run"]
            assert isinstance(run, Run)
            names[run.guest].append(run.scenario.name)
    folder = tmp_path_factory.mktemp("guests")
    with ExitStack() as stack:
        environment = {}
        of_image = (image.__name__, DataPlaneName.STUNNEL)
        if of_image in names:
            try:
                root = stack.enter_context(mounted_image(own_image()))
            except (FileNotFoundError, subprocess.CalledProcessError):
                del names[of_image]
            else:
                assert _is_current(root), f"{own_image()} has another relay; make image builds it again"
                environment["IMAGE_ROOT"] = str(root)
        pool = stack.enter_context(ThreadPoolExecutor(_GUESTS_AT_ONCE))
        running = {}
        for (module, data_plane), chosen in names.items():
            guest = Guest(
                module=module,
                scenarios=tuple(chosen),
                folder=folder / f"{module.rpartition('.')[2]}-{data_plane}",
                data_plane=data_plane,
                environment=environment,
            )
            results = pool.submit(guest.run, seconds=_GUEST_SECONDS)
            running[module, data_plane] = _Running(guest=guest, results=results)
        yield running


def _is_current(root: Path) -> bool:
    """Whether the image has the relay of these sources."""
    [built] = root.glob("opt/kube-efs/lib/python3*/site-packages/kube_efs/tunnels/relay")
    source = Path(serving.__file__).parent
    return all((built / one.name).read_bytes() == one.read_bytes() for one in source.glob("*.py"))


SCENARIOS = [one for module in _MODULES for one in _scenarios(module)]
_OF_STUNNEL = {module.__name__ for module in _OF_ONE_DATA_PLANE}
_RUNS = [
    Run(scenario=scenario, data_plane=data_plane)
    for scenario in SCENARIOS
    for data_plane in DataPlaneName
    if data_plane is DataPlaneName.STUNNEL or scenario.module not in _OF_STUNNEL
]


@pytest.mark.parametrize("run", _RUNS, ids=str)
def test_scenario(run: Run, guests: dict[tuple[str, DataPlaneName], _Running]) -> None:
    if run.guest not in guests:
        pytest.skip(f"{own_image()} does not exist; make image builds it")
    name, running = run.scenario.name, guests[run.guest]
    result = running.results.result()[name]
    print(f"{run}: {result.seconds:g} s in the guest")  # noqa: T201 - shown where a test fails
    if result.error:
        pytest.fail(f"{result.error}\n{running.guest.log(name)}", pytrace=False)
