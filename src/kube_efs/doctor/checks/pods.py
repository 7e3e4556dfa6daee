"""Whether pods get and release the volumes that they use."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from kube_efs.doctor.checks.common import is_our_volume, lasts, look_at_node, remedy_in, targets_of
from kube_efs.doctor.facts import ClusterFacts, Facts, PodFacts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk
from kube_efs.doctor.shell import Command, command
from kube_efs.doctor.times import shown
from kube_efs.model.names import WORKER_LABELS

_WAITING = broken("pod/waiting", "A pod does not start because of a volume of kube-efs.")
_TERMINATING = broken("pod/terminating", "A pod with a volume of kube-efs does not end.")
_WORKER = risk(
    "worker/failed", "A worker pod could not create or remove directories in the last ten minutes."
)

_MOUNTING: Final = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
# The driver refuses a value that a person can correct; the kubelet puts this before the text of the error.
_REFUSED: Final = "code = InvalidArgument desc = "
# A failed worker pod stays, and its work is repeated within a minute: an old one is no present problem.
_OLD: Final = timedelta(minutes=10)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None or cluster.pods is None:
        return
    volumes, targets = (one.volume for one in cluster.volumes or ()), targets_of(cluster)
    ours = {
        (one.claim.namespace, one.claim.name)
        for one in volumes
        if one.claim is not None and is_our_volume(one, targets)
    }
    for pod in cluster.pods:
        if pod.component == WORKER_LABELS["component"] and pod.namespace == cluster.namespace:
            yield from _worker(pod, facts.now)
        elif not pod.has_ended and any((pod.namespace, claim) in ours for claim in pod.claims):
            yield from _stuck(pod, facts, cluster)


def _worker(pod: PodFacts, now: datetime) -> Iterator[Finding]:
    if pod.phase == "Failed" and (pod.finished is None or now - pod.finished < _OLD):
        yield Finding(
            kind=_WORKER,
            subject=FindingSubject("Pod", pod.key),
            problem=f"failed at {shown(pod.finished)}" if pod.finished else "failed",
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
            remedy=_remedy([one.message for one in events], pod.node),
            commands=_commands(pod, cluster),
        )


def _commands(pod: PodFacts, cluster: ClusterFacts) -> tuple[Command, ...]:
    return command("kubectl -n {} describe pod {}", pod.namespace, pod.name), look_at_node(pod.node, cluster)


def _remedy(texts: Sequence[str], node: str) -> str:
    """The remedy that the driver gives, otherwise the usual one for such a failure of mount(8)."""
    told = next(filter(None, (remedy_in(one.partition(_REFUSED)[2]) for one in texts)), "")
    if told:
        return told
    messages = " ".join(texts)
    look = f"run kube-efs doctor node on {node}"
    if "refused" in messages:
        return f"no tunnel listens there: check that the tunnel agent's pod runs on {node}; {look}"
    if "timed out" in messages or "DeadlineExceeded" in messages:
        return f"no mount target answers: check security groups and mount targets; {look}"
    if "access denied" in messages or "not permitted" in messages:
        return "check the file system's policy, and the access point that the volume names"
    return look


TOPIC = Topic(check=_check, kinds=(_WAITING, _TERMINATING, _WORKER))
