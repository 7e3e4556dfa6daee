"""What the controller costs with no volume and with thousands: calls, time, memory, start, idling."""

import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figures import Figure, Row, at_most, exactly, plain
from bench.processes import ORDINARY_SETTINGS, cores_used, daemons, resident_megabytes
from bench.volumes import Existing, PlaneWithoutControllers
from tests.scenarios import directory_steps, steps
from tests.scenarios.csi_steps import Aws

from kube_efs.local.cluster import EmbeddedCluster
from kube_efs.local.program import Program
from kube_efs.model.volumes import Volume

_IDLE_SIZE: Final = 1_000
# Ten thousand take five minutes, so they are measured on request.
_SIZES: Final = tuple(sorted({0, _IDLE_SIZE, int(os.environ.get("BENCH_VOLUMES", "1000"))}))
_MORE: Final = 20
_IDLE_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 120.0
_MILLISECONDS: Final = 1000.0
_MEGABYTES_MOST: Final = {0: 110.0, 10_000: 170.0}
_SETTINGS: Final = {**ORDINARY_SETTINGS, "KUBE_EFS_ACCESS_POINT_QUOTA": "100000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one more volume costs, in calls to AWS and milliseconds; ``own_ms`` without AWS's time."""

    calls: float
    ms: float
    own_ms: float


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """The same figures at each size, with a controller that was started at that size."""
    plane = PlaneWithoutControllers(folder / "kubeconfig")
    async with (
        EmbeddedCluster(folder / "cluster", control_plane=plane, settings=_SETTINGS) as cluster,
        Aws.of(cluster) as aws,
    ):
        existing = await Existing.of(cluster, aws)
        costs: dict[int, Cost] = {}
        for size in _SIZES:
            await cluster.controller.stop()
            await existing.grow_to(size)
            begun = time.monotonic()
            await cluster.controller.start()
            await cluster.controller.ready(timeout_seconds=_PATIENCE_SECONDS)
            yield _start(size, time.monotonic() - begun)
            costs[size] = await _more_volumes(cluster, existing, size)
            yield exactly(f"AWS calls for one more CSI volume at {size:,}", costs[size].calls, 1)
            yield _time(size, costs)
            yield _memory(size, cluster.controller)
            if size == _IDLE_SIZE:
                for name, share in (await cores_used(daemons(cluster), _IDLE_SECONDS)).items():
                    yield at_most(f"CPU of {name} idle with {size:,} volumes", share * 100, 1, "% of a core")


def _start(size: int, seconds: float) -> Figure:
    name = f"start of the controller to ready with {size:,} claims and volumes"
    return at_most(name, seconds, 10, "s") if size == 10_000 else plain(name, seconds, "s")


async def _more_volumes(cluster: EmbeddedCluster, existing: Existing, size: int) -> Cost:
    """Claims one after the other, after a first one that makes the controller look at the file system."""
    await _claimed(cluster, existing, f"first-at-{size}")
    before = await _state(cluster.controller)
    for number in range(_MORE):
        await _claimed(cluster, existing, f"more-{number}-at-{size}")
    calls, seconds, aws_seconds = (
        (new - old) / _MORE for new, old in zip(await _state(cluster.controller), before, strict=True)
    )
    return Cost(calls=calls, ms=seconds * _MILLISECONDS, own_ms=(seconds - aws_seconds) * _MILLISECONDS)


async def _claimed(cluster: EmbeddedCluster, existing: Existing, name: str) -> None:
    """Make a claim and wait for its volume."""
    volume = f"pvc-{await existing.claim(name)}"

    async def look() -> Volume | None:
        return await directory_steps.get_volume(cluster, volume)

    await steps.eventually(look, what=f"claim {name} has a volume", pause_seconds=0.02)


async def _state(controller: Program) -> tuple[float, float, float]:
    """All calls to AWS, seconds in which claims were served, and those of them that AWS took."""
    return (
        await steps.metric(controller, "kube_efs_aws_calls_total"),
        await steps.metric(controller, "kube_efs_provisioning_seconds_sum"),
        await steps.metric(controller, "kube_efs_aws_call_seconds_sum"),
    )


def _time(size: int, costs: dict[int, Cost]) -> Figure:
    now, first = costs[size], costs[0]
    detail = f"{now.ms:.1f} ms from the sight of a claim to its volume, {now.own_ms:.1f} ms without moto"
    if size == 0:
        return plain("time of one more CSI volume at 0", now.ms, "ms", detail)
    name = f"time of one more CSI volume at {size:,} ÷ at 0, moto's time apart"
    return at_most(name, now.own_ms / first.own_ms, 1.2, detail=detail)


def _memory(size: int, controller: Program) -> Figure:
    name, used = (
        f"resident memory of the controller with {size:,} volumes",
        resident_megabytes([controller.pid]),
    )
    if size not in _MEGABYTES_MOST:
        return plain(name, used, "MB")
    return at_most(name, used, _MEGABYTES_MOST[size], "MB")


ROW: Final = Row(name="scale", measure=measure)
