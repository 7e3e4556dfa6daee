"""How many claims become Bound in a second, on a real control plane where its programs are there."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.figures import Figure, Row, at_least, at_most, plain
from bench.processes import ORDINARY_SETTINGS, cpu_by_program
from lightkube.resources.core_v1 import PersistentVolumeClaim
from tests.conformance.control_plane import PROGRAMS, ControlPlanes
from tests.scenarios import csi_steps, steps
from tests.scenarios.burst import MANY, Burst
from tests.scenarios.csi_steps import Aws
from tests.scenarios.directory_steps import Claims
from tests.scenarios.real_plane import RealPlane

from kube_efs.local.cluster import EmbeddedCluster
from kube_efs.local.control_plane import ControlPlane, EmbeddedControlPlane

_SIZES: Final = (100, 1_000)
_PATIENCE_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.2


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """Bursts of claims of the CSI class, each on a file system of its own."""
    planes = ControlPlanes(folder / "control-plane")
    is_real = (PROGRAMS / "kube-apiserver").exists()
    plane: ControlPlane = RealPlane(planes) if is_real else EmbeddedControlPlane(folder / "kubeconfig")
    kind = "kube-apiserver and etcd" if is_real else "the embedded API server"
    try:
        async with (
            EmbeddedCluster(folder / "cluster", control_plane=plane, settings=ORDINARY_SETTINGS) as cluster,
            Aws.of(cluster) as aws,
        ):
            for size in _SIZES:
                yield await _burst(cluster, aws, size, kind)
    finally:
        await planes.stop()


async def _burst(cluster: EmbeddedCluster, aws: Aws, size: int, kind: str) -> Figure:
    system, claims = await aws.file_system(), await Claims.of(cluster)
    storage_class = await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system})
    before = await _seconds_in_aws(cluster)
    used, begun = cpu_by_program(), time.monotonic()
    await claims.create(storage_class, *(f"claim-{number}" for number in range(size)))
    created = time.monotonic() - begun

    async def all_bound() -> bool:
        listed = cluster.client.list(PersistentVolumeClaim, namespace=claims.namespace)
        phases = [one.status.phase async for one in listed if one.status]
        return phases == ["Bound"] * size

    what = f"{size} claims are Bound"
    await steps.eventually(all_bound, what=what, seconds=_PATIENCE_SECONDS, pause_seconds=_LOOK_SECONDS)
    seconds = time.monotonic() - begun
    costs = cpu_by_program() - used
    in_aws = (await _seconds_in_aws(cluster) - before) / size
    return at_least(
        f"claims of the CSI class → Bound a second, {size:,} at once",
        size / seconds,
        60,
        "/s",
        f"{kind} and moto on the same cores: all were there after {created:.1f} s and Bound after "
        f"{seconds:.1f} s; moto took {in_aws:.2f} s for a call; CPU a claim: {_shares(costs, size)}",
    )


def _shares(milliseconds: Counter[str], claims: int) -> str:
    most = (f"{name} {used / claims:.1f} ms" for name, used in milliseconds.most_common(6))
    return ", ".join(most)


async def _seconds_in_aws(cluster: EmbeddedCluster) -> float:
    return await steps.metric(cluster.controller, "kube_efs_aws_call_seconds_sum")


async def measure_workers(folder: Path) -> AsyncIterator[Figure]:
    """A burst of tunnel claims over two file systems, and the worker pods that were seen for it."""
    async with EmbeddedCluster(folder / "cluster") as cluster:
        burst = await Burst.of(cluster, MANY)
        async with steps.worker_pods(cluster) as pods:
            begun = time.monotonic()
            await burst.create()
            await burst.served(seconds=_PATIENCE_SECONDS)
            seconds = time.monotonic() - begun
        name = f"worker pods for {MANY} tunnel claims over two file systems"
        yield at_most(name, len(pods.names), 6)
        yield plain("until all of these are Bound", seconds, "s")


ROW: Final = Row(name="claims", measure=measure)
WORKERS: Final = Row(name="workers", measure=measure_workers)
