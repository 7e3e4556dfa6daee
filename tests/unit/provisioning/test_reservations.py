import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from itertools import product
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs.directories import Directory, Relation, parse_directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import NotYet
from kube_efs.model.volumes import Location
from kube_efs.provisioning.reservations import DirectoryReservations


def at(path: str, file_system: str = "fs-1") -> Location:
    return Location(file_system_id=FileSystemId(file_system), directory=parse_directory(path))


DATA = at("/team/data")


async def turns(number: int = 10) -> None:
    """Run every task until it waits, or only for that many turns of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)


class Holder:
    """A task that holds a reservation until ``release``; ``waited`` is what the reservation gives."""

    def __init__(self, reservation: AbstractAsyncContextManager[object]) -> None:
        self.holds = False
        self.waited: object = None
        self.released = asyncio.Event()
        self.task = asyncio.create_task(self._hold(reservation))

    async def _hold(self, reservation: AbstractAsyncContextManager[object]) -> None:
        async with reservation as self.waited:
            self.holds = True
            try:
                await self.released.wait()
            finally:
                self.holds = False

    async def release(self) -> None:
        self.released.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


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


async def test_cancelled_waiters_do_not_add_up_while_a_copy_lasts() -> None:
    """csi-provisioner repeats its call for the removal again and again, and cancels each after a while."""
    reservations = DirectoryReservations()
    async with holding(reservations.making(DATA)):
        for _ in range(3):
            async with holding(reservations.removing(DATA)):
                assert reservations._waiting
            assert not reservations._waiting


@pytest.mark.parametrize("between", range(5))
@pytest.mark.parametrize("kind", ["making", "removing"])
async def test_waiter_cancelled_at_the_moment_of_its_turn_releases_the_directory(
    kind: str, between: int
) -> None:
    reservations = DirectoryReservations()
    async with (
        holding(reservations.removing(DATA)) as removal,
        holding(getattr(reservations, kind)(DATA)) as waiter,
        holding(reservations.removing(DATA)) as last,
    ):
        removal.released.set()
        await turns(between)
        waiter.task.cancel()
        await turns()
        assert (waiter.task.cancelled(), last.holds) == (True, True)


async def test_failure_releases_the_directory() -> None:
    reservations = DirectoryReservations()
    for reservation in (reservations.making(DATA), reservations.removing(DATA)):
        with pytest.raises(ZeroDivisionError):
            async with reservation:
                raise ZeroDivisionError
    async with holding(reservations.removing(DATA)) as removal:
        assert removal.holds


# --- the same as the simple definition


class SimpleReservations:
    """The definition: after each end, all who wait compare with all reservations, in the order of arrival."""

    def __init__(self) -> None:
        self._making: list[Location] = []
        self._removing: list[Location] = []
        self._released = asyncio.Event()

    @asynccontextmanager
    async def making(self, *locations: Location) -> AsyncIterator[bool]:
        has_waited = False
        while near(locations, self._removing):
            has_waited = True
            await self._released.wait()
        with self._reserved(self._making, locations):
            yield has_waited

    @asynccontextmanager
    async def removing(self, *locations: Location) -> AsyncIterator[None]:
        while near(locations, self._removing + self._making):
            await self._released.wait()
        with self._reserved(self._removing, locations):
            yield

    @contextmanager
    def _reserved(self, kind: list[Location], locations: Iterable[Location]) -> Iterator[None]:
        kind.extend(locations)
        try:
            yield
        finally:
            for location in locations:
                kind.remove(location)
            self._released.set()
            self._released = asyncio.Event()


def near(locations: Iterable[Location], others: Iterable[Location]) -> bool:
    return any(
        one.file_system_id == other.file_system_id
        and one.directory.relation_to(other.directory) is not Relation.APART
        for one, other in product(locations, others)
    )


_LOCATIONS = st.builds(
    Location,
    file_system_id=st.sampled_from([FileSystemId("fs-1"), FileSystemId("fs-2")]),
    directory=st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: Directory(tuple(parts))),
)
# The directories belong to new tasks, the number to ends: it is that of the task, modulo their number. At the
# end: for how many turns of the event loop all tasks run before the next step.
_KINDS = st.sampled_from(["making", "removing", "end", "cancel"])
_TURNS = st.sampled_from([0, 1, 2, 10])
_STEPS = st.lists(
    st.tuples(_KINDS, st.lists(_LOCATIONS, max_size=3), st.integers(0, 20), _TURNS), max_size=30
)
Step: TypeAlias = tuple[str, list[Location], int, int]


def begin_or_end(
    step: Step, reservations: DirectoryReservations | SimpleReservations, holders: list[Holder]
) -> None:
    kind, locations, number, _ = step
    if kind in {"making", "removing"}:
        holders.append(Holder(getattr(reservations, kind)(*locations)))
    elif holders:
        holder = holders[number % len(holders)]
        holder.task.cancel() if kind == "cancel" else holder.released.set()


@given(_STEPS)
def test_turns_come_as_in_the_simple_definition(
    steps: list[Step],
) -> None:
    async def held(reservations: DirectoryReservations | SimpleReservations) -> list[object]:
        holders: list[Holder] = []
        states: list[object] = []
        for step in steps:
            begin_or_end(step, reservations, holders)
            await turns()
            states.append([(one.holds, one.waited) for one in holders])
        for one in holders:
            await one.cancel()
        return states

    assert asyncio.run(held(DirectoryReservations())) == asyncio.run(held(SimpleReservations()))


@given(_STEPS)
def test_removals_are_exclusive_and_nobody_waits_for_nothing(
    steps: list[Step],
) -> None:
    """Also when several begin, end and are cancelled at the same moment."""

    async def scenario() -> None:
        reservations = DirectoryReservations()
        holders: list[Holder] = []
        requests = [step[:2] for step in steps if step[0] in {"making", "removing"}]

        def is_excluded(number: int) -> bool:
            """Whether another task excludes that one at this moment."""
            kind, locations = requests[number]
            return any(
                one.holds
                and other != number
                and "removing" in {kind, requests[other][0]}
                and near(locations, requests[other][1])
                for other, one in enumerate(holders)
            )

        ends: list[Step] = [("end", [], number, 10) for number in range(len(requests))]
        for step in [*steps, *ends]:
            begin_or_end(step, reservations, holders)
            await turns(step[-1])
            for number, one in enumerate(holders):
                if one.holds:
                    assert not is_excluded(number)
                elif step[-1] == 10 and not one.task.done():
                    assert is_excluded(number)
        assert all(one.task.done() for one in holders)
        # Nothing is left of anyone, also not of those who were cancelled while they waited.
        async with holding(reservations.removing(at("/"), at("/", "fs-2"))) as all_of_it:
            assert all_of_it.holds
        assert not reservations._waiting
        assert not reservations._making._top.children
        assert not reservations._removing._top.children

    asyncio.run(scenario())


# --- many at once


async def calls_of(
    waiting: int, copied: str, removed: str, work: Callable[[DirectoryReservations], Awaitable[None]]
) -> int:
    """The function calls that the work costs while that many removals wait for copies."""
    reservations, calls = DirectoryReservations(), 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    async with AsyncExitStack() as stack:
        for number in range(waiting):
            await stack.enter_async_context(reservations.making(at(f"/team/clone-{number}")))
            await stack.enter_async_context(reservations.making(at(copied.format(number))))
        for number in range(waiting):
            path = removed.format(number)
            removal = await stack.enter_async_context(holding(reservations.removing(at(path))))
            assert not removal.holds
        sys.setprofile(called)
        try:
            await work(reservations)
        finally:
            sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("copied", "removed"),
    [
        pytest.param("/team/source-{}", "/team/source-{}", id="different directories"),
        pytest.param("/team/source", "/team/source", id="one directory"),
        pytest.param("/team/source/{}", "/team/source", id="a directory above"),
        pytest.param("/team/source", "/team/source/{}", id="directories below"),
    ],
)
async def test_creation_costs_the_same_however_many_removals_wait_elsewhere(
    copied: str, removed: str
) -> None:
    async def create(reservations: DirectoryReservations) -> None:
        async with reservations.making(at("/team/of-another")):
            pass
        await turns()

    few, many = [await calls_of(waiting, copied, removed, create) for waiting in (3, 63)]
    assert many < few + 60  # Not one more for each; a few may be of others, such as hooks of the collector.


async def test_removal_with_a_limited_patience_gives_a_reason_and_waits_no_longer() -> None:
    reservations = DirectoryReservations()
    async with holding(reservations.making(DATA)):
        with pytest.raises(NotYet, match="'fs-1:/team/data' is being copied, or changed for another volume"):
            async with reservations.removing(DATA, patience_seconds=0.01):
                pass
    assert not reservations._waiting
