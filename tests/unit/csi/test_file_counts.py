"""File counts: periods, the limit of a file system, failures, and unmounted targets."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kube_efs.csi.file_counts import FileCounts
from kube_efs.model.csi.errors import VolumePending
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import MountFailed

FS, OTHER_FS = FileSystemId("fs-1"), FileSystemId("fs-2")
A, B = Path("/pods/a"), Path("/pods/b")


@dataclass(slots=True)
class World:
    """A simulated clock, and counts that end when the test says so."""

    now: float = 0
    counting: dict[Path, "asyncio.Future[int]"] = field(default_factory=dict)
    cancelled: list[Path] = field(default_factory=list)

    async def count(self, path: Path) -> int:
        self.counting[path] = asyncio.get_running_loop().create_future()
        try:
            return await self.counting[path]
        except asyncio.CancelledError:
            self.cancelled.append(path)
            raise
        finally:
            del self.counting[path]

    def counts(self, *, rate_limit: int = 5) -> FileCounts:
        return FileCounts(
            refresh_seconds=600, rate_limit=rate_limit, count=self.count, clock=lambda: self.now
        )

    async def answer(self, path: Path, value: int | MountFailed) -> None:
        """End the count of that path, and let its task see the result."""
        await until(lambda: path in self.counting)
        if isinstance(value, int):
            self.counting[path].set_result(value)
        else:
            self.counting[path].set_exception(value)
        await until(lambda: path not in self.counting)
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what the tasks do sets no event
            await asyncio.sleep(0)


def pending(counts: FileCounts, volume: str = "v", target: Path = A, file_system: FileSystemId = FS) -> None:
    with pytest.raises(VolumePending, match="has not been counted yet"):
        counts.used_bytes(volume, file_system, target)


async def test_volume_has_a_figure_after_its_first_count_and_a_new_one_after_a_period() -> None:
    world = World()
    async with world.counts() as counts:
        pending(counts)
        pending(counts)
        await world.answer(A, 7)
        world.now = 599
        assert counts.used_bytes("v", FS, A) == 7
        await asyncio.sleep(0)
        assert not world.counting
        world.now = 600
        assert counts.used_bytes("v", FS, A) == 7
        await world.answer(A, 9)
        assert counts.used_bytes("v", FS, A) == 9


async def test_volume_of_several_pods_is_counted_once() -> None:
    world = World()
    async with world.counts() as counts:
        pending(counts, target=A)
        pending(counts, target=B)
        await world.answer(A, 7)
        assert counts.used_bytes("v", FS, B) == 7
        await counts.forget(A)
        assert counts.used_bytes("v", FS, B) == 7
        await counts.forget(B)
        pending(counts, target=B)


async def test_only_so_many_volumes_of_a_file_system_are_counted_at_once() -> None:
    world, other = World(), Path("/pods/other")
    async with world.counts(rate_limit=1) as counts:
        pending(counts, "a", A)
        pending(counts, "b", B)
        pending(counts, "o", other, OTHER_FS)
        await until(lambda: len(world.counting) == 2)
        assert set(world.counting) == {A, other}
        await world.answer(A, 1)
        pending(counts, "b", B)
        await world.answer(B, 2)
        assert counts.used_bytes("b", FS, B) == 2


async def test_failed_count_keeps_the_last_figure_and_is_repeated_later() -> None:
    world = World()
    async with world.counts() as counts:
        pending(counts)
        await world.answer(A, 7)
        world.now = 600
        counts.used_bytes("v", FS, A)
        with capture_logs() as logs:
            await world.answer(A, MountFailed("cannot be counted (x)"))
        assert [(one["event"], one["target"]) for one in logs] == [("volume-not-counted", "/pods/a")]
        world.now = 899
        assert counts.used_bytes("v", FS, A) == 7
        await asyncio.sleep(0)
        assert not world.counting
        world.now = 900
        counts.used_bytes("v", FS, A)
        await world.answer(A, 8)
        assert counts.used_bytes("v", FS, A) == 8


async def test_count_has_ended_when_its_target_is_forgotten() -> None:
    world = World()
    async with world.counts(rate_limit=1) as counts:
        pending(counts, target=A)
        pending(counts, target=B)
        await until(lambda: A in world.counting)
        await counts.forget(A)
        assert world.cancelled == [A]
        # The other target continues, and the cancelled count does not use up the limit.
        pending(counts, target=B)
        await world.answer(B, 3)
        assert counts.used_bytes("v", FS, B) == 3


async def test_no_count_survives_the_driver() -> None:
    world = World()
    async with world.counts() as counts:
        pending(counts)
        await until(lambda: A in world.counting)
    assert world.cancelled == [A]
