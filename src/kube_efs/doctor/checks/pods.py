"""Whether pods get and release the volumes that they use."""

from collections.abc import Iterator
from typing import Final

from kube_efs.doctor.checks.common import is_our_volume, lasts, look_at_node, targets_of
from kube_efs.doctor.facts import ClusterFacts, Facts, PodFacts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk
from kube_efs.doctor.shell import Command, command
from kube_efs.model.names import WORKER_LABELS

_WAITING = broken("pod/waiting", "A pod does not start because of a volume of kube-efs.")
_TERMINATING = broken("pod/terminating", "A pod with a volume of kube-efs does not end.")
_WORKER = risk("worker/failed", "A worker pod could not create or remove directories.")

_MOUNTING: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None or cluster.pods is None:
        return
    volumes = (one.volume for one in cluster.volumes or ())
    ours = {
        (one.claim.namespace, one.claim.name)
        for one in volumes
        if one.claim is not None and is_our_volume(one, targets_of(cluster))
    }
    for pod in cluster.pods:
        if pod.component == WORKER_LABELS["component"] and pod.namespace == cluster.namespace:
            yield from _worker(pod)
        elif not pod.has_ended and any((pod.namespace, claim) in ours for claim in pod.claims):
            yield from _stuck(pod, facts, cluster)


def _worker(pod: PodFacts) -> Iterator[Finding]:
    if pod.phase == "Failed":
        yield Finding(
            kind=_WORKER,
            subject=FindingSubject("Pod", pod.key),
            problem="has failed; it is retried",
            evidence=(pod.message or "no reason reported",),
            remedy="read its log",
            commands=(command("kubectl -n {} logs {}", pod.namespace, pod.name),),
        )


def _stuck(pod: PodFacts, facts: Facts, cluster: ClusterFacts) -> Iterator[Finding]:
    events = [one for one in cluster.warnings_of("Pod", pod.uid) if one.reason in _MOUNTING]
    evidence = (
        f"on node {pod.node}",
        f"claims {', '.join(pod.claims)}",
        *(f"{one.reason}: {one.message}" for one in events),
    )
    if pod.deleting_since is not None:
        # The time of deletion is its deadline.
        if lasts(pod.deleting_since, facts.now):
            yield Finding(
                kind=_TERMINATING,
                subject=FindingSubject("Pod", pod.key),
                problem="was deleted but still exists",
                evidence=evidence,
                remedy=(
                    f"run kube-efs doctor node on {pod.node}: a mount without its tunnel cannot be unmounted"
                ),
                commands=_commands(pod, cluster),
            )
    elif pod.phase == "Pending" and pod.node and (events or lasts(pod.created, facts.now)):
        yield Finding(
            kind=_WAITING,
            subject=FindingSubject("Pod", pod.key),
            problem="does not start",
            evidence=(*evidence, *pod.waiting),
            remedy=_remedy(" ".join(one.message for one in events), pod.node),
            commands=_commands(pod, cluster),
        )


def _commands(pod: PodFacts, cluster: ClusterFacts) -> tuple[Command, ...]:
    return command("kubectl -n {} describe pod {}", pod.namespace, pod.name), look_at_node(pod.node, cluster)


def _remedy(messages: str, node: str) -> str:
    """The usual remedy for such a failure of mount(8)."""
    look = f"run kube-efs doctor node on {node}"
    if "refused" in messages:
        return f"no tunnel listens there: check that the tunnel agent's pod runs on {node}; {look}"
    if "timed out" in messages or "DeadlineExceeded" in messages:
        return f"no mount target answers: check security groups and mount targets; {look}"
    if "access denied" in messages or "not permitted" in messages:
        return "check the file system's policy, and the access point that the volume names"
    return look


TOPIC = Topic(check=_check, kinds=(_WAITING, _TERMINATING, _WORKER))
