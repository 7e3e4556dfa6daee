"""Whether volumes refer to existing file systems, and are removed when they are no longer needed."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import controller_log, is_our_volume, lasts, problem_of, targets_of
from kube_efs.doctor.facts import ClusterFacts, Facts, VolumeFacts
from kube_efs.doctor.findings import Finding, FindingKind, FindingSubject, Topic, broken
from kube_efs.doctor.shell import Command, command
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import InvalidValue
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID
from kube_efs.model.volumes import DRIVER, VolumePhase

_RELEASED = broken("volume/released", "The claim of a volume was deleted, but the volume is not removed.")
_TERMINATING = broken("volume/terminating", "A deleted volume still exists.")
_FAILED = broken("volume/failed", "A volume is in phase Failed.")
_PORT = broken("volume/port", "A volume has a loopback port that does not belong to its file system.")

_HANDLE = broken("volume/handle", "A volume of the CSI driver has a malformed handle.")


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None:
        return
    targets = targets_of(cluster)
    for one in cluster.volumes or ():
        if not is_our_volume(one.volume, targets) and not _is_behind_tunnel(one):
            continue
        yield from _stuck(one, facts, cluster)
        yield from _malformed(one)
        if cluster.targets is not None and cluster.targets.found and not cluster.targets.problem:
            yield from _misled(one, targets, cluster)


def _is_behind_tunnel(one: VolumeFacts) -> bool:
    """Whether it goes through some port, even an unknown one."""
    return one.volume.port in one.volume.loopback_ports


def _stuck(one: VolumeFacts, facts: Facts, cluster: ClusterFacts) -> Iterator[Finding]:
    volume, log = one.volume, controller_log(cluster)
    events = [
        f"{event.reason}: {event.message}" for event in cluster.warnings_of("PersistentVolume", volume.uid)
    ]
    holding = [f"finalizers {', '.join(volume.finalizers)}"] if volume.finalizers else []
    if volume.deleting:
        if volume.phase is not VolumePhase.BOUND and lasts(one.deleting_since, facts.now):
            remedy = (
                "check that a controller is the leader and reaches the file system; it removes the finalizer"
            )
            problem = "was deleted but still exists"
            yield _finding(_TERMINATING, one, problem, [*events, *holding], remedy, log)
    elif volume.phase is VolumePhase.FAILED:
        remedy = (
            "check that a controller is the leader; after you have saved or removed its data, delete the "
            "volume manually"
        )
        yield _finding(_FAILED, one, one.message or "is Failed", [*events, *holding], remedy, log)
    elif volume.to_be_reclaimed and (events or lasts(one.changed, facts.now)):
        remedy = "follow its events; a guard that refuses keeps the data until an administrator decides"
        problem = "is Released with policy Delete and stays"
        yield _finding(_RELEASED, one, problem, [*events, *holding], remedy, log)


def _malformed(one: VolumeFacts) -> Iterator[Finding]:
    csi = one.volume.csi
    if csi is None or csi.driver != DRIVER or one.volume.phase is VolumePhase.RELEASED:
        return
    try:
        parse_volume_handle(csi.handle)
    except InvalidValue as error:
        last = command("kubectl get pv {} -o yaml", one.volume.name)
        remedy = f"{error.remedy}; a handle cannot be changed, so create the volume and its claim again"
        yield _finding(_HANDLE, one, problem_of(error), ["its pods cannot start"], remedy, last)


def _misled(one: VolumeFacts, targets: TunnelTargets, cluster: ClusterFacts) -> Iterator[Finding]:
    volume = one.volume
    if not _is_behind_tunnel(one) or volume.port is None or volume.phase is VolumePhase.RELEASED:
        return
    there = targets.file_system_at(volume.port)
    if there is None or (volume.file_system_id and there != volume.file_system_id):
        behind = f"belongs to {there}" if there else "belongs to no file system"
        expected = volume.file_system_id or "an unknown file system"
        remedy = "check why the ConfigMap does not have that port; do not change the volume"
        if not volume.file_system_id:
            annotate = command("kubectl annotate pv {} {}=ID", volume.name, FILE_SYSTEM_ID)
            remedy = f"annotate it with the ID of its file system: {annotate}"
        yield _finding(
            _PORT,
            one,
            f"its port {volume.port} {behind}, but its data is in {expected}",
            [f"mount options {', '.join(volume.mount_options)}"],
            remedy,
            command("kubectl -n {} get configmap {} -o yaml", cluster.namespace, cluster.names.config_map),
        )


def _finding(
    kind: FindingKind, one: VolumeFacts, problem: str, evidence: list[str], remedy: str, last: Command
) -> Finding:
    return Finding(
        kind=kind,
        subject=FindingSubject("PersistentVolume", one.volume.name),
        problem=problem,
        evidence=tuple(evidence) or (f"is {one.volume.phase}",),
        remedy=remedy,
        commands=(command("kubectl describe pv {}", one.volume.name), last),
    )


TOPIC = Topic(check=_check, kinds=(_RELEASED, _TERMINATING, _FAILED, _PORT, _HANDLE))
