"""Statistics: cached usage, repeated readings, and file systems that do not answer."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kube_efs.csi.statistics import Statistics, VolumeStats
from kube_efs.model.errors import MountFailed, MountUnfinished
from kube_efs.mounts.usage import Usage

TARGET, OTHER = Path("/pods/a"), Path("/pods/b")


def usage(used: int) -> Usage:
    return Usage(total_bytes=100, used_bytes=used, available_bytes=100 - used)


@dataclass(slots=True)
class World:
    """A simulated clock, and file systems that answer, fail, or do not answer (None)."""

    now: float = 0
    asked: list[Path] = field(default_factory=list)
    answer: Usage | MountFailed | None = field(default_factory=lambda: usage(1))

    async def ask(self, path: Path) -> Usage:
        self.asked.append(path)
        if isinstance(self.answer, MountFailed):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        assert isinstance(self.answer, Usage)
        return self.answer

    def statistics(self) -> Statistics:
        return Statistics(refresh_seconds=60, patience_seconds=0.2, ask=self.ask, clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


async def test_usage_is_read_once_in_a_period(world: World) -> None:
    statistics = world.statistics()
    assert await statistics.report(TARGET) == VolumeStats(usage=usage(1))
    world.now, world.answer = 59.9, usage(2)
    assert await statistics.report(TARGET) == VolumeStats(usage=usage(1))
    assert await statistics.report(OTHER) == VolumeStats(usage=usage(2))
    world.now = 60
    assert await statistics.report(TARGET) == VolumeStats(usage=usage(2))
    assert world.asked == [TARGET, OTHER, TARGET]


async def test_file_system_that_never_answered_has_no_usage(world: World) -> None:
    world.answer, statistics = None, world.statistics()
    with pytest.raises(MountUnfinished, match=r"volume_path: '/pods/a' has not answered for 0\.2 s"):
        await statistics.report(TARGET)
    world.answer = MountFailed("cannot be used (Stale file handle)")
    with pytest.raises(MountFailed, match="Stale file handle"):
        await statistics.report(TARGET)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(None, "the file system has not answered for 0.2 s", id="no answer"),
        pytest.param(MountFailed("cannot be used (x)"), "the file system cannot be used (x)", id="failure"),
    ],
)
async def test_last_usage_is_reported_with_the_current_problem(
    world: World, answer: MountFailed | None, problem: str
) -> None:
    statistics = world.statistics()
    await statistics.report(TARGET)
    world.now, world.answer = 100, answer
    for _ in range(2):
        assert await statistics.report(TARGET) == VolumeStats(usage=usage(1), problem=problem)
    world.answer = usage(4)
    assert await statistics.report(TARGET) == VolumeStats(usage=usage(4))


async def test_usage_of_a_reused_target_is_read_again(world: World) -> None:
    statistics = world.statistics()
    await statistics.report(TARGET)
    statistics.forget(TARGET)
    statistics.forget(OTHER)
    world.answer = usage(5)
    assert await statistics.report(TARGET) == VolumeStats(usage=usage(5))
