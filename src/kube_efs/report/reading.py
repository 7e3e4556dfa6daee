"""Reads the report of a cluster from its API."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from types import MappingProxyType
from typing import Final

from lightkube import AsyncClient
from lightkube.models.core_v1 import Volume as PodVolume
from lightkube.resources.core_v1 import ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod
from lightkube.resources.storage_v1 import StorageClass as StorageClassResource

from kube_efs.kube.errors import translated
from kube_efs.kube.events import CONTROLLER
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.quantities import parse_quantity
from kube_efs.kube.reading import read_claim, read_storage_class, read_volume
from kube_efs.kube.usage_store import UsageStore
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.efs.targets import (
    CONFIG_MAP_KEY,
    ZONES_KEY,
    TunnelTarget,
    TunnelTargets,
    parse_targets,
)
from kube_efs.model.errors import InvalidValue, KubeDenied, KubeNotFound
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL, Names
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.usage import OVER_REQUEST, VolumeUsage
from kube_efs.model.volumes import DRIVER, Volume, locate
from kube_efs.report.values import (
    ClaimReport,
    ClusterReport,
    EventReport,
    FileSystemReport,
    MountTargetReport,
    NodeReport,
    PodReport,
    UsageReport,
    VolumeReport,
)
from kube_efs.settings.controller import DEFAULT_PROVISIONER
from kube_efs.tunnels.status import parse_status
from kube_efs.tunnels.status_config_map import NODE_KEY, STATUS_KEY

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_EVENTS: Final = 20
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportObjects:
    """The objects of a report; ``names`` are those of kube-efs, ``usage`` is by the names of volumes.

    ``warnings`` has the last warning of each claim by its UID. ``claims_with_events`` are the UIDs of claims
    for which kube-efs published an event.
    """

    names: Names = OPENSHIFT_EFS_STUNNEL
    targets: ConfigMap | None = None
    statuses: tuple[ConfigMap, ...] = ()
    classes: tuple[StorageClass, ...] = ()
    claims: tuple[Claim, ...] = ()
    volumes: tuple[Volume, ...] = ()
    warnings: Mapping[str, str]
    claims_with_events: frozenset[str] = frozenset()
    usage: Mapping[str, VolumeUsage] = field(default_factory=lambda: MappingProxyType({}))
    events: tuple[EventReport, ...] = ()
    pods: tuple[PodReport, ...] | None = None


@dataclass(frozen=True, slots=True)
class _SeenEvent:
    """An event of kube-efs or of another program, and the UID of its object."""

    report: EventReport
    uid: str
    is_from_us: bool


async def read_cluster(client: AsyncClient, names: Names, *, with_pods: bool = False) -> ClusterReport:
    """The report; ``names`` are those of kube-efs. Raises KubeError."""
    (targets, statuses, usage), (classes, claims, volumes, events) = await asyncio.gather(
        asyncio.gather(
            _targets(client, names), _statuses(client, names), UsageStore(client, names.namespace).load()
        ),
        asyncio.gather(_classes(client), _claims(client), _volumes(client), _events(client)),
    )
    pods = await _pods(client) if with_pods else None
    return describe(
        ReportObjects(
            names=names,
            targets=targets,
            statuses=statuses,
            classes=classes,
            claims=claims,
            volumes=volumes,
            warnings={
                event.uid: event.report.message
                for event in events
                if event.report.type == "Warning" and event.report.reason != OVER_REQUEST
            },
            claims_with_events=frozenset(event.uid for event in events if event.is_from_us),
            usage=usage,
            events=tuple(event.report for event in reversed(events) if event.is_from_us),
            pods=pods,
        )
    )


async def _targets(client: AsyncClient, names: Names) -> ConfigMap | None:
    try:
        with translated(f"ConfigMap {names.config_map}"):
            return await client.get(ConfigMap, names.config_map, namespace=names.namespace)
    except KubeNotFound:
        return None


async def _statuses(client: AsyncClient, names: Names) -> tuple[ConfigMap, ...]:
    """The statuses of the nodes of the cluster."""
    with translated("the nodes' ConfigMaps"):
        found = client.list(
            ConfigMap,
            namespace=names.namespace,
            labels=dict(names.tunnel_status_labels),
            chunk_size=PAGE_SIZE,
        )
        statuses = tuple([item async for item in found])
    # Kubernetes deletes the status of a node that has ended, unless its agent was of an earlier version.
    if all(one.metadata and one.metadata.ownerReferences for one in statuses):
        return statuses
    try:
        with translated("nodes"):
            nodes = {
                one.metadata and one.metadata.name async for one in client.list(Node, chunk_size=PAGE_SIZE)
            }
    except KubeDenied:
        return statuses
    return tuple(one for one in statuses if (one.data or {}).get(NODE_KEY) in nodes)


async def _classes(client: AsyncClient) -> tuple[StorageClass, ...]:
    with translated("storage classes"):
        return tuple([read_storage_class(item.to_dict()) async for item in client.list(StorageClassResource)])


async def _claims(client: AsyncClient) -> tuple[Claim, ...]:
    with translated("claims"):
        found = client.list(PersistentVolumeClaim, namespace="*", chunk_size=PAGE_SIZE)
        return tuple([read_claim(item.to_dict()) async for item in found])


async def _volumes(client: AsyncClient) -> tuple[Volume, ...]:
    with translated("volumes"):
        found = client.list(PersistentVolume, chunk_size=PAGE_SIZE)
        return tuple([read_volume(item.to_dict()) async for item in found])


async def _events(client: AsyncClient) -> list[_SeenEvent]:
    """The events of claims and volumes, oldest first."""
    with translated("events"):
        events: list[_SeenEvent] = []
        for kind in ("PersistentVolumeClaim", "PersistentVolume"):
            found = client.list(
                Event, namespace="*", fields={"involvedObject.kind": kind}, chunk_size=PAGE_SIZE
            )
            # An event of a tenant may have more than a megabyte.
            events += [_read_event(event) async for event in found]
    return sorted(events, key=lambda event: event.report.time)


async def _pods(client: AsyncClient) -> tuple[PodReport, ...] | None:
    """The running pods with claims; None if this account may not read pods. Raises KubeError."""
    found: list[PodReport] = []
    try:
        with translated("pods"):
            async for pod in client.list(Pod, namespace="*", chunk_size=PAGE_SIZE):
                found += _with_claims(pod)
    except KubeDenied:
        return None
    return tuple(found)


def _with_claims(pod: Pod) -> Iterator[PodReport]:
    """Each claim of a pod that has not ended."""
    if pod.metadata and pod.spec and not (pod.status and pod.status.phase in _ENDED):
        namespace, name = pod.metadata.namespace or "", pod.metadata.name or ""
        for claim in sorted(_claims_of(namespace, name, pod.spec.volumes or ())):
            yield PodReport(namespace=namespace, name=name, node=pod.spec.nodeName or "", claim=claim)


def _claims_of(namespace: str, pod: str, volumes: Iterable[PodVolume]) -> set[str]:
    """The claims of a pod as ``namespace/name``; that of a generic ephemeral volume has the pod's name."""
    named = {one.persistentVolumeClaim.claimName for one in volumes if one.persistentVolumeClaim}
    ephemeral = {f"{pod}-{one.name}" for one in volumes if one.ephemeral}
    return {f"{namespace}/{name}" for name in named | ephemeral}


def _time(event: Event) -> str:
    time = event.lastTimestamp or event.eventTime or event.firstTimestamp
    return time.astimezone(UTC).strftime(_TIME) if time else ""


def _read_event(event: Event) -> _SeenEvent:
    subject = event.involvedObject
    report = EventReport(
        time=_time(event),
        type=event.type or "",
        reason=event.reason or "",
        kind=subject.kind or "",
        namespace=subject.namespace or "",
        name=subject.name or "",
        message=event.message or "",
        count=event.count or 1,
    )
    is_from_us = event.source is not None and event.source.component == CONTROLLER
    return _SeenEvent(report, uid=subject.uid or "", is_from_us=is_from_us)


def describe(state: ReportObjects) -> ClusterReport:
    """The report on these objects."""
    targets, problems = _read_targets(state)
    ours = tuple(volume for volume in state.volumes if _is_ours(volume, targets))
    volumes = tuple(volume for volume in ours if volume.storage_class != ROOT_CLASS)
    provisioners = {DEFAULT_PROVISIONER, DRIVER, *(volume.provisioned_by for volume in ours)}
    classes = {one.name for one in state.classes if one.provisioner in provisioners}
    volume_reports = tuple(_describe_volume(one, targets, state.usage.get(one.name)) for one in volumes)
    counts = Counter(report.file_system_id for report in volume_reports)
    return ClusterReport(
        file_systems=tuple(
            _describe_file_system(target, targets, counts[target.file_system_id])
            for _, target in sorted(targets.targets.items())
        ),
        claims=tuple(
            _describe_claim(claim, state.warnings)
            for claim in sorted(state.claims, key=lambda one: one.key)
            # The cluster does not contain the names of the provisioners of directory volumes.
            if claim.storage_class in classes or claim.uid in state.claims_with_events
        ),
        volumes=tuple(sorted(volume_reports, key=lambda report: report.claim)),
        nodes=tuple(sorted(map(_describe_node, state.statuses), key=lambda report: report.node)),
        events=state.events[:_EVENTS],
        pods=state.pods,
        problems=tuple(problems),
    )


def _read_targets(state: ReportObjects) -> tuple[TunnelTargets, Iterable[str]]:
    if state.targets is None:
        # An installation with the CSI driver alone has none, and no volume needs it.
        if state.statuses and not any(volume.loopback_ports for volume in state.volumes):
            return TunnelTargets(), []
        return TunnelTargets(), [
            f"the ConfigMap {state.names.config_map} does not exist; has a controller ever run here?"
        ]
    data = state.targets.data or {}
    try:
        targets, rejections = parse_targets(data.get(CONFIG_MAP_KEY, ""), data.get(ZONES_KEY, ""))
    except InvalidValue as error:
        return TunnelTargets(), [str(error)]
    return targets, [f"{rejection.entry}: {rejection.error}" for rejection in rejections]


def _is_ours(volume: Volume, targets: TunnelTargets) -> bool:
    if volume.csi is not None:
        return volume.handle is not None
    return volume.nfs is not None and locate(volume, targets) is not None


def _describe_file_system(target: TunnelTarget, targets: TunnelTargets, volumes: int) -> FileSystemReport:
    return FileSystemReport(
        file_system_id=target.file_system_id,
        name=target.name or "",
        port=target.port,
        mount_targets=tuple(
            MountTargetReport(
                subnet_id=subnet, zone=targets.zone_by_subnet.get(subnet) or "", address=address
            )
            for subnet, address in sorted(target.address_by_subnet.items())
        ),
        volumes=volumes,
    )


def _describe_claim(claim: Claim, warnings: Mapping[str, str]) -> ClaimReport:
    reason = (claim.rejection or warnings.get(claim.uid, "")) if claim.wants_volume else ""
    return ClaimReport(
        namespace=claim.namespace,
        name=claim.name,
        phase=str(claim.phase),
        storage_class=claim.storage_class or "",
        volume=claim.volume_name,
        reason=reason,
    )


def _describe_volume(volume: Volume, targets: TunnelTargets, usage: VolumeUsage | None) -> VolumeReport:
    handle = volume.handle
    location = handle or locate(volume, targets)
    return VolumeReport(
        name=volume.name,
        phase=str(volume.phase),
        reclaim_policy=str(volume.reclaim_policy),
        claim=f"{volume.claim.namespace}/{volume.claim.name}" if volume.claim else "",
        file_system_id=location.file_system_id if location else "",
        path=str(location.directory) if location else "",
        port=volume.port,
        gid=volume.gid,
        access_point_id=(handle and handle.access_point_id) or "",
        requested_bytes=_bytes(volume.capacity),
        usage=_describe_usage(usage) if usage else None,
    )


def _bytes(quantity: str) -> int | None:
    size = parse_quantity(quantity)
    return None if size is None else int(size)


def _describe_usage(usage: VolumeUsage) -> UsageReport:
    return UsageReport(
        used_bytes=usage.size.used_bytes,
        entries=usage.size.entries,
        complete=usage.size.complete,
        over=usage.over,
        time=usage.measured_at.strftime(_TIME),
        growth_bytes_a_day=usage.growth_bytes_a_day,
    )


def _describe_node(found: ConfigMap) -> NodeReport:
    name = (found.metadata and found.metadata.name) or ""
    data = found.data or {}
    node = data.get(NODE_KEY) or name
    try:
        status, time = parse_status(data.get(STATUS_KEY, ""))
    except InvalidValue as error:
        return NodeReport(node=node, time="", tunnels=(), problems=(str(error),))
    return NodeReport(
        node=node, time=time, tunnels=status.tunnels, problems=status.problems, notes=status.notes
    )
