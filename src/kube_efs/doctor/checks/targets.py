"""Whether the nodes are told which tunnels to have."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import needs_tunnels
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, Subject, Topic, broken
from kube_efs.model.targets import CONFIG_MAP_NAME

_MISSING = broken("targets/missing", "There is no ConfigMap with the tunnel targets.")
_UNREADABLE = broken("targets/unreadable", "The ConfigMap with the tunnel targets cannot be read.")
_ENTRY = broken("targets/entry", "An entry of the tunnel targets was left out by the nodes.")


def _check(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None or facts.cluster.targets is None:
        return
    targets = facts.cluster.targets
    subject = Subject("ConfigMap", f"{facts.cluster.namespace}/{CONFIG_MAP_NAME}")
    if not targets.found and needs_tunnels(facts.cluster):
        remedy = "start a controller; is --namespace the one of kube-efs?"
        yield Finding(kind=_MISSING, subject=subject, problem="does not exist", remedy=remedy)
    if targets.problem:
        remedy = "delete it: the controller makes it again, with the ports that volumes have"
        yield Finding(kind=_UNREADABLE, subject=subject, problem=targets.problem, remedy=remedy)
    for rejection in targets.rejections:
        yield Finding(
            kind=_ENTRY,
            subject=subject,
            problem=f"{rejection.entry}: {rejection.error}",
            remedy="correct or remove the entry; nodes go on serving what they had for it",
        )


TOPIC = Topic(check=_check, kinds=(_MISSING, _UNREADABLE, _ENTRY))
