"""Values of a publication: the volume, its target, its use, and the tunnel or mount target that it needs.

The tunnel agent stores ``NodeMount.holder`` on its disk, and another version of this driver reads it after an
upgrade. Its format must therefore not change.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from kube_efs.aws.credential_sources import IamOptions, ServiceAccountIdentity
from kube_efs.csi.node_info import NodeInfo
from kube_efs.csi.pod_tokens import PodTokens
from kube_efs.model.csi.errors import InvalidArgument, NoMountTarget
from kube_efs.model.csi.mount_options import MountPlan
from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.efs.file_systems import dns_name
from kube_efs.tunnels.reservations import Holder, TunnelSpec

FORCED_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMount:
    """A volume at a target of this node, whose path has no links."""

    volume_id: str
    target: Path

    @property
    def volume(self) -> str:
        """The id in its canonical form: two spellings of one volume give the same text."""
        return _volume(self.volume_id)

    @property
    def holder(self) -> Holder:
        """The name of the holder: the volume id without blanks, a blank, and the target."""
        return Holder(f"{quote(self.volume_id, safe=':/')} {self.target}")


@lru_cache(maxsize=2048)
def _volume(volume_id: str) -> str:
    try:
        return str(replace(parse_volume_handle(volume_id), base=None))
    except InvalidArgument:
        return volume_id


def parse_mount(holder: Holder) -> NodeMount | None:
    """The mount with this holder name; None for another name."""
    volume_id, _, target = holder.partition(" ")
    mount = NodeMount(volume_id=unquote(volume_id), target=Path(target))
    return mount if mount.holder == holder and mount.target.is_absolute() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUse:
    """A volume at a target; ``is_for_one_pod`` allows no second target."""

    mount: NodeMount
    is_for_one_pod: bool = False

    def excludes(self, other: "VolumeUse") -> bool:
        """Whether both must not exist at the same time."""
        is_for_one_pod = self.is_for_one_pod or other.is_for_one_pod
        is_elsewhere = self.mount.target != other.mount.target
        return is_for_one_pod and is_elsewhere and self.mount.volume == other.mount.volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A requested use, and how to mount the volume for it; ``tokens`` if the pod signs the connection."""

    use: VolumeUse
    plan: MountPlan
    tokens: PodTokens | None = None

    @property
    def mount(self) -> NodeMount:
        """The volume and the target."""
        return self.use.mount

    @property
    def purpose(self) -> "Publication":
        """Without tokens and warnings: equal for the first and the repeated requests of a pod."""
        return replace(self, plan=replace(self.plan, warnings=()), tokens=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmountOptions:
    """The timeout of an unmount, and whether a forced unmount follows."""

    timeout_seconds: float = 30.0
    force: bool = False

    def within(self, seconds: float) -> "UnmountOptions":
        """For a call that ends after this time: with force, half of it at most is the timeout.

        Each call begins with an unmount without force. If that took the whole call, none would be forced.
        """
        if not self.force:
            return self
        # Rounded, because errors contain it.
        return replace(self, timeout_seconds=min(self.timeout_seconds, round(seconds / 2, 2)))

    @property
    def pause_seconds(self) -> float:
        """The pause between two attempts; all forced attempts fit into the timeout."""
        return min(1.0, self.timeout_seconds / (2 * FORCED_ATTEMPTS))


def tunnel_spec(
    plan: MountPlan, node_info: NodeInfo, identity: ServiceAccountIdentity | None = None
) -> TunnelSpec:
    """The tunnel that the plan needs, with the identity of the pod if this signs.

    Raises InvalidValue for options that exclude each other.
    """
    address = plan.attributes.address_in(*node_info.zones)
    iam: IamOptions | ServiceAccountIdentity | None = identity
    if plan.iam is not None and identity is None:
        iam = IamOptions(profile=plan.iam.profile, role_arn=plan.iam.role_arn, token_file=plan.iam.token_file)
    return TunnelSpec(
        kind=plan.handle.kind,
        file_system_id=plan.handle.file_system_id,
        access_point_id=plan.handle.access_point_id,
        iam=iam,
        region=plan.region,
        address=address,
        # An address already selects the mount target; without the zone, such mounts share a tunnel.
        zone=plan.zone if address is None else None,
        cross_account=plan.attributes.cross_account,
        checks_revocation=plan.checks_revocation,
        ca_file=plan.ca_file,
    )


def direct_server(plan: MountPlan, node_info: NodeInfo) -> str:
    """The mount target for a mount without TLS: its address or its name; raises NoMountTarget."""
    address = plan.attributes.address_in(*node_info.zones)
    if address is not None:
        return address
    region = plan.region or node_info.region
    if region is None:
        raise _unknown("region", "AWS_REGION")
    is_own = plan.region in {None, node_info.region}
    name = dns_name(plan.handle.file_system_id, region, node_info.dns_suffix if is_own else None)
    if plan.attributes.cross_account and node_info.zone_id is None:
        raise _unknown("zone id", "KUBE_EFS_ZONE_ID")
    zone = node_info.zone_id if plan.attributes.cross_account else plan.zone
    return f"{zone}.{name}" if zone else name


def direct_servers(plan: MountPlan, node_info: NodeInfo) -> tuple[str, ...]:
    """Every server that such a mount can have: the node may not have known its zone, or may not know it now.

    Raises NoMountTarget.
    """
    return plan.attributes.every_address or (direct_server(plan, node_info),)


def _unknown(what: str, setting: str) -> NoMountTarget:
    return NoMountTarget("is not known", field=f"this node's {what}", remedy=f"set {setting}")
