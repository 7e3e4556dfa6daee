"""Where a pod goes when there is one node, and what its claims need before it can go there.

As the VolumeBinding plugin of kube-scheduler: claims of a class that binds at once must be bound, those
of a class that waits for a consumer get a volume or a provisioner now.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tinykube.controllers.matching import best_match
from tinykube.controllers.values import (
    NO_PROVISIONER,
    SELECTED_NODE,
    Claim,
    ClaimPhase,
    Key,
    Pod,
    StorageClass,
    Volume,
)


@dataclass(frozen=True, slots=True)
class Run:
    """Every claim is bound: the pod can go to the node."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The claims have their first consumer: reserve these volumes, have those claims provisioned, wait."""

    reserve: tuple[tuple[Claim, Volume], ...]
    provision: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The pod has to wait; ``problem`` in Kubernetes' words."""

    problem: str

    @property
    def message(self) -> str:
        """What ``kubectl describe pod`` shows."""
        return (
            f"0/1 nodes are available: {self.problem}. preemption: 0/1 nodes are available:"
            " 1 Preemption is not helpful for scheduling."
        )


Placement = Run | Prepare | Refuse


def place(
    pod: Pod,
    claims: Mapping[Key, Claim],
    volumes: Mapping[Key, Volume],
    classes: Mapping[Key, StorageClass],
    *,
    cordoned: bool = False,
) -> Placement:
    """What can be done about a pod that has no node yet; ``cordoned`` is what the node is to this pod."""
    waiting: list[Claim] = []
    for name in pod.claim_names:
        claim = claims.get(Key(pod.meta.key.namespace, name))
        problem = _problem(name, claim)
        if problem or claim is None:
            return Refuse(problem)
        if claim.bind_completed:
            continue
        if not _waits(claim, classes):
            return Refuse("pod has unbound immediate PersistentVolumeClaims")
        waiting.append(claim)
    if cordoned:
        return Refuse("1 node(s) were unschedulable")
    return _prepare(waiting, volumes, classes) if waiting else Run()


def _problem(name: str, claim: Claim | None) -> str:
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if claim.meta.deleting:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if claim.phase is ClaimPhase.LOST:
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume_name}"'
    return ""


def _waits(claim: Claim, classes: Mapping[Key, StorageClass]) -> bool:
    storage_class = classes.get(Key("", claim.class_name or ""))
    return storage_class is not None and storage_class.waits_for_consumer and not claim.volume_name


def _prepare(
    claims: list[Claim], volumes: Mapping[Key, Volume], classes: Mapping[Key, StorageClass]
) -> Placement:
    reserve: list[tuple[Claim, Volume]] = []
    provision: list[Claim] = []
    free = dict(volumes)
    for claim in claims:
        volume = best_match(claim, free.values())
        if volume is not None:
            del free[volume.meta.key]
            if volume.claim is None:
                reserve.append((claim, volume))
        elif classes[Key("", claim.class_name or "")].provisioner == NO_PROVISIONER:
            return Refuse("1 node(s) didn't find available persistent volumes to bind")
        elif SELECTED_NODE not in claim.meta.annotations:
            provision.append(claim)
    return Prepare(tuple(reserve), tuple(provision))
