"""Many concurrent claims on all file systems, and their expected results."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod
from tests.scenarios import steps
from tests.scenarios.steps import Cluster

MANY = 100
# Enough for several worker pods, and to be in the middle of.
SOME = 20
LOOK_SECONDS = 0.3


class Burst:
    """Claims in their own namespace."""

    def __init__(self, cluster: Cluster, namespace: str, storage_class: str, claims: int) -> None:
        self.claims = claims
        self._cluster = cluster
        self._namespace = namespace
        self._storage_class = storage_class

    @classmethod
    async def of(cls, cluster: Cluster, claims: int = SOME) -> Self:
        """Create a namespace and a class for that many claims."""
        client = cluster.client
        return cls(cluster, await steps.new_namespace(client), await steps.new_class(client), claims)

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
            for number in range(self.claims)
        )
        await asyncio.gather(*map(self._cluster.client.create, claims))

    async def has_volumes(self, number: int) -> bool:
        """Whether that many volumes exist."""
        return len(await steps.volumes_of(self._cluster.client, self._namespace)) >= number

    async def has_a_worker(self) -> bool:
        """Whether a worker pod exists."""
        client, namespace = self._cluster.client, self._cluster.namespace
        found = client.list(Pod, namespace=namespace, labels={"component": "efs-worker"})
        return bool([pod async for pod in found])

    async def reaches(self, moment: "Moment") -> None:
        """Wait for that moment."""
        await steps.eventually(lambda: moment(self), what="the moment has come", pause_seconds=0.05)

    async def served(self, *, seconds: float = 120.0) -> None:
        """Wait until all are Bound; fails unless each has exactly one volume with its directory."""
        await self._eventually(self._all_bound, what=f"all {self.claims} claims are Bound", seconds=seconds)
        volumes = await steps.volumes_of(self._cluster.client, self._namespace)
        claims = await self._claims()
        assert sorted(volume.claim.uid or "" for volume in volumes if volume.claim) == sorted(
            one.metadata.uid or "" for one in claims if one.metadata
        )
        systems = self._cluster.file_system_ids
        for number in range(self.claims):
            root = self._cluster.efs.folder(systems[number % len(systems)])
            assert (root / self._namespace / f"volume_{number}").is_dir()

    async def delete(self) -> None:
        """Delete the claims."""
        client, namespace = self._cluster.client, self._namespace
        names = [f"claim-{number}" for number in range(self.claims)]
        await asyncio.gather(
            *(client.delete(PersistentVolumeClaim, name, namespace=namespace) for name in names)
        )

    async def reclaimed(self, *, seconds: float = 120.0) -> None:
        """Wait until no volume is left; fails unless the directories are removed."""

        async def look() -> bool:
            return not await steps.volumes_of(self._cluster.client, self._namespace)

        await self._eventually(look, what=f"all {self.claims} volumes are gone", seconds=seconds)
        for system in self._cluster.file_system_ids:
            assert not list((self._cluster.efs.folder(system) / self._namespace).iterdir())

    async def _eventually(self, look: Callable[[], Awaitable[bool]], *, what: str, seconds: float) -> None:
        # A list of so many is work, for this process too, in which half of the cluster runs.
        await steps.eventually(look, what=what, seconds=seconds, pause_seconds=LOOK_SECONDS)

    async def _all_bound(self) -> bool:
        claims = await self._claims()
        bound = [one for one in claims if one.status and one.status.phase == "Bound"]
        return len(bound) == self.claims

    async def _claims(self) -> list[PersistentVolumeClaim]:
        found = self._cluster.client.list(PersistentVolumeClaim, namespace=self._namespace)
        return [claim async for claim in found]


Moment = Callable[[Burst], Awaitable[bool]]


async def _at_once(_: Burst) -> bool:
    return True


MOMENTS: Mapping[str, Moment] = {
    "as the claims appear": _at_once,
    "while a worker runs": Burst.has_a_worker,
    "after the first volume": lambda burst: burst.has_volumes(1),
    "half-way": lambda burst: burst.has_volumes(burst.claims // 2),
    "after the last volume": lambda burst: burst.has_volumes(burst.claims),
}
