"""Whether the trash of each file system is emptied."""

from collections.abc import Iterator

from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, risk
from kube_efs.doctor.shell import command
from kube_efs.model.trash import TRASH_NOT_EMPTIED

_STUCK = risk("trash/not-emptied", "Removed directories stay in the trash of their file system.")


def _check(facts: Facts) -> Iterator[Finding]:
    for one in facts.cluster.stuck_trash if facts.cluster else ():
        yield Finding(
            kind=_STUCK,
            subject=FindingSubject("FileSystem", one.file_system_id),
            problem="its trash has entries that cannot be removed",
            evidence=(f"{TRASH_NOT_EMPTIED}: {one.message}",),
            remedy=(
                "check what protects the named path; after the protection is removed, kube-efs removes "
                "the path"
            ),
            commands=(
                command(
                    "kubectl -n {} get events --field-selector reason={}", one.namespace, TRASH_NOT_EMPTIED
                ),
                command("kubectl -n {} describe {} {}", one.namespace, one.kind.lower(), one.name),
            ),
        )


TOPIC = Topic(check=_check, kinds=(_STUCK,))
