import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.volumes import Location
from kube_efs.provisioning.guards import DirectoryReservations


def at(path: str, file_system: str = "fs-1") -> Location:
    return Location(file_system_id=FileSystemId(file_system), directory=parse_directory(path))


DATA = at("/team/data")


async def turns() -> None:
    """Run every task until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class Holder:
    """A task that holds a reservation until ``release``."""

    def __init__(self, reservation: AbstractAsyncContextManager[object]) -> None:
        self.holds = False
        self._released = asyncio.Event()
        self._task = asyncio.create_task(self._hold(reservation))

    async def _hold(self, reservation: AbstractAsyncContextManager[object]) -> None:
        async with reservation:
            self.holds = True
            await self._released.wait()
            self.holds = False

    async def release(self) -> None:
        self._released.set()
        await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def holding(reservation: AbstractAsyncContextManager[object]) -> AsyncIterator[Holder]:
    holder = Holder(reservation)
    await turns()
    try:
        yield holder
    finally:
        await holder.cancel()


async def test_many_callers_can_create_one_directory_concurrently() -> None:
    reservations = DirectoryReservations()
    async with holding(reservations.making(DATA)) as one, holding(reservations.making(DATA)) as other:
        assert (one.holds, other.holds) == (True, True)


NEAR = [
    pytest.param("/team/data", id="same directory"),
    pytest.param("/team", id="parent"),
    pytest.param("/team/data/deep", id="subdirectory"),
]
APART = [
    pytest.param(at("/team/other"), id="sibling"),
    pytest.param(at("/team/data2"), id="name with the same prefix"),
    pytest.param(at("/team/data", "fs-2"), id="another file system"),
]


@pytest.mark.parametrize("path", NEAR)
async def test_removal_waits_for_every_creation(path: str) -> None:
    reservations = DirectoryReservations()
    async with (
        holding(reservations.making(DATA)) as one,
        holding(reservations.making(DATA)) as other,
        holding(reservations.removing(at(path))) as removal,
    ):
        assert not removal.holds
        await one.release()
        await turns()
        assert not removal.holds
        await other.release()
        await turns()
        assert removal.holds


@pytest.mark.parametrize("path", NEAR)
async def test_creation_waits_for_the_removal(path: str) -> None:
    reservations = DirectoryReservations()
    async with (
        holding(reservations.removing(DATA)) as removal,
        holding(reservations.making(at(path))) as maker,
    ):
        assert not maker.holds
        await removal.release()
        await turns()
        assert maker.holds


@pytest.mark.parametrize("path", NEAR)
async def test_removals_go_one_by_one(path: str) -> None:
    reservations = DirectoryReservations()
    async with holding(reservations.removing(DATA)) as one, holding(reservations.removing(at(path))) as other:
        assert (one.holds, other.holds) == (True, False)
        await one.release()
        await turns()
        assert other.holds


@pytest.mark.parametrize("location", APART)
async def test_unrelated_directories_do_not_wait(location: Location) -> None:
    reservations = DirectoryReservations()
    async with (
        holding(reservations.removing(DATA)),
        holding(reservations.removing(location)) as removal,
        holding(reservations.making(at("/elsewhere"))) as maker,
    ):
        assert (removal.holds, maker.holds) == (True, True)


@pytest.mark.parametrize("kind", ["making", "removing"])
async def test_cancelled_caller_releases_its_directory(kind: str) -> None:
    reservations = DirectoryReservations()
    async with (
        holding(getattr(reservations, kind)(DATA)) as holder,
        holding(reservations.removing(DATA)) as waiting,
    ):
        assert not waiting.holds
        await holder.cancel()
        await turns()
        assert waiting.holds


async def test_cancelled_waiter_leaves_no_entry() -> None:
    reservations = DirectoryReservations()
    async with holding(reservations.making(DATA)) as maker:
        async with holding(reservations.removing(DATA)):
            pass
        await maker.release()
    async with holding(reservations.making(DATA)) as again:
        assert again.holds
    async with holding(reservations.removing(DATA)) as removal:
        assert removal.holds


async def test_failure_releases_the_directory() -> None:
    reservations = DirectoryReservations()
    for reservation in (reservations.making(DATA), reservations.removing(DATA)):
        with pytest.raises(ZeroDivisionError):
            async with reservation:
                raise ZeroDivisionError
    async with holding(reservations.removing(DATA)) as removal:
        assert removal.holds
