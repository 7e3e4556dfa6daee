"""Selects the findings that concern one claim."""

from collections.abc import Iterator
from typing import Final

from kube_efs.doctor.checks.common import file_system_of, provisioners, targets_of
from kube_efs.doctor.checks.mentions import created_file_system, file_systems_of, s3_file_systems_of
from kube_efs.doctor.facts import ClusterFacts
from kube_efs.doctor.findings import Finding, FindingSubject
from kube_efs.model.claims import Claim
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.tunnel_volumes import named_file_system
from kube_efs.model.volumes import DRIVER

# Of these, only the claim's own matter; everything else matters to every claim.
_PARTICULAR: Final = frozenset(
    {
        "PersistentVolumeClaim",
        "StorageClass",
        "PersistentVolume",
        "Pod",
        "Node",
        "FileSystem",
        "SharedVolume",
    }
)


def concerns(finding: Finding, claim_key: str, cluster: ClusterFacts) -> bool:
    """Whether the finding concerns the claim ``namespace/name``."""
    related = frozenset(_related(claim_key, cluster))
    is_placed = any(one.kind in {"FileSystem", "PersistentVolume"} for one in related)
    may_be_anywhere = not is_placed and _gets_any(claim_key, cluster)

    def concerns_it(subject: FindingSubject) -> bool:
        if subject.kind == "FileSystem" and may_be_anywhere:
            return True
        return subject.kind not in _PARTICULAR or subject in related

    of_file_system = FindingSubject("FileSystem", finding.file_system)
    return concerns_it(finding.subject) and (not finding.file_system or concerns_it(of_file_system))


def _gets_any(claim_key: str, cluster: ClusterFacts) -> bool:
    """Whether the claim waits for a volume on a file system that is not known yet, and may be any."""
    wanted = {
        one.claim.storage_class
        for one in cluster.claims or ()
        if one.claim.key == claim_key and one.claim.wants_volume
    }
    kinds = provisioners(cluster)
    served = [one for one in cluster.classes or () if one.name in wanted and one.provisioner in kinds]
    templates = [created_file_system(one) for one in served if one.provisioner == DRIVER]
    # No other one concerns a claim for which a file system is created.
    return bool(served) and not any(one is not None and one.scope is Scope.CLAIM for one in templates)


def _related(claim_key: str, cluster: ClusterFacts) -> Iterator[FindingSubject]:
    yield FindingSubject("PersistentVolumeClaim", claim_key)
    claim = next((one.claim for one in cluster.claims or () if one.claim.key == claim_key), None)
    if claim is None:
        return
    yield FindingSubject("StorageClass", claim.storage_class or "")
    yield from _places(claim, cluster)
    for one in cluster.shared_volumes:
        if (one.shared.owner.namespace, one.shared.status.claim_name) == (claim.namespace, claim.name):
            yield FindingSubject("SharedVolume", f"{claim.namespace}/{one.shared.owner.name}")
    for pod in cluster.pods or ():
        if pod.namespace == claim.namespace and claim.name in pod.claims:
            yield FindingSubject("Pod", pod.key)
            yield FindingSubject("Node", pod.node)


def _places(claim: Claim, cluster: ClusterFacts) -> Iterator[FindingSubject]:
    """Its volume, and the file systems that contain or may contain its data."""
    for one in cluster.volumes or ():
        volume = one.volume
        if volume.name == claim.volume_name or (volume.claim and volume.claim.uid == claim.uid):
            yield FindingSubject("PersistentVolume", volume.name)
            file_system_id = file_system_of(volume, targets_of(cluster))
            if file_system_id:
                yield FindingSubject("FileSystem", file_system_id)
            return
    asked_for = named_file_system(claim)
    if asked_for:
        yield FindingSubject("FileSystem", asked_for)
        return
    kinds = provisioners(cluster)
    for storage_class in cluster.classes or ():
        if storage_class.name == claim.storage_class:
            of_efs = file_systems_of(storage_class, kinds.get(storage_class.provisioner))
            for file_system_id in (*of_efs, *s3_file_systems_of(storage_class)):
                yield FindingSubject("FileSystem", file_system_id)
