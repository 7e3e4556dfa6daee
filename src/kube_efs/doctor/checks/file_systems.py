"""Whether the file systems in use exist, and can be reached from the zones of the nodes."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from kube_efs.doctor.checks.common import controller_log, targets_of
from kube_efs.doctor.checks.mentions import Mention, named_file_systems, used_with_identity
from kube_efs.doctor.facts import AwsFacts, ClusterFacts, Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk, unchecked
from kube_efs.doctor.policies import refused_without_identity
from kube_efs.doctor.shell import Command, command
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import InvalidValue

_MISSING = broken("file-system/missing", "A class or volume names a file system that AWS does not have.")
_NOT_CHECKED = unchecked(
    "file-system/not-checked",
    "A file system that may belong to another AWS account is not visible to these credentials.",
)
_STATE = broken("file-system/state", "A file system is in a state in which it cannot be used.")
_NO_TARGET = broken("mount-target/none", "A file system has no usable mount target.")
_TARGET_STATE = risk("mount-target/state", "A mount target is in a state in which it cannot be used.")
_ZONE = risk("mount-target/zone", "A zone with nodes has no mount target of a file system.")
_POLICY = risk(
    "file-system/policy", "The policy of a file system denies some access to clients without an IAM identity."
)
_STALE = risk("targets/stale", "The mount targets in the ConfigMap of the nodes differ from those in AWS.")

_SHOWN = 10
# The commands about one file system, by what they show.
_OF_S3_FILES: Mapping[str, str] = MappingProxyType(
    {"file-systems": "get-file-system", "mount-targets": "list-mount-targets"}
)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster, aws = facts.cluster, facts.aws
    if cluster is None:
        return
    named = named_file_systems(cluster)
    if aws is None:
        yield from _without_addresses(cluster)
        return
    for file_system_id, by in sorted(named.items()):
        kind = by[0].kind
        if file_system_id in aws.in_transition or kind not in aws.listed:
            continue
        system = aws.file_systems.get(file_system_id)
        if system is None or system.kind is not kind:
            is_certain = not all(one.elsewhere for one in by)
            yield (_missing if is_certain else _not_checked)(file_system_id, by, aws)
        elif not system.state.usable:
            yield Finding(
                kind=_STATE,
                subject=FindingSubject("FileSystem", file_system_id),
                problem=f"is {system.state}",
                evidence=tuple(map(str, by[:_SHOWN])),
                remedy=(
                    "correct what the status message in the answer of the command names"
                    if system.state is LifeCycleState.MISCONFIGURED
                    else "wait until it is available; after an error, check it in the AWS console"
                ),
                commands=(_describe(aws, "file-systems", file_system_id, kind),),
            )
        elif file_system_id in aws.looked_into:
            yield from _mount_targets(system, cluster, aws)
    for file_system_id in sorted(aws.policies.keys() - used_with_identity(cluster)):
        yield from _policy(file_system_id, aws.policies[file_system_id], aws)


def _describe(
    aws: AwsFacts, what: str, file_system_id: FileSystemId, kind: FileSystemKind = FileSystemKind.EFS
) -> Command:
    call = f"describe-{what}" if kind is FileSystemKind.EFS else _OF_S3_FILES[what]
    return command("aws {} {} --region {} --file-system-id {}", kind, call, aws.region, file_system_id)


def _make_target(aws: AwsFacts, system: FileSystem) -> Command:
    """The command with words in capitals for values that are not known here."""
    words = (
        "aws {} create-mount-target --region {} --file-system-id {} --subnet-id SUBNET --security-groups"
        " GROUP"
    )
    return command(words, system.kind, aws.region, system.file_system_id)


def _missing(file_system_id: FileSystemId, by: Sequence[Mention], aws: AwsFacts) -> Finding:
    kind = by[0].kind
    same = sorted(fs for fs, one in aws.file_systems.items() if one.kind is kind)
    known = ", ".join(same[:_SHOWN]) or "none"
    is_efs = kind is FileSystemKind.EFS
    listing = "describe-file-systems" if is_efs else "list-file-systems"
    return Finding(
        kind=_MISSING,
        subject=FindingSubject("FileSystem", file_system_id),
        problem=f"does not exist in region {aws.region} for these credentials",
        evidence=(*map(str, by[:_SHOWN]), f"known file systems: {known}"),
        remedy="check region and account; the data of a deleted file system is only in its "
        + ("backups" if is_efs else "bucket"),
        commands=(
            command("aws sts get-caller-identity"),
            command("aws {} {} --region {}", kind, listing, aws.region),
        ),
    )


def _not_checked(file_system_id: FileSystemId, by: Sequence[Mention], aws: AwsFacts) -> Finding:
    return Finding(
        kind=_NOT_CHECKED,
        subject=FindingSubject("FileSystem", file_system_id),
        problem="may belong to another AWS account, so it was not checked",
        evidence=(
            *map(str, by[:_SHOWN]),
            "the doctor uses your credentials, and does not read Secrets with roles",
        ),
        remedy=(
            "no action is necessary while its claims and pods work; otherwise run the commands with "
            "credentials of its account"
        ),
        commands=(
            command("aws sts get-caller-identity"),
            _describe(aws, "file-systems", file_system_id, by[0].kind),
            _describe(aws, "mount-targets", file_system_id, by[0].kind),
        ),
    )


def _mount_targets(system: FileSystem, cluster: ClusterFacts, aws: AwsFacts) -> Iterator[Finding]:
    subject = FindingSubject("FileSystem", system.file_system_id)
    look = _describe(aws, "mount-targets", system.file_system_id, system.kind)
    usable = system.usable_mount_targets
    for one in system.mount_targets:
        if not one.state.usable:
            yield Finding(
                kind=_TARGET_STATE,
                subject=subject,
                problem=f"its mount target {one.mount_target_id} at {one.address} is {one.state}",
                evidence=(f"in {one.subnet_id}, zone {one.zone or 'unknown'}",),
                remedy="wait; if its state does not change, create it again in the same subnet",
                commands=(look,),
            )
    if not usable:
        yield Finding(
            kind=_NO_TARGET,
            subject=subject,
            problem="has no usable mount target",
            evidence=(f"{len(system.mount_targets)} mount targets in other states",),
            remedy="create a mount target in each zone that has nodes",
            commands=(look, _make_target(aws, system)),
        )
        return
    yield from _zones(system, cluster, aws)
    told, there = _published(system, cluster), {one.address for one in usable}
    if told is not None and told != there:
        yield Finding(
            kind=_STALE,
            subject=subject,
            problem="the ConfigMap of the nodes has other mount targets than AWS",
            evidence=(f"in the ConfigMap: {', '.join(sorted(told))}", f"in AWS: {', '.join(sorted(there))}"),
            remedy="the next discovery corrects it; otherwise check the controller's log",
            commands=(look, controller_log(cluster)),
        )


def _published(system: FileSystem, cluster: ClusterFacts) -> set[str] | None:
    """The addresses of the file system in the ConfigMap; None if it does not contain the file system."""
    targets = targets_of(cluster)
    if system.kind is FileSystemKind.S3_FILES:
        addresses = targets.s3_files.addresses.get(system.file_system_id)
        return None if addresses is None else set(addresses.values())
    target = targets.targets.get(system.file_system_id)
    return None if target is None else set(target.address_by_subnet.values())


def _policy(file_system_id: FileSystemId, text: str, aws: AwsFacts) -> Iterator[Finding]:
    try:
        refusals = refused_without_identity(text)
    except InvalidValue:
        return  # EFS has accepted it, so it is the doctor who does not understand
    if refusals:
        refused = ", ".join(one.access for one in refusals)
        yield Finding(
            kind=_POLICY,
            subject=FindingSubject("FileSystem", file_system_id),
            problem=f"its policy denies {refused} to clients without an identity",
            evidence=tuple(
                f"{one.access}: denied by {one.by}"
                if one.by
                else (f"{one.access}: not allowed by any statement")
                for one in refusals
            ),
            remedy=(
                "allow it for the principal *, or mount CSI volumes with the option iam; tunnel and directory"
                " volumes need ClientMount, ClientWrite and ClientRootAccess; volumes with access points "
                "do not need"
                " ClientRootAccess"
            ),
            commands=(_describe(aws, "file-system-policy", file_system_id),),
        )


def _zones(system: FileSystem, cluster: ClusterFacts, aws: AwsFacts) -> Iterator[Finding]:
    if any(one.zone is None for one in system.usable_mount_targets):
        return  # It may be in the zone of any node.
    nodes = {one.zone for one in cluster.nodes or () if one.zone}
    without = sorted(nodes - {one.zone for one in system.usable_mount_targets})
    if without and system.zone is None:
        yield Finding(
            kind=_ZONE,
            subject=FindingSubject("FileSystem", system.file_system_id),
            problem=f"has no mount target in {', '.join(without)}, which has nodes",
            evidence=tuple(f"{one.zone}: {one.address}" for one in system.usable_mount_targets),
            remedy="create one there: traffic between zones costs money, and a zone may fail",
            commands=(_make_target(aws, system),),
        )


def _without_addresses(cluster: ClusterFacts) -> Iterator[Finding]:
    """The findings without access to AWS."""
    for file_system_id, target in sorted(targets_of(cluster).targets.items()):
        if not target.address_by_subnet:
            yield Finding(
                kind=_NO_TARGET,
                subject=FindingSubject("FileSystem", file_system_id),
                problem="has no usable mount target that the controller knows",
                evidence=(f"ConfigMap {cluster.namespace}/{cluster.names.config_map} has no address of it",),
                remedy="create a mount target in each zone that has nodes",
                commands=(
                    command("aws efs describe-mount-targets --file-system-id {}", file_system_id),
                    controller_log(cluster),
                ),
            )


TOPIC = Topic(
    check=_check, kinds=(_MISSING, _NOT_CHECKED, _STATE, _NO_TARGET, _TARGET_STATE, _ZONE, _POLICY, _STALE)
)
