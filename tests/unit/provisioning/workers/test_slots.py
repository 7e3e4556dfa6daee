"""Slots for long work, in turns of the tenants."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.errors import WorkerFailed
from kube_efs.provisioning.workers.slots import Slots


class Scene:
    def __init__(self, count: int) -> None:
        self.slots = Slots(count)
        self.order: list[str] = []
        self.running, self.most = 0, 0

    async def work(self, name: str) -> None:
        async with self.slots.taken(name.split("-", maxsplit=1)[0], parse_directory(f"/{name}")):
            self.running += 1
            self.most = max(self.most, self.running)
            self.order.append(name)
            await asyncio.sleep(0)
            self.running -= 1


async def test_one_tenant_with_much_work_does_not_keep_the_others_waiting() -> None:
    scene = Scene(2)
    names = [f"many-{number}" for number in range(6)] + ["few-0", "one-0", "few-1"]
    await asyncio.gather(*map(scene.work, names))
    assert scene.order == [
        *("many-0", "many-1"),
        *("many-2", "few-0", "one-0"),
        *("many-3", "few-1"),
        *("many-4", "many-5"),
    ]
    assert scene.most == 2


@pytest.mark.parametrize("is_next", [False, True], ids=["while it waits", "when it has its turn"])
async def test_cancelled_work_gives_its_slot_to_the_next(is_next: bool) -> None:
    scene, stack = Scene(1), AsyncExitStack()
    await stack.enter_async_context(scene.slots.taken("first", parse_directory("/first")))
    leaving, staying = (asyncio.ensure_future(scene.work(name)) for name in ("leaving", "staying"))
    await asyncio.sleep(0)
    if is_next:
        await stack.aclose()
        leaving.cancel()
    else:
        leaving.cancel()
        await stack.aclose()
    await staying
    assert leaving.cancelled() or leaving.done()
    assert scene.order == ["staying"]
    # The slot is free again.
    await scene.work("later")


async def test_failed_work_gives_its_slot_to_the_next() -> None:
    scene = Scene(1)
    with pytest.raises(ValueError, match="fails"):
        async with scene.slots.taken("a", parse_directory("/a")):
            raise ValueError("fails")
    await scene.work("b")


async def test_stopped_work_waits_no_more() -> None:
    scene, stack = Scene(1), AsyncExitStack()
    await stack.enter_async_context(scene.slots.taken("first", parse_directory("/first")))
    stopped, staying = (asyncio.ensure_future(scene.work(name)) for name in ("stopped", "staying"))
    await asyncio.sleep(0)
    scene.slots.stop(parse_directory("/stopped"))
    with pytest.raises(WorkerFailed, match="was stopped"):
        await stopped
    await stack.aclose()
    await staying
    assert scene.order == ["staying"]
    await scene.work("later")
