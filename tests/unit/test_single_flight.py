"""Shared answers, which are never older than the call."""

import asyncio

import pytest

from kube_efs.single_flight import SingleFlight


class Clock:
    """Answers with the number of the call, when the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.error:
            raise self.error
        return number


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_concurrent_callers_share_one_answer() -> None:
    clock = Clock()
    clock.may_answer.set()
    shared = SingleFlight(clock.ask)
    assert await asyncio.gather(*(shared() for _ in range(10))) == [1] * 10


async def test_later_caller_does_not_use_a_running_call() -> None:
    clock = Clock()
    shared = SingleFlight(clock.ask)
    first = asyncio.create_task(shared())
    await settle()
    later = [asyncio.create_task(shared()) for _ in range(3)]
    await settle()
    assert clock.asked == 1
    clock.may_answer.set()
    assert (await first, await asyncio.gather(*later)) == (1, [2, 2, 2])


async def test_any_answer_can_be_that_of_the_running_call() -> None:
    clock = Clock()
    shared = SingleFlight(clock.ask)
    tasks = [asyncio.create_task(shared())]
    await settle()
    tasks.append(asyncio.create_task(shared.any_answer()))
    clock.may_answer.set()
    assert await asyncio.gather(*tasks) == [1, 1]
    assert await shared.any_answer() == 2


async def test_cancelled_caller_does_not_affect_the_others() -> None:
    clock = Clock()
    shared = SingleFlight(clock.ask)
    tasks = [asyncio.create_task(shared()) for _ in range(2)]
    await settle()
    tasks[0].cancel()
    clock.may_answer.set()
    assert await tasks[1] == 1


async def test_error_is_raised_to_all_waiting_callers_and_no_later_one() -> None:
    clock = Clock()
    clock.error = ValueError("is down")
    clock.may_answer.set()
    shared = SingleFlight(clock.ask)
    for answer in await asyncio.gather(shared(), shared(), return_exceptions=True):
        assert isinstance(answer, ValueError)
    clock.error = None
    assert await shared() == 2


async def test_answer_without_waiting_callers_is_ignored() -> None:
    clock = Clock()
    shared = SingleFlight(clock.ask)
    lonely = asyncio.create_task(shared())
    await settle()
    lonely.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lonely
    clock.may_answer.set()
    assert await shared() == 2
