"""What a controller costs that was started with so many claims and volumes: start, calls, time, memory."""

import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import aiohttp
from bench.claiming import Load, Order
from bench.figures import Curve, Figure, Line, at_most, exactly, plain
from bench.processes import resident_megabytes
from lightkube import ApiError
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from tests.scenarios import steps

from kube_efs.local.cluster import EmbeddedCluster
from kube_efs.local.program import Program

_MORE: Final = 30
_PATIENCE_SECONDS: Final = 120.0
_MILLISECONDS: Final = 1000.0
_MEGABYTES_MOST: Final = {0: 110.0, 10_000: 170.0}
_START_MOST_SECONDS: Final = 10.0
_GROWTH_MOST: Final = 1.2
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one more volume costs, each the median of some: calls to AWS, milliseconds, and without AWS's."""

    calls: float
    all_calls: float
    ms: float
    own_ms: float


class Controller:
    """The controller of a cluster, started anew at each number of volumes."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._costs: dict[int, Cost] = {}

    async def figures(self, size: int, load: Load, classes: list[str]) -> AsyncIterator[Figure]:
        """Those with so many volumes; a claim of each of the classes makes it look at all there is."""
        program = self._cluster.controller
        await program.stop()
        begun = time.monotonic()
        await program.start()
        await _leads(program)
        await program.ready(timeout_seconds=_PATIENCE_SECONDS)
        yield _start(size, time.monotonic() - begun)
        for storage_class in classes:
            await self._claim(load, f"first-at-{size}-{storage_class}", storage_class)
        cost = await self._one_more(load, size, classes[0])
        self._costs[size] = cost
        calls = f"{cost.all_calls:g} calls of all kinds while {_MORE} were made"
        yield exactly(f"AWS calls for one more CSI volume at {size:,}", cost.calls, 1, detail=calls)
        yield _time(size, cost, self._costs[0])
        yield _memory(size, resident_megabytes([program.pid]))

    def curve(self) -> Curve:
        """The time of one more volume by how many there were."""
        costs = self._costs.items()
        return Curve(
            name="volumes",
            title="Time of one more CSI volume, by how many there are",
            x="volumes",
            y="ms",
            lines=(
                Line(name="with moto", points=tuple((float(size), one.ms) for size, one in costs)),
                Line(name="without moto", points=tuple((float(size), one.own_ms) for size, one in costs)),
            ),
        )

    async def _one_more(self, load: Load, size: int, storage_class: str) -> Cost:
        """Claims one after the other."""
        steps_taken = []
        before = await _state(self._cluster.controller)
        for number in range(_MORE):
            await self._claim(load, f"more-{number}-at-{size}", storage_class)
            now = await _state(self._cluster.controller)
            steps_taken.append(tuple(new - old for new, old in zip(now, before, strict=True)))
            before = now
        return Cost(
            # A look for new file systems may come in between.
            calls=statistics.median(calls for calls, _, _ in steps_taken),
            all_calls=sum(calls for calls, _, _ in steps_taken),
            ms=statistics.median(seconds for _, seconds, _ in steps_taken) * _MILLISECONDS,
            own_ms=statistics.median(seconds - aws for _, seconds, aws in steps_taken) * _MILLISECONDS,
        )

    async def _claim(self, load: Load, name: str, storage_class: str) -> None:
        """Make a claim and wait for its volume."""
        made = await load.create(Order(name=name, storage_class=storage_class))

        async def look() -> PersistentVolume | None:
            try:
                return await self._cluster.client.get(PersistentVolume, f"pvc-{_uid(made)}")
            except ApiError as error:
                if error.status.code == _NOT_FOUND:
                    return None
                raise

        await steps.eventually(look, what=f"claim {name} has a volume", pause_seconds=0.02)


def _uid(claim: PersistentVolumeClaim) -> str:
    return (claim.metadata and claim.metadata.uid) or ""


async def _leads(program: Program) -> None:
    """Wait until it leads: one that waits for that is ready without having read anything."""

    async def look() -> bool:
        try:
            return await steps.metric(program, "kube_efs_leader") == 1
        except aiohttp.ClientError:
            return False

    await steps.eventually(look, what="the controller leads", pause_seconds=0.02)


async def _state(controller: Program) -> tuple[float, float, float]:
    """All calls to AWS, seconds in which claims were served, and those of them that AWS took."""
    return (
        await steps.metric(controller, "kube_efs_aws_calls_total"),
        await steps.metric(controller, "kube_efs_provisioning_seconds_sum"),
        await steps.metric(controller, "kube_efs_aws_call_seconds_sum"),
    )


def _start(size: int, seconds: float) -> Figure:
    name = f"start of the controller to ready with {size:,} claims and volumes"
    return at_most(name, seconds, _START_MOST_SECONDS, "s") if size == 10_000 else plain(name, seconds, "s")


def _time(size: int, now: Cost, first: Cost) -> Figure:
    detail = (
        f"median of {_MORE}: {now.ms:.1f} ms from the sight of a claim to its volume, "
        f"{now.own_ms:.1f} ms without moto"
    )
    if size == 0:
        return plain("time of one more CSI volume at 0", now.ms, "ms", detail)
    name = f"time of one more CSI volume at {size:,} ÷ at 0, moto's time apart"
    return at_most(name, now.own_ms / first.own_ms, _GROWTH_MOST, detail=detail)


def _memory(size: int, used: float) -> Figure:
    name = f"resident memory of the controller with {size:,} volumes"
    if size not in _MEGABYTES_MOST:
        return plain(name, used, "MB")
    return at_most(name, used, _MEGABYTES_MOST[size], "MB")
