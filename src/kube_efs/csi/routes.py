"""From a plan for a mount to where it leads: through a tunnel, or to the mount target itself."""

from dataclasses import dataclass

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.model.csi_errors import NoMountTarget
from kube_efs.model.file_systems import dns_name
from kube_efs.model.ids import Region, ZoneName
from kube_efs.model.mount_options import IamIdentity, MountPlan
from kube_efs.tunnels.on_demand.specs import TunnelSpec

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Who and where this node is; None where that is not known.

    ``node_id`` is the instance's id, where there is one. ``dns_suffix`` None is the region's own.
    """

    node_id: str
    region: Region | None = None
    zone: ZoneName | None = None
    zone_id: str | None = None
    dns_suffix: str | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """The zone by each of its names, that which means the same in all accounts first."""
        return tuple(name for name in (self.zone_id, self.zone) if name)


def tunnel_spec(plan: MountPlan, place: NodePlace) -> TunnelSpec:
    """What the plan asks of the tunnel agent; raises InvalidValue for what excludes each other."""
    address = plan.attributes.address_in(*place.zones)
    return TunnelSpec(
        file_system_id=plan.handle.file_system_id,
        access_point_id=plan.handle.access_point_id,
        iam=_iam(plan.iam),
        region=plan.region,
        address=address,
        # An address says it all, and mounts that say the same share a tunnel.
        zone=plan.zone if address is None else None,
        cross_account=plan.attributes.cross_account,
        checks_revocation=plan.checks_revocation,
    )


def direct_server(plan: MountPlan, place: NodePlace) -> str:
    """The mount target for a mount without TLS: its address or its name; raises NoMountTarget."""
    address = plan.attributes.address_in(*place.zones)
    if address is not None:
        return address
    region = plan.region or place.region
    if region is None:
        raise _unknown("region", "AWS_REGION")
    is_own = plan.region in {None, place.region}
    name = dns_name(plan.handle.file_system_id, region, place.dns_suffix if is_own else None)
    if plan.attributes.cross_account and place.zone_id is None:
        raise _unknown("zone id", "KUBE_EFS_ZONE_ID")
    zone = place.zone_id if plan.attributes.cross_account else plan.zone
    return f"{zone}.{name}" if zone else name


def _iam(identity: IamIdentity | None) -> IamOptions | None:
    if identity is None:
        return None
    return IamOptions(profile=identity.profile, role_arn=identity.role_arn, token_file=identity.token_file)


def _unknown(what: str, setting: str) -> NoMountTarget:
    return NoMountTarget("is not known", field=f"this node's {what}", remedy=f"set {setting}")
