"""Writes the discovered file systems to the ConfigMap that every node reads, and updates the root volumes.

At the start, the ports come from the existing ConfigMap, so that they survive a restart. If it is missing,
they come from the volumes. Later, this process is the authority: it reverts writes of others, and restores a
deleted ConfigMap, even before AWS has answered.

The last write of an earlier leader can take effect late, after this process has read the ConfigMap. So each
write requires the version that it replaces, or that no ConfigMap exists. After a refusal, the targets are
computed again from the current ConfigMap, and file systems that only it contains keep their ports.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog
from lightkube import AsyncClient
from lightkube.resources.core_v1 import ConfigMap
from lightkube.types import PatchType

from kube_efs.controllers.events import ProvisioningEvents
from kube_efs.controllers.root_volumes import RootVolumes
from kube_efs.kube.building import build_config_map
from kube_efs.kube.errors import translated
from kube_efs.kube.watching import follow, only_object
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import (
    CONFIG_MAP_KEY,
    RESERVED_KEY,
    S3_FILES_KEY,
    UNUSED_KEY,
    ZONES_KEY,
    S3FilesTargets,
    TunnelTargets,
    follow_discovery,
    joined,
    parse_targets,
    remaining,
    render_reserved,
    render_s3_files,
    render_targets,
    render_unused,
    render_zones,
    unused_targets,
)
from kube_efs.model.errors import (
    InvalidValue,
    KubeAlreadyExists,
    KubeConflict,
    KubeEfsError,
    KubeNotFound,
)
from kube_efs.model.names import Names
from kube_efs.model.volumes import Volume
from kube_efs.provisioning.volume_index import VolumeIndex
from kube_efs.telemetry.metrics import ControllerMetrics

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 5.0
# Root claims and volumes are checked this often even without a known change.
_RESYNC_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsReports:
    """What is called with facts about the targets.

    ``unknown_ports`` is called with the volumes whose port belongs to no file system. ``check_size`` is
    called with the name, the UID and the data of the ConfigMap that was read or will be written, and raises
    InvalidValue if they do not fit.
    """

    unknown_ports: Callable[[Sequence[Volume]], None]
    check_size: Callable[[str, str, Mapping[str, str]], None]


class TunnelTargetsController:
    """Reconciles the ConfigMap, the root volumes and the index's ports with the discovery.

    ``settled`` is set after the first success.
    """

    def __init__(
        self,
        client: AsyncClient,
        index: VolumeIndex,
        roots: RootVolumes,
        *,
        names: Names,
        base_port: int,
        changed: Callable[[], None],
        reports: TargetsReports,
    ) -> None:
        self._client = client
        self._index = index
        index.on_port_used = self._port_used
        self._roots = roots
        self._names = names
        self._base_port = base_port
        self._changed = changed
        self._reports = reports
        self._due = asyncio.Event()
        self.settled = asyncio.Event()
        # The content of the ConfigMap; None when it is missing or partly unreadable.
        self._published: TunnelTargets | None = None
        # The known version of the ConfigMap; None when it does not exist.
        self._version: str | None = None
        self._uid = ""
        self._notified: tuple[TunnelTargets, Discovery] | None = None

    async def load(self) -> None:
        """Start from the ConfigMap that exists; raises KubeError.

        If there is none, an older installation in the namespace may have left one with another name. Volumes
        have its ports, and not every volume has an annotation with its file system.
        """
        found, older = await self._get(self._names.config_map), self._names.older_config_map
        left = await self._get(older) if found is None and older else None
        self._note(found)
        if left is not None:
            targets, _ = _read(left)
            self._index.targets = joined(self._index.targets, targets)
            log.info("targets-imported", config_map=older)

    async def _get(self, name: str) -> ConfigMap | None:
        try:
            with translated(f"ConfigMap {name}"):
                return await self._client.get(ConfigMap, name, namespace=self._names.namespace)
        except KubeNotFound:
            return None

    def _note(self, found: ConfigMap | None) -> None:
        """Add the content of the ConfigMap to the targets; the targets of this process take precedence."""
        self._published, self._version = None, None
        if found is None:
            return
        self._version = _version_of(found)
        self._uid = (found.metadata and found.metadata.uid) or ""
        self._reports.check_size(self._names.config_map, self._uid, found.data or {})
        targets, is_sound = _read(found)
        # After an invalid entry, the ConfigMap is rewritten, and all other file systems keep their ports.
        self._published = targets if is_sound else None
        self._index.targets = joined(self._index.targets, targets)

    def expected(self) -> frozenset[FileSystemId]:
        """The file systems in the ConfigMap or of a root volume."""
        in_use = self._index.ports_in_use().values()
        roots = {file_system for use in in_use if use.root for file_system in use.owners}
        return frozenset(roots | self._index.targets.targets.keys())

    def discovered(self, discovery: Discovery) -> None:
        """The file systems or their mount targets have changed."""
        self._index.discovery = discovery
        self.reconcile_soon()

    def found_s3_files(self, found: S3FilesTargets) -> None:
        """The mount targets of S3 Files have changed."""
        self._index.targets = replace(self._index.targets, s3_files=found)
        self.reconcile_soon()

    def _port_used(self, volume: Volume) -> None:
        """Open the port of a volume that is new or about to be created, if no node has it open.

        A port that is no longer used closes later, with the next regular reconciliation.
        """
        targets = self._index.targets
        users = {volume.annotated, *map(targets.file_system_at, volume.loopback_ports)}
        # Nodes follow what is published, and the index knows it only after the first answer of AWS.
        closed = targets.unused | (self._published.unused if self._published else frozenset())
        if not closed.isdisjoint(users):
            self.reconcile_soon()

    def reconcile_soon(self) -> None:
        """Reconcile again: an object of this controller may have changed."""
        self._due.set()

    async def run(self) -> None:
        """Follow the discovery and the ConfigMap until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._reconcile_regularly())

    async def _watch(self) -> None:
        fields = {"metadata.name": self._names.config_map}
        async for change in follow(self._client, ConfigMap, namespace=self._names.namespace, fields=fields):
            self._note(only_object(change))
            self.reconcile_soon()

    async def _reconcile_regularly(self) -> None:
        while True:
            if not await self._is_due(_RESYNC_SECONDS):
                self._notified = None
            self._due.clear()
            try:
                await self._reconcile()
            except KubeEfsError as error:
                log.warning("targets-not-kept", reason=str(error), retry_seconds=_RETRY_SECONDS)
                await self._is_due(_RETRY_SECONDS)
                self.reconcile_soon()

    async def _is_due(self, seconds: float) -> bool:
        """Whether something has changed within that time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._due.wait()
        except TimeoutError:
            return False

    async def _reconcile(self) -> None:
        discovery = self._index.discovery
        if not discovery.complete:
            if self._version is None and self._index.targets != TunnelTargets():
                # The ConfigMap was deleted, or had another name. Nodes need it, also while AWS does not
                # answer.
                await self._publish(self._index.targets)
            elif self._published is not None:
                await self._open_used_ports(self._published)
            return
        wanted = follow_discovery(
            self._index.targets,
            discovery,
            base_port=self._base_port,
            ports_in_use=self._index.ports_in_use(),
        )
        wanted = replace(wanted, s3_files=self._index.targets.s3_files)
        if not self._roots.wanted:
            wanted = replace(wanted, unused=unused_targets(wanted, self._index.ports_in_use()))
        if wanted != self._published:
            # No new volume may get a port that is being reassigned.
            self._index.targets = remaining(self._index.targets, wanted)
            await self._publish(wanted)
        if wanted != self._index.targets:
            self._index.targets = wanted
        self._reports.unknown_ports(self._index.volumes_of_unknown_port())
        try:
            await self._roots.follow(wanted, discovery.unclear)
        finally:
            self._notify(wanted, discovery)

    async def _open_used_ports(self, published: TunnelTargets) -> None:
        """Open the ports that volumes use. Only closing needs a discovery, and mounts cannot wait for AWS."""
        unused = published.unused & unused_targets(published, self._index.ports_in_use())
        if unused != published.unused:
            await self._publish(replace(published, unused=unused))

    def _notify(self, targets: TunnelTargets, discovery: Discovery) -> None:
        """Call ``changed`` only for changes: it retries waiting claims before the end of their backoff."""
        self.settled.set()
        if self._notified != (targets, discovery):
            self._notified = (targets, discovery)
            self._changed()

    async def _publish(self, targets: TunnelTargets) -> None:
        """Write the ConfigMap; if it has changed, reads it again and raises KubeError."""
        data = {
            CONFIG_MAP_KEY: render_targets(targets, last_update=datetime.now(UTC)),
            ZONES_KEY: render_zones(targets),
            **({RESERVED_KEY: render_reserved(targets)} if targets.reserved else {}),
            **({UNUSED_KEY: render_unused(targets)} if targets.unused else {}),
            **({S3_FILES_KEY: render_s3_files(targets.s3_files)} if targets.s3_files else {}),
        }
        self._reports.check_size(self._names.config_map, self._uid, data)
        try:
            with translated(f"ConfigMap {self._names.config_map}"):
                written = await self._write(data)
        except (KubeAlreadyExists, KubeConflict, KubeNotFound):
            await self.load()
            raise
        self._published, self._version = targets, _version_of(written)
        ports = {str(fs): target.port for fs, target in targets.targets.items()}
        log.info("targets-published", ports=ports)

    async def _write(self, data: Mapping[str, str]) -> ConfigMap:
        namespace, name, labels = self._names.namespace, self._names.config_map, self._names.tunnel_labels
        body = build_config_map(namespace=namespace, name=name, labels=labels, data=data)
        if self._version is None:
            return await self._client.create(body)
        patch = {
            "metadata": {"resourceVersion": self._version, "labels": dict(labels)},
            "data": {RESERVED_KEY: None, UNUSED_KEY: None, S3_FILES_KEY: None, **data},
        }
        return await self._client.patch(
            ConfigMap, name, patch, namespace=namespace, patch_type=PatchType.MERGE
        )


class UnknownPorts:
    """Counts the volumes whose port does not lead to their file system, and warns once about each."""

    def __init__(self, events: ProvisioningEvents, metrics: ControllerMetrics) -> None:
        self._events = events
        self._metrics = metrics
        self._warned: set[str] = set()

    def update(self, volumes: Sequence[Volume]) -> None:
        """Replace the list of such volumes."""
        self._metrics.volumes_of_unknown_port.set(len(volumes))
        for volume in volumes:
            if volume.uid not in self._warned:
                self._events.port_unknown(volume)
        self._warned = {volume.uid for volume in volumes}


def _version_of(found: ConfigMap) -> str | None:
    return found.metadata.resourceVersion if found.metadata else None


def _read(found: ConfigMap) -> tuple[TunnelTargets, bool]:
    """The readable targets in the ConfigMap, and whether all of them are readable."""
    data = found.data or {}
    try:
        keys = (CONFIG_MAP_KEY, ZONES_KEY, RESERVED_KEY, UNUSED_KEY, S3_FILES_KEY)
        texts = (data.get(key, "") for key in keys)
        targets, rejections = parse_targets(*texts)
    except InvalidValue as error:
        log.warning("targets-unreadable", reason=str(error))
        return TunnelTargets(), False
    for rejection in rejections:
        log.warning("target-rejected", entry=rejection.entry, reason=str(rejection.error))
    return targets, not rejections
