"""Selects the findings that concern one claim."""

from collections.abc import Iterator
from typing import Final

from kube_efs.doctor.checks.common import file_system_of, provisioners, targets_of
from kube_efs.doctor.checks.mentions import created_file_system, file_systems_of
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
    subject = finding.subject
    if subject.kind not in _PARTICULAR:
        return True
    related = frozenset(_related(claim_key, cluster))
    if subject.kind == "FileSystem" and not any(one.kind == "FileSystem" for one in related):
        return not _gets_its_own(claim_key, cluster)  # it is not known yet in which one it will be
    return subject in related


def _gets_its_own(claim_key: str, cluster: ClusterFacts) -> bool:
    """Whether a file system is created only for the claim, so that no other one concerns it."""
    wanted = {one.claim.storage_class for one in cluster.claims or () if one.claim.key == claim_key}
    classes = [one for one in cluster.classes or () if one.name in wanted and one.provisioner == DRIVER]
    templates = [created_file_system(one) for one in classes]
    return any(one is not None and one.scope is Scope.CLAIM for one in templates)


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
            for file_system_id in file_systems_of(storage_class, kinds.get(storage_class.provisioner)):
                yield FindingSubject("FileSystem", file_system_id)
