"""Whether security groups let nodes reach mount targets on TCP port 2049."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kube_efs.aws.security_groups import Permission, SecurityGroup
from kube_efs.doctor.facts import AwsFacts, Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, unchecked
from kube_efs.doctor.reach import NodeSource, Verdict, judge_groups, ways
from kube_efs.doctor.shell import Command, command
from kube_efs.model.efs.file_systems import MountTarget
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.tunnels.mount_targets import NFS_PORT

_CLOSED = broken("security-group/closed", "No security group of a mount target allows TCP 2049 from a node.")
_NOT_JUDGED = unchecked(
    "security-group/not-judged", "It is not known whether security groups allow TCP 2049 from a node."
)

_SHOWN = 10


def _check(facts: Facts) -> Iterator[Finding]:
    aws = facts.aws
    if aws is None:
        return
    doubts: defaultdict[FileSystemId, dict[str, None]] = defaultdict(dict)
    for target, sources in ways(facts):
        judged = [(one, judge_groups(one, target, aws)) for one in sources]
        shut_out = [one for one, judgement in judged if judgement.verdict is Verdict.CLOSED]
        if shut_out:
            yield _closed(target, shut_out, len(sources), aws)
        for _, judgement in judged:
            doubts[target.file_system_id].update(dict.fromkeys(judgement.reasons))
    for file_system_id, reasons in doubts.items():
        if reasons:
            yield _not_judged(file_system_id, tuple(reasons))


def _not_judged(file_system_id: FileSystemId, reasons: Sequence[str]) -> Finding:
    return Finding(
        kind=_NOT_JUDGED,
        subject=FindingSubject("FileSystem", file_system_id),
        problem="it is not known whether the security groups of its mount targets allow every node",
        evidence=tuple(reasons[:_SHOWN]),
        remedy=(
            "give the doctor credentials of the nodes' account with the permissions that docs/doctor.md lists"
        ),
        commands=(command("aws sts get-caller-identity"),),
    )


def _closed(target: MountTarget, shut_out: Sequence[NodeSource], of: int, aws: AwsFacts) -> Finding:
    ids = aws.groups_by_target[target.mount_target_id]
    return Finding(
        kind=_CLOSED,
        subject=FindingSubject("FileSystem", target.file_system_id),
        problem=f"its mount target {target.mount_target_id} at {target.address} does not allow"
        f" {len(shut_out)} of {of} nodes",
        evidence=(
            *(f"node {one}" for one in shut_out[:_SHOWN]),
            *(f"{one} allows {_rules(aws.groups[one], aws)}" for one in ids),
        ),
        remedy=f"allow TCP {NFS_PORT} from the nodes' security group or network",
        commands=(_authorize(ids[0], shut_out[0], aws),),
    )


def _authorize(group_id: str, source: NodeSource, aws: AwsFacts) -> Command:
    """The command that lets one node in, by a group if it has one, so that all with that group get in."""
    rule = f"IpProtocol=tcp,FromPort={NFS_PORT},ToPort={NFS_PORT}"
    if source.groups:
        who = f"UserIdGroupPairs=[{{GroupId={min(source.groups)}}}]"
    else:
        address = source.addresses[0]
        ranges, key = ("Ipv6Ranges", "CidrIpv6") if address.version == 6 else ("IpRanges", "CidrIp")
        who = f"{ranges}=[{{{key}={address}/{address.max_prefixlen}}}]"
    words = "aws ec2 authorize-security-group-ingress --region {} --group-id {} --ip-permissions {}"
    return command(words, aws.region, group_id, f"{rule},{who}")


def _rules(group: SecurityGroup, aws: AwsFacts) -> str:
    found = [f"{source} at {_ports(one)}" for one in group.permissions for source in _sources(one, aws)]
    return ", ".join(found[:_SHOWN]) or "no source"


def _sources(permission: Permission, aws: AwsFacts) -> Iterator[str]:
    yield from map(str, permission.networks)
    yield from permission.groups
    for name in permission.prefix_lists:
        networks = aws.prefix_lists.get(name, ())
        yield f"{name} ({', '.join(map(str, networks[:_SHOWN])) or 'empty'})"


def _ports(permission: Permission) -> str:
    first, last = permission.first_port, permission.last_port
    return str(first) if first == last else f"{first}-{last}"


TOPIC = Topic(check=_check, kinds=(_CLOSED, _NOT_JUDGED))
