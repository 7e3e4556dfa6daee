"""The size of each volume: measured in rounds, reported in metrics, a ConfigMap, and events on claims.

The load on the API server is limited: a round lists the claims once, and writes the ConfigMap at most once a
minute. An event is written when a volume becomes larger than its claim requests, or small enough again.
"""

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import PersistentVolumeClaim

from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.quantities import parse_quantity
from kube_efs.kube.reading import read_claim
from kube_efs.kube.usage_store import UsageStore
from kube_efs.model.claims import Claim
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsError, KubeEfsError
from kube_efs.model.sizes import format_size
from kube_efs.model.usage import OVER_REQUEST, WITHIN_REQUEST, MeasuredDirectory, VolumeUsage, is_over
from kube_efs.model.volumes import ClaimReference, Location, Volume
from kube_efs.provisioning.backends.csi.accounts import Accounts
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.contract import Directories, Meter
from kube_efs.provisioning.workers.mounted import MountedDirectories
from kube_efs.provisioning.workers.orders import MeasuringTerms
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.settings.controller import ControllerSettings
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import Outcome, UsageMetrics

log = structlog.get_logger(__name__)

# The maximum for one pod; the next pod gets what it did not measure.
_BATCH_MAX = 100
_SAVE_SECONDS = 60.0
# The share of a pod's timeout, so that the pod ends in time and reports its results.
_SHARE_OF_POD = 0.8
# If AWS refuses a call for one volume of a file system, it refuses it for all of them.
_AGAIN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurable:
    """A volume of a claim, the location of its data, and the requested bytes."""

    name: str
    claim: ClaimReference
    location: Location
    requested_bytes: int

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """The labels of its metrics."""
        return self.name, self.claim.namespace, self.claim.name, self.location.file_system_id


def measurable(
    volumes: Mapping[str, Volume], locations: Mapping[str, Location], claims: Collection[Claim]
) -> Sequence[Measurable]:
    """The volumes with a claim and a known location; without a request, their capacity counts."""
    requests = {(one.namespace, one.name): one.requested_storage for one in claims}
    return [
        Measurable(
            name=name,
            claim=volume.claim,
            location=locations[name],
            requested_bytes=int(
                parse_quantity(requests.get((volume.claim.namespace, volume.claim.name)))
                or parse_quantity(volume.capacity)
                or 0
            ),
        )
        for name, volume in volumes.items()
        if volume.claim is not None and name in locations
    ]


def in_order(volumes: Collection[Measurable], known: Mapping[str, VolumeUsage]) -> Sequence[Measurable]:
    """First the volumes that were never measured, then the others by age."""

    def age(one: Measurable) -> tuple[bool, float, str]:
        usage = known.get(one.name)
        return usage is not None, usage.measured_at.timestamp() if usage else 0.0, one.name

    return sorted(volumes, key=age)


def matched(
    volumes: Collection[Measurable], measured: Collection[MeasuredDirectory]
) -> Iterator[tuple[Measurable, MeasuredDirectory]]:
    """The volumes with measured directories, each with its result."""
    by_directory = {one.directory: one for one in measured}
    for one in volumes:
        if one.location.directory in by_directory:
            yield one, by_directory[one.location.directory]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageParts:
    """The dependencies of a measurement: the meter of a location, the location of a volume, and clients."""

    client: AsyncClient
    store: UsageStore
    index: VolumeIndex
    recorder: EventRecorder
    metrics: UsageMetrics
    meter_for: Callable[[Location], Meter | None]
    locate: Callable[[Volume], Awaitable[Location | None]]


def meters(
    mounted: Iterable[Directories | None],
    index: VolumeIndex,
    pool: WorkerPool | None,
    *,
    discovers: bool,
    uses_driver: bool,
) -> Callable[[Location], Meter | None]:
    """The meter of a location: the mount that contains it, otherwise worker pods.

    A controller that ``discovers`` file systems knows which of them worker pods can mount. Only pods for
    which the driver mounts can mount those without a port.
    """
    here = [one for one in mounted if isinstance(one, MountedDirectories)]

    def meter_for(location: Location) -> Meter | None:
        for one in here:
            if one.holds(location):
                return one
        if not location.kind.has_ports:
            return pool if uses_driver else None
        return pool if not discovers or location.file_system_id in index.targets.targets else None

    return meter_for


async def nowhere(_volume: Volume) -> Location | None:
    """No location, for a controller without access points."""
    return None


class AccessPointPlaces:
    """The directories of volumes with access points; AWS is called once for each file system."""

    def __init__(self, accounts: Accounts, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._accounts = accounts
        self._clock = clock
        self._failed_at: dict[FileSystemId, float] = {}

    async def locate(self, volume: Volume) -> Location | None:
        """The location of the volume's data, if its access point is known and in this account."""
        handle = volume.handle
        if handle is None or (volume.deletion_secret and handle.kind.has_roles):
            return None
        failed_at = self._failed_at.get(handle.file_system_id)
        if failed_at is not None and self._clock() - failed_at < _AGAIN_SECONDS:
            return None
        try:
            async with self._accounts.of(None) as account:
                return await account.access_points[handle.kind].known.location(handle)
        except AwsError as error:
            self._failed_at[handle.file_system_id] = self._clock()
            log.warning("access-points-not-read", file_system=handle.file_system_id, reason=str(error))
            return None


def measuring_terms(settings: ControllerSettings) -> MeasuringTerms:
    """The limits of a measurement in the settings."""
    total_seconds = max(1, round(settings.worker_timeout_seconds * _SHARE_OF_POD))
    return MeasuringTerms(
        entries_per_second=settings.usage_entries_per_second,
        directory_seconds=min(settings.usage_volume_seconds, total_seconds),
        total_seconds=total_seconds,
    )


class UsageRounds:
    """Measures every volume, periodically."""

    def __init__(
        self, parts: UsageParts, terms: MeasuringTerms, *, interval_seconds: float, duties: Duties
    ) -> None:
        self._duties = duties
        self._parts = parts
        self._terms = terms
        self._interval_seconds = interval_seconds
        self._known: dict[str, VolumeUsage] = {}
        self._volumes: dict[str, Measurable] = {}
        self._saved_at = -_SAVE_SECONDS
        parts.metrics.used.read = lambda: [
            (one.labels, usage.size.used_bytes) for one, usage in self._measured_ones()
        ]
        parts.metrics.over.read = lambda: [(one.labels, usage.over) for one, usage in self._measured_ones()]
        parts.metrics.requested.read = lambda: [
            (one.labels, one.requested_bytes) for one in self._volumes.values()
        ]

    def _measured_ones(self) -> Iterator[tuple[Measurable, VolumeUsage]]:
        known = self._known
        return ((one, known[name]) for name, one in self._volumes.items() if name in known)

    async def run(self) -> None:
        """Measure until cancelled; the first round is due when the last leader's next round was."""
        await asyncio.sleep(await self._take_over())
        while True:
            began = time.monotonic()
            try:
                await self.round()
            except KubeEfsError as error:
                log.warning("usage-round-failed", reason=str(error))
            except Exception as error:  # noqa: BLE001 - counted; a restart of the duty would not wait so long
                self._duties.note("usage", error, retry_seconds=self._interval_seconds)
            seconds = time.monotonic() - began
            self._parts.metrics.round_seconds.set(seconds)
            log.info("usage-measured", volumes=len(self._known), seconds=round(seconds, 1))
            await asyncio.sleep(self._interval_seconds)

    async def round(self) -> None:
        """Measure every volume once; raises KubeError when the claims cannot be listed."""
        volumes = await self._measurable()
        self._volumes = {one.name: one for one in volumes}
        self._known = {name: usage for name, usage in self._known.items() if name in self._volumes}
        for (root, meter), group in self._groups(in_order(volumes, self._known)).items():
            async for one, found in self._measured(root, meter, group):
                self._note(one, found)
                await self._save(at_least_after=_SAVE_SECONDS)
        await self._save()

    async def _take_over(self) -> float:
        """Load the results of the last leader; returns the seconds until the next round."""
        try:
            self._known = dict(await self._parts.store.load())
            self._volumes = {one.name: one for one in await self._measurable()}
        except KubeEfsError as error:
            log.warning("usage-not-read", reason=str(error))
        newest = max((usage.measured_at.timestamp() for usage in self._known.values()), default=0.0)
        return min(self._interval_seconds, max(0.0, newest + self._interval_seconds - time.time()))

    async def _measurable(self) -> Sequence[Measurable]:
        index, locations = self._parts.index, {}
        # A copy, because the index may change while AWS is called.
        volumes = dict(index.volumes)
        for name, volume in volumes.items():
            location = index.location_of(name) or await self._parts.locate(volume)
            # AWS reports the size of a whole file system, and no claim requests that much.
            if location is None or location.directory.is_root or not location.directory.is_plain:
                continue
            if self._parts.meter_for(location) is not None:
                locations[name] = location
        return measurable(volumes, locations, await self._claims())

    async def _claims(self) -> list[Claim]:
        with translated("claims"):
            found = self._parts.client.list(PersistentVolumeClaim, namespace="*", chunk_size=PAGE_SIZE)
            return [read_claim(item.to_dict()) async for item in found]

    def _groups(self, volumes: Sequence[Measurable]) -> Mapping[tuple[Location, Meter], Sequence[Measurable]]:
        """The volumes by the root of their file system and meter."""
        groups: dict[tuple[Location, Meter], list[Measurable]] = {}
        for one in volumes:
            meter = self._parts.meter_for(one.location)
            if meter is not None:
                groups.setdefault((one.location.root, meter), []).append(one)
        return groups

    async def _measured(
        self, root: Location, meter: Meter, volumes: Sequence[Measurable]
    ) -> AsyncIterator[tuple[Measurable, MeasuredDirectory]]:
        """The result of each volume, until no more volumes can be measured."""
        waiting, measurements = list(volumes), self._parts.metrics.measurements
        # A round can take hours. A file system for claims is removed with its last volume, and then no pod
        # can mount it.
        while waiting := [one for one in waiting if one.name in self._parts.index.volumes]:
            batch = waiting[:_BATCH_MAX]
            directories = sorted({one.location.directory for one in batch})
            try:
                measured = await meter.measure(root, directories, self._terms)
            except KubeEfsError as error:
                log.warning("usage-not-measured", file_system=root.file_system_id, reason=str(error))
                measured = ()
            done = set()
            for one, found in matched(batch, measured):
                done.add(one.name)
                measurements.labels(Outcome.FAILED if found.size is None else Outcome.SUCCEEDED).inc()
                yield one, found
            if not done:
                measurements.labels(Outcome.FAILED).inc(len(waiting))
                return
            waiting = [one for one in waiting if one.name not in done]

    def _note(self, one: Measurable, found: MeasuredDirectory) -> None:
        if found.size is None:
            log.info("volume-not-measured", volume=one.name, reason=found.problem)
            return
        before = self._known.get(one.name)
        was_over = before is not None and before.over
        over = is_over(found.size, one.requested_bytes, was_over=was_over)
        now = datetime.now(UTC)
        self._known[one.name] = (
            before.followed_by(found.size, measured_at=now, over=over)
            if before
            else VolumeUsage(size=found.size, measured_at=now, over=over)
        )
        if over != was_over:
            self._publish(one, self._known[one.name])

    def _publish(self, one: Measurable, usage: VolumeUsage) -> None:
        used, requested = format_size(usage.size.used_bytes), format_size(one.requested_bytes)
        log.info("volume-over-request" if usage.over else "volume-within-request", volume=one.name, used=used)
        subject = Subject(
            api_version="v1",
            kind="PersistentVolumeClaim",
            namespace=one.claim.namespace,
            name=one.claim.name,
            uid=one.claim.uid or "",
        )
        if usage.over:
            message = (
                f"{used} are in the volume, its claim requests {requested}; the file system has no quotas "
                "and does not stop writes"
            )
            self._parts.recorder.publish(subject, EventType.WARNING, OVER_REQUEST, message)
        else:
            message = f"{used} are in the volume, not more than the {requested} that its claim requests"
            self._parts.recorder.publish(subject, EventType.NORMAL, WITHIN_REQUEST, message)

    async def _save(self, *, at_least_after: float = 0.0) -> None:
        if time.monotonic() - self._saved_at < at_least_after:
            return
        self._saved_at = time.monotonic()
        try:
            await self._parts.store.save(self._known)
        except KubeEfsError as error:
            log.warning("usage-not-saved", reason=str(error))
