"""Which template of a Deployment each of its ReplicaSets is of: what ``kubectl rollout history`` shows.

By the rules of pkg/controller/deployment/util of Kubernetes: the present template has the highest number,
also when it is one of old that somebody has gone back to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tinykube.controllers.replica_planning import newest_of
from tinykube.controllers.workloads import NUMBER_ANNOTATION, Deployment, ReplicaSet, revision_number

_CAUSE = "kubernetes.io/change-cause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Give a Deployment or a ReplicaSet these annotations; None takes one off."""

    target: Deployment | ReplicaSet
    annotations: Mapping[str, str | None]


def plan_history(found: Deployment, sets: Sequence[ReplicaSet]) -> Iterator[Note]:
    """What is to be noted; ``sets`` are those of the Deployment."""
    new = newest_of(found, sets)
    if new is None or found.meta.deleting:
        return
    number = max(new.number, max((one.number for one in sets if one is not new), default=0) + 1)
    cause = found.meta.annotations.get(_CAUSE)
    if new.number != number or new.meta.annotations.get(_CAUSE) != cause:
        yield Note(target=new, annotations={NUMBER_ANNOTATION: str(number), _CAUSE: cause})
    if revision_number(found.meta) != number:
        yield Note(target=found, annotations={NUMBER_ANNOTATION: str(number)})
