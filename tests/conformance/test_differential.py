"""Compares the answers of a real API server and the embedded one to the same requests.

A story is a sequence of requests in its own namespace. Both servers get the same requests at the same time.
Their answers (status, content type, warnings, body) must be equal, except for values that differ on every
server (UIDs, times, versions, random names: ``differential/normalising.py``), for the texts of refusals
(``differential/comparing.py``), and for the differences listed here. A listed difference that does not occur
fails the test.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import pytest_asyncio
from lightkube import AsyncClient
from tests.conformance.differential.comparing import Difference, differences
from tests.conformance.differential.normalising import normalised
from tests.conformance.differential.player import Answer, Player, Server
from tests.conformance.differential.stories import (
    binding,
    changing,
    custom,
    lifecycle,
    reading,
    running,
    storage,
)

from kube_efs.kube.client import connect, load_config
from kube_efs_lab.real_control_plane import RealControlPlane
from tinykube.api import ApiServer
from tinykube.controllers.running import run_controllers

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True)
class Allowed:
    """A known difference.

    ``exchanges`` (story / exchange), ``path`` and ``values`` (real / embedded) are regular expressions.
    """

    reason: str
    exchanges: str = ".*"
    path: str = ".*"
    values: str = ".*"

    def covers(self, story: str, found: Difference) -> bool:
        """Whether it describes this difference."""
        pairs = (
            (self.exchanges, f"{story} / {found.exchange}"),
            (self.path, found.path),
            (self.values, f"{found.real} / {found.embedded}"),
        )
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


ALLOWED = (
    Allowed("the columns of tables are not described", path=r".*\.columnDefinitions\[\d+\]\.description"),
    Allowed(
        "two columns of pods that kubectl shows with -o wide are left out",
        path=r"body\.(columnDefinitions|rows\[0\]\.cells)\[[78]\]",
    ),
    Allowed(
        "the embedded controllers are part of kube-efs, and sign as kube-efs",
        path=r".*managedFields\[\d+\]\.manager",
        values="kube-controller-manager / kube-efs",
    ),
    Allowed(
        "nobody watches over nodes, so they are not tainted until they are ready",
        path=r"body\.(spec|metadata\.annotations)",
        values=r".*(node.kubernetes.io/not-ready|node.alpha.kubernetes.io/ttl).*",
    ),
    Allowed(
        "no controller acts on DaemonSets, so generations of their templates are not counted",
        ".* / a DaemonSet",
        values=r".*deprecated.daemonset.template.generation.*",
    ),
    Allowed(
        "who creates an object owns also the fields that a type of Go always has",
        path=r".*managedFields\[\d+\]\.fieldsV1\..*",
        values=r"<missing> / \{\}",
    ),
    Allowed(
        "pods and workloads get no defaults that only a runtime, a scheduler or a rollout would read",
        path=r".*[.:](imagePullPolicy|persistentVolumeClaimRetentionPolicy|podIPs|podManagementPolicy"
        r"|preemptionPolicy|priority|progressDeadlineSeconds|qosClass|requests|revisionHistoryLimit"
        r"|rollingUpdate|tolerations)\b.*",
    ),
    Allowed(
        "definitions are established at once, and their status reports no deletion",
        "custom-.* / (define|it is established|delete it)",
        r"body\.(status|metadata\.(managedFields|resourceVersion)).*",
    ),
    Allowed("unknown fields are left out without a warning", path=r"warnings.*"),
    Allowed("rows of tables have the whole object", path=r".*rows\[\d+\]\.object\..*"),
    Allowed("reviews have no owners of their fields", ".* / may I", r"body\.metadata\.managedFields"),
    Allowed("every server has its own address", path=r".*\.serverAddress"),
    Allowed(
        "the embedded binder does not note the version of a claim",
        path=r".*claimRef\.(f:)?resourceVersion",
    ),
)

Story = Callable[[Player], Awaitable[None]]
STORIES: Mapping[str, Story] = {
    f"{module.__name__.rpartition('.')[2]}-{story.__name__.replace('_', '-')}": story
    for module in (lifecycle, changing, reading, custom, storage, running, binding)
    for story in module.STORIES
}
ENOUGH = 480
_AT_ONCE = 8


class Play(NamedTuple):
    """The answers of both servers to a story."""

    real: list[Answer]
    embedded: list[Answer]


@dataclass(slots=True)
class Tally:
    """The results of all stories."""

    compared: int = 0
    stories: set[str] = field(default_factory=set)
    used: set[Allowed] = field(default_factory=set)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def real(control_plane: RealControlPlane) -> AsyncIterator[Server]:
    async with Server.of((await control_plane.kubeconfig()).read_text(encoding="utf-8")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def embedded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    kubeconfig = tmp_path_factory.mktemp("embedded") / "kubeconfig"
    async with ApiServer() as api:
        api.compact()  # no server knows its first versions for long
        api.write_kubeconfig(kubeconfig)
        async with (
            connect(load_config(kubeconfig)) as client,
            _controllers(client),
            Server.of(api.kubeconfig()) as server,
        ):
            yield server


@asynccontextmanager
async def _controllers(client: AsyncClient) -> AsyncIterator[None]:
    running = asyncio.create_task(run_controllers(client, node=None))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plays(real: Server, embedded: Server) -> AsyncIterator[Mapping[str, asyncio.Task[Play]]]:
    """All stories, which run concurrently because some of them wait a lot."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def play(name: str) -> Play:
        async with turns:
            players = Player(real, name), Player(embedded, name)
            async with asyncio.TaskGroup() as tasks:
                for player in players:
                    tasks.create_task(_play(STORIES[name], player))
            return Play(*(normalised(player.answers) for player in players))

    plays = {name: asyncio.create_task(play(name)) for name in STORIES}
    yield plays
    for task in plays.values():
        task.cancel()
    await asyncio.wait(plays.values())


async def _play(story: Story, player: Player) -> None:
    await player.begin()
    # Pods are refused until their service account is there.
    await player.settle("serviceaccounts/default", lambda found: found["kind"] == "ServiceAccount")
    await story(player)


@pytest.mark.parametrize("name", STORIES)
async def test_both_api_servers_give_equal_answers(
    name: str, plays: Mapping[str, asyncio.Task[Play]], tally: Tally
) -> None:
    play = await plays[name]
    assert [one.exchange for one in play.real] == [one.exchange for one in play.embedded]
    tally.compared += len(play.real)
    tally.stories.add(name)
    found = differences(play.real, play.embedded)
    unexpected = [one for one in found if not _allowed(name, one, tally)]
    assert not unexpected, "\n".join(map(str, unexpected))


async def test_enough_requests_are_compared_and_every_allowed_difference_is_used(tally: Tally) -> None:
    if tally.stories != set(STORIES):
        pytest.skip("only some stories were selected, and the count is that of all")
    print(f"{tally.compared} requests compared, {len(ALLOWED)} kinds of differences allowed")  # noqa: T201
    assert tally.compared >= ENOUGH
    assert [one for one in ALLOWED if one not in tally.used] == []


def _allowed(story: str, difference: Difference, tally: Tally) -> bool:
    covering = {one for one in ALLOWED if one.covers(story, difference)}
    tally.used |= covering
    return bool(covering)
