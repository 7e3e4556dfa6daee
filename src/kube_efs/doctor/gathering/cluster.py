"""Reads the facts from a cluster."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import (
    ConfigMap,
    Event,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
)
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding
from lightkube.resources.storage_v1 import StorageClass

from kube_efs.doctor.constraints import Constraints, read_constraints
from kube_efs.doctor.facts import (
    ClusterFacts,
    NodeObject,
    ProgressEvent,
    ReportedCondition,
    SharedVolumeFacts,
    StuckTrash,
    TargetsFacts,
    Warned,
    Workload,
)
from kube_efs.doctor.gathering.attempts import Attempts
from kube_efs.doctor.gathering.objects import (
    Json,
    read_bound_namespaces,
    read_claim_facts,
    read_degraded,
    read_lease,
    read_node,
    read_pod,
    read_progress,
    read_published,
    read_shared_volume_facts,
    read_targets,
    read_trash_event,
    read_volume_facts,
    read_warning,
    read_workload,
)
from kube_efs.kube.cluster_reader import ClusterReader
from kube_efs.kube.csi_nodes import CsiNode, read_drivers
from kube_efs.kube.errors import translated
from kube_efs.kube.pages import PAGE_SIZE
from kube_efs.kube.reading import read_storage_class
from kube_efs.kube.shared_volumes import SharedVolumeResource
from kube_efs.model.copies import COPYING
from kube_efs.model.csi.made_file_systems import CREATING_FILE_SYSTEM
from kube_efs.model.errors import KubeDenied, KubeNotFound
from kube_efs.model.names import OPERATOR_NAMESPACES, Names, NameSet
from kube_efs.model.trash import TRASH_EMPTIED, TRASH_NOT_EMPTIED
from kube_efs.model.volumes import DRIVER

_Value = TypeVar("_Value")

_ClusterCsiDriver: Any = create_global_resource(
    "operator.openshift.io", "v1", "ClusterCSIDriver", "clustercsidrivers"
)
_ConstraintsResource: Any = create_global_resource(
    "security.openshift.io", "v1", "SecurityContextConstraints", "securitycontextconstraints"
)
_SUBJECTS: Final = {"PersistentVolumeClaim", "PersistentVolume", "Pod", "DaemonSet"}


async def gather_cluster(client: AsyncClient, names: Names, attempts: Attempts) -> ClusterFacts:
    """Everything in the API that concerns kube-efs; ``names`` are those of its objects."""
    look, namespace = attempts.look, names.namespace
    async with asyncio.TaskGroup() as tasks:
        start = tasks.create_task
        workloads = start(look("Deployments and DaemonSets", _workloads(client, namespace, attempts)))
        pods = start(look("pods", _read(client, Pod, read_pod, namespace="*")))
        nodes = start(look("nodes", _nodes(client, attempts)))
        leases = start(look("Leases", _read(client, Lease, read_lease, namespace=namespace)))
        classes = start(look("storage classes", _read(client, StorageClass, read_storage_class)))
        claims = start(look("claims", _read(client, PersistentVolumeClaim, read_claim_facts, namespace="*")))
        volumes = start(look("volumes", _read(client, PersistentVolume, read_volume_facts)))
        shared = start(look("SharedVolumes", _shared_volumes(client)))
        degraded = start(look("the ClusterCSIDriver", _degraded(client)))
        warnings = start(look("events", _warnings(client)))
        progress = start(look("events of claims", _progress(client)))
        uid = start(look("the namespace kube-system", ClusterReader(client).cluster_uid()))
        stuck_trash = start(look("events of trashes", _stuck_trash(client, namespace)))
        constraints = start(look("SecurityContextConstraints", _constraints(client)))
        targets = start(look("the tunnel targets", _targets(client, names)))
        others = start(look("the tunnel targets of other installations", _other_config_maps(client, names)))
        labels = names.tunnel_status_labels
        published = _read(client, ConfigMap, read_published, namespace=namespace, labels=labels)
        statuses = start(look("the published status of nodes", published))
    return ClusterFacts(
        names=names,
        uid=uid.result() or "",
        workloads=workloads.result(),
        pods=pods.result(),
        nodes=nodes.result(),
        leases=leases.result(),
        classes=classes.result(),
        claims=claims.result(),
        volumes=volumes.result(),
        shared_volumes=shared.result() or (),
        degraded=degraded.result() or (),
        warnings=warnings.result() or (),
        progress=progress.result() or (),
        stuck_trash=stuck_trash.result() or (),
        targets=targets.result(),
        other_config_maps=others.result() or (),
        statuses=statuses.result(),
        constraints=constraints.result(),
    )


async def _read(
    client: AsyncClient,
    kind: Any,  # noqa: ANN401 - the library's overloads tell apart what needs a namespace
    read: Callable[[Json], _Value],
    **selectors: Any,  # noqa: ANN401
) -> tuple[_Value, ...]:
    with translated(f"the list of {kind.__name__} objects"):
        found = client.list(kind, chunk_size=PAGE_SIZE, **selectors)
        return tuple([read(item.to_dict()) async for item in found])


async def _workloads(client: AsyncClient, namespace: str, attempts: Attempts) -> tuple[Workload, ...]:
    """All Deployments and DaemonSets.

    A tenant can create a workload with any name, labels and command. So in other namespaces than the one of
    the installation, kube-efs runs only where an administrator has bound a role of it.
    """
    bindings = _read(client, ClusterRoleBinding, read_bound_namespaces)
    bound = await attempts.look("ClusterRoleBindings", bindings) or ()
    trusted = frozenset({namespace}).union(*bound)
    deployments = await _read(client, Deployment, partial(read_workload, "Deployment"), namespace="*")
    sets = await _read(client, DaemonSet, partial(read_workload, "DaemonSet"), namespace="*")
    found = [replace(one, ours=one.ours and one.namespace in trusted) for one in (*deployments, *sets)]
    return tuple([await _with_references(client, one, attempts) for one in found])


async def _with_references(client: AsyncClient, workload: Workload, attempts: Attempts) -> Workload:
    """A controller with the variables of its ConfigMaps, as in the manifests of efs-provisioner."""
    if not workload.ours or workload.command != "controller" or not workload.references:
        return workload
    names = {name for name, _ in workload.references.values()}
    data = {name: await _data(client, name, workload.namespace, attempts) for name in sorted(names)}
    found = {
        variable: data[name][key]
        for variable, (name, key) in workload.references.items()
        if data[name].get(key)
    }
    return replace(workload, environment=MappingProxyType({**workload.environment, **found}))


async def _data(client: AsyncClient, name: str, namespace: str, attempts: Attempts) -> Mapping[str, str]:
    async def get() -> Mapping[str, str]:
        with translated(f"ConfigMap {namespace}/{name}"):
            return (await client.get(ConfigMap, name, namespace=namespace)).data or {}

    return await attempts.look(f"ConfigMap {namespace}/{name}", get()) or {}


async def _nodes(client: AsyncClient, attempts: Attempts) -> tuple[NodeObject, ...]:
    found = await attempts.look("the CSI drivers of nodes", _read(client, CsiNode, read_drivers))
    return await _read(client, Node, partial(read_node, drivers=dict(found or ())))


async def _warnings(client: AsyncClient) -> tuple[Warned, ...]:
    """The last one of each reason about an object."""
    found = await _read(client, Event, read_warning, namespace="*", fields={"type": "Warning"})
    told = [one for _, one in sorted(found, key=lambda pair: pair[0]) if one.kind in _SUBJECTS]
    return tuple({(one.uid, one.reason): one for one in told}.values())


async def _progress(client: AsyncClient) -> tuple[ProgressEvent, ...]:
    """The last one of each claim."""
    found = [
        one
        for reason in (CREATING_FILE_SYSTEM, COPYING)
        for one in await _read(client, Event, read_progress, namespace="*", fields={"reason": reason})
    ]
    found.sort(key=lambda one: one.time.timestamp() if one.time else 0.0)
    return tuple({one.uid: one for one in found}.values())


async def _stuck_trash(client: AsyncClient, namespace: str) -> tuple[StuckTrash, ...]:
    """The trash directories whose last event says that they cannot be emptied.

    The controller writes these events in its own namespace. Tenants can write any event in theirs.
    """
    found = [
        one
        for reason in (TRASH_NOT_EMPTIED, TRASH_EMPTIED)
        for one in await _read(
            client, Event, read_trash_event, namespace=namespace, fields={"reason": reason}
        )
        if one is not None
    ]
    # Of two in the same second the better one counts: it is only said after the other.
    found.sort(key=lambda one: (one[0], one[1] == TRASH_EMPTIED))
    last = {(one.file_system_id, one.namespace, one.name): (reason, one) for _, reason, one in found}
    return tuple(one for reason, one in last.values() if reason == TRASH_NOT_EMPTIED)


async def _shared_volumes(client: AsyncClient) -> tuple[SharedVolumeFacts, ...]:
    try:
        return await _read(client, SharedVolumeResource, read_shared_volume_facts, namespace="*")
    except KubeNotFound:  # a cluster without that kind
        return ()


async def _degraded(client: AsyncClient) -> tuple[ReportedCondition, ...]:
    try:
        with translated(f"ClusterCSIDriver {DRIVER}"):
            found = await client.get(_ClusterCsiDriver, DRIVER)
    except KubeNotFound:  # installed without the operator
        return ()
    return read_degraded(found.to_dict())


async def _constraints(client: AsyncClient) -> tuple[Constraints, ...] | None:
    try:
        return await _read(client, _ConstraintsResource, read_constraints)
    except KubeNotFound:  # Kubernetes that is not OpenShift
        return None


async def _targets(client: AsyncClient, names: Names) -> TargetsFacts:
    try:
        with translated(f"ConfigMap {names.config_map}"):
            found = await client.get(ConfigMap, names.config_map, namespace=names.namespace)
    except KubeNotFound:
        return TargetsFacts(found=False)
    return read_targets(found.to_dict())


async def _other_config_maps(client: AsyncClient, names: Names) -> tuple[tuple[str, str], ...]:
    """The ConfigMaps with the tunnel targets of other names, in the namespaces where they usually are."""
    candidates = {
        (namespace, one.names.config_map)
        for one in NameSet
        for namespace in (one.names.namespace, names.namespace, *OPERATOR_NAMESPACES)
    }
    found = []
    for namespace, name in sorted(candidates - {(names.namespace, names.config_map)}):
        # In a pod of kube-efs, the service account can read only its own objects.
        with suppress(KubeNotFound, KubeDenied), translated(f"ConfigMap {namespace}/{name}"):
            await client.get(ConfigMap, name, namespace=namespace)
            found.append((namespace, name))
    return tuple(found)
