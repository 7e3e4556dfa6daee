"""A hundred claims at once over all file systems, and what must have become of them."""

import asyncio
from typing import Self

from lightkube.resources.core_v1 import PersistentVolumeClaim
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

CLAIMS = 100


class Burst:
    """The claims of a namespace of their own."""

    def __init__(self, cluster: Cluster, namespace: str, storage_class: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._storage_class = storage_class

    @classmethod
    async def of(cls, cluster: Cluster) -> Self:
        """A namespace and a class for the claims to come."""
        client = cluster.client
        return cls(cluster, await steps.new_namespace(client), await steps.new_class(client))

    async def create(self) -> None:
        """Create the claims."""
        systems = self._cluster.file_system_ids
        claims = (
            steps.claim(
                self._namespace,
                f"claim-{number}",
                self._storage_class,
                {"volume_name": f"volume_{number}", "file_system_id": systems[number % len(systems)]},
            )
            for number in range(CLAIMS)
        )
        await asyncio.gather(*map(self._cluster.client.create, claims))

    async def has_volumes(self, number: int) -> bool:
        """Whether there are that many volumes."""
        return len(await steps.volumes_of(self._cluster.client, self._namespace)) >= number

    async def served(self, *, seconds: float = 120.0) -> None:
        """Wait until all are Bound; fails unless each has one volume then, and that its directory."""
        await steps.eventually(self._all_bound, what=f"all {CLAIMS} claims are Bound", seconds=seconds)
        volumes = await steps.volumes_of(self._cluster.client, self._namespace)
        claims = await self._claims()
        assert sorted(volume.claim.uid or "" for volume in volumes if volume.claim) == sorted(
            one.metadata.uid or "" for one in claims if one.metadata
        )
        systems = self._cluster.file_system_ids
        for number in range(CLAIMS):
            root = self._cluster.efs.folder(systems[number % len(systems)])
            assert (root / self._namespace / f"volume_{number}").is_dir()

    async def _all_bound(self) -> bool:
        claims = await self._claims()
        return len(claims) == CLAIMS and all(one.status and one.status.phase == "Bound" for one in claims)

    async def _claims(self) -> list[PersistentVolumeClaim]:
        found = self._cluster.client.list(PersistentVolumeClaim, namespace=self._namespace)
        return [claim async for claim in found]
