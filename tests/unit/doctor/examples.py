"""Facts of a healthy cluster and node, which tests change one by one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from kube_efs.aws.interfaces import Interface
from kube_efs.doctor.constraints import Constraints, HostAccess
from kube_efs.doctor.facts import (
    AwsFacts,
    ClaimFacts,
    ClusterFacts,
    Facts,
    LeaseFacts,
    NodeObject,
    PodFacts,
    PublishedStatus,
    SharedVolumeFacts,
    TargetsFacts,
    VolumeFacts,
    Warned,
    Workload,
)
from kube_efs.doctor.grants import Grant
from kube_efs.doctor.node_facts import (
    CaFile,
    ConfiguredTunnel,
    Handshake,
    HandshakeOutcome,
    LoopbackMount,
    NodeFacts,
    ProcessHealth,
    TunnelFacts,
)
from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy, StorageClass
from kube_efs.model.csi.file_system_templates import Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, MadeFileSystem, Stage
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import FileSystem, LifeCycleState, MountTarget
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, MountTargetId, SubnetId, ZoneName
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.shared_volumes.shared_volume import SharedVolume
from kube_efs.model.volumes import DRIVER, ClaimReference, CsiSource, NfsSource, Volume, VolumePhase
from kube_efs.settings.controller import DEFAULT_PROVISIONER
from kube_efs.tunnels.probe import ProbeResult
from kube_efs.tunnels.status import LocationStatus, TunnelsStatus, TunnelState, TunnelStatus

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JUST_NOW, LONG_AGO = NOW - timedelta(seconds=5), NOW - timedelta(hours=1)
NAMESPACE = "efs"
IMAGE = "quay.io/kube-efs/kube-efs:0.1.0"
SYSTEM, GONE = FileSystemId("fs-11111111"), FileSystemId("fs-99999999")
MADE = FileSystemId("fs-33333333")
UID = "uid-of-kube-system"
ACCESS_POINT = AccessPointId("fsap-0123456789abcdef0")
TARGET = MountTargetId("fsmt-1")
SUBNET = SubnetId("subnet-11111111")
ADDRESS, NODE_ADDRESS = "10.0.1.5", "10.0.2.9"
PORT = 20490
CONFIGURATION = Path("/tmp/stunnel.conf")

CLASS = StorageClass(
    name="efs", provisioner=DEFAULT_PROVISIONER, parameters={"default_file_system_id": SYSTEM}
)
CSI_CLASS = StorageClass(
    name="csi",
    provisioner="efs.csi.aws.com",
    parameters={"provisioningMode": "efs-ap", "fileSystemId": SYSTEM, "directoryPerms": "700"},
)
FS_CLASS = StorageClass(
    name="private",
    provisioner="efs.csi.aws.com",
    parameters={"provisioningMode": "efs-fs", "directoryPerms": "700"},
)
CLAIM = Claim(
    namespace="team",
    name="data",
    uid=ClaimUid("uid-1"),
    phase=ClaimPhase.BOUND,
    storage_class="efs",
    volume_name="volume-1",
    match_labels={"volume_name": "data"},
    access_modes=("ReadWriteMany",),
)
PENDING = replace(CLAIM, phase=ClaimPhase.PENDING, volume_name="")
VOLUME = Volume(
    name="volume-1",
    uid="volume-uid",
    phase=VolumePhase.BOUND,
    reclaim_policy=ReclaimPolicy.DELETE,
    storage_class="efs",
    provisioned_by=DEFAULT_PROVISIONER,
    file_system_id=SYSTEM,
    finalizers=("external-provisioner",),
    claim=ClaimReference(namespace="team", name="data", uid=CLAIM.uid),
    nfs=NfsSource(server="127.0.0.1", path="/team/data"),
    mount_options=(f"port={PORT}",),
)
CSI_VOLUME = replace(
    VOLUME, name="csi-1", uid="csi-uid", nfs=None, csi=CsiSource(handle=f"{SYSTEM}::{ACCESS_POINT}")
)
POD = PodFacts(
    namespace="team",
    name="web",
    uid="pod-uid",
    node="one",
    phase="Running",
    created=LONG_AGO,
    claims=("data",),
)
CONTROLLER = Workload(
    kind="Deployment",
    namespace=NAMESPACE,
    name="efs-manager",
    command="controller",
    image=IMAGE,
    ours=True,
    wanted=2,
    ready=2,
)
TUNNEL = replace(CONTROLLER, kind="DaemonSet", name="efs-stunnel", command="tunnel", wanted=1, ready=1)
LEASE = LeaseFacts(name="kube-efs-controller", holder="efs-manager-0", renewed=JUST_NOW)
NODE = NodeObject(
    name="one", zone="us-east-1a", region="us-east-1", addresses=(NODE_ADDRESS,), instance_id="i-1"
)
TUNNEL_UP = TunnelStatus(file_system_id=SYSTEM, port=PORT, state=TunnelState.UP, address=ADDRESS)
SOURCE = Interface(
    subnet_id=SubnetId("subnet-22222222"), addresses=(ip_address(NODE_ADDRESS),), groups=("sg-node",)
)
TARGETS = TunnelTargets(
    targets={SYSTEM: TunnelTarget(file_system_id=SYSTEM, port=PORT, address_by_subnet={SUBNET: ADDRESS})}
)
MOUNT_TARGET = MountTarget(
    mount_target_id=TARGET,
    file_system_id=SYSTEM,
    subnet_id=SUBNET,
    zone=ZoneName("us-east-1a"),
    address=ADDRESS,
    state=LifeCycleState.AVAILABLE,
)
FILE_SYSTEM = FileSystem(file_system_id=SYSTEM, mount_targets=(MOUNT_TARGET,))
MADE_FILE_SYSTEM = MadeFileSystem(
    file_system_id=MADE,
    owner=FileSystemOwner(scope=Scope.CLAIM, name="pvc-1", cluster=UID),
    stage=Stage.READY,
    token="kube-efs-1",
    mount_targets=1,
)

LOCATION = LocationStatus(
    region="us-east-1", region_source="settings", zone="us-east-1a", zone_source="Node object"
)
CLUSTER = ClusterFacts(
    names=replace(OPENSHIFT_EFS_STUNNEL, namespace=NAMESPACE),
    uid=UID,
    workloads=(CONTROLLER, TUNNEL),
    pods=(POD,),
    nodes=(NODE,),
    leases=(LEASE,),
    classes=(CLASS, CSI_CLASS),
    claims=(ClaimFacts(claim=CLAIM, created=LONG_AGO),),
    volumes=(VolumeFacts(volume=VOLUME, changed=LONG_AGO),),
    targets=TargetsFacts(targets=TARGETS),
    statuses=(
        PublishedStatus(
            node="one", time=JUST_NOW, status=TunnelsStatus(tunnels=(TUNNEL_UP,), location=LOCATION)
        ),
    ),
)
AWS = AwsFacts(
    region="us-east-1",
    file_systems={SYSTEM: FILE_SYSTEM},
    looked_into=frozenset({SYSTEM}),
    interfaces={"i-1": (SOURCE,)},
)

CONFIGURED = ConfiguredTunnel(
    name=SYSTEM,
    port=PORT,
    addresses=(ADDRESS,),
    check_host=f"{SYSTEM}.efs.us-east-1.amazonaws.com",
    ca_file=Path("/ca.crt"),
)
WELL = TunnelFacts(
    tunnel=CONFIGURED,
    listening=True,
    null_call=ProbeResult(ok=True, seconds=0.002),
    handshakes=(Handshake(address=ADDRESS, outcome=HandshakeOutcome.DONE),),
)
ON_NODE = NodeFacts(
    name="one",
    configuration=CONFIGURATION,
    tunnels=(WELL,),
    ca_files=(CaFile(path=Path("/ca.crt")),),
    listening=frozenset({PORT}),
    mounts=(LoopbackMount(mount_point=Path("/var/lib/kubelet/x"), port=PORT),),
    processes=(ProcessHealth(name="tunnel agent", url="http://127.0.0.1:9811"),),
    status=TunnelsStatus(tunnels=(TUNNEL_UP,), stunnel_pid=7, location=LOCATION),
    kernel=(),
    booleans={"virt_use_nfs": True},
)


def cluster(**changes: Any) -> Facts:
    """The cluster with these changes, without AWS."""
    return Facts(now=NOW, cluster=replace(CLUSTER, **changes))


def on_openshift(*constraints: Constraints, uses: tuple[Grant, ...] | None = ()) -> Facts:
    """A cluster with the CSI driver, these constraints, and these missing permissions to use them."""
    node = replace(
        TUNNEL,
        name="efs-csi-node",
        command="node",
        account="efs-csi-node",
        needs=frozenset({HostAccess.PRIVILEGED, HostAccess.FOLDERS}),
    )
    known = (replace(NODE, drivers=frozenset({DRIVER})),)
    return cluster(
        workloads=(CONTROLLER, TUNNEL, node), nodes=known, constraints=constraints, missing_uses=uses
    )


def claim(
    found: Claim, *warned: Warned, key: str = "", classes: Any = CLUSTER.classes, **times: Any
) -> Facts:
    """A cluster with this claim and without a volume for it; with a key, the doctor is asked about it."""
    one = ClaimFacts(claim=found, **{"created": LONG_AGO, **times})
    changes = {"claims": (one,), "warnings": warned, "classes": classes, "volumes": (), "pods": ()}
    return replace(cluster(**changes), claim=key)


def volume(found: Volume, *warned: Warned, **more: Any) -> Facts:
    """A cluster with this volume."""
    one = VolumeFacts(volume=found, **{"changed": LONG_AGO, **more})
    return cluster(volumes=(one,), warnings=warned)


def pod(found: PodFacts, *warned: Warned) -> Facts:
    """A cluster with this pod."""
    return cluster(pods=(found,), warnings=warned)


def shared(found: SharedVolume, **more: Any) -> Facts:
    """A cluster with this SharedVolume."""
    return cluster(shared_volumes=(SharedVolumeFacts(shared=found, **more),))


def aws(**changes: Any) -> Facts:
    """The cluster with these facts from AWS."""
    return Facts(now=NOW, cluster=CLUSTER, aws=replace(AWS, **changes))


def made(
    *, access_points: int | None = 0, listed: bool = False, name: str = "team/data", **changes: Any
) -> Facts:
    """AWS has a file system that was created for a claim; no volume is on it.

    ``access_points`` is the number of those on it, None if it is unknown. With ``listed``, the nodes have a
    tunnel to it, which does not work without mount targets.
    """
    one = replace(MADE_FILE_SYSTEM, **changes)
    points = frozenset(AccessPointId(f"fsap-{number}") for number in range(access_points or 0))
    targets = () if listed else (MOUNT_TARGET,)
    system = FileSystem(file_system_id=MADE, name=name, state=one.state, mount_targets=targets)
    facts = aws(
        file_systems={SYSTEM: FILE_SYSTEM, MADE: system},
        looked_into=frozenset({SYSTEM, MADE}),
        made={MADE: one},
        access_points={} if access_points is None else {MADE: points},
    )
    if not listed:
        return facts
    target = TunnelTarget(file_system_id=MADE, port=PORT + 1, address_by_subnet={})
    down = TunnelStatus(file_system_id=MADE, port=PORT + 1, state=TunnelState.DOWN, reason="no mount target")
    status = TunnelsStatus(tunnels=(TUNNEL_UP, down), location=LOCATION)
    known = replace(
        CLUSTER,
        targets=TargetsFacts(targets=replace(TARGETS, targets={**TARGETS.targets, MADE: target})),
        statuses=(PublishedStatus(node="one", time=JUST_NOW, status=status),),
    )
    return replace(facts, cluster=known)


def published(**changes: Any) -> Facts:
    """A cluster whose node publishes this status of its tunnel."""
    status = TunnelsStatus(tunnels=(replace(TUNNEL_UP, **changes),))
    return cluster(statuses=(PublishedStatus(node="one", time=JUST_NOW, status=status),))


def node(**changes: Any) -> Facts:
    """The node with these changes."""
    return Facts(now=NOW, node=replace(ON_NODE, **changes))


def tunnel(**changes: Any) -> Facts:
    """The node with a tunnel like this."""
    return node(tunnels=(replace(WELL, **changes),))


def handshake(outcome: HandshakeOutcome, **more: Any) -> Facts:
    """The node with this outcome of a handshake."""
    return tunnel(handshakes=(Handshake(address=ADDRESS, outcome=outcome, **more),))


def warned(kind: str, uid: str, reason: str, message: str) -> Warned:
    """A warning event."""
    return Warned(kind=kind, uid=uid, reason=reason, message=message)
