"""The picture of all file systems and mount targets of the region, kept up to date by polling.

An answer of AWS that takes something away is believed only when a second one confirms it, because tunnels,
root volumes and ports follow from it. A file system that a listing leaves out is asked for by its id: only
"not found" means that it is gone. Mount targets that are gone all at once, and a file system that is left
out and may not be asked for, are believed when the next poll says the same.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import structlog
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.file_systems import Discovery, FileSystem, MountTarget
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsDenied, AwsNotFound, AwsUnavailable, KubeEfsError
from kube_efs.telemetry.health import Health, Heartbeat
from kube_efs.telemetry.metrics import AwsMetrics

log = structlog.get_logger()

# After a failure the next poll comes sooner than the interval: the first one decides how soon volumes work.
_RETRY_SECONDS: Final = 15.0
# The longest a poll of many file systems may take before the loop counts as stuck.
_SLOWEST_POLL_SECONDS: Final = 600.0


class FileSystemSource(Protocol):
    """The part of AwsGateway that FileSystemCatalogue needs; it bounds how many calls run at once."""

    async def file_systems(self) -> tuple[FileSystem, ...]:
        """All file systems, without mount targets; raises AwsError."""
        ...

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        """All mount targets of one; raises AwsError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryChange:
    """What differs between two discoveries, in order; growth of the data is not a difference."""

    added: tuple[FileSystemId, ...] = ()
    changed: tuple[FileSystemId, ...] = ()
    removed: tuple[FileSystemId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def compare(before: Discovery, after: Discovery) -> DiscoveryChange:
    """What became different from one discovery to a later one."""
    old, new = before.file_systems, after.file_systems
    return DiscoveryChange(
        added=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(
            sorted(fs for fs in new.keys() & old.keys() if _without_size(new[fs]) != _without_size(old[fs]))
        ),
        removed=tuple(sorted(old.keys() - new.keys())),
    )


# The mount targets of one file system, None when it is gone, or why they are not known.
MountTargetsAnswer: TypeAlias = tuple[MountTarget, ...] | KubeEfsError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What AWS answered in one poll about the file systems it ``listed``, and about those it ``left_out``.

    ``left_out`` are file systems that were known before, or to which the cluster refers.
    """

    listed: Mapping[FileSystem, MountTargetsAnswer]
    left_out: Mapping[FileSystemId, MountTargetsAnswer] = field(default_factory=lambda: MappingProxyType({}))

    def __iter__(self) -> Iterator[tuple[FileSystemId, FileSystem | None, MountTargetsAnswer]]:
        """Each file system, how it was listed, and its mount targets."""
        yield from ((system.file_system_id, system, answer) for system, answer in self.listed.items())
        yield from ((file_system_id, None, answer) for file_system_id, answer in self.left_out.items())

    def losses(self, before: Discovery, expected: Collection[FileSystemId]) -> frozenset[FileSystemId]:
        """The file systems of which they take something away without certainty."""
        with_targets = {fs for fs, system in before.file_systems.items() if system.mount_targets}
        with_targets |= set(expected) - before.file_systems.keys()
        return frozenset(
            fs
            for fs, listed, answer in self
            if (answer == () and fs in with_targets) or (listed is None and isinstance(answer, AwsDenied))
        )


def merge(before: Discovery, answers: Answers, doubtful: Collection[FileSystemId] = ()) -> Discovery:
    """The picture after a poll.

    After an error, and while a loss is ``doubtful``, what was known stays; a file system of which nothing was
    known is ``unclear`` then.
    """
    found: dict[FileSystemId, FileSystem] = {}
    unclear: set[FileSystemId] = set()
    for file_system_id, listed, answer in answers:
        known = before.file_systems.get(file_system_id)
        latest = listed or known
        is_lost = listed is None and isinstance(answer, AwsDenied) and file_system_id not in doubtful
        if answer is None or is_lost:
            continue
        targets = known.mount_targets if known else None
        if isinstance(answer, tuple) and file_system_id not in doubtful:
            targets = tuple(sorted(answer, key=lambda target: target.mount_target_id))
        if latest is None or targets is None:
            unclear.add(file_system_id)
        else:
            found[file_system_id] = replace(latest, mount_targets=targets)
    return Discovery(file_systems=MappingProxyType(found), unclear=frozenset(unclear), complete=True)


class Catalogue:
    """Polls a source and keeps the last good picture.

    One failing call never spoils the rest: when the listing fails, everything stays as it was; when the
    mount targets of one file system cannot be asked for, its last known ones stay, and one that was never
    known is reported as ``unclear``. ``expected`` are the file systems to which the cluster refers.
    """

    def __init__(
        self,
        source: FileSystemSource,
        interval_seconds: float,
        *,
        metrics: AwsMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._interval_seconds = interval_seconds
        self._metrics = metrics or AwsMetrics(CollectorRegistry())
        self._metrics.discovery_age_seconds.set_function(lambda: _or_nan(self.age_seconds))
        self._clock = clock
        self._sleep = sleep
        self.expected: Callable[[], Collection[FileSystemId]] = tuple
        self._discovery = Discovery()
        self._losses: frozenset[FileSystemId] = frozenset()
        self._version = 0
        self._changed = asyncio.Event()
        self._polling = asyncio.Lock()
        self._polls_begun = 0
        self._last_ended_poll = 0
        self._listed_at: float | None = None
        self._last_error: KubeEfsError | None = None
        self._heartbeat: Heartbeat | None = None

    @property
    def discovery(self) -> Discovery:
        """The newest picture; not ``complete`` before the first successful listing."""
        return self._discovery

    @property
    def age_seconds(self) -> float | None:
        """Time since the file systems were last listed; None before the first time."""
        return None if self._listed_at is None else self._clock() - self._listed_at

    @property
    def last_error(self) -> KubeEfsError | None:
        """An error of the last poll; None when every call of it succeeded and nothing is in doubt."""
        return self._last_error

    def health(self) -> Health:
        """Failing when ``run`` is stuck. Errors of AWS are no reason: a restart would not help."""
        return self._heartbeat.health() if self._heartbeat else Health()

    async def run(self) -> None:
        """Poll now and after every interval, sooner after a failure, until cancelled."""
        longest_turn = self._interval_seconds + _SLOWEST_POLL_SECONDS
        self._heartbeat = Heartbeat("discovery", max_age_seconds=longest_turn, clock=self._clock)
        try:
            while True:
                await self.refresh()
                self._heartbeat.beat()
                failed = self._last_error is not None
                await self._sleep(
                    min(self._interval_seconds, _RETRY_SECONDS) if failed else self._interval_seconds
                )
        finally:
            self._heartbeat = None

    async def refresh(self) -> Discovery:
        """The picture of a poll that began after this call; callers that wait together share one poll.

        Does not raise AwsError: after a failure it is the last good picture, and ``last_error`` says why.
        """
        # A poll that already runs may have listed before the caller's reason to ask came into being.
        wanted = self._polls_begun + 1
        async with self._polling:
            if self._last_ended_poll < wanted:
                self._polls_begun += 1
                await self._poll()
                self._last_ended_poll = self._polls_begun
        return self._discovery

    async def changes(self) -> AsyncIterator[Discovery]:
        """The newest picture as soon as there is one, then the newest after every change.

        A reader that is slower than the changes gets the last of them, never an old one.
        """
        seen = 0
        while True:
            while seen == self._version:
                await self._changed.wait()
            seen = self._version
            yield self._discovery

    async def _poll(self) -> None:
        try:
            listed = await self._source.file_systems()
        except KubeEfsError as error:
            self._metrics.discovery_failures.labels("file_systems").inc()
            log.warning("file-systems-not-listed", error=str(error))
            self._last_error = error
            return
        self._listed_at = self._clock()
        before, expected = self._discovery, frozenset(self.expected())
        known = expected | before.file_systems.keys() | before.unclear
        left_out = sorted(known - {system.file_system_id for system in listed})
        asked = [*(system.file_system_id for system in listed), *left_out]
        async with asyncio.TaskGroup() as group:
            lookups = [group.create_task(self._ask_mount_targets(one)) for one in asked]
        found = [lookup.result() for lookup in lookups]
        answers = Answers(
            listed=dict(zip(listed, found, strict=False)),
            left_out=dict(zip(left_out, found[len(listed) :], strict=True)),
        )
        losses = answers.losses(before, expected)
        doubtful, self._losses = losses - self._losses, losses
        discovery = merge(before, answers, doubtful)
        self._last_error = next((answer for answer in found if isinstance(answer, KubeEfsError)), None)
        kept = doubtful | (set(left_out) & (discovery.file_systems.keys() | discovery.unclear))
        if kept:
            log.warning("file-systems-in-doubt", kept=sorted(kept), left_out=left_out)
            self._last_error = self._last_error or _in_doubt(kept)
        self._publish(discovery)

    async def _ask_mount_targets(self, file_system_id: FileSystemId) -> MountTargetsAnswer:
        try:
            return await self._source.mount_targets(file_system_id)
        except AwsNotFound:
            return None
        except KubeEfsError as error:
            self._metrics.discovery_failures.labels("mount_targets").inc()
            log.warning("mount-targets-not-listed", file_system=file_system_id, error=str(error))
            return error

    def _publish(self, discovery: Discovery) -> None:
        before, self._discovery = self._discovery, discovery
        self._metrics.file_systems.set(len(discovery.file_systems))
        change = compare(before, discovery)
        if change:
            log.info(
                "file-systems-changed", added=change.added, changed=change.changed, removed=change.removed
            )
        if change or (before.complete, before.unclear) != (discovery.complete, discovery.unclear):
            self._version += 1
            self._changed.set()
            self._changed = asyncio.Event()


def _without_size(system: FileSystem) -> FileSystem:
    return replace(system, size_bytes=None)


def _in_doubt(file_systems: Collection[FileSystemId]) -> KubeEfsError:
    return AwsUnavailable(
        "omitted known resources, which are kept until another answer confirms this",
        field="DescribeFileSystems or DescribeMountTargets",
        value=", ".join(sorted(file_systems)),
    )


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
