"""Whether the service accounts have the permissions of the manifests."""

from collections.abc import Iterator
from itertools import groupby

from kube_efs.doctor.checks.common import render_command
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken

_MISSING = broken("rbac/missing", "A service account lacks permissions that `kube-efs render` grants.")


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
                f"kubectl auth can-i --list --as {account.user} -n {account.namespace}",
            ),
        )


TOPIC = Topic(check=_check, kinds=(_MISSING,))
