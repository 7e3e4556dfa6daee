"""What could not be checked."""

from collections.abc import Iterator
from typing import Final

from kube_efs.doctor.facts import Area, ClusterFacts, Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, unchecked
from kube_efs.doctor.shell import command

_PROBE = unchecked("doctor/not-checked", "Something could not be checked.")
_AWS = unchecked("aws/not-checked", "AWS could not be queried, so nothing in AWS was checked.")
_NO_ANSWER = broken("kubernetes/no-answer", "The Kubernetes API answers no request, or denies every one.")

_FORBIDDEN: Final = "answered 403"  # The credentials are valid, and their user has no permission.
_AWS_REMEDY: Final = "give the doctor AWS credentials that may read EFS and EC2, and --region"
_REMEDY: Final = "give the doctor the permission to read it, and run it again"


def _check(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is not None and _is_empty(facts.cluster):
        gaps = [one for one in facts.gaps if one.area is not Area.AWS]
        is_denied = bool(gaps) and all(_FORBIDDEN in one.reason for one in gaps)
        what = ", ".join(dict.fromkeys(one.what for one in gaps))
        yield Finding(
            kind=_NO_ANSWER,
            subject=FindingSubject("Kubernetes", "API"),
            problem="denies every request" if is_denied else "answers no request",
            evidence=tuple(dict.fromkeys(one.reason for one in gaps)),
            remedy=f"give your user the permissions to read {what}"
            if is_denied
            else "check the address and the credentials in the kubeconfig",
            commands=(
                command("kubectl auth whoami" if is_denied else "kubectl config view --minify"),
                command("kubectl get --raw /readyz"),
            ),
        )
        return
    for gap in facts.gaps:
        in_aws = gap.area is Area.AWS
        yield Finding(
            kind=_AWS if in_aws else _PROBE,
            subject=FindingSubject("AWS" if in_aws else "Doctor", gap.what),
            problem="could not be checked",
            evidence=(gap.reason,),
            remedy=gap.remedy or (_AWS_REMEDY if in_aws else _REMEDY),
            commands=(command("aws sts get-caller-identity") if in_aws else command("kubectl auth whoami"),),
        )


def _is_empty(cluster: ClusterFacts) -> bool:
    asked = (
        cluster.workloads,
        cluster.pods,
        cluster.nodes,
        cluster.leases,
        cluster.classes,
        cluster.claims,
        cluster.volumes,
        cluster.targets,
        cluster.statuses,
    )
    return all(one is None for one in asked)


TOPIC = Topic(check=_check, kinds=(_NO_ANSWER, _PROBE, _AWS))
