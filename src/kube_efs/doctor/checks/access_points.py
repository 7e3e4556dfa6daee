"""Whether the access points of volumes exist."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from kube_efs.doctor.checks.common import is_of_s3_files
from kube_efs.doctor.facts import AwsFacts, Facts, VolumeFacts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken
from kube_efs.doctor.shell import command
from kube_efs.model.csi.volume_handles import VolumeHandle
from kube_efs.model.volumes import VolumePhase

_MISSING = broken("access-point/missing", "The access point of a volume does not exist on its file system.")

# A list of AWS may omit a new access point for some time.
_NEW: Final = timedelta(minutes=5)


def _check(facts: Facts) -> Iterator[Finding]:
    cluster, aws = facts.cluster, facts.aws
    if cluster is None or aws is None:
        return
    for one in cluster.volumes or ():
        handle, is_old = one.volume.handle, one.created is not None and facts.now - one.created > _NEW
        # Nobody mounts a released volume, and the access point of a removed one goes first.
        is_used = not one.volume.deleting and one.volume.phase not in {
            VolumePhase.RELEASED,
            VolumePhase.FAILED,
        }
        if handle is None or is_of_s3_files(one.volume) or not (is_old and is_used):
            continue
        listed = aws.access_points.get(handle.file_system_id)
        is_ready = handle.file_system_id not in aws.in_transition
        if listed is not None and is_ready and handle.access_point_id not in {None, *listed}:
            yield _missing(one, handle, aws)


def _missing(one: VolumeFacts, handle: VolumeHandle, aws: AwsFacts) -> Finding:
    elsewhere = next((fs for fs, ids in aws.access_points.items() if handle.access_point_id in ids), None)
    remedy = (
        f"create the volume and its claim again, with a handle on {elsewhere}"
        if elsewhere
        else "its data is still on the file system: create an access point for the same directory and user, "
        "and create the volume and its claim again with the new ID"
    )
    return Finding(
        kind=_MISSING,
        subject=FindingSubject("PersistentVolume", one.volume.name),
        problem=f"its access point {handle.access_point_id} does not exist on {handle.file_system_id}",
        evidence=(f"it is on {elsewhere}" if elsewhere else f"handle {handle}",),
        remedy=remedy,
        commands=(
            command(
                "aws efs describe-access-points --region {} --file-system-id {}",
                aws.region,
                elsewhere or handle.file_system_id,
            ),
            command("kubectl get pv {} -o yaml", one.volume.name),
        ),
    )


TOPIC = Topic(check=_check, kinds=(_MISSING,))
