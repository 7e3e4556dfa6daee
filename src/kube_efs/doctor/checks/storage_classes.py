"""Whether classes can be served, checked with the parsers of the controller."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import VolumeKind, has_driver_tags, problem_of, provisioners
from kube_efs.doctor.facts import ClusterFacts, Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, information, risk
from kube_efs.doctor.shell import Syntax, command
from kube_efs.model import directory_classes, tunnel_volumes
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.claims import parse_claim
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import InvalidValue
from kube_efs.model.nfs_volumes import tunnel_mount_options
from kube_efs.model.shared_volumes.shared_volume import STORAGE_CLASS

_PARAMETER = broken(
    "storage-class/parameter",
    "A StorageClass has a parameter or mount option that makes kube-efs refuse its claims.",
)
_IGNORED = risk("storage-class/oddity", "A StorageClass has a parameter that has no effect.")
_STATIC = information("storage-class/static", "A StorageClass is only for volumes that exist already.")

# Any claim with nothing unusual in it.
_PLAIN = Claim(namespace="default", name="plain", uid=ClaimUid("plain"), access_modes=("ReadWriteMany",))


def _check(facts: Facts) -> Iterator[Finding]:
    cluster = facts.cluster
    if cluster is None:
        return
    served = provisioners(cluster)
    for one in cluster.classes or ():
        kind = served.get(one.provisioner)
        if kind is None:
            continue
        if _is_static(one, kind, cluster):
            yield from _static(one)
            continue
        try:
            warnings = judge_class(one, kind, has_driver_tags=has_driver_tags(cluster))
        except InvalidValue as error:
            yield Finding(
                kind=_PARAMETER,
                subject=FindingSubject("StorageClass", one.name),
                problem=problem_of(error).removeprefix(f"StorageClass {one.name} "),
                evidence=(f"provisioner {one.provisioner}",),
                remedy=f"{error.remedy}; classes cannot be changed, so correct a copy and replace this one",
                commands=(
                    command(
                        "kubectl get storageclass {} -o yaml {} {}.yaml", one.name, Syntax.TO_FILE, one.name
                    ),
                    command("kubectl replace --force -f {}.yaml", one.name),
                ),
            )
            continue
        for text in warnings:
            yield Finding(
                kind=_IGNORED,
                subject=FindingSubject("StorageClass", one.name),
                problem=text,
                evidence=(f"provisioner {one.provisioner}",),
                remedy="no action is necessary; correct it when you create the class again",
                commands=(command("kubectl get storageclass {} -o yaml", one.name),),
            )


def _is_static(storage_class: StorageClass, kind: VolumeKind, cluster: ClusterFacts) -> bool:
    """Whether the class only connects claims with existing volumes: no claim expects a new one of it.

    A class for new volumes of the driver needs parameters.
    """
    waiting = (one.claim.storage_class for one in cluster.claims or () if one.claim.wants_volume)
    return kind is VolumeKind.CSI and not storage_class.parameters and storage_class.name not in waiting


def _static(storage_class: StorageClass) -> Iterator[Finding]:
    if storage_class == StorageClass(name=STORAGE_CLASS, provisioner=storage_class.provisioner):
        return  # aws-efs-operator creates exactly this one, for SharedVolumes
    yield Finding(
        kind=_STATIC,
        subject=FindingSubject("StorageClass", storage_class.name),
        problem="has no parameters, so it creates no volumes",
        evidence=("no claim waits for a new volume of it",),
        remedy=(
            "no action is necessary if its claims are for existing volumes; otherwise create it again with "
            "provisioningMode and the other parameters"
        ),
        commands=(
            command("kubectl get storageclass {} -o yaml", storage_class.name),
            command("kubectl get pvc --all-namespaces"),
        ),
    )


def judge_class(storage_class: StorageClass, kind: VolumeKind, *, has_driver_tags: bool) -> tuple[str, ...]:
    """The warnings about a class that can be served; raises InvalidValue for one that cannot."""
    match kind:
        case VolumeKind.TUNNEL:
            tunnel_volumes.parse_class(storage_class)
            tunnel_mount_options(storage_class)
            return tuple(map(str, tunnel_volumes.class_warnings(storage_class)))
        case VolumeKind.DIRECTORY:
            if directory_classes.parse_class(storage_class).tls:
                tunnel_mount_options(storage_class)
            return tuple(map(str, directory_classes.class_warnings(storage_class)))
        case VolumeKind.CSI:
            request = parse_claim(_PLAIN, storage_class, required_bytes=1, has_driver_tags=has_driver_tags)
            return request.warnings


TOPIC = Topic(check=_check, kinds=(_PARAMETER, _IGNORED, _STATIC))
