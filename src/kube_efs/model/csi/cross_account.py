"""File systems of another AWS account: the provisioner Secret, and the attributes of the volumes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kube_efs.model.csi.errors import InvalidArgument, NoMountTarget
from kube_efs.model.csi.parameter_texts import parse_boolean
from kube_efs.model.csi.volume_attributes import VolumeAttributes, ZoneAddress
from kube_efs.model.efs.ids import FileSystemId, ZoneName

ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,576}")
_EXTERNAL_ID = re.compile(r"[A-Za-z0-9_+=,.@:/-]{2,1224}")  # STS, AssumeRole, ExternalId
_ROLE, _EXTERNAL, _BY_NAME = "awsRoleArn", "externalId", "crossaccount"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAccountRole:
    """The role to assume in the account of the file system.

    ``by_zone_id`` lets the nodes find the mount target by DNS, without its address.
    """

    role_arn: str
    external_id: str | None = field(default=None, repr=False)
    by_zone_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAddress:
    """A usable mount target, and its zone as the account of the file system names it."""

    zone: ZoneName
    zone_id: ZoneName
    address: str


def parse_provisioner_secret(secret: Mapping[str, str]) -> CrossAccountRole | None:
    """The role in the secrets of a request; None without one.

    Raises InvalidArgument, also for a malformed ``crossaccount`` without a role. Errors never contain the
    values of the Secret.
    """
    by_zone_id = _parse_by_zone_id(secret.get(_BY_NAME))
    role = secret.get(_ROLE, "")
    if not role:
        return None
    if not ROLE_ARN.fullmatch(role):
        remedy = "use arn:aws:iam::ACCOUNT:role/NAME"
        raise InvalidArgument("is not the ARN of a role", field=f"secret {_ROLE}", remedy=remedy)
    external_id = secret.get(_EXTERNAL) or None
    if external_id is not None and not _EXTERNAL_ID.fullmatch(external_id):
        remedy = "use 2 to 1224 letters, digits and _+=,.@:/-"
        raise InvalidArgument("is not a valid external ID", field=f"secret {_EXTERNAL}", remedy=remedy)
    return CrossAccountRole(role_arn=role, external_id=external_id, by_zone_id=by_zone_id)


def _parse_by_zone_id(text: str | None) -> bool:
    if text is None:
        return False
    try:
        return parse_boolean(text, field=_BY_NAME)
    except InvalidArgument as error:
        raise InvalidArgument(
            error.problem, field=f"secret {_BY_NAME}", remedy=error.remedy
        ) from None  # the cause shows the value


def needs_targets(role: CrossAccountRole) -> bool:
    """Whether the attributes of a volume depend on the mount targets."""
    return not role.by_zone_id


def cross_account_attributes(
    role: CrossAccountRole,
    zone: ZoneName | None,
    file_system_id: FileSystemId,
    targets: Sequence[TargetAddress] = (),
) -> VolumeAttributes:
    """The attributes of a volume in another account; ``zone`` is ``az`` of the class, a name or an ID.

    There are three forms, in the order of precedence of the AWS driver: DNS with the zone ID; one address,
    that of the zone; an address for each zone. Addresses are listed by zone **ID**. (The AWS driver lists
    names, which differ between accounts. Its node service expects IDs, so it uses any address.) Without a
    mount target in ``zone``, the address is that of the first zone ID, not a random one. Raises NoMountTarget
    without any mount target.
    """
    if role.by_zone_id:
        return VolumeAttributes(cross_account=True)
    if not targets:
        remedy = "create a mount target, or set crossaccount in the provisioner secret"
        raise NoMountTarget(
            "has no mount target that is available", field="file system", value=file_system_id, remedy=remedy
        )
    in_order = sorted(targets, key=lambda target: target.zone_id)
    if zone is not None:
        near = [target for target in in_order if zone in {target.zone, target.zone_id}]
        return VolumeAttributes(address=(near or in_order)[0].address)
    return VolumeAttributes(
        addresses=tuple(ZoneAddress(zone=target.zone_id, address=target.address) for target in in_order)
    )
