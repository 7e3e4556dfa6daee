"""What is done next about one ReplicaSet, and about the ReplicaSets of one Deployment.

By the rules of pkg/controller/replicaset and pkg/controller/deployment of Kubernetes.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tinykube.controllers.values import Pod
from tinykube.controllers.workloads import (
    TEMPLATE_LABEL,
    Deployment,
    DeploymentStatus,
    Replicas,
    ReplicaSet,
    ReplicaSetStatus,
    WorkloadCondition,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePods:
    """Make that many pods of the template."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePods:
    """Delete these pods."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeReplicaSet:
    """Make the ReplicaSet of the present template, with that many replicas."""

    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Give a ReplicaSet another number of replicas."""

    target: ReplicaSet
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveReplicaSet:
    """Delete a ReplicaSet that has no pods and is not wanted any more."""

    target: ReplicaSet


RolloutStep = MakeReplicaSet | Resize | RemoveReplicaSet


def plan_replica_set(found: ReplicaSet, pods: Collection[Pod]) -> MakePods | RemovePods | None:
    """The next step, if one is needed; ``pods`` are those of the set."""
    live = _live(pods)
    missing = found.replicas - len(live)
    if found.meta.deleting or not missing:
        return None
    if missing > 0:
        return MakePods(count=missing)
    # Those that are of least use go first.
    worst_first = sorted(live, key=lambda pod: (bool(pod.node_name), pod.ready, pod.meta.key))
    return RemovePods(pods=tuple(worst_first[:-missing]))


def replica_set_status(found: ReplicaSet, pods: Collection[Pod]) -> ReplicaSetStatus:
    """What is to be said of the set."""
    live = _live(pods)
    ready = sum(pod.ready for pod in live)
    return ReplicaSetStatus(
        observed_generation=found.generation, replicas=Replicas(total=len(live), ready=ready)
    )


def share_of(text: int | str, replicas: int, *, up: bool) -> int:
    """A number of pods that is given as such or in per cent of the replicas."""
    if isinstance(text, int):
        return text
    exact = int(text.removesuffix("%")) * replicas / 100
    return math.ceil(exact) if up else math.floor(exact)


def newest_of(found: Deployment, sets: Collection[ReplicaSet]) -> ReplicaSet | None:
    """The ReplicaSet of the present template."""
    return next((one for one in sets if one.meta.labels.get(TEMPLATE_LABEL) == found.revision), None)


def plan_deployment(
    found: Deployment, sets: Sequence[ReplicaSet], pods: Collection[Pod]
) -> tuple[RolloutStep, ...]:
    """The next steps; ``pods`` are those of the sets, also those that are just ending."""
    if found.meta.deleting or found.paused:
        return ()
    new = newest_of(found, sets)
    old = [one for one in sets if one is not new]
    makers = {pod.controller.uid for pod in pods if pod.controller and not pod.finished}
    with_pods = [one for one in old if one.meta.uid in makers]
    if found.recreates:
        stopping = tuple(Resize(target=one, replicas=0) for one in old if one.replicas)
        if stopping or with_pods:
            return stopping
        wanted = found.replicas
    else:
        room = found.replicas + found.surge - sum(one.replicas for one in sets)
        held = new.replicas if new else 0
        wanted = min(found.replicas, held + max(0, room))
    return (*_grow(new, wanted), *_shrink(found, new, old), *_clean(old, with_pods))


def deployment_status(found: Deployment, sets: Sequence[ReplicaSet]) -> DeploymentStatus:
    """What is to be said of the Deployment, so that ``kubectl rollout status`` knows when it is done."""
    new = newest_of(found, sets)
    total = sum(one.status.replicas.total for one in sets)
    ready = sum(one.ready for one in sets)
    updated = new.status.replicas.total if new else 0
    done = updated == total == found.replicas == ready
    return DeploymentStatus(
        observed_generation=found.generation,
        replicas=Replicas(total=total, ready=ready),
        updated=updated,
        conditions=(
            _available(ready >= found.replicas - found.unavailable),
            _progressing(new.meta.key.name if new else "", done=done),
        ),
    )


def scaling(target: ReplicaSet, replicas: int) -> str:
    """What a Deployment's event says of a ReplicaSet that gets that many replicas."""
    way = "up" if replicas > target.replicas else "down"
    return f"Scaled {way} replica set {target.meta.key.name} from {target.replicas} to {replicas}"


def _live(pods: Collection[Pod]) -> list[Pod]:
    return [pod for pod in pods if not pod.meta.deleting and not pod.finished]


def _grow(new: ReplicaSet | None, wanted: int) -> Iterator[RolloutStep]:
    if new is None:
        yield MakeReplicaSet(replicas=wanted)
    elif new.replicas != wanted:
        yield Resize(target=new, replicas=wanted)


def _shrink(found: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Iterator[RolloutStep]:
    """Old pods that are in order only as far as others make up for them; the rest can go before."""
    waiting = new.replicas - new.ready if new else 0
    least = found.replicas - found.unavailable
    room = sum(one.replicas for one in (*old, *filter(None, [new]))) - least - waiting
    spare = sum(one.ready for one in old) + (new.ready if new else 0) - least
    for one in old:
        idle = max(0, min(room, one.replicas - one.ready))
        busy = max(0, min(room - idle, spare, one.ready))
        room, spare = room - idle - busy, spare - busy
        if idle + busy:
            yield Resize(target=one, replicas=one.replicas - idle - busy)


def _clean(old: Sequence[ReplicaSet], with_pods: Collection[ReplicaSet]) -> Iterator[RolloutStep]:
    """Those without pods go, as nobody goes back to them here (``revisionHistoryLimit`` 0)."""
    for one in old:
        if not one.replicas and one not in with_pods and not one.meta.deleting:
            yield RemoveReplicaSet(target=one)


def _available(enough: bool) -> WorkloadCondition:
    return WorkloadCondition(
        type="Available",
        status=enough,
        reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if enough else 'does not have'} minimum availability.",
    )


def _progressing(name: str, *, done: bool) -> WorkloadCondition:
    return WorkloadCondition(
        type="Progressing",
        status=True,
        reason="NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
        message=f'ReplicaSet "{name}" {"has successfully progressed" if done else "is progressing"}.',
    )
