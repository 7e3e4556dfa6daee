"""What a controller costs that was started with so many claims and volumes: start, calls, time, memory."""

import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
from bench.claiming import Load, Order
from bench.figures import Curve, Figure, Line, at_most, exactly, plain
from bench.processes import cpu_seconds, quiet, resident_megabytes
from lightkube import ApiError
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from tests.scenarios import steps

from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.program import Program

_MORE: Final = 60
_PATIENCE_SECONDS: Final = 120.0
_MILLISECONDS: Final = 1000.0
_MEGABYTES_MOST: Final = {0: 110.0, 10_000: 170.0}
_START_MOST_SECONDS: Final = 10.0
_GROWTH_MOST: Final = 1.2
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one more volume costs: medians of calls to AWS and of milliseconds, and CPU on average.

    ``own_ms`` leaves out what AWS and the API server took.
    """

    calls: float
    all_calls: float
    ms: float
    aws_ms: float
    api_ms: float
    own_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Calls to AWS, the seconds in which claims were served, and those of them in AWS and the API server."""

    calls: float
    seconds: float
    in_aws: float
    in_api: float

    def since(self, before: "_State") -> "_State":
        """What has come to it."""
        return _State(
            calls=self.calls - before.calls,
            seconds=self.seconds - before.seconds,
            in_aws=self.in_aws - before.in_aws,
            in_api=self.in_api - before.in_api,
        )


class Controller:
    """The controller of a cluster, started again at each number of volumes."""

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
        calls = f"{cost.all_calls:g} calls of all kinds while {_MORE} were created"
        yield exactly(f"AWS calls for one more CSI volume at {size:,}", cost.calls, 1, detail=calls)
        for figure in _times(size, cost, self._costs[0]):
            yield figure
        yield _memory(size, resident_megabytes([program.pid]))

    def curve(self) -> Curve:
        """The time of one more volume by how many there were."""
        costs = self._costs
        return Curve(
            name="volumes",
            title="Time of one more CSI volume, by how many there are",
            x="volumes",
            y="ms",
            lines=(
                Line(name="in all", points=_points(costs, lambda one: one.ms)),
                Line(name="without moto's part", points=_points(costs, lambda one: one.ms - one.aws_ms)),
                Line(name="the controller's own part", points=_points(costs, lambda one: one.own_ms)),
            ),
        )

    async def _one_more(self, load: Load, size: int, storage_class: str) -> Cost:
        """Claims one after the other, once nobody has anything else to do any more."""
        await quiet()
        controller = self._cluster.controller
        used = cpu_seconds(controller.pid)
        for number in range(_MORE):
            await self._claim(load, f"unwatched-{number}-at-{size}", storage_class)
        used = cpu_seconds(controller.pid) - used
        taken = []
        before = await _state(controller)
        for number in range(_MORE):
            await self._claim(load, f"more-{number}-at-{size}", storage_class)
            now = await _state(controller)
            taken.append(now.since(before))
            before = now
        return Cost(
            # A look for new file systems may come in between.
            calls=statistics.median(one.calls for one in taken),
            all_calls=sum(one.calls for one in taken),
            ms=_median_ms(one.seconds for one in taken),
            aws_ms=_median_ms(one.in_aws for one in taken),
            api_ms=_median_ms(one.in_api for one in taken),
            own_ms=_median_ms(one.seconds - one.in_aws - one.in_api for one in taken),
            cpu_ms=used / _MORE * _MILLISECONDS,
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


async def _state(controller: Program) -> _State:
    return _State(
        calls=await steps.metric(controller, "kube_efs_aws_calls_total"),
        seconds=await steps.metric(controller, "kube_efs_provisioning_seconds_sum"),
        in_aws=await steps.metric(controller, "kube_efs_aws_call_seconds_sum"),
        in_api=await steps.metric(
            controller, 'kube_efs_api_request_seconds_sum{resource="persistentvolumes",verb="post"}'
        ),
    )


def _median_ms(seconds: Iterable[float]) -> float:
    return statistics.median(seconds) * _MILLISECONDS


def _points(costs: Mapping[int, Cost], value: Callable[[Cost], float]) -> tuple[tuple[float, float], ...]:
    return tuple((float(size), value(one)) for size, one in costs.items())


def _start(size: int, seconds: float) -> Figure:
    name = f"start of the controller to ready with {size:,} claims and volumes"
    return at_most(name, seconds, _START_MOST_SECONDS, "s") if size == 10_000 else plain(name, seconds, "s")


def _times(size: int, now: Cost, first: Cost) -> Iterator[Figure]:
    detail = (
        f"medians of {_MORE}: {now.ms:.1f} ms from the sight of a claim to its volume, of this moto "
        f"{now.aws_ms:.1f} ms, the API server {now.api_ms:.1f} ms, the controller {now.own_ms:.1f} ms"
    )
    cpu = f"{now.cpu_ms:.1f} ms of CPU a claim, events and watches too"
    if size == 0:
        yield plain("time of one more CSI volume at 0", now.ms, "ms", detail)
        yield plain("CPU time of the controller for it", now.cpu_ms, "ms", cpu)
        return
    # CreateVolume makes the access point; the object in the API is made after it, by the caller.
    name = f"time of CreateVolume at {size:,} ÷ at 0, without the time of moto"
    yield at_most(name, now.own_ms / first.own_ms, _GROWTH_MOST, detail=detail)
    yield plain(
        f"CPU time of the controller for it at {size:,} ÷ at 0", now.cpu_ms / first.cpu_ms, detail=cpu
    )


def _memory(size: int, used: float) -> Figure:
    name = f"resident memory of the controller with {size:,} volumes"
    if size not in _MEGABYTES_MOST:
        return plain(name, used, "MB")
    return at_most(name, used, _MEGABYTES_MOST[size], "MB")
