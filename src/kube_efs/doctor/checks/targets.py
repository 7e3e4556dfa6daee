"""Whether the nodes can read the tunnel targets."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import controller_log, publishes_targets
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken

_MISSING = broken("targets/missing", "The ConfigMap with the tunnel targets does not exist.")
_UNREADABLE = broken("targets/unreadable", "The ConfigMap with the tunnel targets cannot be read.")
_ENTRY = broken("targets/entry", "The nodes ignore an entry of the tunnel targets.")

_YAML = " -o yaml"


def _check(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None or facts.cluster.targets is None:
        return
    targets, names = facts.cluster.targets, facts.cluster.names
    get = f"kubectl -n {names.namespace} get configmap {names.config_map}{_YAML}"
    subject = FindingSubject("ConfigMap", f"{names.namespace}/{names.config_map}")
    if not targets.found and publishes_targets(facts.cluster):
        yield Finding(
            kind=_MISSING,
            subject=subject,
            problem="does not exist",
            evidence=(f"looked for in namespace {names.namespace}",),
            remedy="start a controller; is --namespace the namespace of kube-efs?",
            commands=("kubectl get deployments --all-namespaces", controller_log(facts.cluster)),
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
                f"{get} > {names.config_map}.yaml",
                get.replace(" get ", " delete ").removesuffix(_YAML),
            ),
        )
    for rejection in targets.rejections:
        yield Finding(
            kind=_ENTRY,
            subject=subject,
            problem=f"nodes ignore its entry {rejection.entry}",
            evidence=(f"{rejection.entry}: {rejection.error}",),
            remedy="correct or remove the entry; nodes keep its previous targets",
            commands=(f"kubectl -n {names.namespace} edit configmap {names.config_map}",),
        )


TOPIC = Topic(check=_check, kinds=(_MISSING, _UNREADABLE, _ENTRY))
