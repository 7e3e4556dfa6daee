"""Duties: a failed one is restarted, reported and counted, and affects no other."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kube_efs.telemetry.duties import Duties


class Clock:
    """Time that passes only during sleeps, or when a test advances it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def duties(registry: CollectorRegistry, clock: Clock) -> Duties:
    return Duties(registry, sleep=clock.sleep, clock=lambda: clock.now)


def failures(registry: CollectorRegistry, duty: str) -> float | None:
    return registry.get_sample_value("kube_efs_duty_failures_total", {"duty": duty})


async def test_failed_task_is_restarted_after_growing_pauses(
    duties: Duties, clock: Clock, registry: CollectorRegistry
) -> None:
    times = 0

    async def works_at_last() -> None:
        nonlocal times
        times += 1
        if times <= 9:
            raise RecursionError

    await duties.keep("rounds", works_at_last)

    assert clock.slept == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert failures(registry, "rounds") == 9


async def test_pause_is_short_again_after_a_long_run(duties: Duties, clock: Clock) -> None:
    lives = iter([0.0, 0.0, 61.0])

    async def lives_for_a_while() -> None:
        seconds = next(lives, None)
        if seconds is not None:
            clock.now += seconds
            raise KeyError

    await duties.keep("rounds", lives_for_a_while)

    assert clock.slept == [1, 2, 1]


async def test_error_of_one_task_ends_no_other(registry: CollectorRegistry) -> None:
    # With real pauses: the other duty continues meanwhile.
    duties, turns = Duties(registry), 0
    failed = asyncio.Event()

    async def fails() -> None:
        raise ExceptionGroup("of a group of tasks", [ValueError(), ValueError(), KeyError()])

    async def turns_until_the_other_has_failed() -> None:
        nonlocal turns
        await failed.wait()
        turns += 1

    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(duties.keep("one", fails, failed=failed.set))
        await duties.keep("other", turns_until_the_other_has_failed)
        failing.cancel()

    assert turns == 1
    assert (failures(registry, "one"), failures(registry, "other")) == (1, None)
    assert duties.problems == ("one: failed (ValueError, KeyError) and is retried",)


async def test_error_is_reported_with_class_and_place_but_not_its_text(duties: Duties) -> None:
    async def fails_once() -> None:
        if not duties.problems:
            raise ValueError("planted-secret")

    with capture_logs() as logs:
        await duties.keep("rounds", fails_once)

    [line] = logs
    assert (line["event"], line["duty"], line["error"]) == ("duty-failed", "rounds", "ValueError")
    assert line["frames"][-1].endswith(" fails_once")
    assert "planted-secret" not in str(logs)


async def test_problem_ends_when_it_does_not_recur_for_a_while(duties: Duties, clock: Clock) -> None:
    duties.note("rounds", ValueError(), retry_seconds=10)
    clock.now += 69
    assert list(duties.problems) == ["rounds: failed (ValueError) and is retried"]
    clock.now += 2
    assert list(duties.problems) == []


async def test_task_can_be_cancelled_while_running_and_in_a_pause() -> None:
    duties, began = Duties(CollectorRegistry()), asyncio.Event()

    async def works() -> None:
        began.set()
        await asyncio.Event().wait()

    async def fails() -> None:
        began.set()
        raise ValueError

    for duty in (works, fails):
        began.clear()
        task = asyncio.create_task(duties.keep("rounds", duty))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
