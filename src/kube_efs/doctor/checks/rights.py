"""Whether the service accounts have the permissions of the manifests."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from kube_efs.doctor.checks.common import render_command
from kube_efs.doctor.facts import ClusterFacts, Facts, Workload
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken
from kube_efs.doctor.grants import Grant, Right
from kube_efs.doctor.shell import command

_MISSING = broken("rbac/missing", "A service account lacks permissions that `kube-efs render` grants.")


def needed_grants(cluster: ClusterFacts, rendered: Sequence[Grant]) -> tuple[Grant, ...]:
    """The rendered grants, as far as the workloads need them, for the accounts that these really have.

    The values of the chart can name other accounts. A cluster with the Deployment of efs-provisioner alone
    has none of these accounts.
    """
    if cluster.workloads is None:
        return tuple(rendered)
    names = cluster.names
    there = {one.name: one for one in cluster.workloads if one.namespace == cluster.namespace and one.ours}
    users = {
        names.controller_account: there.get(names.controller),
        names.tunnel_account: there.get(names.tunnel),
        names.node_account: there.get(names.node),
    }
    return tuple(
        replace(one, account=replace(one.account, name=user.account))
        for one in rendered
        if (user := users.get(one.account.name)) and not _is_switched_off(one.right, user)
    )


def _is_switched_off(right: Right, user: Workload) -> bool:
    """Whether the process never uses the permission, which the chart then leaves out."""
    keeps_taint = user.environment.get("KUBE_EFS_REMOVE_STARTUP_TAINT") == "false"
    return keeps_taint and (right.verb, right.resource) == ("patch", "nodes")


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None:
        return
    missing = cluster.missing_rights
    for account, grants in groupby(sorted(missing), key=lambda one: one.account):
        rights = tuple(str(one.right) for one in grants)
        yield Finding(
            kind=_MISSING,
            subject=FindingSubject("ServiceAccount", f"{account.namespace}/{account.name}"),
            problem=f"lacks {len(rights)} of its permissions",
            evidence=rights,
            remedy="compare with the rendered manifests and apply them; an operator does this automatically",
            commands=(
                render_command(cluster),
                command("kubectl auth can-i --list --as {} -n {}", account.user, account.namespace),
            ),
        )


TOPIC = Topic(check=_check, kinds=(_MISSING,))
