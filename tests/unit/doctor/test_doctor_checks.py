"""Every kind of finding, and similar facts without a finding."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor import examples as ex
from tests.unit.doctor.examples import warned

from kube_efs.aws.network_acls import AclRule, NetworkAcl
from kube_efs.aws.security_groups import Permission, SecurityGroup
from kube_efs.doctor.checks.rights import needed_grants
from kube_efs.doctor.constraints import Constraints, HostAccess, use_of
from kube_efs.doctor.diagnosis import diagnose
from kube_efs.doctor.facts import (
    Area,
    ClaimFacts,
    ClusterFacts,
    Facts,
    Gap,
    LeaseFacts,
    PodFacts,
    ProgressEvent,
    PublishedStatus,
    ReportedCondition,
    SharedVolumeFacts,
    StuckTrash,
    TargetsFacts,
    VolumeFacts,
    Warned,
)
from kube_efs.doctor.findings import Finding, FindingSubject
from kube_efs.doctor.grants import AccountName, Grant, Right
from kube_efs.doctor.node_facts import CaFile, HandshakeOutcome, LoopbackMount, ProcessHealth
from kube_efs.doctor.registry import TOPICS
from kube_efs.doctor.scope import concerns
from kube_efs.model.claims import ClaimPhase, DataSource, ReclaimPolicy, StorageClass
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, Stage
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import Rejection, S3FilesTargets
from kube_efs.model.errors import InvalidValue
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.shared_volumes.shared_volume import (
    Owner,
    SharedVolume,
    SharedVolumePhase,
    SharedVolumeSource,
    Status,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import DRIVER, ClaimReference, CsiSource, VolumePhase
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.status import DENIED, TunnelsStatus, TunnelState, TunnelStatus

_RIGHT = Grant(
    account=AccountName(namespace="efs", name="efs-manager"),
    right=Right(verb="patch", resource="persistentvolumes"),
)
_ACCOUNT = AccountName(namespace="efs", name="efs-csi-node")
_FOR_NODES = Constraints(name="efs-csi-node", allows=frozenset(HostAccess))
_BAD_CLASS = replace(ex.CLASS, parameters={"default_file_system_id": "fs-nonsense!"})
_IGNORED = replace(ex.CSI_CLASS, parameters={**ex.CSI_CLASS.parameters, "fileSystem": "x"})
_IGNORED_OF_TUNNELS = replace(
    ex.CLASS,
    parameters={**ex.CLASS.parameters, "fileSystemId": ex.SYSTEM, "default_filesystem_id": ex.SYSTEM},
)
_BAD_CSI_CLASS = replace(ex.CSI_CLASS, parameters={**ex.CSI_CLASS.parameters, "directoryPerms": "rwx"})
_REFUSED = replace(ex.PENDING, match_labels={})
_ASSIGNED = replace(ex.PENDING, storage_provisioner=ex.CLASS.provisioner)
_COPY = replace(_ASSIGNED, data_source=DataSource(kind="PersistentVolumeClaim", name="data"))
_DIRECTORY_CLASS = StorageClass(
    name="aws-efs", provisioner="example.com/aws-efs", parameters={"gidMin": "10", "gidMax": "5"}
)
# As aws-efs-operator creates it, for volumes that exist already.
_MARKER_CLASS = StorageClass(name="efs-sc", provisioner="efs.csi.aws.com")
_FOREIGN_CLASS = StorageClass(name="ebs", provisioner="ebs.csi.aws.com")
_DIRECTORY_CONTROLLER = replace(ex.CONTROLLER, environment={"PROVISIONER_NAME": "example.com/aws-efs"})
_STUCK_TRASH = StuckTrash(
    file_system_id=ex.SYSTEM,
    kind="PersistentVolumeClaim",
    namespace=ex.NAMESPACE,
    name=f"efs-stunnel-{ex.SYSTEM}",
    message="1 entry of the trash cannot be removed, such as 4fa1/file (Operation not permitted)",
)
_ON_GONE = {"PROVISIONER_NAME": "example.com/aws-efs", "FILE_SYSTEM_ID": ex.GONE}
_TLS_CLASS = replace(_DIRECTORY_CLASS, parameters={"tls": "true"})
_SHARED = SharedVolume(
    owner=Owner(namespace="team", name="sv"),
    uid="1",
    source=SharedVolumeSource(file_system_id="", access_point_id=""),
)
_FAILED_WORKER = replace(
    ex.POD, namespace=ex.NAMESPACE, component="efs-worker", phase="Failed", message="permission denied"
)
_FAILED_SHARED = replace(
    _SHARED, status=Status(phase=SharedVolumePhase.FAILED, message="no such access point", claim_name="data")
)
_GOING_SHARED = replace(_SHARED, deleting=True, finalizers=("efs",))
_RELEASED = replace(ex.VOLUME, phase=VolumePhase.RELEASED)
_ROOT_OF_OLD_NAME = replace(
    ex.VOLUME,
    storage_class=ROOT_CLASS,
    provisioned_by="old.example/efs",
    claim=ClaimReference(namespace=ex.NAMESPACE, name="efs-stunnel-fs-1"),
)
_DENIED = """{"Statement": [
    {"Effect": "Allow", "Principal": "*", "Action": "*"},
    {"Sid": "NoMounts", "Effect": "Deny", "Principal": "*", "Action": "elasticfilesystem:ClientMount"}]}"""
_NO_ROOT = """{"Statement": {"Effect": "Allow", "Principal": {"AWS": "*"},
    "Action": ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]}}"""
_SECRET = "csi.storage.k8s.io/provisioner-secret"
_CLASS_WITH_ROLE = replace(
    ex.CSI_CLASS,
    parameters={
        **ex.CSI_CLASS.parameters,
        "fileSystemId": ex.GONE,
        f"{_SECRET}-name": "account",
        f"{_SECRET}-namespace": "efs",
    },
)
_ON_GONE_VOLUME = replace(ex.CSI_VOLUME, csi=CsiSource(handle=f"{ex.GONE}::fsap-0123456789abcdef0"))


def _attributes(**attributes: str) -> Facts:
    """AWS and a volume with these attributes on a file system that is not visible."""
    csi = CsiSource(handle=f"{ex.GONE}::fsap-0123456789abcdef0", attributes=attributes)
    return _in_aws(volumes=(VolumeFacts(volume=replace(_ON_GONE_VOLUME, csi=csi)),))


def _in_aws(**changes: Any) -> Facts:
    """The cluster with these changes, and AWS."""
    return replace(ex.cluster(**changes), aws=ex.AWS)


def _s3_files(*systems: FileSystem, listed: bool = True, **changes: Any) -> Facts:
    """A class and a volume on a file system of S3 Files, and what AWS has of them."""
    kinds = {FileSystemKind.EFS, *([FileSystemKind.S3_FILES] if listed else ())}
    found = {ex.SYSTEM: ex.FILE_SYSTEM, **{one.file_system_id: one for one in systems}}
    aws = replace(
        ex.AWS, file_systems=found, looked_into=frozenset(found), listed=frozenset(kinds), groups_by_target={}
    )
    volume = VolumeFacts(volume=replace(ex.CSI_VOLUME, csi=CsiSource(handle=f"s3files:{ex.GONE}")))
    parameters = {**ex.CSI_CLASS.parameters, "provisioningMode": "s3files-ap", "fileSystemId": ex.GONE}
    of_s3 = replace(ex.CSI_CLASS, name="s3", parameters=parameters)
    given = {"classes": (ex.CLASS, of_s3), "volumes": (volume,), **changes}
    return replace(ex.cluster(**given), aws=aws)


_S3_TARGET = replace(ex.MOUNT_TARGET, file_system_id=ex.GONE, zone_id=ZoneName("use1-az1"))
_ON_S3 = FileSystem(file_system_id=ex.GONE, kind=FileSystemKind.S3_FILES, mount_targets=(_S3_TARGET,))


def _told_of_s3(address: str) -> TargetsFacts:
    """The ConfigMap with the address of a mount target of S3 Files."""
    addresses = {ex.GONE: {ZoneName("use1-az1"): address}}
    return TargetsFacts(targets=replace(ex.TARGETS, s3_files=S3FilesTargets(addresses=addresses)))


_MALFORMED = ex.cluster(
    volumes=(
        VolumeFacts(
            volume=replace(ex.CSI_VOLUME, csi=CsiSource(handle=f"{ex.SYSTEM}.efs.us-east-1.amazonaws.com"))
        ),
    ),
    pods=(replace(ex.POD, phase="Pending"),),
    warnings=(warned("Pod", "pod-uid", "FailedMount", "is not a valid file system ID"),),
)


def _access_points(
    known: Mapping[FileSystemId, Collection[str]], created: datetime = ex.LONG_AGO, **changes: Any
) -> Facts:
    """A volume of the CSI driver, and the access points that AWS lists, by file system."""
    volume = VolumeFacts(volume=replace(ex.CSI_VOLUME, **changes), created=created)
    points = {fs: frozenset(map(AccessPointId, ids)) for fs, ids in known.items()}
    facts = _in_aws(volumes=(volume,))
    return replace(facts, aws=replace(ex.AWS, access_points=points))


def _terminating(*finalizers: str, pods: tuple[PodFacts, ...] = ()) -> Facts:
    facts = ex.claim(
        replace(ex.CLAIM, deleting=True), deleting_since=ex.LONG_AGO, finalizers=tuple(finalizers)
    )
    assert facts.cluster is not None
    return replace(facts, cluster=replace(facts.cluster, pods=pods))


def _policy(text: str) -> Facts:
    return ex.aws(policies={ex.SYSTEM: text})


_CLOSED = SecurityGroup(
    group_id="sg-target", permissions=(Permission(first_port=443, last_port=443, groups=("sg-node",)),)
)


_UNREAD = replace(_CLOSED, permissions=(Permission(first_port=2049, last_port=2049, prefix_lists=("pl-1",)),))
_DENYING = NetworkAcl(
    acl_id="acl-1",
    rules=(AclRule(number=90, allows=False, outbound=False, network=ip_network("10.0.0.0/8")),),
)


_FS_CLAIM = replace(ex.PENDING, storage_class="private", storage_provisioner=DRIVER, match_labels=None)
_STEP = ProgressEvent(
    uid=_FS_CLAIM.uid,
    reason="CreatingFileSystem",
    message="File system fs-33333333: mount targets 1 of 2 (80 s)",
    time=ex.NOW - timedelta(minutes=3),
)


def _waiting(*warned_of: Warned, step: ProgressEvent | None = _STEP, **changes: Any) -> Facts:
    """A claim that has waited for an hour, and the last step of its file system."""
    facts = ex.claim(
        replace(_FS_CLAIM, **changes), *warned_of, classes=(ex.CLASS, ex.FS_CLASS), key="team/data"
    )
    assert facts.cluster is not None
    return replace(facts, cluster=replace(facts.cluster, progress=(step,) if step else ()))


def _with_identity(*, of_volume: tuple[str, ...], of_class: tuple[str, ...]) -> Facts:
    """A policy that requires an identity, with a class and a volume with these mount options."""
    facts = _policy(_DENIED)
    assert facts.cluster is not None
    return replace(
        facts,
        cluster=replace(
            facts.cluster,
            classes=(replace(ex.CSI_CLASS, mount_options=of_class),),
            volumes=(VolumeFacts(volume=replace(ex.CSI_VOLUME, mount_options=of_volume)),),
            statuses=(PublishedStatus(node="one", time=ex.JUST_NOW, status=_DENIED_TUNNEL),),
        ),
    )


_DENIED_TUNNEL = TunnelsStatus(
    tunnels=(replace(ex.TUNNEL_UP, state=TunnelState.REJECTED, denied=True, reason=DENIED),),
    location=ex.LOCATION,
)


def _groups(group: SecurityGroup) -> Facts:
    return ex.aws(groups_by_target={ex.TARGET: ("sg-target",)}, groups={"sg-target": group})


def _system(**changes: Any) -> Facts:
    return ex.aws(file_systems={ex.SYSTEM: replace(ex.FILE_SYSTEM, **changes)})


def _target(**changes: Any) -> Facts:
    return _system(mount_targets=(replace(ex.MOUNT_TARGET, **changes),))


PROVOKED = [
    # installation
    ("workload/not-ready", "1 of 2 pods", ex.cluster(workloads=(replace(ex.CONTROLLER, ready=1),))),
    (
        "workload/restarts",
        "OOMKilled, exit code 137",
        ex.pod(
            replace(
                ex.POD,
                namespace=ex.NAMESPACE,
                name="efs-manager-1",
                restarts=4,
                ended="OOMKilled, exit code 137",
            )
        ),
    ),
    ("controller/no-leader", "the Lease does not exist", ex.cluster(leases=())),
    ("controller/no-leader", "it has no holder", ex.cluster(leases=(replace(ex.LEASE, holder=""),))),
    (
        "controller/no-leader",
        "efs-manager-0 renewed it last at 2026-01-02T02:04:05Z",
        ex.cluster(leases=(replace(ex.LEASE, renewed=ex.LONG_AGO),)),
    ),
    (
        "operator/degraded",
        "no credentials yet",
        ex.cluster(degraded=(ReportedCondition(type="XDegraded", message="no credentials yet"),)),
    ),
    (
        "version/skew",
        "DaemonSet efs-stunnel: old",
        ex.cluster(workloads=(ex.CONTROLLER, replace(ex.TUNNEL, image="old"))),
    ),
    (
        "installation/second",
        "DaemonSet kube-efs/kube-efs-tunnel\nis of a second installation",
        ex.cluster(
            workloads=(
                ex.CONTROLLER,
                ex.TUNNEL,
                replace(ex.TUNNEL, namespace="kube-efs", name="kube-efs-tunnel"),
            )
        ),
    ),
    (
        "installation/left-over",
        "ConfigMap kube-efs/kube-efs-tunnels\nis of a removed installation",
        ex.cluster(other_config_maps=(("kube-efs", "kube-efs-tunnels"),)),
    ),
    (
        "version/older-system",
        "is of aws-efs-operator",
        ex.cluster(
            workloads=(
                ex.CONTROLLER,
                replace(ex.CONTROLLER, name="aws-efs-operator", ours=False, image="a", command=""),
            )
        ),
    ),
    ("rbac/missing", "patch persistentvolumes", ex.cluster(missing_rights=(_RIGHT,))),
    (
        "scc/missing",
        "efs-csi-node: neither list the account nor are granted by its roles",
        ex.on_openshift(_FOR_NODES, uses=(use_of(_FOR_NODES, _ACCOUNT),)),
    ),
    (
        "scc/missing",
        "no constraints of this cluster allow all of them",
        ex.on_openshift(replace(_FOR_NODES, allows=frozenset({HostAccess.NETWORK}))),
    ),
    # classes
    (
        "storage-class/parameter",
        "StorageClass efs\nparameters.default_file_system_id: 'fs-nonsense!' is not a valid file system ID",
        ex.cluster(classes=(_BAD_CLASS,)),
    ),
    ("storage-class/parameter", "'rwx' is not a valid octal mode", ex.cluster(classes=(_BAD_CSI_CLASS,))),
    (
        "storage-class/parameter",
        "gidMin",
        ex.cluster(classes=(_DIRECTORY_CLASS,), workloads=(_DIRECTORY_CONTROLLER,)),
    ),
    (
        "storage-class/parameter",
        "mountOptions: 'port=1' cannot be combined",
        ex.cluster(classes=(replace(ex.CLASS, mount_options=("port=1",)),)),
    ),
    (
        "storage-class/parameter",
        "provisioningMode: is missing",
        ex.claim(replace(ex.PENDING, storage_class="efs-sc"), classes=(_MARKER_CLASS,)),
    ),
    (
        "storage-class/parameter",
        "provisioningMode: is missing",
        ex.cluster(classes=(replace(_MARKER_CLASS, parameters={"fileSystemId": ex.SYSTEM}),)),
    ),
    (
        "storage-class/static",
        "has no parameters, so it creates no volumes",
        ex.cluster(classes=(replace(_MARKER_CLASS, name="static"),)),
    ),
    (
        "storage-class/oddity",
        "'fileSystem' is not known",
        ex.cluster(classes=(_IGNORED,)),
    ),
    (
        "storage-class/oddity",
        "no effect: 'default_filesystem_id', 'fileSystemId'; known are default_file_system_id",
        ex.cluster(classes=(_IGNORED_OF_TUNNELS,)),
    ),
    # claims
    ("claim/pending", "matchLabels.volume_name: is missing", ex.claim(_REFUSED, created=ex.JUST_NOW)),
    ("claim/pending", "has no volume yet", ex.claim(ex.PENDING)),
    ("claim/pending", "its data is a copy of PersistentVolumeClaim data", ex.claim(_COPY)),
    (
        "claim/pending",
        "it names volume pv-1, which does not exist",
        ex.claim(replace(ex.PENDING, volume_name="pv-1")),
    ),
    (
        "claim/pending",
        "it names volume volume-1, which is Released",
        ex.cluster(
            claims=(ClaimFacts(claim=replace(ex.CLAIM, phase=ClaimPhase.PENDING), created=ex.LONG_AGO),),
            volumes=(
                VolumeFacts(volume=replace(_RELEASED, reclaim_policy=ReclaimPolicy.RETAIN, claim=None)),
            ),
        ),
    ),
    (
        "claim/pending",
        "ProvisioningFailed: the API is down",
        ex.claim(
            ex.PENDING,
            warned("PersistentVolumeClaim", "uid-1", "ProvisioningFailed", "the API is down"),
            created=ex.JUST_NOW,
        ),
    ),
    (
        "claim/pending",
        "'fs-99999999' is not known (yet)",
        ex.claim(replace(ex.PENDING, match_labels={"volume_name": "a", "file_system_id": ex.GONE})),
    ),
    (
        "claim/pending",
        "root_key: is reserved for the root volumes",
        ex.claim(replace(ex.PENDING, match_labels={"root_key": "x"}), created=ex.JUST_NOW),
    ),
    (
        "claim/pending",
        "'old.example/efs' is not gnuthought.com/efs-stunnel",
        ex.claim(replace(ex.PENDING, storage_provisioner="old.example/efs"), created=ex.JUST_NOW),
    ),
    (
        "claim/pending",
        "'old.example/efs' is an earlier name of this provisioner, which is",
        ex.cluster(
            classes=(replace(ex.CLASS, provisioner="old.example/efs"),),
            claims=(ClaimFacts(claim=ex.PENDING),),
            volumes=(VolumeFacts(volume=_ROOT_OF_OLD_NAME),),
        ),
    ),
    (
        "claim/pending",
        "spec.selector: is not supported",
        ex.cluster(
            workloads=(_DIRECTORY_CONTROLLER,),
            classes=(replace(_TLS_CLASS, parameters={}),),
            claims=(ClaimFacts(claim=replace(ex.PENDING, storage_class="aws-efs")),),
        ),
    ),
    (
        "claim/pending",
        "'fs-99999999' has no tunnel port yet",
        ex.cluster(
            workloads=(replace(_DIRECTORY_CONTROLLER, environment=_ON_GONE),),
            classes=(_TLS_CLASS,),
            claims=(ClaimFacts(claim=replace(ex.PENDING, storage_class="aws-efs", match_labels=None)),),
        ),
    ),
    (
        "claim/creating",
        "CreatingFileSystem: File system fs-33333333: mount targets 1 of 2 (80 s)",
        _waiting(),
    ),
    (
        "claim/pending",
        "CreatingFileSystem: File system fs-33333333: mount targets 1 of 2 (80 s)",
        _waiting(step=replace(_STEP, time=ex.LONG_AGO)),
    ),
    (
        "claim/pending",
        "ProvisioningFailed: FileSystemLimitExceeded",
        _waiting(warned("PersistentVolumeClaim", "uid-1", "ProvisioningFailed", "FileSystemLimitExceeded")),
    ),
    ("claim/pending", "has no volume yet", _waiting(step=None)),
    ("claim/lost", "volume-1 does not exist any more", ex.claim(replace(ex.CLAIM, phase=ClaimPhase.LOST))),
    (
        "claim/terminating",
        "finalizers kubernetes.io/pvc-protection",
        ex.claim(
            replace(ex.CLAIM, deleting=True),
            deleting_since=ex.LONG_AGO,
            finalizers=("kubernetes.io/pvc-protection",),
        ),
    ),
    ("claim/missing", "does not exist", ex.claim(ex.CLAIM, key="team/other")),
    (
        "claim/no-class",
        "'nothing', which does not exist",
        ex.claim(replace(ex.PENDING, storage_class="nothing"), key="team/data"),
    ),
    (
        "claim/foreign",
        "ebs.csi.aws.com",
        ex.claim(replace(ex.PENDING, storage_class="ebs"), key="team/data", classes=(_FOREIGN_CLASS,)),
    ),
    # volumes
    ("volume/released", "is Released with policy Delete", ex.volume(_RELEASED)),
    (
        "volume/released",
        "VolumeFailedDelete: a guard says no",
        ex.volume(
            _RELEASED,
            warned("PersistentVolume", "volume-uid", "VolumeFailedDelete", "a guard says no"),
            changed=ex.JUST_NOW,
        ),
    ),
    (
        "volume/released",
        "is Released",
        ex.volume(replace(ex.CSI_VOLUME, phase=VolumePhase.RELEASED)),
    ),
    (
        "volume/terminating",
        "finalizers external-provisioner",
        ex.volume(replace(_RELEASED, deleting=True), deleting_since=ex.LONG_AGO),
    ),
    (
        "volume/failed",
        "no plugin to delete it",
        ex.volume(replace(ex.VOLUME, phase=VolumePhase.FAILED), message="no plugin to delete it"),
    ),
    (
        "volume/port",
        "its port 20499 belongs to no file system",
        ex.volume(replace(ex.VOLUME, mount_options=("port=20499",))),
    ),
    (
        "volume/port",
        "its data is in an unknown file system",
        ex.volume(replace(ex.VOLUME, mount_options=("port=20499",), file_system_id=None)),
    ),
    (
        "volume/port",
        "belongs to fs-11111111, but its data is in fs-99999999",
        ex.volume(replace(ex.VOLUME, file_system_id=ex.GONE)),
    ),
    (
        "volume/handle",
        "volume ID: 'fs-11111111.efs.us-east-1.amazonaws.com' is not a valid file system ID",
        _MALFORMED,
    ),
    ("trash/not-emptied", "such as 4fa1/file", ex.cluster(stuck_trash=(_STUCK_TRASH,))),
    ("shared-volume/failed", "no such access point", ex.shared(_FAILED_SHARED)),
    ("shared-volume/terminating", "finalizers efs", ex.shared(_GOING_SHARED, deleting_since=ex.LONG_AGO)),
    # pods
    (
        "pod/waiting",
        "Connection refused",
        ex.pod(
            replace(ex.POD, phase="Pending", created=ex.JUST_NOW),
            warned("Pod", "pod-uid", "FailedMount", "mount.nfs: Connection refused"),
        ),
    ),
    ("pod/waiting", "FailedMount: is not a valid file system ID", _MALFORMED),
    (
        "pod/waiting",
        "ContainerCreating",
        ex.pod(replace(ex.POD, phase="Pending", waiting=("container a: ContainerCreating",))),
    ),
    ("pod/terminating", "on node one", ex.pod(replace(ex.POD, deleting_since=ex.LONG_AGO))),
    (
        "worker/failed",
        "failed at 2026-01-02T03:04:00Z\npermission denied",
        ex.pod(replace(_FAILED_WORKER, finished=ex.JUST_NOW)),
    ),
    ("worker/failed", "failed\npermission denied", ex.pod(_FAILED_WORKER)),
    # the targets of nodes
    ("targets/missing", "does not exist", ex.cluster(targets=TargetsFacts(found=False))),
    ("targets/unreadable", "is not a mapping", ex.cluster(targets=TargetsFacts(problem="is not a mapping"))),
    (
        "targets/entry",
        "fs-1: 'x' is not a valid port",
        ex.cluster(
            targets=TargetsFacts(
                targets=ex.TARGETS,
                rejections=(Rejection(entry="fs-1", error=InvalidValue("is not a valid port", value="x")),),
            )
        ),
    ),
    # file systems
    (
        "file-system/missing",
        "named by StorageClass efs",
        ex.aws(file_systems={}, looked_into=frozenset()),
    ),
    (
        "file-system/missing",
        "named by PersistentVolume csi-1",
        _in_aws(classes=(_CLASS_WITH_ROLE,), volumes=(VolumeFacts(volume=_ON_GONE_VOLUME),)),
    ),
    (
        "file-system/not-checked",
        "named by StorageClass csi, which has a provisioner Secret",
        _in_aws(classes=(_CLASS_WITH_ROLE,)),
    ),
    (
        "file-system/not-checked",
        "named by PersistentVolume csi-1, which has a provisioner Secret",
        _in_aws(volumes=(VolumeFacts(volume=replace(_ON_GONE_VOLUME, deletion_secret=("efs", "account"))),)),
    ),
    (
        "file-system/not-checked",
        "named by PersistentVolume csi-1, which has the addresses of mount targets",
        _attributes(mounttargetipmap='{"use1-az1":"10.9.0.1"}'),
    ),
    ("file-system/not-checked", "the addresses of mount targets", _attributes(mountTargetIp="10.9.0.1")),
    ("file-system/not-checked", "the attribute crossaccount", _attributes(crossaccount="true")),
    ("file-system/missing", "named by PersistentVolume csi-1", _attributes(crossaccount="false")),
    ("file-system/missing", "named by PersistentVolume csi-1", _attributes(mounttargetip="nonsense")),
    (
        "access-point/missing",
        "its access point fsap-0123456789abcdef0 does not exist on fs-11111111",
        _access_points({ex.SYSTEM: set()}),
    ),
    (
        "access-point/missing",
        "it is on fs-33333333",
        _access_points({ex.SYSTEM: {"fsap-1"}, ex.MADE: {ex.ACCESS_POINT}}),
    ),
    (
        "access-point/missing",
        "does not exist on fs-11111111",
        _access_points(
            {ex.SYSTEM: set()},
            csi=CsiSource(handle=str(ex.SYSTEM)),
            mount_options=("tls", f"accesspoint={ex.ACCESS_POINT}"),
        ),
    ),
    ("file-system/missing", "named by StorageClass s3", _s3_files()),
    ("file-system/missing", "named by PersistentVolume csi-1", _s3_files(classes=(ex.CLASS,))),
    (
        "file-system/missing",
        "named by StorageClass csi",
        replace(
            _s3_files(_ON_S3, volumes=()),
            cluster=replace(
                ex.CLUSTER,
                classes=(
                    replace(ex.CSI_CLASS, parameters={**ex.CSI_CLASS.parameters, "fileSystemId": ex.GONE}),
                ),
            ),
        ),
    ),
    (
        "file-system/not-checked",
        "the addresses of mount targets",
        _s3_files(
            classes=(),
            volumes=(
                VolumeFacts(
                    volume=replace(
                        ex.CSI_VOLUME,
                        csi=CsiSource(handle=f"s3files:{ex.GONE}", attributes={"mounttargetip": "10.9.0.1"}),
                    )
                ),
            ),
        ),
    ),
    (
        "file-system/state",
        "is error",
        _s3_files(replace(_ON_S3, state=LifeCycleState.ERROR)),
    ),
    (
        "file-system/state",
        "is misconfigured",
        _s3_files(replace(_ON_S3, state=LifeCycleState.MISCONFIGURED)),
    ),
    (
        "mount-target/none",
        "has no usable mount target",
        _s3_files(replace(_ON_S3, mount_targets=())),
    ),
    (
        "mount-target/zone",
        "has no mount target in us-east-1a",
        _s3_files(replace(_ON_S3, mount_targets=(replace(_S3_TARGET, zone=ZoneName("us-east-1b")),))),
    ),
    ("targets/stale", "in the ConfigMap: 10.0.1.9", _s3_files(_ON_S3, targets=_told_of_s3("10.0.1.9"))),
    ("file-system/state", "is error", _system(state=LifeCycleState.ERROR)),
    ("mount-target/none", "has no usable mount target", _system(mount_targets=())),
    ("mount-target/none", "has no usable mount target", ex.made(listed=True)),
    ("file-system/unused", "it is named team/data", ex.made()),
    ("file-system/unused", "created for the volume pvc-1", ex.made(listed=True)),
    (
        "file-system/unused",
        "created for the namespace with the UID 7",
        ex.made(owner=FileSystemOwner(scope=Scope.NAMESPACE, name="7", cluster=ex.UID)),
    ),
    (
        "file-system/policy",
        "ClientMount: denied by NoMounts",
        _with_identity(of_volume=("iam",), of_class=()),
    ),
    ("tunnel/denied", "its policy denies", _with_identity(of_volume=(), of_class=("iam",))),
    (
        "mount-target/none",
        "that the controller knows",
        ex.cluster(
            targets=TargetsFacts(
                targets=replace(
                    ex.TARGETS,
                    targets={ex.SYSTEM: replace(ex.TARGETS.targets[ex.SYSTEM], address_by_subnet={})},
                )
            )
        ),
    ),
    ("mount-target/state", "fsmt-1 at 10.0.1.5 is error", _target(state=LifeCycleState.ERROR)),
    ("mount-target/zone", "no mount target in us-east-1a", _target(zone="us-east-1b")),
    ("targets/stale", "in AWS: 10.0.1.7", _target(address="10.0.1.7")),
    ("file-system/policy", "ClientMount: denied by NoMounts", _policy(_DENIED)),
    ("file-system/policy", "ClientRootAccess: not allowed by any statement", _policy(_NO_ROOT)),
    ("security-group/closed", "sg-target allows sg-node at 443", _groups(_CLOSED)),
    ("security-group/not-judged", "the entries of prefix list pl-1 are not known", _groups(_UNREAD)),
    ("network-acl/closed", "rule 90 denies TCP 2049 in from 10.0.2.9", ex.aws(acls={ex.SUBNET: _DENYING})),
    (
        "network-acl/not-judged",
        "it is not known whether node one is in subnet-11111111",
        ex.aws(acls={ex.SUBNET: _DENYING}, interfaces={}),
    ),
    # nodes, from afar
    ("agent/silent", "no report", ex.cluster(statuses=())),
    (
        "agent/silent",
        "last report at 2026-01-02T02:04:05Z",
        ex.cluster(statuses=(replace(ex.CLUSTER.statuses[0], time=ex.LONG_AGO),)),  # type: ignore[index]
    ),
    (
        "agent/problem",
        "a file is broken",
        ex.cluster(
            statuses=(
                replace(
                    ex.CLUSTER.statuses[0],  # type: ignore[index]
                    status=TunnelsStatus(problems=("a file is broken",)),
                ),
            )
        ),
    ),
    (
        "node/zone-unknown",
        "region us-east-1 (settings), zone unknown",
        ex.cluster(
            statuses=(
                replace(
                    ex.CLUSTER.statuses[0],  # type: ignore[index]
                    status=TunnelsStatus(location=replace(ex.LOCATION, zone="", zone_source="")),
                ),
            )
        ),
    ),
    (
        "node/data-plane",
        "the kernel has no TLS",
        ex.cluster(
            statuses=(
                replace(
                    ex.CLUSTER.statuses[0],  # type: ignore[index]
                    status=TunnelsStatus(
                        location=ex.LOCATION, data_plane="stunnel", data_plane_reason="the kernel has no TLS"
                    ),
                ),
            )
        ),
    ),
    ("tunnel/down", "port 20490 is down", ex.published(state=TunnelState.DOWN, reason="no answer")),
    (
        "tunnel/denied",
        "one: its policy denies",
        ex.published(state=TunnelState.REJECTED, denied=True, reason=DENIED),
    ),
    ("tunnel/failed-over", "us-east-1b", ex.published(failed_over=True, zone="us-east-1b")),
    ("tunnel/certificate", "has expired", ex.published(certificate_ends="2026-01-02T03:00:00Z")),
    ("tunnel/certificate", "has expired", ex.published(certificate_ends="2026-01-02T03:00:00")),
    (
        "driver/not-registered",
        "does not know efs.csi.aws.com",
        ex.cluster(workloads=(ex.CONTROLLER, replace(ex.TUNNEL, command="node"))),
    ),
    # a node itself
    (
        "process/unreachable",
        "Connection refused",
        ex.node(
            processes=(ProcessHealth(name="CSI driver", url="http://a", unreachable="Connection refused"),)
        ),
    ),
    (
        "process/unhealthy",
        "stunnel is not running",
        ex.node(processes=(ProcessHealth(name="a", url="http://a", reasons=("stunnel is not running",)),)),
    ),
    ("stunnel/no-configuration", "/tmp/stunnel.conf", ex.node(tunnels=None, status=None)),
    ("stunnel/not-visible", "there is no /tmp/stunnel.conf here", ex.node(tunnels=None)),
    ("stunnel/not-running", "stunnel does not run", ex.node(status=TunnelsStatus())),
    (
        "relay/not-running",
        "the relay does not run",
        ex.node(
            tunnels=None,
            status=TunnelsStatus(
                data_plane="kernel",
                tunnels=(TunnelStatus(file_system_id="fs-1", port=20490, state=TunnelState.STARTING),),
            ),
        ),
    ),
    ("port/not-listening", "at port 20490", ex.tunnel(listening=False)),
    (
        "tunnel/no-nfs",
        "the tunnel closed the connection",
        ex.tunnel(null_call=ProbeResult(ok=False, seconds=0.1, reason="the tunnel closed the connection")),
    ),
    (
        "tunnel/no-access",
        "the server denies access",
        ex.tunnel(
            null_call=ProbeResult(ok=False, seconds=0.1, reason="the server denies access", is_denied=True)
        ),
    ),
    ("tunnel/slow", "takes 900 ms", ex.tunnel(null_call=ProbeResult(ok=True, seconds=0.9))),
    (
        "mount/dead-port",
        "/mnt is mounted through port 22049",
        ex.node(mounts=(LoopbackMount(mount_point=Path("/mnt"), port=22049),)),
    ),
    ("tls/authorities", "No such file", ex.node(ca_files=(CaFile(path=Path("/a"), problem="No such file"),))),
    (
        "mount-target/unreachable",
        "no connection within 3 s",
        ex.handshake(HandshakeOutcome.NOT_CONNECTED, reason="no connection within 3 s"),
    ),
    (
        "tls/name",
        "names in the certificate: other.example.com",
        ex.handshake(HandshakeOutcome.WRONG_NAME, names=("other.example.com",)),
    ),
    (
        "tls/expired",
        "this node's clock says 2026-01-02T03:04:05Z",
        ex.handshake(HandshakeOutcome.EXPIRED, reason="certificate has expired"),
    ),
    ("tls/not-trusted", "self-signed", ex.handshake(HandshakeOutcome.NOT_TRUSTED, reason="self-signed")),
    ("tls/handshake", "reset", ex.handshake(HandshakeOutcome.FAILED, reason="reset")),
    (
        "kernel/not-responding",
        "NFS server 10.9.9.9 does not respond",
        ex.node(kernel=("nfs: server 10.9.9.9 OK", "nfs: server 10.9.9.9 not responding, still trying")),
    ),
    (
        "kernel/not-responding",
        "NFS server 127.0.0.1 does not respond",
        ex.node(kernel=("nfs: server 127.0.0.1 not responding, timed out",), tunnels=()),
    ),
    (
        "kernel/was-not-responding",
        "did not respond for a time",
        ex.node(kernel=("nfs: server fs-1 not responding, still trying", "nfs: server fs-1 OK")),
    ),
    (
        "kernel/was-not-responding",
        "127.0.0.1",
        ex.node(kernel=("nfs: server 127.0.0.1 not responding, timed out",)),
    ),
    ("selinux/boolean", "virt_use_nfs is off", ex.node(booleans={"virt_use_nfs": False})),
    # what could not be seen
    (
        "kubernetes/no-answer",
        "could not be reached",
        Facts(
            now=ex.NOW,
            cluster=ClusterFacts(names=OPENSHIFT_EFS_STUNNEL),
            gaps=(Gap(what="pods", reason="could not be reached"),),
        ),
    ),
    (
        "kubernetes/no-answer",
        "denies every request",
        Facts(
            now=ex.NOW,
            cluster=ClusterFacts(names=OPENSHIFT_EFS_STUNNEL),
            gaps=(Gap(what="pods", reason="the list of Pod objects: answered 403 (pods is forbidden)"),),
        ),
    ),
    ("doctor/not-checked", "403", replace(ex.cluster(), gaps=(Gap(what="pods", reason="403"),))),
    (
        "aws/not-checked",
        "no credentials",
        replace(ex.cluster(), gaps=(Gap(what="file systems", reason="no credentials", area=Area.AWS),)),
    ),
]


# What an administrator has available.
_PROGRAMS = {
    *("aws", "curl", "date", "dmesg", "kube-efs", "kubectl", "oc", "openssl", "setsebool", "ss", "tail"),
    "uptime",
}


def _text(finding: Finding) -> str:
    return "\n".join([str(finding.subject), finding.problem, *finding.evidence])


def _commands(found: Finding) -> tuple[str, ...]:
    return tuple(map(str, found.commands))


def test_remedy_for_an_unknown_port_is_the_annotation() -> None:
    unknown = replace(ex.VOLUME, mount_options=("port=20499",), file_system_id=None)
    (finding,) = [one for one in diagnose(ex.volume(unknown)) if one.kind.id == "volume/port"]
    annotate = f"kubectl annotate pv {unknown.name} efs-stunnel.gnuthought.com/file-system-id=ID"
    assert finding.remedy == f"annotate it with the ID of its file system: {annotate}"


def test_claim_whose_data_is_copied_is_waited_for() -> None:
    (finding,) = (one for one in diagnose(ex.claim(_COPY)) if one.kind.id == "claim/pending")
    assert finding.remedy.startswith("wait until its data is copied")


def _failing(message: str, reason: str = "ProvisioningFailed", **changes: Any) -> Facts:
    event = warned("PersistentVolumeClaim", "uid-1", reason, message)
    return ex.claim(replace(_ASSIGNED, **changes), event)


def _refused_mount(code: str, text: str) -> Facts:
    message = f'MountVolume.SetUp failed for volume "csi-1" : rpc error: code = {code} desc = {text}'
    event = warned("Pod", "pod-uid", "FailedMount", message)
    return ex.pod(replace(ex.POD, phase="Pending"), event)


@pytest.mark.parametrize(
    ("kind", "facts", "remedy"),
    [
        pytest.param(
            "pod/waiting",
            _refused_mount("InvalidArgument", "mount flags: 'notls' was refused; leave it out"),
            "its event says: leave it out",
            id="refused mount",
        ),
        pytest.param(
            "pod/waiting",
            _refused_mount("Internal", "exit status 32; see the log"),
            "run kube-efs doctor node on one",
            id="failed mount",
        ),
        pytest.param(
            "claim/pending",
            _failing("AccessDenied; allow elasticfilesystem:CreateAccessPoint to the role of this process"),
            "its event says: allow elasticfilesystem:CreateAccessPoint to the role of this process",
            id="event with a remedy",
        ),
        pytest.param(
            "claim/pending",
            _failing("is not served; create it again", "NotServed", storage_provisioner=None),
            "its event says: create it again",
            id="event with a remedy about an unassigned claim",
        ),
        pytest.param(
            "claim/pending",
            _failing("internal error (KeyError); the log has the details"),
            "check its events and the controller's log",
            id="event about an internal error",
        ),
        pytest.param(
            "claim/pending",
            _failing("a warning; ignore it", "ParameterIgnored"),
            "check its events and the controller's log",
            id="event that is not the reason",
        ),
        pytest.param(
            "claim/pending",
            ex.claim(_ASSIGNED),
            "check its events and the controller's log",
            id="no event",
        ),
        pytest.param(
            "claim/pending",
            ex.claim(ex.PENDING),
            "Kubernetes has not assigned it to a provisioner yet; is kube-controller-manager running?",
            id="unassigned claim",
        ),
        pytest.param(
            "claim/terminating",
            _terminating("kubernetes.io/pvc-protection"),
            "end the pods that use it; it is removed when the last one has ended",
            id="claim in use",
        ),
        pytest.param(
            "claim/terminating",
            _terminating("kubernetes.io/pvc-protection", "backup.example.com/hold"),
            "the program that set the finalizer backup.example.com/hold must remove it; "
            "remove it yourself only if that program does not exist any more",
            id="claim with a foreign finalizer",
        ),
        pytest.param(
            "claim/terminating",
            _terminating("backup.example.com/hold", pods=(ex.POD,)),
            "end the pods that use it; the program that set the finalizer backup.example.com/hold must "
            "remove it; remove it yourself only if that program does not exist any more",
            id="claim in use with a foreign finalizer",
        ),
    ],
)
def test_remedy_is_that_of_the_cause(kind: str, facts: Facts, remedy: str) -> None:
    (finding,) = (one for one in diagnose(facts) if one.kind.id == kind)
    assert finding.remedy == remedy


def test_denied_requests_come_with_the_missing_permissions() -> None:
    def denied(code: int) -> Finding:
        gaps = [Gap(what=what, reason=f"{what}: answered {code} (no)") for what in ("pods", "nodes")]
        no_region = Gap(what="the region", reason="is missing", area=Area.AWS)
        cluster = ClusterFacts(names=OPENSHIFT_EFS_STUNNEL)
        (found,) = diagnose(Facts(now=ex.NOW, cluster=cluster, gaps=(*gaps, no_region)))
        return found

    assert denied(403).remedy.startswith("give your user the permissions to read pods, nodes")
    assert denied(401).remedy == "check the address and the credentials in the kubeconfig"


@pytest.mark.parametrize(
    ("kind", "words", "facts"),
    [pytest.param(*case, id=f"{case[0]}: {case[1]}") for case in PROVOKED],
)
def test_problem_is_found_with_evidence_and_a_remedy(kind: str, words: str, facts: Facts) -> None:
    findings = [one for one in diagnose(facts) if one.kind.id == kind]
    assert [one for one in findings if words in _text(one)]
    for one in findings:
        assert one.remedy
        assert one.evidence
        assert {shlex.split(line)[0] for line in _commands(one)} <= _PROGRAMS
        assert one.commands


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        pytest.param(
            "claim/lost",
            ex.claim(replace(ex.CLAIM, phase=ClaimPhase.LOST, volume_name="a; touch /b")),
            id="volume's name in a claim",
        ),
        pytest.param(
            "agent/problem",
            ex.cluster(
                nodes=None,
                statuses=(
                    PublishedStatus(node="$(touch /b)", status=TunnelsStatus(problems=("a problem",))),
                ),
            ),
            id="node's name in a ConfigMap",
        ),
        pytest.param(
            "port/not-listening",
            ex.node(tunnels=(replace(ex.WELL, listening=False),), configuration=Path("/a b/stunnel.conf")),
            id="path with a blank",
        ),
        pytest.param(
            "trash/not-emptied",
            ex.cluster(stuck_trash=(replace(_STUCK_TRASH, kind="$(touch /b)", name="a; touch /b"),)),
            id="object of an event",
        ),
        pytest.param(
            "claim/lost",
            ex.claim(replace(ex.CLAIM, phase=ClaimPhase.LOST, name="a; touch /b")),
            id="claim's name",
        ),
    ],
)
def test_text_from_the_cluster_is_quoted_in_commands(kind: str, facts: Facts) -> None:
    (found,) = (one for one in diagnose(facts) if one.kind.id == kind)
    words = [word for line in _commands(found) for word in shlex.split(line)]
    assert not {"touch", "/b", "b/stunnel*.log"} & set(words)
    assert [word for word in words if "touch /b" in word or "/a b/stunnel*.log" in word]
    unquoted = [re.sub(r"'[^']*'", "", line) for line in _commands(found)]
    assert not [line for line in unquoted if "$" in line or ";" in line]


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        pytest.param(_s3_files(), "list-file-systems --region us-east-1", id="missing"),
        pytest.param(
            _s3_files(replace(_ON_S3, state=LifeCycleState.ERROR)),
            f"get-file-system --region us-east-1 --file-system-id {ex.GONE}",
            id="state",
        ),
        pytest.param(
            _s3_files(replace(_ON_S3, mount_targets=())),
            f"list-mount-targets --region us-east-1 --file-system-id {ex.GONE}",
            id="no mount target",
        ),
        pytest.param(
            _s3_files(replace(_ON_S3, mount_targets=())),
            f"create-mount-target --region us-east-1 --file-system-id {ex.GONE}"
            " --subnet-id SUBNET --security-groups GROUP",
            id="mount target to create",
        ),
    ],
)
def test_commands_about_s3_files_call_its_api(facts: Facts, command: str) -> None:
    (found,) = diagnose(facts)
    assert f"aws s3files {command}" in _commands(found)
    assert not [one for one in _commands(found) if one.startswith("aws efs")]


def test_file_system_of_another_account_is_not_missing() -> None:
    (found,) = diagnose(_in_aws(classes=(ex.CLASS, _CLASS_WITH_ROLE)))
    assert (found.kind.id, found.subject.name) == ("file-system/not-checked", ex.GONE)
    assert "does not read Secrets" in found.evidence[-1]


def test_file_system_that_a_role_reaches_is_checked_if_it_is_visible() -> None:
    parameters = {**_CLASS_WITH_ROLE.parameters, "fileSystemId": ex.SYSTEM}
    facts = replace(
        ex.aws(), cluster=ex.cluster(classes=(replace(_CLASS_WITH_ROLE, parameters=parameters),)).cluster
    )
    assert not diagnose(facts)


def test_node_without_tunnels_needs_no_configuration() -> None:
    assert not [*diagnose(ex.node(tunnels=None, status=TunnelsStatus()))]


def test_commands_use_the_tunnel_pod_of_the_node() -> None:
    agent = replace(ex.POD, namespace=ex.NAMESPACE, name="efs-stunnel-x", claims=())
    status = TunnelsStatus(tunnels=(replace(ex.TUNNEL_UP, state=TunnelState.DOWN),))
    told = PublishedStatus(node="one", time=ex.JUST_NOW, status=status)
    (found,) = diagnose(ex.cluster(pods=(agent,), statuses=(told,)))
    assert _commands(found) == (
        "kubectl -n efs exec efs-stunnel-x -- kube-efs doctor node",
        "kubectl -n efs logs efs-stunnel-x --tail=200",
    )


def test_denied_file_system_is_one_finding_with_all_its_nodes() -> None:
    denied = replace(ex.TUNNEL_UP, state=TunnelState.REJECTED, denied=True, reason=DENIED)
    told = tuple(
        PublishedStatus(node=node, time=ex.JUST_NOW, status=TunnelsStatus(tunnels=(denied,)))
        for node in ("two", "one")
    )
    (found,) = diagnose(ex.cluster(statuses=told, nodes=None))
    assert (found.kind.id, found.subject.name) == ("tunnel/denied", ex.SYSTEM)
    assert found.evidence == (f"one: {DENIED}", f"two: {DENIED}")
    assert "mount it by CSI volumes with the option iam or an access point" in found.remedy


def test_daemon_set_without_pods_has_its_warning_as_evidence() -> None:
    why = "unable to validate against any security context constraint"
    workload = replace(ex.TUNNEL, ready=0, uid="set-uid")
    facts = ex.cluster(
        workloads=(ex.CONTROLLER, workload), warnings=(warned("DaemonSet", "set-uid", "FailedCreate", why),)
    )
    (found,) = diagnose(facts)
    assert found.evidence == (f"FailedCreate: {why}", "it has no pods")


def test_every_kind_of_finding_is_tested_and_has_a_unique_id() -> None:
    ids = [kind.id for topic in TOPICS for kind in topic.kinds]
    assert sorted(ids) == sorted({kind for kind, _, _ in PROVOKED})


@pytest.mark.parametrize(
    ("kind", "words", "facts"),
    [pytest.param(*case, id=f"{case[0]}: {case[1]}") for case in PROVOKED],
)
def test_topic_returns_only_its_declared_kinds(kind: str, words: str, facts: Facts) -> None:
    for topic in TOPICS:
        assert {one.kind for one in topic.check(facts)} <= set(topic.kinds)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(
            ex.cluster(
                other_config_maps=(("kube-efs", "kube-efs-tunnels"),),
                workloads=(
                    ex.CONTROLLER,
                    ex.TUNNEL,
                    replace(ex.TUNNEL, namespace="kube-efs", name="kube-efs-tunnel"),
                ),
            ),
            id="tunnels that read it",
        ),
        pytest.param(
            ex.cluster(
                other_config_maps=(("kube-efs", "kube-efs-tunnels"),), targets=TargetsFacts(found=False)
            ),
            id="no own ConfigMap yet",
        ),
    ],
)
def test_config_map_that_may_be_needed_is_not_left_over(facts: Facts) -> None:
    assert "installation/left-over" not in {one.kind.id for one in diagnose(facts)}


_ELSEWHERE = tuple(
    replace(one, namespace="openshift-cluster-csi-drivers") for one in (ex.CONTROLLER, ex.TUNNEL)
)


def test_missing_leader_names_the_namespaces_that_have_controllers() -> None:
    found = {one.kind.id: one for one in diagnose(ex.cluster(workloads=_ELSEWHERE, leases=()))}
    missing = found["controller/no-leader"]
    assert missing.problem == "there is no controller in this namespace"
    assert "controllers run in namespace openshift-cluster-csi-drivers" in missing.evidence
    assert missing.remedy == "name the namespace of kube-efs: --namespace openshift-cluster-csi-drivers"
    assert "kube-efs doctor cluster --namespace openshift-cluster-csi-drivers" in _commands(missing)


def test_status_of_a_node_that_does_not_exist_any_more_is_ignored() -> None:
    ended = replace(ex.TUNNEL_UP, certificate_ends="2026-01-02T02:00:00Z")  # valid when it was written
    told = PublishedStatus(node="gone", time=ex.LONG_AGO, status=TunnelsStatus(tunnels=(ended,)))
    facts = ex.cluster(statuses=(*(ex.CLUSTER.statuses or ()), told))
    assert not diagnose(facts)
    unknown = replace(facts, cluster=replace(ex.CLUSTER, statuses=(told,), nodes=None))
    assert [one.kind.id for one in diagnose(unknown)] == ["tunnel/certificate"]


def test_second_installation_comes_with_the_command_that_examines_it() -> None:
    found = diagnose(ex.cluster(workloads=(ex.CONTROLLER, ex.TUNNEL, *_ELSEWHERE)))
    (second,) = [one for one in found if one.kind.id == "installation/second"]
    assert f"this examination is about the one in namespace {ex.NAMESPACE}" in second.evidence
    assert "kube-efs doctor cluster --namespace openshift-cluster-csi-drivers" in _commands(second)


def test_agent_is_not_silent_between_two_regular_reports() -> None:
    status = replace(ex.CLUSTER.statuses[0], time=ex.NOW - timedelta(minutes=10))  # type: ignore[index]
    assert not diagnose(ex.cluster(statuses=(status,)))


def test_agent_has_two_minutes_for_its_first_report() -> None:
    agent = replace(ex.POD, namespace=ex.NAMESPACE, name="efs-stunnel-x7k2p", claims=())
    young, old = (replace(agent, created=ex.NOW - timedelta(minutes=minutes)) for minutes in (1, 3))
    assert not diagnose(ex.cluster(statuses=(), pods=(young,)))
    [finding] = diagnose(ex.cluster(statuses=(), pods=(old,)))
    assert finding.kind.id == "agent/silent"


def _grant(account: str, verb: str, resource: str) -> Grant:
    right = Right(verb=verb, resource=resource)
    return Grant(account=AccountName(namespace=ex.NAMESPACE, name=account), right=right)


def test_permissions_are_those_of_the_accounts_that_the_workloads_have() -> None:
    """The values of the chart can name other accounts."""
    rendered = (_grant("efs-manager", "get", "pods"), _grant("efs-stunnel", "get", "nodes"))
    workloads = (replace(ex.CONTROLLER, account="custom"), replace(ex.TUNNEL, account="efs-stunnel"))
    found = needed_grants(replace(ex.CLUSTER, workloads=workloads), rendered)
    assert found == (_grant("custom", "get", "pods"), rendered[1])
    # They could not be read.
    assert needed_grants(replace(ex.CLUSTER, workloads=None), rendered) == rendered


def test_other_deployments_and_switched_off_parts_need_no_permissions_of_the_manifests() -> None:
    provisioner = replace(ex.CONTROLLER, name="efs-provisioner", account="efs-provisioner")
    keeping = {"KUBE_EFS_REMOVE_STARTUP_TAINT": "false"}
    driver = replace(
        ex.TUNNEL, name="efs-csi-node", command="node", account="efs-csi-node", environment=keeping
    )
    cluster = replace(ex.CLUSTER, workloads=(provisioner, driver))
    get = _grant("efs-csi-node", "get", "nodes")
    rendered = (_grant("efs-manager", "get", "pods"), get, _grant("efs-csi-node", "patch", "nodes"))
    assert needed_grants(cluster, rendered) == (get,)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        pytest.param(1, set(), id="excluded by a selector, an affinity or a taint"),
        pytest.param(2, {"agent/silent", "driver/not-registered"}, id="its pod is missing"),
    ],
)
def test_node_from_which_the_daemon_sets_are_kept_away_is_no_problem(wanted: int, found: set[str]) -> None:
    """Such as a node of the control plane, with ``node.nodeSelector`` of the chart."""
    tunnel = replace(ex.TUNNEL, wanted=wanted, ready=wanted)
    driver = replace(tunnel, name="efs-csi-node", command="node")
    pods = tuple(
        replace(ex.POD, namespace=ex.NAMESPACE, name=f"{one.name}-x7k2p", claims=(), node=ex.NODE.name)
        for one in (tunnel, driver)
    )
    nodes = (replace(ex.NODE, drivers=frozenset({"efs.csi.aws.com"})), replace(ex.NODE, name="other"))
    facts = ex.cluster(workloads=(ex.CONTROLLER, tunnel, driver), pods=pods, nodes=nodes)
    assert {one.kind.id for one in diagnose(facts)} == found


def test_agents_of_an_older_system_need_no_status() -> None:
    older = replace(ex.TUNNEL, ours=False, command="", image="quay.io/gnuthought/efs-stunnel")
    found = diagnose(ex.cluster(workloads=(ex.CONTROLLER, older), statuses=()))
    assert [one.kind.id for one in found] == ["version/older-system"]


def test_tenant_with_the_name_of_older_agents_does_not_end_the_check_of_the_agents() -> None:
    forged = replace(ex.TUNNEL, namespace="tenant", ours=False, command="")
    found = diagnose(ex.cluster(workloads=(ex.CONTROLLER, ex.TUNNEL, forged), statuses=()))
    assert "agent/silent" in {one.kind.id for one in found}


NOTHING = [
    pytest.param(
        ex.on_openshift(replace(_FOR_NODES, users=(_ACCOUNT.user,))), id="constraints for the account"
    ),
    pytest.param(
        ex.on_openshift(replace(_FOR_NODES, groups=("system:serviceaccounts:efs",))),
        id="constraints for its group",
    ),
    pytest.param(ex.on_openshift(_FOR_NODES), id="constraints through a role"),
    pytest.param(ex.on_openshift(_FOR_NODES, uses=None), id="constraints with unknown users"),
    pytest.param(ex.cluster(), id="healthy cluster"),
    pytest.param(ex.aws(), id="healthy cluster with AWS"),
    pytest.param(ex.node(), id="healthy node"),
    pytest.param(Facts(now=ex.NOW), id="no facts"),
    pytest.param(ex.claim(ex.PENDING, created=ex.JUST_NOW), id="new claim"),
    pytest.param(ex.cluster(classes=(_MARKER_CLASS,)), id="class that aws-efs-operator has created"),
    pytest.param(
        ex.claim(
            replace(ex.PENDING, storage_class="efs-sc", volume_name="pv-team-sv"),
            classes=(_MARKER_CLASS,),
            created=ex.JUST_NOW,
        ),
        id="new claim of a SharedVolume",
    ),
    pytest.param(
        ex.claim(ex.PENDING, classes=(replace(ex.CLASS, waits_for_consumer=True),)),
        id="claim that waits for its pod",
    ),
    pytest.param(
        ex.claim(replace(ex.PENDING, storage_class=ROOT_CLASS, match_labels={"root_key": "x"})),
        id="root claim of the controller",
    ),
    pytest.param(
        ex.claim(replace(ex.CLAIM, deleting=True), deleting_since=ex.JUST_NOW),
        id="claim that is being deleted",
    ),
    pytest.param(
        ex.claim(replace(ex.PENDING, storage_class="ebs"), classes=(_FOREIGN_CLASS,)),
        id="claim of another provisioner",
    ),
    pytest.param(ex.volume(_RELEASED, changed=ex.JUST_NOW), id="volume that is being deleted"),
    pytest.param(
        ex.volume(replace(_RELEASED, reclaim_policy=ReclaimPolicy.RETAIN)), id="volume to be retained"
    ),
    pytest.param(
        ex.volume(replace(ex.VOLUME, deleting=True), deleting_since=ex.LONG_AGO),
        id="volume that waits for its claim",
    ),
    pytest.param(ex.pod(replace(ex.POD, phase="Pending", created=ex.JUST_NOW)), id="starting pod"),
    pytest.param(ex.pod(replace(ex.POD, phase="Pending", claims=("other",))), id="pod without an EFS volume"),
    pytest.param(ex.pod(replace(ex.POD, phase="Succeeded", deleting_since=ex.LONG_AGO)), id="ended pod"),
    pytest.param(
        ex.cluster(
            workloads=(replace(ex.CONTROLLER, environment={"KUBE_EFS_LEADER_ELECTION": "false"}),), leases=()
        ),
        id="controller without election",
    ),
    pytest.param(
        ex.cluster(
            workloads=(replace(ex.CONTROLLER, environment={"KUBE_EFS_LEASE_NAME": "mine"}),),
            leases=(LeaseFacts(name="mine", holder="a", renewed=ex.NOW - timedelta(seconds=20)),),
        ),
        id="Lease with another name, due for renewal",
    ),
    pytest.param(
        ex.cluster(nodes=(replace(ex.NODE, ready=False),), statuses=()), id="node that is not ready"
    ),
    *(
        pytest.param(
            ex.cluster(nodes=(replace(ex.NODE, compute=compute),), statuses=()),
            id=f"{compute} node",
        )
        for compute in ("fargate", "hybrid", "windows")
    ),
    pytest.param(
        ex.cluster(
            workloads=(replace(_DIRECTORY_CONTROLLER, environment={"KUBE_EFS_BACKENDS": "directory"}),),
            targets=TargetsFacts(found=False),
            statuses=(),
            volumes=(),
            pods=(),
        ),
        id="directories without tunnels",
    ),
    pytest.param(
        ex.cluster(
            workloads=tuple(
                replace(one, environment={"KUBE_EFS_BACKENDS": "csi"}) if one.command == "controller" else one
                for one in (ex.CONTROLLER, ex.TUNNEL)
            ),
            targets=TargetsFacts(found=False),
            volumes=(),
            pods=(),
        ),
        id="the CSI driver without tunnel volumes",
    ),
    pytest.param(ex.shared(_SHARED), id="new SharedVolume"),
    pytest.param(
        ex.shared(_GOING_SHARED, deleting_since=ex.JUST_NOW), id="SharedVolume that is being deleted"
    ),
    pytest.param(
        ex.pod(replace(ex.POD, namespace=ex.NAMESPACE, name="efs-manager-1", restarts=3)), id="few restarts"
    ),
    pytest.param(ex.published(state=TunnelState.STARTING), id="starting tunnel"),
    pytest.param(ex.published(state=TunnelState.DOWN, leaving=True), id="tunnel to be removed"),
    pytest.param(ex.published(certificate_ends="2026-01-02T04:00:00Z"), id="valid certificate"),
    pytest.param(ex.published(certificate_ends="soon"), id="unreadable expiry time"),
    pytest.param(
        _system(zone="us-east-1b", mount_targets=(replace(ex.MOUNT_TARGET, zone=ZoneName("us-east-1b")),)),
        id="One Zone file system",
    ),
    pytest.param(_s3_files(_ON_S3), id="file system of S3 Files"),
    pytest.param(_s3_files(_ON_S3, targets=_told_of_s3(ex.ADDRESS)), id="known address of S3 Files"),
    pytest.param(_s3_files(listed=False), id="file systems of S3 Files that AWS does not list"),
    pytest.param(
        _s3_files(replace(_ON_S3, mount_targets=(replace(_S3_TARGET, zone=None),))),
        id="mount target of S3 Files in an unknown zone",
    ),
    pytest.param(_access_points({ex.SYSTEM: {ex.ACCESS_POINT}}), id="access point of a volume"),
    pytest.param(_access_points({}), id="unknown access points"),
    pytest.param(_access_points({ex.SYSTEM: set()}, ex.JUST_NOW), id="access point not in the list yet"),
    pytest.param(
        _access_points({ex.SYSTEM: set()}, csi=CsiSource(handle=str(ex.SYSTEM))), id="no access point"
    ),
    pytest.param(
        _access_points({ex.SYSTEM: set()}, phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.RETAIN),
        id="access point of a released volume",
    ),
    pytest.param(
        _access_points({ex.SYSTEM: set()}, csi=CsiSource(handle=f"s3files:{ex.SYSTEM}::{ex.ACCESS_POINT}")),
        id="access point of S3 Files",
    ),
    pytest.param(ex.pod(replace(_FAILED_WORKER, finished=ex.LONG_AGO)), id="worker pod that failed long ago"),
    pytest.param(ex.node(status=None, tunnels=()), id="no tunnel is needed"),
    pytest.param(_in_aws(classes=(ex.FS_CLASS,)), id="class whose file systems are created later"),
    pytest.param(ex.made(access_points=1), id="file system with a retained access point"),
    pytest.param(ex.made(access_points=None), id="file system with unknown access points"),
    pytest.param(
        ex.made(owner=replace(ex.MADE_FILE_SYSTEM.owner, cluster="other")),
        id="file system of another cluster",
    ),
    *(
        pytest.param(ex.made(stage=stage, listed=True), id=f"file system in stage {stage}")
        for stage in Stage
        if stage is not Stage.READY
    ),
    pytest.param(
        replace(
            ex.made(),
            cluster=replace(
                ex.CLUSTER,
                classes=(
                    replace(ex.CSI_CLASS, parameters={**ex.CSI_CLASS.parameters, "fileSystemId": ex.MADE}),
                ),
            ),
        ),
        id="file system that a class names",
    ),
    pytest.param(replace(ex.made(), cluster=replace(ex.CLUSTER, uid="")), id="unknown UID of the cluster"),
    pytest.param(ex.made(state=LifeCycleState.DELETING), id="file system that is being deleted"),
    pytest.param(_with_identity(of_volume=("tls", "iam"), of_class=("iam",)), id="mounts with an identity"),
]


@pytest.mark.parametrize("facts", NOTHING)
def test_healthy_facts_have_no_findings(facts: Facts) -> None:
    assert [f"{one.kind.id}: {_text(one)}" for one in diagnose(facts)] == []


def test_findings_of_a_claim_are_those_between_it_and_its_data() -> None:
    another = replace(_BAD_CLASS, name="another")
    elsewhere = FileSystemId("fs-22222222")
    targets = replace(
        ex.TARGETS,
        targets={
            **ex.TARGETS.targets,
            elsewhere: replace(ex.TARGETS.targets[ex.SYSTEM], file_system_id=elsewhere, port=20491),
        },
    )
    facts = replace(
        ex.aws(file_systems={ex.SYSTEM: replace(ex.FILE_SYSTEM, state=LifeCycleState.ERROR)}),
        cluster=replace(
            ex.CLUSTER,
            classes=(ex.CLASS, another),
            targets=TargetsFacts(targets=targets),
            pods=(replace(ex.POD, deleting_since=ex.LONG_AGO), replace(ex.POD, name="x", claims=("y",))),
            missing_rights=(_RIGHT,),
            shared_volumes=(
                SharedVolumeFacts(shared=_FAILED_SHARED),
                SharedVolumeFacts(shared=replace(_FAILED_SHARED, owner=Owner(namespace="b", name="c"))),
            ),
        ),
    )
    everything = {(one.kind.id, one.subject.name) for one in diagnose(facts)}
    assert {("storage-class/parameter", "another"), ("file-system/missing", elsewhere)} <= everything

    asked = {(one.kind.id, one.subject.name) for one in diagnose(replace(facts, claim="team/data"))}
    assert asked == {
        ("rbac/missing", "efs/efs-manager"),
        ("pod/terminating", "team/web"),
        ("file-system/state", ex.SYSTEM),
        ("shared-volume/failed", "team/sv"),
    }


def test_findings_about_other_file_systems_do_not_concern_a_claim_that_gets_its_own() -> None:
    error = {ex.SYSTEM: replace(ex.FILE_SYSTEM, state=LifeCycleState.ERROR)}
    facts = replace(_waiting(), aws=replace(ex.AWS, file_systems=error))
    assert [one.kind.id for one in diagnose(facts)] == ["claim/creating"]
    shared = replace(ex.FS_CLASS, parameters={**ex.FS_CLASS.parameters, "scope": "namespace"})
    assert facts.cluster is not None
    facts = replace(facts, cluster=replace(facts.cluster, classes=(ex.CLASS, shared)))
    assert [one.kind.id for one in diagnose(facts)] == ["file-system/state", "claim/creating"]


_ON_OTHERS = tuple(
    replace(ex.CSI_CLASS, name=name, parameters={**ex.CSI_CLASS.parameters, "fileSystemId": fs})
    for name, fs in (("other", ex.GONE), ("another", ex.MADE))
)
_OF_S3_FILES = replace(
    ex.CSI_CLASS,
    name="s3",
    parameters={**ex.CSI_CLASS.parameters, "provisioningMode": "s3files-ap", "fileSystemId": "fs-44444444"},
)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        pytest.param(ex.claim(ex.CLAIM, key="team/typo"), ["claim/missing"], id="missing"),
        pytest.param(
            ex.claim(replace(ex.PENDING, storage_class=""), key="team/data"),
            ["claim/no-class"],
            id="without a class",
        ),
        pytest.param(
            ex.claim(replace(ex.PENDING, storage_class="ebs"), key="team/data", classes=(_FOREIGN_CLASS,)),
            ["claim/foreign"],
            id="of a foreign class",
        ),
        pytest.param(
            ex.claim(replace(ex.PENDING, storage_class="s3"), key="team/data", classes=(_OF_S3_FILES,)),
            ["claim/pending"],
            id="of S3 Files",
        ),
        pytest.param(
            replace(_MALFORMED, claim="team/data"),
            ["volume/handle", "pod/waiting"],
            id="whose volume has a malformed handle",
        ),
    ],
)
def test_file_systems_of_others_do_not_concern_a_claim(facts: Facts, found: list[str]) -> None:
    assert facts.cluster is not None
    cluster = replace(facts.cluster, classes=(*(facts.cluster.classes or ()), *_ON_OTHERS))
    facts = replace(facts, aws=ex.AWS, cluster=cluster)
    assert [one.kind.id for one in diagnose(facts)] == found
    everything = {one.subject.name for one in diagnose(replace(facts, claim=""))}
    assert {ex.GONE, ex.MADE} <= everything


def test_tunnels_of_other_file_systems_do_not_concern_a_claim() -> None:
    down = replace(
        ex.TUNNEL_UP, state=TunnelState.DOWN, reason="no answer", certificate_ends="2026-01-02T03:00:00Z"
    )
    tunnels = (down, replace(down, file_system_id=ex.GONE), replace(down, file_system_id=ex.MADE))
    status = PublishedStatus(
        node="one", time=ex.JUST_NOW, status=TunnelsStatus(tunnels=tunnels, location=ex.LOCATION)
    )
    everything = diagnose(ex.cluster(statuses=(status,)))
    asked = diagnose(replace(ex.cluster(statuses=(status,)), claim="team/data"))
    assert [one.kind.id for one in asked] == ["tunnel/down", "tunnel/certificate"]
    assert all(ex.SYSTEM in one.problem for one in asked)
    assert len(everything) == len(tunnels) * len(asked)


def test_remedy_for_a_claim_without_its_file_system_says_how_long_it_takes() -> None:
    (found,) = diagnose(_waiting(step=None))
    assert found.remedy.startswith("its file system takes a minute or two")


def test_unused_file_system_comes_with_the_commands_that_remove_it() -> None:
    (found,) = diagnose(ex.made())
    assert "save the data" in found.remedy
    assert f"aws efs delete-file-system --region us-east-1 --file-system-id {ex.MADE}" in _commands(found)
    assert [one for one in _commands(found) if "Name=group-name,Values=kube-efs-1" in one]
    of_namespace = FileSystemOwner(scope=Scope.NAMESPACE, name="7", cluster=ex.UID)
    (found,) = diagnose(ex.made(owner=of_namespace))
    assert "or create a claim" in found.remedy


def test_file_system_is_not_unused_while_the_volumes_are_unknown() -> None:
    facts = replace(ex.made(), cluster=replace(ex.CLUSTER, volumes=None))
    assert "file-system/unused" not in {one.kind.id for one in diagnose(facts)}


def test_broken_findings_are_first() -> None:
    facts = replace(ex.cluster(classes=(_IGNORED, _BAD_CLASS)), gaps=(Gap(what="a", reason="b"),))
    assert [one.kind.severity for one in diagnose(facts)] == ["broken", "risk", "unchecked"]


def test_claim_of_a_tunnel_volume_gets_no_file_system_of_s3_files() -> None:
    claim = replace(ex.PENDING, match_labels={"volume_name": "a", "file_system_id": "auto"})
    of_s3_files = {ex.SYSTEM: replace(ex.FILE_SYSTEM, kind=FileSystemKind.S3_FILES)}
    facts = replace(ex.claim(claim), aws=replace(ex.AWS, file_systems=of_s3_files))
    (finding,) = (one for one in diagnose(facts) if one.kind.id == "claim/pending")
    assert "is not known (yet)" in finding.problem
    assert finding.remedy == "known file systems: none"


@pytest.mark.parametrize("label", [None, "", "auto", ex.SYSTEM])
def test_file_system_that_the_class_gives_concerns_its_claim(label: str | None) -> None:
    labels = {"volume_name": "data"} | ({} if label is None else {"file_system_id": label})
    cluster = ex.claim(replace(ex.PENDING, match_labels=labels)).cluster
    assert cluster is not None
    kind = next(kind for topic in TOPICS for kind in topic.kinds)

    def about(system: str) -> Finding:
        return Finding(
            kind=kind, subject=FindingSubject("FileSystem", system), problem="is gone", remedy="wait"
        )

    assert concerns(about(ex.SYSTEM), "team/data", cluster)
    assert not concerns(about(ex.GONE), "team/data", cluster)
