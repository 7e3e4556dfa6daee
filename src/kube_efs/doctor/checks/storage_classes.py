"""Whether classes can be served, checked with the parsers of the controller."""

from collections.abc import Iterator

from kube_efs.doctor.checks.common import VolumeKind, has_driver_tags, problem_of, provisioners
from kube_efs.doctor.facts import Facts
from kube_efs.doctor.findings import Finding, FindingSubject, Topic, broken, risk
from kube_efs.model import directory_classes, tunnel_volumes
from kube_efs.model.claims import Claim, StorageClass
from kube_efs.model.csi.claims import parse_claim
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import InvalidValue
from kube_efs.model.nfs_volumes import tunnel_mount_options

_PARAMETER = broken(
    "storage-class/parameter",
    "A StorageClass has a parameter or mount option that makes kube-efs refuse its claims.",
)
_IGNORED = risk("storage-class/oddity", "A StorageClass has a parameter that has no effect.")

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
                    f"kubectl get storageclass {one.name} -o yaml > {one.name}.yaml",
                    f"kubectl replace --force -f {one.name}.yaml",
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
                commands=(f"kubectl get storageclass {one.name} -o yaml",),
            )


def judge_class(storage_class: StorageClass, kind: VolumeKind, *, has_driver_tags: bool) -> tuple[str, ...]:
    """The warnings about a class that can be served; raises InvalidValue for one that cannot."""
    match kind:
        case VolumeKind.TUNNEL:
            tunnel_volumes.parse_class(storage_class)
            tunnel_mount_options(storage_class)
            return ()
        case VolumeKind.DIRECTORY:
            if directory_classes.parse_class(storage_class).tls:
                tunnel_mount_options(storage_class)
            return tuple(map(str, directory_classes.class_warnings(storage_class)))
        case VolumeKind.CSI:
            request = parse_claim(_PLAIN, storage_class, required_bytes=1, has_driver_tags=has_driver_tags)
            return request.warnings


TOPIC = Topic(check=_check, kinds=(_PARAMETER, _IGNORED))
