"""Converts objects of the Kubernetes API to facts; missing fields get their default."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

from kube_efs.doctor.constraints import read_needs
from kube_efs.doctor.facts import (
    ClaimFacts,
    LeaseFacts,
    NodeObject,
    PodFacts,
    ProgressEvent,
    PublishedStatus,
    ReportedCondition,
    SharedVolumeFacts,
    StuckTrash,
    TargetsFacts,
    VolumeFacts,
    Warned,
    Workload,
)
from kube_efs.doctor.times import time_of
from kube_efs.kube.events import CONTROLLER
from kube_efs.kube.reading import read_claim, read_volume
from kube_efs.kube.shared_volumes import read_shared_volume
from kube_efs.model.csi.parameters import OBJECT_NAME
from kube_efs.model.efs.ids import parse_file_system_id
from kube_efs.model.efs.targets import CONFIG_MAP_KEY, S3_FILES_KEY, ZONES_KEY, parse_targets
from kube_efs.model.errors import InvalidValue
from kube_efs.model.tunnel_volumes import root_name
from kube_efs.tunnels.status import parse_status
from kube_efs.tunnels.status_config_map import NODE_KEY, STATUS_KEY

Json: TypeAlias = Mapping[str, Any]

_PART_OF = "app.kubernetes.io/part-of"
_COMMANDS = frozenset({"controller", "tunnel", "node", "operator"})
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
# Mount targets see nodes by these, never by public addresses.
_INTERNAL = "InternalIP"
_OS, _COMPUTE = "kubernetes.io/os", "eks.amazonaws.com/compute-type"


def is_labeled(body: Json) -> bool:
    """Whether the object has the label of the objects of kube-efs."""
    return bool((body["metadata"].get("labels") or {}).get(_PART_OF) == "kube-efs")


def read_workload(kind: str, body: Json) -> Workload:
    """The workload in a Deployment or DaemonSet; ``ours`` is what its labels, name and command say."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    first = (pod.get("containers") or [{}])[0]
    command, image = next(iter(first.get("args") or ()), ""), first.get("image", "")
    # Manifests of older systems have no label.
    is_named_so = command in _COMMANDS and "efs" in f"{meta['name']} {image}"
    variables = first.get("env") or ()
    is_set = kind == "DaemonSet"
    return Workload(
        kind=kind,
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        command=command,
        image=image,
        environment=MappingProxyType(
            {one["name"]: str(one["value"]) for one in variables if one.get("value")}
        ),
        references=MappingProxyType(
            {
                one["name"]: (reference.get("name", ""), reference["key"])
                for one in variables
                if (reference := (one.get("valueFrom") or {}).get("configMapKeyRef"))
            }
        ),
        ours=is_labeled(body) or is_named_so,
        wanted=(status.get("desiredNumberScheduled") if is_set else spec.get("replicas", 1)) or 0,
        ready=status.get("numberReady" if is_set else "readyReplicas") or 0,
        uid=meta.get("uid", ""),
        failure=_failure(status),
        account=pod.get("serviceAccountName") or "default",
        needs=read_needs(pod),
    )


def read_bound_namespaces(body: Json) -> frozenset[str]:
    """The namespaces whose accounts get a role of kube-efs or an older system by a ClusterRoleBinding."""
    if not is_labeled(body) and "efs" not in body["roleRef"]["name"]:
        return frozenset()
    return frozenset(one.get("namespace") or "" for one in body.get("subjects") or ())


def _failure(status: Json) -> str:
    for one in status.get("conditions") or ():
        if one["type"] == "ReplicaFailure" and one.get("status") == "True":
            return one.get("message") or ""
    return ""


def read_pod(body: Json) -> PodFacts:
    """The pod in a Pod."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    volumes = spec.get("volumes") or ()
    named = [one["persistentVolumeClaim"]["claimName"] for one in volumes if one.get("persistentVolumeClaim")]
    made = [f"{meta['name']}-{one['name']}" for one in volumes if one.get("ephemeral")]
    return PodFacts(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", ""),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "",
        created=time_of(meta.get("creationTimestamp")),
        deleting_since=time_of(meta.get("deletionTimestamp")),
        finished=_end(status),
        component=(meta.get("labels") or {}).get("component", ""),
        claims=(*named, *made),
        waiting=tuple(_waiting(status)),
        restarts=sum(one.get("restartCount") or 0 for one in _containers(status)),
        ended=next(filter(None, map(_last_end, _containers(status))), ""),
        message=status.get("message") or _last_words(status),
    )


def _containers(status: Json) -> list[Json]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _end(status: Json) -> datetime | None:
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    ends = [time_of((one.get("terminated") or {}).get("finishedAt")) for one in states]
    known = [one for one in ends if one is not None]
    return max(known) if known and len(known) == len(ends) else None


def _last_end(container: Json) -> str:
    ended = (container.get("lastState") or {}).get("terminated") or {}
    return f"{ended.get('reason', '')}, exit code {ended.get('exitCode')}" if ended else ""


def _waiting(status: Json) -> list[str]:
    found = []
    for one in _containers(status):
        state = (one.get("state") or {}).get("waiting") or {}
        if state.get("reason"):
            message = f" ({state['message']})" if state.get("message") else ""
            found.append(f"container {one['name']}: {state['reason']}{message}")
    return found


def _last_words(status: Json) -> str:
    for one in status.get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("message"):
            return str(ended["message"])
    return ""


def read_warning(body: Json) -> tuple[str, Warned]:
    """When an Event was last seen, as text that can be put in order, and what it says."""
    subject = body.get("involvedObject") or {}
    time = body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp")
    return str(time), Warned(
        kind=subject.get("kind", ""),
        uid=subject.get("uid", ""),
        reason=body.get("reason") or "",
        message=body.get("message") or "",
    )


def read_progress(body: Json) -> ProgressEvent:
    """The progress of a claim in an Event."""
    time = body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp")
    return ProgressEvent(
        uid=(body.get("involvedObject") or {}).get("uid", ""),
        reason=body.get("reason") or "",
        message=body.get("message") or "",
        time=time_of(time),
    )


def read_trash_event(body: Json) -> tuple[str, str, StuckTrash] | None:
    """When an Event about a trash was last seen, as text that can be put in order, its reason, its trash.

    None if the controller does not write such an Event. The API server does not check the object that an
    Event names.
    """
    subject, source = body.get("involvedObject") or {}, body.get("source") or {}
    beginning, _, message = (body.get("message") or "").partition(": ")
    try:
        file_system_id = parse_file_system_id(beginning.rpartition(" ")[2])
    except InvalidValue:
        return None
    kind, name = subject.get("kind", ""), subject.get("name", "")
    is_root_claim = kind == "PersistentVolumeClaim" and name == root_name(file_system_id)
    is_lease = kind == "Lease" and OBJECT_NAME.fullmatch(name) is not None
    if source.get("component") != CONTROLLER or not (is_root_claim or is_lease):
        return None
    return (
        str(body.get("lastTimestamp") or body["metadata"].get("creationTimestamp")),
        body.get("reason") or "",
        StuckTrash(
            file_system_id=file_system_id,
            kind=kind,
            namespace=body["metadata"].get("namespace", ""),
            name=name,
            message=message,
        ),
    )


def read_node(body: Json, drivers: Mapping[str, frozenset[str]]) -> NodeObject:
    """The node in a Node; ``drivers`` are those of each node, by its name."""
    meta, status = body["metadata"], body.get("status") or {}
    labels = meta.get("labels") or {}
    provider = (body.get("spec") or {}).get("providerID") or ""
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return NodeObject(
        name=meta["name"],
        ready=conditions.get("Ready") == "True",
        zone=labels.get(_ZONE, ""),
        region=labels.get(_REGION, ""),
        addresses=tuple(one["address"] for one in status.get("addresses") or () if one["type"] == _INTERNAL),
        instance_id=provider.rpartition("/")[2] if provider.startswith("aws:") else "",
        compute=labels.get(_COMPUTE) or ("windows" if labels.get(_OS) == "windows" else ""),
        drivers=drivers.get(meta["name"], frozenset()),
    )


def read_lease(body: Json) -> LeaseFacts:
    """The lease in a Lease."""
    spec = body.get("spec") or {}
    return LeaseFacts(
        name=body["metadata"]["name"],
        holder=spec.get("holderIdentity") or "",
        renewed=time_of(spec.get("renewTime")),
        duration_seconds=spec.get("leaseDurationSeconds") or 15,
    )


def read_claim_facts(body: Json) -> ClaimFacts:
    """The claim in a PersistentVolumeClaim."""
    meta = body["metadata"]
    return ClaimFacts(
        claim=read_claim(body),
        created=time_of(meta.get("creationTimestamp")),
        deleting_since=time_of(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers") or ()),
    )


def read_volume_facts(body: Json) -> VolumeFacts:
    """The volume in a PersistentVolume."""
    status = body.get("status") or {}
    return VolumeFacts(
        volume=read_volume(body),
        created=time_of(body["metadata"].get("creationTimestamp")),
        changed=time_of(status.get("lastPhaseTransitionTime")),
        deleting_since=time_of(body["metadata"].get("deletionTimestamp")),
        message=status.get("message") or "",
    )


def read_shared_volume_facts(body: Json) -> SharedVolumeFacts:
    """The SharedVolume in a resource of that kind."""
    since = time_of(body["metadata"].get("deletionTimestamp"))
    return SharedVolumeFacts(shared=read_shared_volume(body), deleting_since=since)


def read_degraded(body: Json) -> tuple[ReportedCondition, ...]:
    """The conditions of a ClusterCSIDriver that show a problem."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return tuple(
        ReportedCondition(type=one["type"], message=one.get("message") or "")
        for one in conditions
        if one["type"].endswith("Degraded") and one.get("status") == "True"
    )


def read_targets(body: Json) -> TargetsFacts:
    """The tunnel targets in their ConfigMap."""
    data = body.get("data") or {}
    try:
        targets, rejections = parse_targets(
            data.get(CONFIG_MAP_KEY, ""), data.get(ZONES_KEY, ""), s3_files_text=data.get(S3_FILES_KEY, "")
        )
    except InvalidValue as error:
        return TargetsFacts(problem=str(error))
    return TargetsFacts(targets=targets, rejections=rejections)


def read_published(body: Json) -> PublishedStatus:
    """The status that a node has published in its ConfigMap."""
    data = body.get("data") or {}
    node = data.get(NODE_KEY) or body["metadata"]["name"]
    try:
        status, time = parse_status(data.get(STATUS_KEY, ""))
    except InvalidValue:
        return PublishedStatus(node=node)
    return PublishedStatus(node=node, time=time_of(time), status=status)
