"""API-server writes that the controller makes for a claim, of each provisioner, counted by a proxy."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.counting import Writes
from bench.figures import Figure, Row, at_most
from tests.scenarios import csi_steps, directory_steps, steps
from tests.scenarios.directory_steps import Claims
from tests.scenarios.faulty_api import FaultyPlane

from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.control_plane import EmbeddedControlPlane

_CLAIMS: Final = 100
_GOAL: Final = 2.0


async def measure(folder: Path) -> AsyncIterator[Figure]:
    """The writes from a claim to its volume, on average over a hundred claims of each provisioner at once."""
    plane = FaultyPlane(EmbeddedControlPlane(folder / "kubeconfig"), folder)
    async with EmbeddedCluster(folder / "cluster", control_plane=plane) as cluster:
        client, system = cluster.client, cluster.file_system_ids[0]
        classes = {
            "tunnel": await steps.new_class(client, default_file_system_id=system),
            "directory": await directory_steps.new_class(client),
            "CSI": await csi_steps.new_class(client, parameters={"fileSystemId": system}),
        }
        await steps.port_of(cluster, system)
        for kind, storage_class in classes.items():
            claims = await Claims.of(cluster)
            await _create(cluster, claims, kind, storage_class, 1)
            writes = Writes()
            plane.api.fault = writes.note
            await _create(cluster, claims, kind, storage_class, _CLAIMS)
            yield _figure(kind, writes.counted)


async def _create(
    cluster: EmbeddedCluster, claims: Claims, kind: str, storage_class: str, number: int
) -> None:
    """Make that many claims, after a first one for what is made once, and wait until they are Bound."""
    for one in range(number):
        name = f"claim-{number}-{one}"
        labels = {"volume_name": name.replace("-", "_")} if kind == "tunnel" else None
        await cluster.client.create(steps.claim(claims.namespace, name, storage_class, labels))
    await claims.all_bound(number if number == 1 else number + 1)


def _figure(kind: str, counted: Counter[str]) -> Figure:
    what = ", ".join(f"{number} {name}" for name, number in sorted(counted.items()))
    return at_most(
        f"API-server writes a claim, {kind} class",
        counted.total() / _CLAIMS,
        _GOAL,
        detail=f"{_CLAIMS} claims: {what}; without events and leases",
    )


ROW: Final = Row(name="api-writes", measure=measure)
