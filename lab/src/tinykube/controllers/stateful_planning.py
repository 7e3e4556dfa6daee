"""What is done next about one StatefulSet, by the rules of pkg/controller/statefulset of Kubernetes.

Pods come and go in the order of their ordinals, one at a time unless they are managed in parallel; an
update goes from the last pod to the first. Claims are made with their pods, and are never removed.
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
    steps: list[Step] = []
    for ordinal in found.ordinals:
        pod = pods.get(ordinal)
        steps += _of_replica(found, ordinal, pod, claims)
        if not found.parallel and not _is_well(pod):
            return tuple(steps)
    steps += _shrink(found, pods)
    return tuple(steps or _update(found, pods))


def status_of(found: StatefulSet, pods: Mapping[int, Pod]) -> StatefulSetStatus:
    """What is to be said of the set; an update is over once all its pods are new and in order."""
    live = [pod for pod in pods.values() if not pod.meta.deleting]
    total, ready = len(pods), sum(_is_well(pod) for pod in live)
    current = found.status.current_revision or found.revision
    updated = sum(_revision(pod) == found.revision for pod in live)
    if found.partition is not None and updated == total and ready == total:
        current = found.revision
    return StatefulSetStatus(
        observed_generation=found.generation,
        replicas=Replicas(total=total, ready=ready),
        current=sum(_revision(pod) == current for pod in live),
        updated=updated,
        current_revision=current,
        update_revision=found.revision,
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


def _shrink(found: StatefulSet, pods: Mapping[int, Pod]) -> Iterator[Step]:
    """The last pod first; the next one when it is gone, or all at once."""
    for ordinal in sorted(pods.keys() - set(found.ordinals), reverse=True):
        if not pods[ordinal].meta.deleting:
            yield RemovePod(pod=pods[ordinal])
        if not found.parallel:
            return


def _update(found: StatefulSet, pods: Mapping[int, Pod]) -> Iterator[Step]:
    """The last pod of an old template, if all after it are in order again."""
    if found.partition is None:
        return
    for ordinal in sorted(set(found.ordinals) & pods.keys(), reverse=True):
        pod = pods[ordinal]
        if ordinal >= found.partition and _revision(pod) != found.revision and not pod.meta.deleting:
            yield RemovePod(pod=pod)
            return
        if not _is_well(pod):
            return


def _is_well(pod: Pod | None) -> bool:
    return pod is not None and pod.ready and not pod.finished and not pod.meta.deleting


def _revision(pod: Pod) -> str:
    return pod.meta.labels.get(REVISION_LABEL, "")
