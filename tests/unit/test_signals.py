"""The end of a process: by a signal, by itself, or by an error."""

import asyncio
import os
import signal

import pytest

from kube_efs.model.errors import KubeUnavailable, NotYet
from kube_efs.signals import run_until_stopped


async def _in_groups(*faults: Exception) -> None:
    async def fail(fault: Exception) -> None:
        raise fault

    async with asyncio.TaskGroup(), asyncio.TaskGroup() as tasks:
        for fault in faults:
            tasks.create_task(fail(fault))


async def test_task_that_ends_by_itself_is_not_an_error() -> None:
    await run_until_stopped(asyncio.sleep(0))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_signal_cancels_without_an_error(number: int) -> None:
    async def work() -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        await run_until_stopped(work())


async def test_single_error_is_raised_without_its_groups() -> None:
    with pytest.raises(NotYet, match="is not there"):
        await run_until_stopped(_in_groups(NotYet("is not there")))


async def test_first_of_several_errors_is_raised() -> None:
    with pytest.raises(KubeUnavailable, match="is down"):
        await run_until_stopped(_in_groups(KubeUnavailable("is down"), NotYet("is not there")))


async def test_unexpected_error_is_raised_with_its_group() -> None:
    with pytest.raises(ExceptionGroup):
        await run_until_stopped(_in_groups(KeyError("x"), NotYet("is not there")))
