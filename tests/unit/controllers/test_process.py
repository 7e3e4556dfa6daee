"""The process of the controller: what it keeps in memory, and the order in which it ends."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace

import pytest

from kube_efs.controllers import process
from kube_efs.settings.controller import ControllerSettings


class _Opened(AbstractAsyncContextManager["_Opened"]):
    """A part of the process that does nothing."""

    port = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


def test_garbage_of_the_start_is_freed() -> None:
    """What exists when the cluster has been read is never searched for garbage again."""

    class Node:
        def __init__(self) -> None:
            self.itself = self

    before = gc.get_threshold()
    garbage = weakref.ref(Node())
    try:
        process._State().has_loaded()
        assert garbage() is None
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def test_work_in_mounts_ends_before_another_replica_can_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a copy of this process continues beside the one of the next leader."""
    ended: list[str] = []

    @asynccontextmanager
    async def mounts(*_: object) -> AsyncIterator[tuple[object, ...]]:
        try:
            yield ()
        finally:
            ended.append("mounts")

    async def released() -> None:
        ended.append("leadership")

    async def done() -> None:
        """Nothing to wait for."""

    async def forever() -> None:
        await asyncio.Event().wait()

    async def stopped(_: object) -> None:
        raise InterruptedError

    for name in ("HealthServer", "connect", "AwsGateway", "EventRecorder"):
        monkeypatch.setattr(process, name, _Opened)
    for name in ("Catalogue", "load_config", "LeaderContext"):
        monkeypatch.setattr(process, name, lambda *_, **__: SimpleNamespace())
    for name in ("_region", "_own_vpcs"):
        monkeypatch.setattr(process, name, lambda *_: done())
    leadership = SimpleNamespace(release=released, keep=forever)
    monkeypatch.setattr(process, "Leadership", lambda *_: leadership)
    monkeypatch.setattr(process, "SoleLeader", lambda *_: SimpleNamespace(acquire=done))
    monkeypatch.setattr(process, "directory_services", mounts)
    monkeypatch.setattr(process, "lead", stopped)
    with pytest.raises(BaseExceptionGroup):
        await process._run(ControllerSettings(leader_election=True, status_page=False))
    assert ended == ["mounts", "leadership"]
