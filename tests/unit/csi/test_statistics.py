"""Statistics: what is remembered, what is asked anew, and what becomes of those that do not answer."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kube_efs.csi.statistics import Report, Statistics
from kube_efs.model.errors import MountUnfinished
from kube_efs.mounts.usage import Usage

TARGET, OTHER = Path("/pods/a"), Path("/pods/b")


def usage(used: int) -> Usage:
    return Usage(total_bytes=100, used_bytes=used, available_bytes=100 - used)


@dataclass(slots=True)
class World:
    """A clock that jumps, and file systems that answer when told to."""

    now: float = 0
    asked: list[Path] = field(default_factory=list)
    answers: list["asyncio.Future[Usage]"] = field(default_factory=list)
    at_once: Usage | OSError | None = field(default_factory=lambda: usage(1))

    def ask(self, path: Path) -> "asyncio.Future[Usage]":
        answer: asyncio.Future[Usage] = asyncio.get_running_loop().create_future()
        self.asked.append(path)
        self.answers.append(answer)
        if isinstance(self.at_once, OSError):
            answer.set_exception(self.at_once)
        elif self.at_once:
            answer.set_result(self.at_once)
        return answer

    def statistics(self) -> Statistics:
        return Statistics(refresh_seconds=60, patience_seconds=0.02, ask=self.ask, clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


async def test_a_file_system_is_asked_once_a_period(world: World) -> None:
    statistics = world.statistics()
    assert await statistics.report(TARGET) == Report(usage=usage(1))
    world.now, world.at_once = 59.9, usage(2)
    assert await statistics.report(TARGET) == Report(usage=usage(1))
    assert await statistics.report(OTHER) == Report(usage=usage(2))
    world.now = 60
    assert await statistics.report(TARGET) == Report(usage=usage(2))
    assert world.asked == [TARGET, OTHER, TARGET]


async def test_one_that_does_not_answer_is_asked_once_however_often_it_is_wanted(world: World) -> None:
    world.at_once, statistics = None, world.statistics()
    for _ in range(3):
        with pytest.raises(MountUnfinished, match=r"volume_path: '/pods/a' has not answered for 0\.02 s"):
            await statistics.report(TARGET)
    assert world.asked == [TARGET]

    world.answers[0].set_result(usage(3))
    assert await statistics.report(TARGET) == Report(usage=usage(3))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(None, "the file system has not answered for 0.02 s", id="no answer"),
        pytest.param(
            OSError(116, "Stale file handle"),
            "the file system cannot be used (Stale file handle)",
            id="stale",
        ),
    ],
)
async def test_the_last_usage_is_told_with_what_is_wrong_now(
    world: World, answer: OSError | None, problem: str
) -> None:
    statistics = world.statistics()
    await statistics.report(TARGET)
    world.now, world.at_once = 100, answer
    assert await statistics.report(TARGET) == Report(usage=usage(1), problem=problem)
    if answer is None:
        world.answers[-1].set_result(usage(4))
    world.at_once = usage(4)
    assert await statistics.report(TARGET) == Report(usage=usage(4))


async def test_a_target_that_is_used_again_starts_anew(world: World) -> None:
    statistics = world.statistics()
    await statistics.report(TARGET)
    statistics.forget(TARGET)
    statistics.forget(OTHER)
    world.at_once = usage(5)
    assert await statistics.report(TARGET) == Report(usage=usage(5))


async def test_two_who_ask_at_once_share_an_answer(world: World) -> None:
    world.at_once, statistics = None, world.statistics()
    both = asyncio.gather(statistics.report(TARGET), statistics.report(TARGET))
    await asyncio.sleep(0)
    world.answers[0].set_result(usage(6))
    assert set(await both) == {Report(usage=usage(6))}
    assert world.asked == [TARGET]
