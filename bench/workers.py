"""How many worker pods a burst of tunnel claims needs."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.figures import Figure, Row, at_most, plain
from tests.scenarios import steps
from tests.scenarios.burst import MANY, Burst

from kube_efs_lab.cluster import EmbeddedCluster

_PATIENCE_SECONDS: Final = 300.0


async def measure(folder: Path) -> AsyncIterator[Figure]:
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


ROW: Final = Row(name="workers", measure=measure)
