"""Whether OpenShift allows the pods of DaemonSets the privileges that they need."""

from collections.abc import Iterator, Sequence

from kube_efs.doctor.checks.common import render_command
from kube_efs.doctor.constraints import Constraints, use_of
from kube_efs.doctor.facts import ClusterFacts, Facts, Workload
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken
from kube_efs.doctor.grants import AccountName, Grant
from kube_efs.doctor.shell import Command, command

_MISSING = broken(
    "scc/missing",
    "A service account may not use SecurityContextConstraints that allow the pods of its DaemonSet.",
)


def needy(cluster: ClusterFacts) -> Iterator[tuple[Workload, tuple[Constraints, ...]]]:
    """The DaemonSets whose constraints do not allow their pods, with all constraints that would."""
    if cluster.constraints is None:
        return
    for one in cluster.workloads or ():
        if one.ours and one.kind == "DaemonSet" and one.needs:
            enough = tuple(found for found in cluster.constraints if one.needs <= found.allows)
            if not any(found.names(account_of(one)) for found in enough):
                yield one, enough


def account_of(workload: Workload) -> AccountName:
    """The service account of its pods."""
    return AccountName(namespace=workload.namespace, name=workload.account)


def wanted_uses(cluster: ClusterFacts) -> tuple[Grant, ...]:
    """The permissions of roles to read, because constraints do not contain them."""
    return tuple(use_of(one, account_of(workload)) for workload, enough in needy(cluster) for one in enough)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None or cluster.missing_uses is None:
        return
    for workload, enough in needy(cluster):
        account = account_of(workload)
        if all(use_of(one, account) in cluster.missing_uses for one in enough):
            yield _missing(workload, account, enough, cluster)


def _missing(
    workload: Workload, account: AccountName, enough: Sequence[Constraints], cluster: ClusterFacts
) -> Finding:
    names = ", ".join(one.name for one in enough)
    return Finding(
        kind=_MISSING,
        subject=FindingSubject("ServiceAccount", f"{account.namespace}/{account.name}"),
        problem=f"may not use SecurityContextConstraints that allow the pods of DaemonSet {workload.name}",
        evidence=(
            f"they need {', '.join(sorted(workload.needs))}",
            f"{names}: neither list the account nor are granted by its roles"
            if enough
            else "no constraints of this cluster allow all of them",
        ),
        remedy="grant the account constraints that allow them, and no more",
        commands=(
            _command(account, enough, cluster),
            command("oc -n {} describe daemonset {}", workload.namespace, workload.name),
        ),
    )


def _command(account: AccountName, enough: Sequence[Constraints], cluster: ClusterFacts) -> Command:
    if not enough:
        return render_command(cluster)
    least = min(enough, key=lambda one: (len(one.allows), one.name))
    return command(
        "oc adm policy add-scc-to-user {} -z {} -n {}", least.name, account.name, account.namespace
    )


TOPIC = Topic(check=_check, kinds=(_MISSING,))
