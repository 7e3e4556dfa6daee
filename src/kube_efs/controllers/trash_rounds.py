"""Empties the trash of every file system, in rounds, and reports what cannot be removed.

A removal is complete when the directory is in the trash. These rounds delete its contents, and nothing waits
for them. They work on a few file systems at a time, for some minutes each; the one with the longest wait is
next. So a huge trash does not delay the others. Stuck entries are retried at growing intervals. Nothing is
stored: a new leader checks every trash once. A round also finds abandoned copies, so there is one each week.
With csi-provisioner, other replicas remove directories too, so every trash is checked more often.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import structlog
from lightkube import AsyncClient
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import PersistentVolumeClaim

from kube_efs.kube.errors import translated
from kube_efs.kube.events import EventRecorder, EventType, Subject
from kube_efs.model.csi.errors import VolumePending
from kube_efs.model.csi.parameters import ProvisioningMode, parse_parameters
from kube_efs.model.csi.sidecar_parameters import parse_sidecar_parameters
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import AwsNotFound, InvalidValue, KubeEfsError, KubeError
from kube_efs.model.trash import TRASH_EMPTIED, TRASH_NOT_EMPTIED, TrashReport
from kube_efs.model.tunnel_volumes import root_name
from kube_efs.model.volumes import DRIVER, Location
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.provisioning.workers.mounted import MountedDirectories
from kube_efs.provisioning.workers.orders import EmptyingTerms
from kube_efs.provisioning.workers.pool import WorkerPool
from kube_efs.settings.controller import ControllerSettings
from kube_efs.settings.directories import BackendName
from kube_efs.telemetry.duties import Duties
from kube_efs.telemetry.metrics import ControllerMetrics

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 2
# Removals come in bursts, and one round is sufficient for a burst.
_GATHERING_SECONDS: Final = 1.0
# The interval of checks for new and deleted file systems.
_CHECK_SECONDS: Final = 30.0
# At most half an hour: the API server deletes an event after an hour unless it is repeated.
_FIRST_PAUSE_SECONDS: Final = 60.0
_LAST_PAUSE_SECONDS: Final = 1800.0
# The interval of checks for what other replicas have moved into a trash.
_OTHERS_SECONDS: Final = 1200.0
# The interval of checks for copies that nobody continues. A copy is abandoned after a week.
_ABANDONED_SECONDS: Final = 7 * 24 * 3600.0
# The share of a pod's timeout, so that the pod ends in time and reports what is left.
_SHARE_OF_POD: Final = 0.8


class Emptier(Protocol):
    """A worker that empties the trash of file systems."""

    async def empty(self, root: Location, terms: EmptyingTerms) -> TrashReport:
        """Empty the trash at that root as far as the terms allow.

        Raises VolumePending while the file system is being removed, AwsNotFound afterwards, and KubeEfsError.
        """

    def on_removed(self, call: Callable[[FileSystemId], None]) -> None:
        """Call that whenever a directory was moved into the trash of a file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trashes:
    """The roots of the file systems of one emptier, and the object of the events about each."""

    emptier: Emptier
    roots: Callable[[], Collection[Location]]
    subject: Callable[[FileSystemId], Awaitable[Subject]]


@dataclass(slots=True, eq=False)
class _Trash:
    """The state of one trash.

    ``due`` is the time of its next round, infinite when the file system is gone. ``turn`` is the number of
    its last round, counted over all trashes.
    """

    root: Location
    of: Trashes
    due: float
    turn: int = 0
    running: bool = False
    came_meanwhile: bool = False
    is_reported: bool = False
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    report: TrashReport = field(default_factory=TrashReport)

    @property
    def file_system_id(self) -> FileSystemId:
        """The file system that contains it."""
        return self.root.file_system_id


class TrashRounds:
    """Empties every trash until cancelled; ``is_alone`` unless other replicas remove directories too."""

    def __init__(
        self,
        trashes: Sequence[Trashes],
        terms: EmptyingTerms,
        recorder: EventRecorder,
        metrics: ControllerMetrics,
        duties: Duties,
        *,
        is_alone: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_alone = is_alone
        self._trashes = trashes
        self._terms = terms
        self._recorder = recorder
        self._duties = duties
        self._clock = clock
        self._known: dict[tuple[int, FileSystemId], _Trash] = {}
        self._turns = itertools.count(1)
        self._changed = asyncio.Event()
        for number, one in enumerate(trashes):
            one.emptier.on_removed(partial(self._came, number))
        metrics.trash_entries.read = lambda: self._sums(lambda report: report.entries)
        metrics.trash_stuck.read = lambda: self._sums(lambda report: report.stuck)

    async def run(self) -> None:
        """Empty every trash once, and again whenever it is due."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                self._update_known()
                for trash in self._next():
                    trash.running, trash.turn = True, next(self._turns)
                    tasks.create_task(self._round(trash))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._changed.wait()

    def _update_known(self) -> None:
        """Add new file systems, and remove deleted ones."""
        there = {
            (number, root.file_system_id): (root, one)
            for number, one in enumerate(self._trashes)
            for root in one.roots()
        }
        for key, (root, one) in there.items():
            if key not in self._known:
                self._known[key] = _Trash(root=root, of=one, due=self._clock())
        for key, trash in list(self._known.items()):
            if key not in there and not trash.running:
                del self._known[key]

    def _came(self, number: int, file_system_id: FileSystemId) -> None:
        """A directory was moved into that trash."""
        trash = self._known.get((number, file_system_id))
        if trash is not None:
            trash.came_meanwhile = True
            trash.due = min(trash.due, self._clock() + _GATHERING_SECONDS)
            self._changed.set()

    def _next(self) -> Sequence[_Trash]:
        """The trashes to start now: those with the longest wait."""
        now, running = self._clock(), sum(trash.running for trash in self._known.values())
        due = [trash for trash in self._known.values() if trash.due <= now and not trash.running]
        return sorted(due, key=lambda trash: (trash.due, trash.turn))[: max(0, _AT_ONCE - running)]

    def _pause(self) -> float:
        if sum(trash.running for trash in self._known.values()) >= _AT_ONCE:
            return _CHECK_SECONDS
        waiting = (trash.due for trash in self._known.values() if not trash.running)
        return max(0.0, min(_CHECK_SECONDS, min(waiting, default=math.inf) - self._clock()))

    async def _round(self, trash: _Trash) -> None:
        came_before, trash.came_meanwhile = trash.came_meanwhile, False
        # Before the work, during which ``_came`` may set an earlier time.
        trash.due = self._clock() + (_ABANDONED_SECONDS if self._is_alone else _OTHERS_SECONDS)
        try:
            report = await trash.of.emptier.empty(trash.root, self._terms)
        except VolumePending as pending:
            # The removal of the file system also removes its trash.
            log.info("trash-left", file_system=trash.file_system_id, reason=str(pending))
            self._try_later(trash)
        except AwsNotFound:
            log.info("trash-gone", file_system=trash.file_system_id)
            trash.due, trash.report = math.inf, TrashReport()
        except KubeEfsError as error:
            log.warning("trash-not-emptied", file_system=trash.file_system_id, reason=str(error))
            if came_before or trash.report.entries:
                await self._report_failed(trash, error)
            self._try_later(trash)
        except Exception as error:  # noqa: BLE001 - an internal error here must not stop the others
            pause, name = trash.pause_seconds, trash.file_system_id
            self._duties.note("trash", error, retry_seconds=pause, file_system=name)
            self._try_later(trash)
        else:
            await self._note(trash, report)
        finally:
            trash.running = False
            self._changed.set()

    async def _note(self, trash: _Trash, report: TrashReport) -> None:
        trash.report = report
        if report.entries or report.removed:
            log.info(
                "trash-emptied",
                file_system=trash.file_system_id,
                removed=report.removed,
                entries=report.entries,
                stuck=report.stuck,
            )
        if report.stuck:
            await self._report_stuck(trash)
        elif trash.is_reported:
            await self._report_recovered(trash)
        if report.unfinished and report.removed:
            self._due(trash, self._clock())
        elif report.entries:
            self._try_later(trash)
        if not report.stuck and (report.removed or not report.entries):
            trash.pause_seconds = _FIRST_PAUSE_SECONDS

    def _due(self, trash: _Trash, at: float) -> None:
        trash.due = min(trash.due, at)

    def _try_later(self, trash: _Trash) -> None:
        self._due(trash, self._clock() + trash.pause_seconds)
        trash.pause_seconds = min(trash.pause_seconds * 2, _LAST_PAUSE_SECONDS)

    async def _report_stuck(self, trash: _Trash) -> None:
        example = trash.report.examples[0] if trash.report.examples else ""
        entries = "entry" if trash.report.stuck == 1 else "entries"
        message = (
            f"{trash.report.stuck} {entries} of the trash cannot be removed, such as {example}; check what "
            "protects it (lsattr, mounts, the file system's policy). It is retried"
        )
        log.warning(
            "trash-stuck",
            file_system=trash.file_system_id,
            examples=[str(one) for one in trash.report.examples],
        )
        await self._publish(trash, EventType.WARNING, TRASH_NOT_EMPTIED, message)
        trash.is_reported = True

    async def _report_failed(self, trash: _Trash, error: KubeEfsError) -> None:
        message = f"the trash could not be emptied: {error}. It is retried"
        await self._publish(trash, EventType.WARNING, TRASH_NOT_EMPTIED, message)
        trash.is_reported = True

    async def _report_recovered(self, trash: _Trash) -> None:
        message = "all entries of the trash can be removed again"
        await self._publish(trash, EventType.NORMAL, TRASH_EMPTIED, message)
        trash.is_reported = False

    async def _publish(self, trash: _Trash, kind: EventType, reason: str, message: str) -> None:
        subject = await trash.of.subject(trash.file_system_id)
        self._recorder.publish(subject, kind, reason, f"File system {trash.file_system_id}: {message}")

    def _sums(self, number: Callable[[TrashReport], int]) -> Iterator[tuple[tuple[str], float]]:
        """The sum of a number over all trashes of each file system."""
        sums: dict[str, int] = {}
        for trash in list(self._known.values()):
            name = trash.file_system_id
            sums[name] = sums.get(name, 0) + number(trash.report)
        return (((name,), value) for name, value in sums.items())


def trash_rounds(
    settings: ControllerSettings,
    client: AsyncClient,
    index: VolumeIndex,
    recorder: EventRecorder,
    metrics: ControllerMetrics,
    duties: Duties,
    emptiers: Collection[object],
) -> TrashRounds:
    """The rounds for the file systems of worker pods, and for those that are mounted in this pod.

    The object of events is the root claim of the file system, or the controller's Lease without one. Both are
    in the controller's namespace.
    """
    has_tunnels = BackendName.TUNNEL in settings.backends
    removes_roots = settings.delete_access_point_root_dir
    # The volumes of a file system may be gone before its trash is empty.
    of_driver: set[Location] = set()

    async def root_claim(file_system_id: FileSystemId) -> Subject:
        return await _subject(client, PersistentVolumeClaim, root_name(file_system_id), settings.namespace)

    async def lease(_: FileSystemId) -> Subject:
        return await _subject(client, Lease, settings.lease_name, settings.namespace)

    def of_worker_pods() -> Collection[Location]:
        if not settings.workers_use_driver:
            return _with_root(index)
        discovered = list(map(_root, index.targets.targets)) if has_tunnels else []
        if has_tunnels and not removes_roots:
            return discovered
        of_driver.update(_of_driver(index, with_access_points=removes_roots))
        # Discovery knows those that exist, but none of S3 Files.
        return [*discovered, *(one for one in of_driver if not (has_tunnels and one.kind.has_ports))]

    trashes = [
        Trashes(
            emptier=one,
            roots=of_worker_pods,
            subject=lease if settings.workers_use_driver else root_claim,
        )
        for one in emptiers
        if isinstance(one, WorkerPool)
    ]
    trashes += [
        Trashes(emptier=one, roots=one.roots, subject=lease)
        for one in emptiers
        if isinstance(one, MountedDirectories)
    ]
    seconds = max(1, round(settings.worker_timeout_seconds * _SHARE_OF_POD))
    terms, is_alone = EmptyingTerms(seconds=seconds), settings.csi_endpoint is None
    return TrashRounds(trashes, terms, recorder, metrics, duties, is_alone=is_alone)


def _root(file_system_id: FileSystemId, kind: FileSystemKind = FileSystemKind.EFS) -> Location:
    return Location(file_system_id=file_system_id, directory=Directory(), kind=kind)


def _with_root(index: VolumeIndex) -> Collection[Location]:
    """The file systems with a tunnel and a root volume.

    Without a root volume, a pod could wait indefinitely: if the file system was deleted, its root claim is
    never created.
    """
    return [_root(fs) for fs in index.targets.targets if root_name(fs) in index.volumes]


def _of_driver(index: VolumeIndex, *, with_access_points: bool) -> Iterator[Location]:
    """The file systems of this account in which directories of the driver's volumes are removed.

    ``with_access_points``: also the root directories of access points.
    """
    for volume in index.volumes.values():
        handle = volume.handle
        if handle is None or (volume.deletion_secret is not None and handle.kind.has_roles):
            continue
        has_root = handle.access_point_id is not None and volume.provisioned_by == DRIVER
        if handle.base is not None or (with_access_points and has_root):
            yield _root(handle.file_system_id, handle.kind)
    for one in index.classes.values():
        if one.provisioner == DRIVER:
            # Its claims are refused with the reason.
            with suppress(InvalidValue):
                parameters = parse_parameters(one.parameters)
                secret = parse_sidecar_parameters(one.parameters).provisioner_secret
                if secret is not None and parameters.provisioning.kind.has_roles:
                    continue
                mode, named = parameters.provisioning, parameters.file_systems
                is_removed = mode is ProvisioningMode.DIRECTORY or with_access_points
                if is_removed and isinstance(named, tuple):
                    yield from (_root(file_system_id, mode.kind) for file_system_id in named)


_VERSIONS: Final[Mapping[type, str]] = {PersistentVolumeClaim: "v1", Lease: "coordination.k8s.io/v1"}


async def _subject(
    client: AsyncClient, kind: type[PersistentVolumeClaim | Lease], name: str, namespace: str
) -> Subject:
    """The object of an event, without its uid if that cannot be read."""
    uid = ""
    try:
        with translated(f"{kind.__name__} {namespace}/{name}"):
            found = await client.get(kind, name, namespace=namespace)
        uid = (found.metadata and found.metadata.uid) or ""
    except KubeError as error:
        log.info("subject-not-read", object=name, reason=str(error))
    return Subject(api_version=_VERSIONS[kind], kind=kind.__name__, namespace=namespace, name=name, uid=uid)
