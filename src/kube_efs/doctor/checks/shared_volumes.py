"""Whether SharedVolumes get their claims, and disappear after their deletion."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import lasts
from kube_efs.doctor.facts import Facts, SharedVolumeFacts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken
from kube_efs.doctor.shell import Command, command
from kube_efs.model.shared_volumes.shared_volume import SharedVolumePhase

_FAILED = broken("shared-volume/failed", "A SharedVolume has no volume. Its status gives the reason.")
_TERMINATING = broken("shared-volume/terminating", "A deleted SharedVolume still exists.")


def _check(facts: Facts) -> Iterator[Finding]:
    for one in facts.cluster.shared_volumes if facts.cluster else ():
        shared = one.shared
        if shared.deleting:
            if lasts(one.deleting_since, facts.now):
                yield _terminating(one)
        elif shared.status.phase is SharedVolumePhase.FAILED:
            yield Finding(
                kind=_FAILED,
                subject=FindingSubject("SharedVolume", f"{shared.owner.namespace}/{shared.owner.name}"),
                problem="has failed",
                evidence=(shared.status.message or "no reason reported",),
                remedy="follow its message; it is retried automatically",
                commands=(_describe(one),),
            )


def _terminating(one: SharedVolumeFacts) -> Finding:
    shared = one.shared
    return Finding(
        kind=_TERMINATING,
        subject=FindingSubject("SharedVolume", f"{shared.owner.namespace}/{shared.owner.name}"),
        problem="was deleted but still exists",
        evidence=tuple(filter(None, [f"finalizers {', '.join(shared.finalizers)}", shared.status.message])),
        remedy=(
            "end the pods that use its claim; check that a controller with KUBE_EFS_SHARED_VOLUMES is "
            "the leader"
        ),
        commands=(_describe(one), command("kubectl -n {} get pods,pvc", shared.owner.namespace)),
    )


def _describe(one: SharedVolumeFacts) -> Command:
    return command(
        "kubectl -n {} describe sharedvolume {}", one.shared.owner.namespace, one.shared.owner.name
    )


TOPIC = Topic(check=_check, kinds=(_FAILED, _TERMINATING))
