"""The known file systems and mount targets of the region, updated by polling.

If an answer of AWS omits an object, a second answer must confirm it, because tunnels, root volumes and ports
depend on these objects. A file system that a list omits is looked up by its ID: only "not found" means that
it was deleted. Two cases need the same answer in the next poll: all mount targets of a file system are
missing, or a list omits a file system and the lookup is denied.

A list is one call for a hundred file systems, but mount targets are one call for each file system, and AWS
limits the rate of calls for all users of an account. So with many file systems, a poll asks only for mount
targets that may have changed: of new file systems, of those whose number of mount targets in the list is
another one, of those with a mount target that is not available, and of those with an unsure answer. Between
two polls, all others are asked in turn, slowly. An answer in between never removes anything: if it is
unsure, the next poll asks again.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import structlog
from prometheus_client import CollectorRegistry

from kube_efs.model.efs.file_systems import Discovery, FileSystem, MountTarget
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.errors import AwsNotFound, AwsNotPermitted, AwsUnavailable, KubeEfsError
from kube_efs.telemetry.health import Health, Heartbeat
from kube_efs.telemetry.metrics import AwsMetrics

log = structlog.get_logger()

# After a failure, the next poll is earlier than the interval: volumes work only after the first success.
_RETRY_SECONDS: Final = 15.0
# Up to so many file systems, each poll asks for all mount targets.
_ALL_AT_ONCE: Final = 100
# AWS publishes no limit. Others measured that it refuses more than ten calls a second of an account.
_TURN_SECONDS: Final = 1.2
# A poll of many file systems that takes longer counts as stuck.
_SLOWEST_POLL_SECONDS: Final = 600.0


class FileSystemSource(Protocol):
    """The part of AwsGateway that ``Catalogue`` needs; it limits concurrent calls."""

    async def file_systems(self) -> tuple[FileSystem, ...]:
        """All file systems, without mount targets; raises AwsError."""
        ...

    async def mount_targets(self, file_system_id: FileSystemId) -> tuple[MountTarget, ...]:
        """All mount targets of one; raises AwsError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryChange:
    """The differences between two discoveries, in order; growth of the data is not a difference."""

    added: tuple[FileSystemId, ...] = ()
    changed: tuple[FileSystemId, ...] = ()
    removed: tuple[FileSystemId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def compare(before: Discovery, after: Discovery) -> DiscoveryChange:
    """The differences from one discovery to a later one."""
    old, new = before.file_systems, after.file_systems
    return DiscoveryChange(
        added=tuple(sorted(new.keys() - old.keys())),
        changed=tuple(
            sorted(
                fs for fs in new.keys() & old.keys() if _without_numbers(new[fs]) != _without_numbers(old[fs])
            )
        ),
        removed=tuple(sorted(old.keys() - new.keys())),
    )


# The mount targets of a file system, None when it was deleted, or the error of the call.
MountTargetsAnswer: TypeAlias = tuple[MountTarget, ...] | KubeEfsError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers of AWS in one poll, about ``listed`` file systems and about ``left_out`` ones.

    ``left_out`` are file systems that were known before, or that the cluster references.
    """

    listed: Mapping[FileSystem, MountTargetsAnswer]
    left_out: Mapping[FileSystemId, MountTargetsAnswer]

    def __iter__(self) -> Iterator[tuple[FileSystemId, FileSystem | None, MountTargetsAnswer]]:
        """Each file system, its entry in the list, and its mount targets."""
        yield from ((system.file_system_id, system, answer) for system, answer in self.listed.items())
        yield from ((file_system_id, None, answer) for file_system_id, answer in self.left_out.items())

    def losses(self, before: Discovery, expected: Collection[FileSystemId]) -> frozenset[FileSystemId]:
        """The file systems that lose something in these answers without certainty."""
        with_targets = {fs for fs, system in before.file_systems.items() if system.mount_targets}
        with_targets |= set(expected) - before.file_systems.keys()
        return frozenset(
            fs
            for fs, listed, answer in self
            if (answer == () and fs in with_targets) or _is_hidden(listed, answer)
        )


def merge(before: Discovery, answers: Answers, doubtful: Collection[FileSystemId] = ()) -> Discovery:
    """The discovery after a poll.

    After an error, and while a loss is ``doubtful``, the known state is kept. A file system without a known
    state is ``unclear`` then.
    """
    found: dict[FileSystemId, FileSystem] = {}
    unclear: set[FileSystemId] = set()
    for file_system_id, listed, answer in answers:
        known = before.file_systems.get(file_system_id)
        latest = listed or known
        if answer is None or (_is_hidden(listed, answer) and file_system_id not in doubtful):
            continue
        targets = known.mount_targets if known else None
        if isinstance(answer, tuple) and file_system_id not in doubtful:
            targets = _in_order(answer)
        if latest is None or targets is None:
            unclear.add(file_system_id)
        else:
            found[file_system_id] = replace(latest, mount_targets=targets)
    return Discovery(file_systems=MappingProxyType(found), unclear=frozenset(unclear), complete=True)


def _is_hidden(listed: FileSystem | None, answer: MountTargetsAnswer) -> bool:
    """Whether AWS neither lists the file system nor permits to ask about it."""
    return listed is None and isinstance(answer, AwsNotPermitted)


class Catalogue:
    """Polls a source and keeps the last good discovery.

    A failed call does not affect the rest. If the list fails, everything is kept. If the call for the mount
    targets of a file system fails, the last known ones are kept; without any, the file system is reported as
    ``unclear``. ``expected`` are the file systems that the cluster references.
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
        self._metrics.discovery_age_seconds.set_function(
            lambda: math.nan if (age := self.age_seconds) is None else age
        )
        self._clock = clock
        self._sleep = sleep
        self.expected: Callable[[], Collection[FileSystemId]] = tuple
        self._discovery = Discovery()
        self._losses: frozenset[FileSystemId] = frozenset()
        # File systems whose last answer was unsure, and the turns of all others: the first one is next.
        self._unsure: frozenset[FileSystemId] = frozenset()
        self._turns: OrderedDict[FileSystemId, None] = OrderedDict()
        self._version = 0
        self._changed = asyncio.Event()
        self._polling = asyncio.Lock()
        self._polls_begun = 0
        self._last_ended_poll = 0
        self._first_run_at: float | None = None
        self._listed_at: float | None = None
        self._last_error: KubeEfsError | None = None
        self._heartbeat: Heartbeat | None = None

    @property
    def discovery(self) -> Discovery:
        """The newest discovery; not ``complete`` before the first successful list."""
        return self._discovery

    @property
    def age_seconds(self) -> float | None:
        """Time since the file systems were last listed, before the first time since ``run`` began.

        None if neither has happened, as in a replica that does not lead.
        """
        since = self._first_run_at if self._listed_at is None else self._listed_at
        return None if since is None else self._clock() - since

    @property
    def last_error(self) -> KubeEfsError | None:
        """An error of the last poll; None when all of its calls succeeded and no loss is doubtful."""
        return self._last_error

    def health(self) -> Health:
        """Failing when ``run`` is stuck, but not after errors of AWS: a restart would not help."""
        return self._heartbeat.health() if self._heartbeat else Health()

    async def run(self) -> None:
        """Poll now and after every interval, sooner after a failure, until cancelled."""
        longest_turn = self._interval_seconds + _SLOWEST_POLL_SECONDS
        if self._first_run_at is None:  # after an internal error, it runs again
            self._first_run_at = self._clock()
        self._heartbeat = Heartbeat("discovery", max_age_seconds=longest_turn, clock=self._clock)
        try:
            while True:
                await self.refresh()
                self._heartbeat.beat()
                failed = self._last_error is not None
                await self._ask_in_turn(
                    min(self._interval_seconds, _RETRY_SECONDS) if failed else self._interval_seconds
                )
        finally:
            self._heartbeat = None

    async def refresh(self) -> Discovery:
        """The discovery of a poll that begins after this call; concurrent callers share one poll.

        Does not raise AwsError: after a failure it is the last good discovery, and ``last_error`` has the
        error.
        """
        # The list of a running poll may be older than the reason for this call.
        wanted = self._polls_begun + 1
        async with self._polling:
            if self._last_ended_poll < wanted:
                self._polls_begun += 1
                await self._poll()
                self._last_ended_poll = self._polls_begun
        return self._discovery

    async def changes(self) -> AsyncIterator[Discovery]:
        """The newest discovery as soon as it exists, then the newest after every change.

        A slow reader gets only the last of several changes.
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
        # If the list omits one of these, it is looked up by its ID: an omission proves nothing.
        known = expected | before.file_systems.keys() | before.unclear
        left_out = sorted(known - {system.file_system_id for system in listed})
        asked = [*(system.file_system_id for system in listed), *left_out]
        are_many = len(asked) > _ALL_AT_ONCE
        known_answers = self._certain(listed) if are_many else {}
        async with asyncio.TaskGroup() as group:
            lookups = {
                one: group.create_task(self._ask_mount_targets(one))
                for one in asked
                if one not in known_answers
            }
        found = {**known_answers, **{one: lookup.result() for one, lookup in lookups.items()}}
        # Those that were asked now go to the end of the turns; the others keep their places.
        waiting = (one for one in self._turns if one in known_answers)
        self._turns = OrderedDict.fromkeys((*waiting, *asked) if are_many else ())
        answers = Answers(
            listed={system: found[system.file_system_id] for system in listed},
            left_out={one: found[one] for one in left_out},
        )
        # A loss counts when two polls in a row contain it.
        losses = answers.losses(before, expected)
        doubtful, self._losses = losses - self._losses, losses
        discovery = merge(before, answers, doubtful)
        failed = {one: answer for one, answer in found.items() if isinstance(answer, KubeEfsError)}
        self._last_error = next(iter(failed.values()), None)
        in_doubt = doubtful | (set(left_out) & (discovery.file_systems.keys() | discovery.unclear))
        if in_doubt:
            log.warning("file-systems-in-doubt", kept=sorted(in_doubt), left_out=left_out)
            self._last_error = self._last_error or _in_doubt(in_doubt)
        self._unsure = frozenset(in_doubt | failed.keys())
        self._publish(discovery)

    def _certain(self, listed: Collection[FileSystem]) -> dict[FileSystemId, tuple[MountTarget, ...]]:
        """The known mount targets of the file systems for which the list shows no change.

        It has only their number. It is compared with the usable ones, so a mount target in another state is
        asked for in each poll until it is usable or gone. A replaced one has the same number: turns find it.
        """
        known = self._discovery.file_systems
        return {
            one.file_system_id: known[one.file_system_id].mount_targets
            for one in listed
            if one.file_system_id in known
            and one.file_system_id not in self._unsure
            and one.number_of_mount_targets == len(known[one.file_system_id].usable_mount_targets)
        }

    async def _ask_in_turn(self, seconds: float) -> None:
        """Wait for so long, and meanwhile ask for the mount targets that the last poll did not ask for."""
        ends_at = self._clock() + seconds
        while self._turns and self._clock() + _TURN_SECONDS < ends_at:
            await self._sleep(_TURN_SECONDS)
            file_system_id, _ = self._turns.popitem(last=False)
            async with self._polling:
                answer = await self._ask_mount_targets(file_system_id)
                known = self._discovery.file_systems.get(file_system_id)
                # The loss of the last mount target, and also the first one, are left to the next poll.
                if known and isinstance(answer, tuple) and bool(answer) == bool(known.mount_targets):
                    system = replace(known, mount_targets=_in_order(answer))
                    systems = {**self._discovery.file_systems, file_system_id: system}
                    self._publish(replace(self._discovery, file_systems=MappingProxyType(systems)))
                else:
                    self._unsure |= {file_system_id}
        await self._sleep(max(ends_at - self._clock(), 0))

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
            # A new one: those who waited may have to wait for the next change, too.
            self._changed = asyncio.Event()


def _in_order(targets: Collection[MountTarget]) -> tuple[MountTarget, ...]:
    return tuple(sorted(targets, key=lambda target: target.mount_target_id))


def _without_numbers(system: FileSystem) -> FileSystem:
    return replace(system, size_bytes=None, number_of_mount_targets=None)


def _in_doubt(file_systems: Collection[FileSystemId]) -> KubeEfsError:
    return AwsUnavailable(
        "omitted known resources, which are kept until another answer confirms this",
        field="DescribeFileSystems or DescribeMountTargets",
        value=", ".join(sorted(file_systems)),
    )
