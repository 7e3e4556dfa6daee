"""The embedded API server for tests of what talks to Kubernetes: a real one on loopback, in this process."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import PurePosixPath

import pytest
import pytest_asyncio
import yaml
from hypothesis import HealthCheck, settings
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from tests.conformance.programs import PROGRAMS
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from kube_efs.kube.client import connect
from kube_efs_lab.real_control_plane import ControlPlanes
from tinykube.api import ApiServer

# What a machine can do in a second says nothing about the code. `make check` tries as many examples as pytest
# alone does, `make test` fewer.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=40)
settings.load_profile("thorough")

_SCENARIOS = PurePosixPath("tests/scenarios")
_SHARING = tuple(_SCENARIOS / folder for folder in ("crashes", "directories", "faults", "ordinary"))


class ClusterScheduling(LoadFileScheduling):  # type: ignore[misc]  # the library has no types
    """The tests of a file go to one worker, and those of a folder that shares a cluster, which costs time."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(super()._split_scope(nodeid))
        return str(file.parent if file.parent in _SHARING else file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ClusterScheduling:
    """Say which worker gets what."""
    return ClusterScheduling(config, log)


def pytest_configure() -> None:
    """Take SIGINT also below a shell in the background, whose programs inherit that it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        choices=["embedded", "real"],
        default="embedded",
        help="what the scenarios run on: the embedded API server, or etcd and kube-apiserver",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of the embedded cluster's tests what is about an API server of another kind."""
    if config.getoption("--cluster") == "embedded":
        left_out = [item for item in items if item.get_closest_marker("real_only")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and items of all tests, which stay to the end."""
    gc.collect()
    gc.freeze()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def control_planes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlanes]:
    """Real control planes, none of which is running yet."""
    planes = ControlPlanes(tmp_path_factory.mktemp("control-plane"), PROGRAMS)
    yield planes
    await planes.stop()


@pytest.fixture
async def api_server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def cluster(api_server: ApiServer) -> SingleConfig:
    context = KubeConfig.from_dict(yaml.safe_load(api_server.kubeconfig())).get()
    assert context is not None
    return context


@pytest.fixture
async def kube(cluster: SingleConfig) -> AsyncIterator[AsyncClient]:
    """A client of the embedded API server."""
    async with connect(cluster) as client:
        yield client


Eventually = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds, for ten seconds at most."""

    async def wait(condition: Callable[[], Awaitable[object]]) -> None:
        for _ in range(1000):
            if await condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never came to be")

    return wait
