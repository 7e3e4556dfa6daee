"""Whether the nodes can read the tunnel targets."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import controller_log, publishes_targets
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken
from kube_efs.doctor.shell import Syntax, command

_MISSING = broken("targets/missing", "The ConfigMap with the tunnel targets does not exist.")
_UNREADABLE = broken("targets/unreadable", "The ConfigMap with the tunnel targets cannot be read.")
_ENTRY = broken("targets/entry", "The nodes ignore an entry of the tunnel targets.")


def _check(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None or facts.cluster.targets is None:
        return
    targets, names = facts.cluster.targets, facts.cluster.names
    where = names.namespace, names.config_map
    subject = FindingSubject("ConfigMap", f"{names.namespace}/{names.config_map}")
    if not targets.found and publishes_targets(facts.cluster):
        yield Finding(
            kind=_MISSING,
            subject=subject,
            problem="does not exist",
            evidence=(f"looked for in namespace {names.namespace}",),
            remedy="start a controller; is --namespace the namespace of kube-efs?",
            commands=(command("kubectl get deployments --all-namespaces"), controller_log(facts.cluster)),
        )
    if targets.problem:
        yield Finding(
            kind=_UNREADABLE,
            subject=subject,
            problem="cannot be read by the nodes",
            evidence=(targets.problem,),
            remedy=(
                "keep a copy and delete it: the controller creates it again, with the ports of the volumes"
            ),
            commands=(
                command(
                    "kubectl -n {} get configmap {} -o yaml {} {}.yaml",
                    *where,
                    Syntax.TO_FILE,
                    names.config_map,
                ),
                command("kubectl -n {} delete configmap {}", *where),
            ),
        )
    for rejection in targets.rejections:
        yield Finding(
            kind=_ENTRY,
            subject=subject,
            problem=f"nodes ignore its entry {rejection.entry}",
            evidence=(f"{rejection.entry}: {rejection.error}",),
            remedy="correct or remove the entry; nodes keep its previous targets",
            commands=(command("kubectl -n {} edit configmap {}", *where),),
        )


TOPIC = Topic(check=_check, kinds=(_MISSING, _UNREADABLE, _ENTRY))
