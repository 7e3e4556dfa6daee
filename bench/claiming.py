"""Claims made at a rate in a namespace of their own, and when each of them is Bound."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from bench.latencies import Timing
from lightkube import ApiError, AsyncClient
from lightkube.core.resource import Resource
from lightkube.models.core_v1 import PersistentVolumeClaimSpec, VolumeResourceRequirements
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolume, PersistentVolumeClaim

from kube_efs.kube.watching import Applied, Deleted, Listed, follow

_AT_ONCE: Final = 16
_LOOK_SECONDS: Final = 0.5
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A claim to be made; ``due`` is in seconds after the beginning, ``labels`` are those of its selector."""

    name: str
    storage_class: str
    due: float = 0.0
    labels: Mapping[str, str] | None = None
    size: str = "1Gi"


def orders(
    classes: Sequence[str],
    per_second: float | None,
    *,
    selecting: Iterable[str] = (),
    size: str = "1Gi",
) -> list[Order]:
    """A claim for each of the classes, all at once without a rate.

    Claims of the ``selecting`` classes name their volume by a label, as those of tunnel volumes must.
    """
    return [
        Order(
            name=f"claim-{number}",
            storage_class=name,
            due=number / per_second if per_second else 0.0,
            labels={"volume_name": f"volume_{number}"} if name in set(selecting) else None,
            size=size,
        )
        for number, name in enumerate(classes)
    ]


class Seen:
    """The moments at which objects were first seen as they should be, by their names."""

    def __init__(self) -> None:
        self.moments: dict[str, float] = {}
        self.listed = asyncio.Event()

    async def follow(
        self,
        client: AsyncClient,
        resource: type[Resource],
        name: Callable[[Any], str | None],
        namespace: str | None = None,
    ) -> None:
        """Note them until cancelled; ``name`` gives None for an object that is not so far."""
        async with aclosing(follow(client, resource, read=name, namespace=namespace)) as changes:
            async for change in changes:
                match change:
                    case Listed(names):
                        self._note(names)
                        self.listed.set()
                    case Applied(found):
                        self._note([found])
                    case Deleted():
                        pass

    def _note(self, names: Iterable[str | None]) -> None:
        now = time.monotonic()
        for name in names:
            if name:
                self.moments.setdefault(name, now)


class Load:
    """Claims in a namespace of their own; what is made for them goes with ``clean``."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        self._bound = Seen()
        self.created_seconds = 0.0

    @classmethod
    @asynccontextmanager
    async def of(cls, client: AsyncClient) -> AsyncIterator["Load"]:
        """A new namespace, whose claims are followed."""
        namespace = f"kube-efs-load-{secrets.token_hex(3)}"
        await client.create(Namespace(metadata=ObjectMeta(name=namespace)))
        load = cls(client, namespace)
        following = asyncio.create_task(load._bound.follow(client, PersistentVolumeClaim, _bound, namespace))
        try:
            await load._bound.listed.wait()
            yield load
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def run(
        self,
        wanted: Sequence[Order],
        *,
        patience_seconds: float,
        tell: Callable[[int], None] = lambda _: None,
    ) -> list[Timing]:
        """Make the claims when they are due, and wait for them until ``patience_seconds`` after the last one.

        ``tell`` hears from time to time how many are Bound.
        """
        begun = time.monotonic()
        await self._make(wanted, begun)
        self.created_seconds = time.monotonic() - begun
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                while self._count(wanted) < len(wanted):
                    tell(self._count(wanted))
                    await asyncio.sleep(_LOOK_SECONDS)
        tell(self._count(wanted))
        return [self._timing(one, begun) for one in wanted]

    async def clean(self, *, patience_seconds: float) -> int:
        """Delete the claims and the namespace; how many volumes of them were left after that time."""
        await self._client.deletecollection(PersistentVolumeClaim, namespace=self.namespace)
        left = await self._volumes()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                while left:
                    await asyncio.sleep(_LOOK_SECONDS)
                    left = await self._volumes()
        try:
            await self._client.delete(Namespace, self.namespace)
        except ApiError as error:
            if error.status.code != _NOT_FOUND:
                raise
        return left

    async def create(self, order: Order) -> PersistentVolumeClaim:
        """A claim, now."""
        return await self._client.create(_claim(order, self.namespace))

    async def _make(self, wanted: Sequence[Order], begun: float) -> None:
        left = iter(wanted)

        async def some() -> None:
            for order in left:
                await asyncio.sleep(max(begun + order.due - time.monotonic(), 0))
                await self.create(order)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(some())

    def _count(self, wanted: Sequence[Order]) -> int:
        return sum(one.name in self._bound.moments for one in wanted)

    def _timing(self, order: Order, begun: float) -> Timing:
        moment = self._bound.moments.get(order.name)
        return Timing(
            name=order.name,
            storage_class=order.storage_class,
            due=order.due,
            bound=None if moment is None else moment - begun,
        )

    async def _volumes(self) -> int:
        """How many volumes there are for claims of the namespace."""
        found = self._client.list(PersistentVolume, chunk_size=500)
        references = [one.spec.claimRef async for one in found if one.spec and one.spec.claimRef]
        return sum(one.namespace == self.namespace for one in references)


def _bound(claim: PersistentVolumeClaim) -> str | None:
    is_bound = claim.status is not None and claim.status.phase == "Bound"
    return claim.metadata.name if is_bound and claim.metadata else None


def _claim(order: Order, namespace: str) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name=order.name, namespace=namespace),
        spec=PersistentVolumeClaimSpec(
            accessModes=["ReadWriteMany"],
            resources=VolumeResourceRequirements(requests={"storage": order.size}),
            selector=LabelSelector(matchLabels=dict(order.labels)) if order.labels else None,
            storageClassName=order.storage_class,
        ),
    )
