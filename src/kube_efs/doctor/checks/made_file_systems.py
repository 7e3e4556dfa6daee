"""Whether file systems that were created for claims are removed when they are no longer needed."""

from collections.abc import Iterator

from kube_efs.doctor.checks.mentions import file_systems_in_use
from kube_efs.doctor.facts import AwsFacts, Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, risk
from kube_efs.doctor.shell import command
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import MadeFileSystem, Stage

_UNUSED = risk(
    "file-system/unused",
    "A file system for claims has no volume and no access point, and nothing removes it.",
)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster, aws = facts.cluster, facts.aws
    if cluster is None or aws is None or cluster.volumes is None or not cluster.uid:
        return
    in_use = file_systems_in_use(cluster)
    for file_system_id, one in sorted(aws.made.items()):
        is_ours = one.owner.cluster == cluster.uid and file_system_id not in in_use
        # The controller removes those in the other stages.
        is_kept = one.stage is Stage.READY and one.state.usable
        if is_ours and is_kept and aws.access_points.get(file_system_id) == frozenset():
            yield _unused(one, aws)


def _unused(one: MadeFileSystem, aws: AwsFacts) -> Finding:
    name, region = one.file_system_id, aws.region
    system = aws.file_systems.get(name)
    is_shared = one.owner.scope is Scope.NAMESPACE
    owner = f"namespace with the UID {one.owner.name}" if is_shared else f"volume {one.owner.name}"
    again = (
        "; or create a claim of its class in its namespace: its last volume removes it" if is_shared else ""
    )
    return Finding(
        kind=_UNUSED,
        subject=FindingSubject("FileSystem", name),
        problem="has no volume and no access point, and costs money until you remove it",
        evidence=(
            f"it is named {system.name if system and system.name else '(no name)'}",
            f"created for the {owner} of this cluster",
            "its stage is ready, so the controller removes it only with a volume",
        ),
        remedy=(
            "mount it and save the data that you need, also that of snapshots; then delete its mount "
            f"targets, the file system, and its security group if it has one of its own{again}"
        ),
        commands=(
            command("aws efs describe-file-systems --region {} --file-system-id {}", region, name),
            command("aws efs describe-mount-targets --region {} --file-system-id {}", region, name),
            command(
                "aws ec2 describe-security-groups --region {} --filters Name=group-name,Values={}",
                region,
                one.security_group,
            ),
            command("aws efs delete-mount-target --region {} --mount-target-id TARGET", region),
            command("aws efs delete-file-system --region {} --file-system-id {}", region, name),
            command("aws ec2 delete-security-group --region {} --group-id GROUP", region),
        ),
    )


TOPIC = Topic(check=_check, kinds=(_UNUSED,))
