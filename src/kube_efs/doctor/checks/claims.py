"""Whether claims get their volumes, and disappear after their deletion."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Final

from kube_efs.doctor.checks.common import (
    VolumeKind,
    controller_log,
    controllers,
    former_provisioners,
    has_driver_tags,
    lasts,
    problem_of,
    provisioners,
    publishes_targets,
    remedy_in,
    targets_of,
)
from kube_efs.doctor.checks.mentions import created_file_system
from kube_efs.doctor.facts import ClaimFacts, ClusterFacts, Facts, ProgressEvent
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, information, risk
from kube_efs.doctor.shell import Command, command
from kube_efs.doctor.times import shown
from kube_efs.model import directory_volumes
from kube_efs.model.claims import Claim, ClaimPhase, StorageClass
from kube_efs.model.csi.claims import parse_claim
from kube_efs.model.directory_volumes import DirectoryProvisioner
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.file_systems import Discovery, FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import FileSystemId, MountTargetId
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import TunnelTarget
from kube_efs.model.errors import KubeEfsError
from kube_efs.model.left_alone import check_claim
from kube_efs.model.tunnel_volumes import ROOT_CLASS, ClusterView, parse_request

# As long as an attempt of the controller.
_LONGEST_STEP: Final = timedelta(minutes=10)

# The reasons of events whose text is that of an error of the controller.
_FAILURES: Final = frozenset({"ProvisioningFailed", "NotServed"})
_INTERNAL: Final = "internal error ("  # its remedy is the log
_PROTECTION: Final = "kubernetes.io/pvc-protection"

_PENDING = broken("claim/pending", "A claim has no volume yet.")
_CREATING = information("claim/creating", "A file system is being created for a claim.")
_LOST = broken("claim/lost", "The volume of a claim does not exist any more.")
_TERMINATING = risk("claim/terminating", "A deleted claim still exists.")
_MISSING = broken("claim/missing", "The given claim does not exist.")
_NO_CLASS = broken("claim/no-class", "The given claim does not name an existing StorageClass.")
_FOREIGN = risk("claim/foreign", "The given claim is not served by kube-efs.")


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None or cluster.claims is None:
        return
    classes = {one.name: one for one in cluster.classes or ()}
    served = {**dict.fromkeys(former_provisioners(cluster), VolumeKind.TUNNEL), **provisioners(cluster)}
    if facts.claim:
        yield from _asked(facts.claim, cluster.claims, classes, served.keys())
    for one in cluster.claims:
        storage_class = classes.get(one.claim.storage_class or "")
        kind = served.get(storage_class.provisioner) if storage_class else None
        if storage_class is not None and kind is not None and one.claim.storage_class != ROOT_CLASS:
            yield from _ours(one, storage_class, kind, facts, cluster)


def _asked(
    key: str, there: Collection[ClaimFacts], classes: dict[str, StorageClass], served: Collection[str]
) -> Iterator[Finding]:
    found = next((one for one in there if one.claim.key == key), None)
    subject = FindingSubject("PersistentVolumeClaim", key)
    if found is None:
        elsewhere = [one.claim.key for one in there if one.claim.name == key.rpartition("/")[2]]
        yield Finding(
            kind=_MISSING,
            subject=subject,
            problem="does not exist",
            evidence=(f"claims of that name: {', '.join(elsewhere) or 'none'}",),
            remedy="check its name and namespace",
            commands=(command("kubectl get pvc --all-namespaces"),),
        )
        return
    name = found.claim.storage_class
    if found.claim.wants_volume and name not in classes:
        problem = (
            f"names the StorageClass {name!r}, which does not exist" if name else "names no StorageClass"
        )
        yield Finding(
            kind=_NO_CLASS,
            subject=subject,
            problem=problem,
            evidence=(f"classes: {', '.join(sorted(classes)) or 'none'}",),
            remedy="create the class, or create the claim again with an existing class",
            commands=(command("kubectl get storageclass"), _describe(found)),
        )
    elif name in classes and classes[name].provisioner not in served:
        yield Finding(
            kind=_FOREIGN,
            subject=subject,
            problem=f"is served by {classes[name].provisioner}, which is not a provisioner of kube-efs",
            evidence=(f"kube-efs serves {', '.join(sorted(served))}",),
            remedy="ask the administrator of that provisioner, or use a class of kube-efs",
            commands=(_describe(found),),
        )


def _describe(one: ClaimFacts) -> Command:
    return command("kubectl -n {} describe pvc {}", one.claim.namespace, one.claim.name)


def _ours(
    one: ClaimFacts, storage_class: StorageClass, kind: VolumeKind, facts: Facts, cluster: ClusterFacts
) -> Iterator[Finding]:
    claim, subject = one.claim, FindingSubject("PersistentVolumeClaim", one.claim.key)
    if claim.phase is ClaimPhase.LOST:
        yield Finding(
            kind=_LOST,
            subject=subject,
            problem=f"its volume {claim.volume_name} does not exist any more",
            evidence=(f"StorageClass {storage_class.name}",),
            remedy="create the volume again, with the same name and location, or delete the claim",
            commands=(_describe(one), command("kubectl get pv {} -o yaml", claim.volume_name)),
        )
    elif claim.deleting and lasts(one.deleting_since, facts.now):
        users = [
            pod.key
            for pod in cluster.pods or ()
            if pod.namespace == claim.namespace and claim.name in pod.claims
        ]
        foreign = ", ".join(name for name in one.finalizers if name != _PROTECTION)
        remedies = ["end the pods that use it"] if users or not foreign else []
        if foreign:
            remedies += [
                f"the program that set the finalizer {foreign} must remove it",
                "remove it yourself only if that program does not exist any more",
            ]
        else:
            remedies.append("it is removed when the last one has ended")
        yield Finding(
            kind=_TERMINATING,
            subject=subject,
            problem="was deleted but still exists",
            evidence=(f"finalizers {', '.join(one.finalizers)}", *(f"used by pod {pod}" for pod in users)),
            remedy="; ".join(remedies),
            commands=(_describe(one),),
        )
    elif claim.phase is ClaimPhase.PENDING and not claim.deleting:
        yield from _pending(one, storage_class, kind, facts, cluster)


def _pending(
    one: ClaimFacts, storage_class: StorageClass, kind: VolumeKind, facts: Facts, cluster: ClusterFacts
) -> Iterator[Finding]:
    claim = one.claim
    verdict = _verdict(one, storage_class, kind, facts, cluster)
    warnings = cluster.warnings_of("PersistentVolumeClaim", claim.uid)
    events = [f"{event.reason}: {event.message}" for event in warnings]
    failures = [event.message for event in warnings if event.reason in _FAILURES]
    reserved = [
        f"volume {volume.volume.name} is {volume.volume.phase} and reserved for it: compare their labels"
        for volume in cluster.volumes or ()
        if volume.volume.claim and volume.volume.claim.uid == claim.uid
    ]
    gets_file_system = kind is VolumeKind.CSI and created_file_system(storage_class) is not None
    step = cluster.progress_of(claim.uid)
    if gets_file_system and step is not None and not (verdict or events or _is_over(step, facts.now)):
        yield _creating(one, step)
        return
    waits_for_pod = storage_class.waits_for_consumer and claim.selected_node is None
    if not verdict and not events and (waits_for_pod or not lasts(one.created, facts.now)):
        return
    source = claim.data_source
    named = [_named_volume(claim, cluster)] if claim.volume_name else []
    copied = [f"its data is a copy of {source.kind} {source.name}"] if source else []
    told = next(filter(None, (remedy_in(one) for one in failures if _INTERNAL not in one)), "")
    if verdict and verdict.remedy:
        remedy = verdict.remedy
    elif told:
        remedy = told
    elif claim.wants_volume and not (claim.storage_provisioner or events or reserved):
        remedy = "Kubernetes has not assigned it to a provisioner yet; is kube-controller-manager running?"
    else:
        remedy = "check its events and the controller's log"
        if source and not events:
            remedy = "wait until its data is copied; the events Copying of the claim report the progress"
        if gets_file_system:
            remedy = f"its file system takes a minute or two if nothing is wrong; {remedy}"
    age = f"since {shown(one.created)}" if one.created else "for an unknown time"
    yield Finding(
        kind=_PENDING,
        subject=FindingSubject("PersistentVolumeClaim", claim.key),
        problem=problem_of(verdict) if verdict else "has no volume yet",
        evidence=(
            *filter(None, [claim.rejection]),
            *events,
            *reserved,
            *named,
            *copied,
            *([str(step)] if step else []),
            f"Pending {age}, of StorageClass {storage_class.name}",
        ),
        remedy=remedy,
        commands=(_describe(one), controller_log(cluster)),
    )


def _is_over(step: ProgressEvent, now: datetime) -> bool:
    """Whether no step has followed for so long that the creation probably failed."""
    return step.time is None or now - step.time > _LONGEST_STEP


def _creating(one: ClaimFacts, step: ProgressEvent) -> Finding:
    since = f"Pending since {shown(one.created)}" if one.created else "Pending"
    return Finding(
        kind=_CREATING,
        subject=FindingSubject("PersistentVolumeClaim", one.claim.key),
        problem="waits for its file system, which is being created",
        evidence=(str(step), f"{since}, of StorageClass {one.claim.storage_class}"),
        remedy="wait a minute or two; the events of the claim report each step",
        commands=(
            _describe(one),
            command("kubectl -n {} events --for pvc/{}", one.claim.namespace, one.claim.name),
        ),
    )


def _named_volume(claim: Claim, cluster: ClusterFacts) -> str:
    phases = {one.volume.name: f"is {one.volume.phase}" for one in cluster.volumes or ()}
    unknown = "does not exist" if cluster.volumes is not None else "is not known"
    return f"it names volume {claim.volume_name}, which {phases.get(claim.volume_name, unknown)}"


def _verdict(
    one: ClaimFacts, storage_class: StorageClass, kind: VolumeKind, facts: Facts, cluster: ClusterFacts
) -> KubeEfsError | None:
    """The reason that the controller would give now; it leaves claims alone that name their volume."""
    claim, tagged = one.claim, has_driver_tags(cluster)
    if not claim.wants_volume:
        return None
    former = former_provisioners(cluster)
    try:
        check_claim(claim, storage_class, provisioners(cluster).keys() - former, former)
        match kind:
            case VolumeKind.TUNNEL:
                parse_request(claim, storage_class, _view(facts, cluster))
            case VolumeKind.DIRECTORY:
                provisioner = _directory_provisioner(storage_class.provisioner, cluster)
                targets = targets_of(cluster) if publishes_targets(cluster) else None
                directory_volumes.parse_request(claim, storage_class, provisioner, targets)
            case VolumeKind.CSI:
                parse_claim(claim, storage_class, required_bytes=1, has_driver_tags=tagged)
    except KubeEfsError as error:
        return error
    return None


def _directory_provisioner(name: str, cluster: ClusterFacts) -> DirectoryProvisioner:
    """As its controller has it; where that is not known, on the file system of the first tunnel."""
    variables = [one.environment for one in controllers(cluster)]
    told = (one.get("FILE_SYSTEM_ID", "") for one in variables if one.get("PROVISIONER_NAME") == name)
    tunnelled = sorted(targets_of(cluster).targets)
    file_system_id = next(told, "") or next(iter(tunnelled), "")
    return DirectoryProvisioner(
        name=name, file_system_id=FileSystemId(file_system_id), server="", base=Directory()
    )


def _view(facts: Facts, cluster: ClusterFacts) -> ClusterView:
    """The file systems as AWS describes them, otherwise those of the tunnel targets."""
    targets = targets_of(cluster)
    known = {fs: _as_published(one) for fs, one in targets.targets.items()}
    if facts.aws is not None:
        known = {
            fs: one if fs in facts.aws.looked_into else known.get(fs, one)
            for fs, one in facts.aws.file_systems.items()
            if one.kind is FileSystemKind.EFS  # No tunnel volume is on S3 Files.
        }
    return ClusterView(discovery=Discovery(file_systems=known, complete=True), targets=targets)


def _as_published(target: TunnelTarget) -> FileSystem:
    """The file system with the mount targets of the tunnel targets; they have no IDs there."""
    return FileSystem(
        file_system_id=target.file_system_id,
        mount_targets=tuple(
            MountTarget(
                mount_target_id=MountTargetId(address),
                file_system_id=target.file_system_id,
                subnet_id=subnet,
                zone=None,
                address=address,
                state=LifeCycleState.AVAILABLE,
            )
            for subnet, address in target.address_by_subnet.items()
        ),
    )


TOPIC = Topic(check=_check, kinds=(_PENDING, _CREATING, _LOST, _TERMINATING, _MISSING, _NO_CLASS, _FOREIGN))
