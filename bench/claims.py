"""Bursts of claims of the CSI class on a real control plane, and what the controller costs after them.

Claims become Bound no faster than the binder of Kubernetes and the API server permit. Before each burst, as
many claims get volumes from a loop that only creates volumes; its rate is the limit of the burst. It creates
one when the binder has asked for it with an annotation, which is a change and an event of each claim. Faster
ones would spare the binder that, but a provisioner that calls AWS is never so fast.

A control plane has machines of its own, and AWS is elsewhere. So the control plane gets half of the
processors, and the controller shares the other half with moto and the bench.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.claiming import Load, Seen, orders
from bench.existing import Controller
from bench.figures import Curve, Figure, Line, Row, at_least, at_most, plain
from bench.latencies import Timing, percentile, rate, slope, spread
from bench.processes import ORDINARY_SETTINGS, cores_used, cpu_by_program, daemons, separated
from lightkube import AsyncClient
from lightkube.models.core_v1 import (
    CSIPersistentVolumeSource,
    ObjectReference,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
)
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass
from tests.conformance.programs import PROGRAMS
from tests.scenarios import csi_steps, steps
from tests.scenarios.csi_steps import Aws

from kube_efs.kube.watching import Applied, Deleted, Listed, follow
from kube_efs_lab.cluster import EmbeddedCluster
from kube_efs_lab.control_plane import ControlPlane, EmbeddedControlPlane
from kube_efs_lab.real_control_plane import ControlPlanes
from kube_efs_lab.real_plane import RealPlane

_MOST: Final = 10_000
# What is made at once, and the sizes at which the controller is started again.
_BURSTS: Final = (100, 1_000, _MOST)
# So many tenths of a burst are reported, and its curve has so many points.
_TENTH: Final = 10
_POINTS: Final = 100
_LOOP: Final = "limit.example.com"
_ASKED: Final = "volume.kubernetes.io/storage-provisioner"
_OF_LIMIT: Final[Mapping[str, str]] = {"limit": "true"}
# A small burst is over in seconds, and depends on what else the machine does in these.
_ROUNDS: Final = 5
_LOOPS: Final = 16  # as many requests at once as the controller has
_IDLE_SIZE: Final = 1_000
_IDLE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 1200.0
_EVENTS_SECONDS: Final = 2.0
_GONE_SECONDS: Final = 5.0
_PLANE: Final = ("kube-apiserver", "etcd", "kube-controller-manager")
_SETTINGS: Final = {**ORDINARY_SETTINGS, "KUBE_EFS_ACCESS_POINT_QUOTA": "100000"}


class PlaneOfClaims(RealPlane):
    """No pods are made here, so that nobody has to schedule them."""

    async def run_controllers(self, client: AsyncClient, *, node: str) -> None:
        """Do nothing, until cancelled."""
        await asyncio.Event().wait()


async def measure(folder: Path) -> AsyncIterator[Figure | Curve]:
    """Bursts, each of two file systems, and between them the controller with what there is by then.

    Without the programs of a real control plane there are no more than a thousand claims.
    """
    planes = ControlPlanes(folder / "control-plane", PROGRAMS, many_objects=True)
    is_real = (PROGRAMS / "kube-apiserver").exists()
    plane: ControlPlane = PlaneOfClaims(planes) if is_real else EmbeddedControlPlane(folder / "kubeconfig")
    most = int(os.environ.get("BENCH_CLAIMS", _MOST if is_real else _IDLE_SIZE))
    try:
        async with (
            EmbeddedCluster(folder / "cluster", control_plane=plane, settings=_SETTINGS) as cluster,
            Aws.of(cluster) as aws,
            Load.of(cluster.client) as load,
        ):
            with separated(_PLANE if is_real else ()) as processors:
                async for one in _measure(cluster, aws, load, most, processors):
                    yield one
    finally:
        await planes.stop()


async def _measure(
    cluster: EmbeddedCluster, aws: Aws, load: Load, most: int, processors: str
) -> AsyncIterator[Figure | Curve]:
    controller = Controller(cluster)
    async for figure in controller.figures(0, load, await _classes(cluster, aws)):
        yield figure
    for size in (one for one in _BURSTS if one <= most):
        classes = await _classes(cluster, aws)
        rounds = _ROUNDS if size < _IDLE_SIZE else 1
        for one in _figures([await _burst(cluster, classes, size) for _ in range(rounds)], processors):
            yield one
        if size >= _IDLE_SIZE:
            async for figure in controller.figures(size, load, classes):
                yield figure
        if size == _IDLE_SIZE:
            for name, share in (await cores_used(daemons(cluster), _IDLE_SECONDS)).items():
                yield at_most(f"CPU of {name} idle with {size:,} volumes", share * 100, 1, "% of a core")
    if most >= _IDLE_SIZE:  # otherwise, it has a single point
        yield controller.curve()


async def _classes(cluster: EmbeddedCluster, aws: Aws) -> list[str]:
    """Classes of two new file systems: one would be full with ten thousand."""
    systems = [await aws.file_system() for _ in range(2)]
    return [
        await csi_steps.new_class(cluster.client, parameters={"fileSystemId": system}) for system in systems
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """A burst and its limit: seconds, claims a second, and milliseconds of CPU of each program.

    ``bound`` and ``made`` are the times of claims and volumes, the first one first. ``with_events`` and
    ``written`` end when the last of the ``events`` is written.
    """

    limit: float
    costs_of_limit: Counter[str]
    created: float
    made: list[float]
    bound: list[float]
    costs: Counter[str]
    with_events: Counter[str]
    written: float
    events: int
    in_aws: float

    @property
    def ratio(self) -> float:
        """The part of the limit that was reached."""
        return rate(self.bound) / self.limit


async def _burst(cluster: EmbeddedCluster, classes: list[str], size: int) -> _Burst:
    limit, costs_of_limit = await _limit(cluster.client, size)
    earlier, _ = await _events_written(cluster)
    async with _followed(cluster.client, classes) as volumes:
        before, used, begun = await _seconds_in_aws(cluster), cpu_by_program(), time.monotonic()
        async with Load.of(cluster.client) as load:
            wanted = orders(spread(dict.fromkeys(classes, 1), size), None)
            timings = await load.run(wanted, patience_seconds=_PATIENCE_SECONDS)
        costs = cpu_by_program() - used
        # They follow the claims, and are a part of their cost. The next limit is measured without them.
        events, written = await _events_written(cluster)
        with_events = cpu_by_program() - used
    return _Burst(
        limit=limit,
        costs_of_limit=costs_of_limit,
        created=load.created_seconds,
        made=sorted(moment - begun for moment in volumes.moments.values()),
        bound=_all_bound(timings),
        costs=costs,
        with_events=with_events,
        written=written - begun,
        events=events - earlier,
        in_aws=(await _seconds_in_aws(cluster) - before) / size,
    )


def _figures(bursts: list[_Burst], processors: str) -> Iterator[Figure | Curve]:
    """As many claims a second as they become, from the first until the last one is Bound.

    Of several rounds, that in the middle counts.
    """
    in_order = sorted(bursts, key=lambda burst: burst.ratio)
    low, one, high = in_order[0], in_order[len(bursts) // 2], in_order[-1]
    size = len(one.bound)
    rounds = f"; {len(bursts)} rounds: {low.ratio:.2f} to {high.ratio:.2f}" if len(bursts) > 1 else ""
    yield at_least(
        f"claims of the CSI class → Bound a second ÷ the limit, {size:,} at once",
        one.ratio,
        0.8,
        detail=f"{rate(one.bound):.1f} ÷ {one.limit:.1f} a second, which a loop reaches that only creates "
        f"volumes{rounds}; CPU a claim there: {_shares(one.costs_of_limit, size)}",
    )
    yield plain(
        f"claims of the CSI class → Bound a second, {size:,} at once",
        rate(one.bound),
        "/s",
        f"{processors}: all claims existed after {one.created:.1f} s, their volumes after "
        f"{one.made[-1]:.1f} s, Bound after {one.bound[-1]:.1f} s; half were Bound after "
        f"{percentile(one.bound, 50):.1f} s; moto took {one.in_aws:.2f} s for a call",
    )
    yield plain(
        f"their volumes created a second, {size:,} at once",
        rate(one.made),
        "/s",
        "the rest is the binder of Kubernetes, which serves one claim after the other",
    )
    yield at_most(
        f"CPU time of the controller for a claim, {size:,} at once",
        one.with_events["kube-efs controller"] / size,
        5,
        "ms",
        f"CPU a claim until it is Bound: {_shares(one.costs, size)}",
    )
    yield plain(
        f"time until all events of {size:,} claims were written",
        one.written,
        "s",
        f"{one.events} events; CPU a claim from its creation until then: {_shares(one.with_events, size)}",
    )
    if size == _MOST:
        yield from _shape(one.bound, one.made)


async def _events_written(cluster: EmbeddedCluster) -> tuple[int, float]:
    """The number of events that the controller has written since its start, and when it ceased to grow."""
    before, last = -1.0, time.monotonic()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            written = await steps.metric(
                cluster.controller, 'kube_efs_api_requests_total{code="201",resource="events"'
            )
            if written == before:
                return int(written), last
            before, last = written, time.monotonic()
            await asyncio.sleep(_EVENTS_SECONDS)


async def _limit(client: AsyncClient, size: int) -> tuple[float, Counter[str]]:
    """Claims Bound a second if the provisioner of their class is a loop that creates a volume for each.

    The volumes are followed as those of kube-efs are, because that costs the API server time, too. The second
    value are the milliseconds of CPU of each program.
    """
    async with Load.of(client) as load, _followed(client, [name := load.namespace]):
        await client.create(StorageClass(metadata=ObjectMeta(name=name), provisioner=_LOOP))
        used = cpu_by_program()
        wanted = orders([name] * size, None)
        claims = asyncio.Queue[PersistentVolumeClaim]()
        tasks = [asyncio.create_task(_read_claims(client, load.namespace, claims))]
        tasks += [asyncio.create_task(_create_volumes(client, claims)) for _ in range(_LOOPS)]
        try:
            timings = await load.run(wanted, patience_seconds=_PATIENCE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        costs = cpu_by_program() - used
        await _remove(client, load.namespace, [one.name for one in wanted])
        return rate(_all_bound(timings)), costs


async def _remove(client: AsyncClient, namespace: str, claims: Iterable[str]) -> None:
    """Delete the claims and their volumes: the binder looks at all volumes for each claim."""
    left = iter(claims)

    async def some() -> None:
        for claim in left:
            await client.delete(PersistentVolumeClaim, claim, namespace=namespace)
            await client.delete(PersistentVolume, f"{namespace}-{claim}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_LOOPS):
            tasks.create_task(some())
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while [one async for one in client.list(PersistentVolume, labels=dict(_OF_LIMIT))]:  # noqa: ASYNC110 - asked from outside
            await asyncio.sleep(_GONE_SECONDS)


@asynccontextmanager
async def _followed(client: AsyncClient, classes: Collection[str]) -> AsyncIterator[Seen]:
    """When the volumes of the classes appear."""
    volumes = Seen()
    following = asyncio.create_task(volumes.follow(client, PersistentVolume, _in_class(classes)))
    try:
        await volumes.listed.wait()
        yield volumes
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def _all_bound(timings: Collection[Timing]) -> list[float]:
    """When each claim was Bound, the first one first; raises TimeoutError if one never was."""
    bound = sorted(one.bound for one in timings if one.bound is not None)
    if len(bound) < len(timings):
        raise TimeoutError(f"{len(bound)} of {len(timings)} claims were Bound after {_PATIENCE_SECONDS:g} s")
    return bound


async def _read_claims(
    client: AsyncClient, namespace: str, claims: asyncio.Queue[PersistentVolumeClaim]
) -> None:
    """Note each claim of the namespace when the binder asks for its volume, until cancelled."""
    seen = set[str]()
    changes = follow(client, PersistentVolumeClaim, read=lambda claim: claim, namespace=namespace)
    async with aclosing(changes):
        async for change in changes:
            match change:
                case Listed(found):
                    some = list(found)
                case Applied(claim):
                    some = [claim]
                case Deleted():
                    some = []
            for claim in some:
                metadata = claim.metadata or ObjectMeta()
                uid = metadata.uid or ""
                if uid not in seen and _ASKED in (metadata.annotations or {}):
                    seen.add(uid)
                    claims.put_nowait(claim)


async def _create_volumes(client: AsyncClient, claims: asyncio.Queue[PersistentVolumeClaim]) -> None:
    while True:
        await client.create(_volume_for(await claims.get()))


def _volume_for(claim: PersistentVolumeClaim) -> PersistentVolume:
    """A volume of another driver, so that the controller has no work with it.

    It has the UID of the claim. Without it, Kubernetes' binder would look at the claim again only after 15 s.
    """
    metadata, spec = claim.metadata or ObjectMeta(), claim.spec or PersistentVolumeClaimSpec()
    name = f"{metadata.namespace}-{metadata.name}"
    return PersistentVolume(
        metadata=ObjectMeta(name=name, labels=dict(_OF_LIMIT)),
        spec=PersistentVolumeSpec(
            accessModes=["ReadWriteMany"],
            capacity={"storage": "1Gi"},
            claimRef=ObjectReference(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid),
            csi=CSIPersistentVolumeSource(driver=_LOOP, volumeHandle=name),
            persistentVolumeReclaimPolicy="Retain",
            storageClassName=spec.storageClassName,
        ),
    )


def _shape(bound: list[float], made: list[float]) -> Iterator[Figure | Curve]:
    """Whether the last of many take longer than the first."""
    tenth = len(bound) // _TENTH
    first, last = (slope(part) for part in (bound[:tenth], bound[-tenth:]))
    yield plain(
        f"time for a further claim among the last {tenth:,} of {len(bound):,} ÷ among the first",
        last / first,
        detail=f"{last * 1000:.1f} ms ÷ {first * 1000:.1f} ms; over all {slope(bound) * 1000:.1f} ms",
    )
    yield Curve(
        name="claims",
        title=f"{len(bound):,} claims at once",
        x="seconds",
        y="claims",
        lines=(Line(name="volumes made", points=_counted(made)), Line(name="Bound", points=_counted(bound))),
    )


def _counted(moments: list[float]) -> tuple[tuple[float, float], ...]:
    """How many there were at some of the moments."""
    step = max(len(moments) // _POINTS, 1)
    chosen = [number for number in range(1, len(moments) + 1) if number % step == 0 or number == len(moments)]
    return ((0.0, 0.0), *((round(moments[number - 1], 2), float(number)) for number in chosen))


def _in_class(classes: Collection[str]) -> Callable[[PersistentVolume], str | None]:
    """The name of a volume of one of the classes."""

    def name(volume: PersistentVolume) -> str | None:
        is_one = volume.spec is not None and volume.spec.storageClassName in classes
        return volume.metadata.name if is_one and volume.metadata else None

    return name


def _shares(milliseconds: Counter[str], claims: int) -> str:
    most = (f"{name} {used / claims:.1f} ms" for name, used in milliseconds.most_common(6))
    return ", ".join(most)


async def _seconds_in_aws(cluster: EmbeddedCluster) -> float:
    return await steps.metric(cluster.controller, "kube_efs_aws_call_seconds_sum")


ROW: Final = Row(name="claims", measure=measure)
