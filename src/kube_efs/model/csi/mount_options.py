"""What a volume on EFS is mounted with: what the mount flags ask of the tunnel, and the options for NFS.

The flags are those of ``mount.efs`` (aws/efs-utils 3.2), which the AWS driver hands them to. They are
``mountOptions`` of a class or volume. There is no ``mount.efs`` here: what it handles itself becomes a field
of MountPlan, the others are given to the kernel, each after a check that it cannot be read as two.

Different from there: the case of values is kept; ``ro`` of a request cannot be undone by a flag ``rw``;
nothing turns verification off or leads past the tunnel; and volumes that share a tunnel do not share their
caches (``nosharecache``), as they did not with a port each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kube_efs.model.csi.capabilities import VolumeCapability, check_capabilities
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.mount_flags import MountFlags, parse_mount_flags
from kube_efs.model.csi.volume_attributes import VolumeAttributes
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.model.errors import InvalidValue

_BLOCK_BYTES = 1_048_576  # the largest that EFS serves


@dataclass(frozen=True, slots=True, kw_only=True)
class _Default:
    """An option that is added unless one of a group is given."""

    option: str
    unless: frozenset[str]


# In the order in which mount.efs adds them.
_DEFAULTS = (
    _Default(option="nfsvers=4.1", unless=frozenset({"nfsvers", "vers", "v4", "v4.0", "v4.1", "v4.2"})),
    _Default(option=f"rsize={_BLOCK_BYTES}", unless=frozenset({"rsize"})),
    _Default(option=f"wsize={_BLOCK_BYTES}", unless=frozenset({"wsize"})),
    _Default(option="hard", unless=frozenset({"hard", "soft", "softerr"})),
    _Default(option="timeo=600", unless=frozenset({"timeo"})),  # tenths of a second
    _Default(option="retrans=2", unless=frozenset({"retrans"})),
    # The kernel may then reconnect from another source port when a tunnel was restarted.
    _Default(option="noresvport", unless=frozenset({"noresvport", "resvport"})),
    _Default(option="nosharecache", unless=frozenset({"sharecache", "nosharecache"})),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IamIdentity:
    """Whose credentials sign the connection: a profile's, a web identity's, or what the node finds."""

    profile: str | None = None
    role_arn: str | None = None
    token_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """How a volume is reached and mounted.

    ``handle`` has the access point, wherever it was named. ``iam`` None connects without a signature.
    ``zone`` and ``region`` are None where the node's own count. ``checks_revocation`` asks OCSP for the
    server's certificate. ``nfs_options`` are complete except the port; ``oddities`` deserve a warning.
    """

    handle: VolumeHandle
    attributes: VolumeAttributes
    encrypted: bool
    iam: IamIdentity | None = None
    zone: ZoneName | None = None
    region: Region | None = None
    checks_revocation: bool = False
    nfs_options: tuple[str, ...] = ()
    oddities: tuple[InvalidValue, ...] = ()

    @property
    def read_only(self) -> bool:
        """Whether the mount is for reading only."""
        return "ro" in self.nfs_options

    def options(self, port: int | None = None) -> str:
        """The argument of ``mount -o``; ``port`` is the tunnel's, None mounts the target itself."""
        return ",".join(self.nfs_options if port is None else (*self.nfs_options, f"port={port}"))

    def source(self, server: str) -> str:
        """What to mount: ``127.0.0.1`` for a tunnel, else the name or address of the mount target."""
        host = f"[{server}]" if ":" in server else server
        return f"{host}:{self.handle.directory}"


def plan_mount(
    handle: VolumeHandle, attributes: VolumeAttributes, capability: VolumeCapability, *, read_only: bool
) -> MountPlan:
    """How to mount the volume for that use; raises InvalidArgument for what contradicts itself.

    An access point needs TLS and gets it whatever ``encryptInTransit`` says, with a warning. A volume
    whose access mode is for readers is mounted read-only.
    """
    check_capabilities([capability])
    flags = parse_mount_flags(capability.mount_flags)
    encrypted, oddities = _decide_encryption(handle, attributes, flags)
    access_point_id, deprecated = _access_point(handle, flags, encrypted=encrypted)
    if flags.iam and not encrypted:
        raise _contradiction("iam", "needs TLS", "leave out encryptInTransit: false")
    return MountPlan(
        handle=replace(handle, access_point_id=access_point_id),
        attributes=_with_address(attributes, flags),
        encrypted=encrypted,
        iam=_identity(flags),
        zone=None if attributes.cross_account else flags.zone,
        region=flags.region,
        checks_revocation=flags.ocsp,
        nfs_options=_nfs_options(flags.others, read_only=read_only or capability.access_mode.reads_only),
        oddities=(*oddities, *deprecated, *flags.oddities, *_ineffective_zone(attributes, flags)),
    )


def _decide_encryption(
    handle: VolumeHandle, attributes: VolumeAttributes, flags: MountFlags
) -> tuple[bool, tuple[InvalidValue, ...]]:
    wanted = attributes.encrypted is not False
    if flags.tls and not wanted:
        raise _contradiction("tls", "contradicts encryptInTransit: false", "leave one of them out")
    if flags.notls and (wanted or handle.access_point_id):
        raise _contradiction("notls", "contradicts TLS", "set encryptInTransit to false")
    if wanted or not handle.access_point_id:
        return wanted, ()
    odd = InvalidValue(
        "has no effect, the volume has an access point and is encrypted",
        field="encryptInTransit",
        value="false",
        remedy="leave it out",
    )
    return True, (odd,)


def _access_point(
    handle: VolumeHandle, flags: MountFlags, *, encrypted: bool
) -> tuple[AccessPointId | None, tuple[InvalidValue, ...]]:
    if flags.access_point_id is None:
        return handle.access_point_id, ()
    if handle.access_point_id not in {None, flags.access_point_id}:
        raise _contradiction(
            f"accesspoint={flags.access_point_id}",
            f"is not that of the volume handle, {handle.access_point_id}",
            "leave it out",
        )
    if not encrypted:
        remedy = "leave out encryptInTransit: false"
        raise _contradiction(f"accesspoint={flags.access_point_id}", "needs TLS", remedy)
    odd = InvalidValue(
        "is deprecated", field="mount flags", value="accesspoint", remedy="put it into the volume handle"
    )
    return flags.access_point_id, (odd,)


def _ineffective_zone(attributes: VolumeAttributes, flags: MountFlags) -> Iterator[InvalidValue]:
    if attributes.cross_account and flags.zone is not None:
        yield InvalidValue(
            "has no effect, a file system of another account uses the zone ID of the node",
            field="mount flags",
            value=f"az={flags.zone}",
            remedy="leave it out",
        )


def _with_address(attributes: VolumeAttributes, flags: MountFlags) -> VolumeAttributes:
    address = flags.address or attributes.address
    if flags.address is not None and attributes.address not in {None, flags.address}:
        raise _contradiction(
            f"mounttargetip={flags.address}", f"is not the attribute's, {attributes.address}", "leave it out"
        )
    if attributes.cross_account and (address is not None or attributes.addresses):
        raise InvalidArgument(
            "exclude each other",
            field="volume attributes crossaccount and mounttargetip",
            remedy="give one of them",
        )
    return replace(attributes, address=address)


def _identity(flags: MountFlags) -> IamIdentity | None:
    if not flags.iam:
        return None
    if flags.role_arn and flags.token_file:  # these two together win over a profile
        return IamIdentity(role_arn=flags.role_arn, token_file=flags.token_file)
    return IamIdentity(profile=flags.profile)


def _nfs_options(others: Sequence[str], *, read_only: bool) -> tuple[str, ...]:
    given = (*(("ro",) if read_only else ()), *(o for o in others if not (read_only and o == "rw")))
    names = {option.partition("=")[0] for option in given}
    added = (default.option for default in _DEFAULTS if names.isdisjoint(default.unless))
    return (*dict.fromkeys(given), *added)


def _contradiction(flag: str, problem: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(problem, field="mount flags", value=flag, remedy=remedy)
