"""Whether network ACLs let nodes' packets through to mount targets, and the answers back."""

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from kube_efs.doctor.facts import AwsFacts, Facts
from kube_efs.doctor.findings import Finding, FindingKind, FindingSubject, Topic, broken, unchecked
from kube_efs.doctor.reach import EPHEMERAL, Judgement, NodeSource, Verdict, judge_acls, ways
from kube_efs.doctor.shell import command
from kube_efs.model.efs.file_systems import MountTarget
from kube_efs.tunnels.mount_targets import NFS_PORT

_CLOSED = broken("network-acl/closed", "Network ACLs block the traffic between a node and a mount target.")
_NOT_JUDGED = unchecked(
    "network-acl/not-judged",
    "It is not known whether network ACLs block the traffic between a node and a mount target.",
)

_SHOWN = 10
_FIRST, _LAST = EPHEMERAL
_KINDS = MappingProxyType({Verdict.CLOSED: _CLOSED, Verdict.UNKNOWN: _NOT_JUDGED})
_STATES = MappingProxyType({_CLOSED: "are kept apart", _NOT_JUDGED: "may be kept apart"})
_REMEDIES = MappingProxyType(
    {
        _CLOSED: f"allow, by rules with lower numbers, TCP {NFS_PORT} from the nodes' subnets to the mount"
        f" target's, and TCP {_FIRST}-{_LAST} back",
        _NOT_JUDGED: (
            "give the doctor credentials of the nodes' account with the permissions that docs/doctor.md lists"
        ),
    }
)


def _check(facts: Facts) -> Iterator[Finding]:
    aws = facts.aws
    if aws is None:
        return
    for target, sources in ways(facts):
        judged = [(source, judge_acls(source, target, aws)) for source in sources]
        for verdict, kind in _KINDS.items():
            concerned = [(source, one) for source, one in judged if one.verdict is verdict]
            if concerned:
                yield _finding(kind, target, concerned, len(sources), aws)


def _finding(
    kind: FindingKind,
    target: MountTarget,
    concerned: Sequence[tuple[NodeSource, Judgement]],
    of: int,
    aws: AwsFacts,
) -> Finding:
    reasons = dict.fromkeys(reason for _, judgement in concerned for reason in judgement.reasons)
    words = "aws ec2 describe-network-acls --region {} --filters Name=association.subnet-id,Values={}"
    return Finding(
        kind=kind,
        subject=FindingSubject("FileSystem", target.file_system_id),
        problem=f"its mount target {target.mount_target_id} at {target.address} and"
        f" {len(concerned)} of {of} nodes {_STATES[kind]} by network ACLs",
        evidence=(*(f"node {source}" for source, _ in concerned[:_SHOWN]), *tuple(reasons)[:_SHOWN]),
        remedy=_REMEDIES[kind],
        commands=(command(words, aws.region, target.subnet_id),),
    )


TOPIC = Topic(check=_check, kinds=(_CLOSED, _NOT_JUDGED))
