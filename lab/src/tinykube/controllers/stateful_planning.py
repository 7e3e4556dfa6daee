"""What is done next about one StatefulSet, by the rules of pkg/controller/statefulset of Kubernetes.

Pods come and go in the order of their ordinals, one at a time; an update goes from the last pod to the
first. Claims are made with their pods, and are never removed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lightkube.models.core_v1 import PersistentVolumeClaim

from tinykube.controllers.values import Pod
from tinykube.controllers.workloads import (
    REVISION_LABEL,
    Replicas,
    StatefulSet,
    StatefulSetStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeClaim:
    """Make the claim of this ordinal from one of the set's templates."""

    template: PersistentVolumeClaim
    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePod:
    """Make the pod of this ordinal."""

    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePod:
    """Delete a pod: it is one too many, has ended, or is of an old template."""

    pod: Pod


Step = MakeClaim | MakePod | RemovePod


def pods_by_ordinal(found: StatefulSet, pods: Iterable[Pod]) -> dict[int, Pod]:
    """The pods of the set, in order."""
    numbered = {
        int(pod.meta.key.name.rpartition("-")[2]): pod
        for pod in named_as_its_own(found, pods)
        if pod.controller is not None and pod.controller.uid == found.meta.uid
    }
    return dict(sorted(numbered.items()))


def named_as_its_own(found: StatefulSet, pods: Iterable[Pod]) -> Iterator[Pod]:
    """Those with the name of the set and a number, whoever has made them."""
    for pod in pods:
        name, _, number = pod.meta.key.name.rpartition("-")
        if name == found.meta.key.name and number.isdecimal():
            yield pod


def plan_stateful_set(
    found: StatefulSet, pods: Mapping[int, Pod], claims: Collection[str]
) -> tuple[Step, ...]:
    """The next steps; ``claims`` are the names of all in its namespace."""
    if found.meta.deleting:
        return ()
    for ordinal in found.ordinals:
        pod = pods.get(ordinal)
        if not _is_well(pod):
            return tuple(_of_replica(found, ordinal, pod, claims))
    # All are in order: the last one too many goes next, else the last one of an old template.
    for ordinal in sorted(pods, reverse=True):
        last = pods[ordinal]
        if ordinal not in found.ordinals or _revision(last) != found.revision:
            return () if last.meta.deleting else (RemovePod(pod=last),)
    return ()


def status_of(found: StatefulSet, pods: Mapping[int, Pod]) -> StatefulSetStatus:
    """What is to be said of the set."""
    return StatefulSetStatus(
        observed_generation=found.generation,
        replicas=Replicas(total=len(pods), ready=sum(_is_well(pod) for pod in pods.values())),
        updated=sum(_revision(pod) == found.revision for pod in pods.values() if not pod.meta.deleting),
    )


def _of_replica(found: StatefulSet, ordinal: int, pod: Pod | None, claims: Collection[str]) -> Iterator[Step]:
    if pod is None or not pod.node_name:
        for template in found.claim_templates:
            if found.claim_name(template, ordinal) not in claims:
                yield MakeClaim(template=template, ordinal=ordinal)
    if pod is None:
        yield MakePod(ordinal=ordinal)
    elif pod.finished and not pod.meta.deleting:
        yield RemovePod(pod=pod)


def _is_well(pod: Pod | None) -> bool:
    return pod is not None and pod.ready and not pod.finished and not pod.meta.deleting


def _revision(pod: Pod) -> str:
    return pod.meta.labels.get(REVISION_LABEL, "")
