"""Workloads of the Kubernetes API as values, and their statuses as the API has them."""

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from types import MappingProxyType
from typing import Any

from lightkube.models import apps_v1 as models
from lightkube.models.core_v1 import PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources import apps_v1

from tinykube.controllers.reading import read_controller, read_meta, read_selector
from tinykube.controllers.replica_planning import share_of
from tinykube.controllers.workloads import (
    DaemonSet,
    DaemonSetStatus,
    Deployment,
    DeploymentStatus,
    Replicas,
    ReplicaSet,
    ReplicaSetStatus,
    StatefulSet,
    StatefulSetStatus,
    WorkloadCondition,
)

_HASH_CHARACTERS = 10


def read_stateful_set(found: apps_v1.StatefulSet) -> StatefulSet:
    """A StatefulSet."""
    meta = read_meta(found.metadata)
    spec = found.spec or models.StatefulSetSpec(selector=LabelSelector(), template=PodTemplateSpec())
    status = found.status or models.StatefulSetStatus(replicas=0)
    return StatefulSet(
        meta=meta,
        generation=_generation(found.metadata),
        replicas=1 if spec.replicas is None else spec.replicas,
        service_name=spec.serviceName or "",
        selector=read_selector(spec.selector),
        match_labels=MappingProxyType(dict(spec.selector.matchLabels or {})),
        revision=f"{meta.key.name}-{hash_of(spec.template)}",
        template=spec.template,
        claim_templates=tuple(spec.volumeClaimTemplates or ()),
        status=StatefulSetStatus(
            observed_generation=status.observedGeneration or 0,
            replicas=Replicas(total=status.replicas or 0, ready=status.readyReplicas or 0),
            updated=status.updatedReplicas or 0,
        ),
    )


def read_replica_set(found: apps_v1.ReplicaSet) -> ReplicaSet:
    """A ReplicaSet."""
    spec = found.spec or models.ReplicaSetSpec(selector=LabelSelector())
    status = found.status or models.ReplicaSetStatus(replicas=0)
    return ReplicaSet(
        meta=read_meta(found.metadata),
        generation=_generation(found.metadata),
        replicas=1 if spec.replicas is None else spec.replicas,
        selector=read_selector(spec.selector),
        controller=read_controller(found.metadata),
        template=spec.template or PodTemplateSpec(),
        status=ReplicaSetStatus(
            observed_generation=status.observedGeneration or 0,
            replicas=Replicas(total=status.replicas or 0, ready=status.readyReplicas or 0),
        ),
    )


def read_deployment(found: apps_v1.Deployment) -> Deployment:
    """A Deployment."""
    spec = found.spec or models.DeploymentSpec(selector=LabelSelector(), template=PodTemplateSpec())
    strategy = spec.strategy or models.DeploymentStrategy()
    rolling = strategy.rollingUpdate or models.RollingUpdateDeployment()
    replicas = 1 if spec.replicas is None else spec.replicas
    recreates = strategy.type == "Recreate"
    surge = 0 if recreates else share_of(rolling.maxSurge or 0, replicas, up=True)
    unavailable = share_of(rolling.maxUnavailable or 0, replicas, up=False)
    return Deployment(
        meta=read_meta(found.metadata),
        generation=_generation(found.metadata),
        replicas=replicas,
        paused=bool(spec.paused),
        recreates=recreates,
        surge=surge,
        # Neither more nor less would be no way to go on.
        unavailable=unavailable or int(not surge and not recreates),
        selector=read_selector(spec.selector),
        spec_selector=spec.selector,
        revision=hash_of(spec.template),
        template=spec.template,
        status=_read_deployment_status(found.status or models.DeploymentStatus()),
    )


def read_daemon_set(found: apps_v1.DaemonSet) -> DaemonSet:
    """A DaemonSet."""
    spec = found.spec or models.DaemonSetSpec(selector=LabelSelector(), template=PodTemplateSpec())
    status = found.status or models.DaemonSetStatus(
        currentNumberScheduled=0, desiredNumberScheduled=0, numberMisscheduled=0, numberReady=0
    )
    update = spec.updateStrategy or models.DaemonSetUpdateStrategy()
    rolling = update.rollingUpdate or models.RollingUpdateDaemonSet()
    allowed = 1 if rolling.maxUnavailable is None else rolling.maxUnavailable
    pod = spec.template.spec
    return DaemonSet(
        meta=read_meta(found.metadata),
        generation=_generation(found.metadata),
        selector=read_selector(spec.selector),
        node_selector=MappingProxyType(dict((pod and pod.nodeSelector) or {})),
        unavailable=(
            None if update.type == "OnDelete" else share_of(allowed, status.desiredNumberScheduled, up=True)
        ),
        revision=hash_of(spec.template),
        template=spec.template,
        status=DaemonSetStatus(
            observed_generation=status.observedGeneration or 0,
            desired=status.desiredNumberScheduled,
            current=status.currentNumberScheduled,
            misscheduled=status.numberMisscheduled,
            ready=status.numberReady,
            updated=status.updatedNumberScheduled or 0,
        ),
    )


def hash_of(template: PodTemplateSpec) -> str:
    """Tells templates apart; part of names and labels."""
    text = json.dumps(template.to_dict(), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]


def render_stateful_set_status(status: StatefulSetStatus) -> dict[str, Any]:
    """The status as a merge patch."""
    counts = _counts(status.observed_generation, status.replicas)
    return {**counts, "updatedReplicas": status.updated}


def render_replica_set_status(status: ReplicaSetStatus) -> dict[str, Any]:
    """The status as a merge patch."""
    counts = _counts(status.observed_generation, status.replicas)
    return {**counts, "fullyLabeledReplicas": status.replicas.total}


def render_deployment_status(
    status: DeploymentStatus, before: DeploymentStatus, now: datetime
) -> dict[str, Any]:
    """The status as a merge patch; conditions that have not changed since ``before`` keep their time."""
    since = {(one.type, one.status): one.since for one in before.conditions}
    return {
        **_counts(status.observed_generation, status.replicas),
        "updatedReplicas": status.updated,
        "unavailableReplicas": status.replicas.total - status.replicas.ready,
        "conditions": [
            {
                "type": one.type,
                "status": str(one.status),
                "reason": one.reason,
                "message": one.message,
                "lastUpdateTime": _time(now),
                "lastTransitionTime": _time(since.get((one.type, one.status)) or now),
            }
            for one in status.conditions
        ],
    }


def render_daemon_set_status(status: DaemonSetStatus) -> dict[str, Any]:
    """The status as a merge patch."""
    return {
        "observedGeneration": status.observed_generation,
        "desiredNumberScheduled": status.desired,
        "currentNumberScheduled": status.current,
        "numberMisscheduled": status.misscheduled,
        "numberReady": status.ready,
        "numberAvailable": status.ready,
        "numberUnavailable": status.desired - status.ready,
        "updatedNumberScheduled": status.updated,
    }


def _counts(generation: int, replicas: Replicas) -> dict[str, Any]:
    return {
        "observedGeneration": generation,
        "replicas": replicas.total,
        "readyReplicas": replicas.ready,
        "availableReplicas": replicas.ready,
    }


def _read_deployment_status(status: models.DeploymentStatus) -> DeploymentStatus:
    return DeploymentStatus(
        observed_generation=status.observedGeneration or 0,
        replicas=Replicas(total=status.replicas or 0, ready=status.readyReplicas or 0),
        updated=status.updatedReplicas or 0,
        conditions=_read_conditions(status.conditions or ()),
    )


def _read_conditions(found: Iterable[models.DeploymentCondition]) -> tuple[WorkloadCondition, ...]:
    return tuple(
        WorkloadCondition(
            type=one.type or "",
            status=one.status == "True",
            reason=one.reason or "",
            message=one.message or "",
            since=one.lastTransitionTime,
        )
        for one in found
    )


def _generation(meta: ObjectMeta | None) -> int:
    return (meta and meta.generation) or 0


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
