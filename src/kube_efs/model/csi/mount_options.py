"""How a volume on EFS is mounted: the requirements for the tunnel, and the options for NFS.

The flags are ``mountOptions`` of a class or volume. The AWS driver passes them to ``mount.efs``
(aws/efs-utils 3.2), which kube-efs does not use. Flags that ``mount.efs`` handles itself become fields of
MountPlan. The others go to the kernel, after a check that each is a single option.

Differences: the case of values is kept; a flag ``rw`` cannot override ``ro`` of the request; no flag disables
the verification of the server or bypasses the tunnel, and ``cafile`` needs the consent of the administrator;
volumes that share a tunnel do not share their caches (``nosharecache``), as if each had its own port.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kube_efs.model.csi.capabilities import VolumeCapability, check_capabilities
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.mount_flags import MOUNT_OPTIONS, MountFlags, parse_mount_flags
from kube_efs.model.csi.volume_attributes import AuthenticationSource, VolumeAttributes
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import InvalidValue

_BLOCK_BYTES = 1_048_576  # the largest that EFS serves


@dataclass(frozen=True, slots=True, kw_only=True)
class _Default:
    """An option that is added unless one of a group is given."""

    option: str
    unless: frozenset[str]


# In the order in which mount.efs adds them.
_DEFAULTS = (
    _Default(option=f"rsize={_BLOCK_BYTES}", unless=frozenset({"rsize"})),
    _Default(option=f"wsize={_BLOCK_BYTES}", unless=frozenset({"wsize"})),
    _Default(option="hard", unless=frozenset({"hard", "soft", "softerr"})),
    _Default(option="timeo=600", unless=frozenset({"timeo"})),  # tenths of a second
    _Default(option="retrans=2", unless=frozenset({"retrans"})),
    # The kernel can then reconnect from another source port after a restart of the tunnel.
    _Default(option="noresvport", unless=frozenset({"noresvport", "resvport"})),
    _Default(option="nosharecache", unless=frozenset({"sharecache", "nosharecache"})),
)


_VERSIONS = frozenset({"nfsvers", "vers", "v4", "v4.0", "v4.1", "v4.2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IamIdentity:
    """The credentials that sign the connection: of a profile, a web identity, the pod, or the node."""

    profile: str | None = None
    role_arn: str | None = None
    token_file: str | None = None
    is_of_pod: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """How a volume is mounted.

    ``handle`` also contains an access point from the flags. With ``iam`` None, the connection is not signed.
    With ``iam_optional``, a mount that fails with the identity is tried without.
    ``zone`` (for S3 Files, its ID) and ``region`` are None for those of the node. ``checks_revocation``
    checks the certificate of the server with OCSP, which an authority in ``ca_file`` must have signed; None
    means those of the region.
    ``nfs_options`` are complete except for the port. Each of ``warnings`` causes a warning.
    """

    handle: VolumeHandle
    attributes: VolumeAttributes
    encrypted: bool
    iam: IamIdentity | None
    iam_optional: bool
    zone: ZoneName | None
    region: Region | None
    checks_revocation: bool
    ca_file: str | None
    nfs_options: tuple[str, ...]
    warnings: tuple[InvalidValue, ...]

    @property
    def signs_as_pod(self) -> bool:
        """Whether the service account of the pod signs the connection."""
        return self.iam is not None and self.iam.is_of_pod

    @property
    def read_only(self) -> bool:
        """Whether the mount is for reading only."""
        return "ro" in self.nfs_options

    @property
    def attempts(self) -> tuple["MountPlan", ...]:
        """The plans to try, in order."""
        return (self, replace(self, iam=None, iam_optional=False)) if self.iam_optional else (self,)

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
    """How to mount the volume with that capability; raises InvalidArgument for contradictions.

    A volume with an access point is always encrypted; if ``encryptInTransit`` is false, there is a warning.
    A volume with a read-only access mode is mounted read-only.
    """
    check_capabilities([capability], handle.kind)
    flags = parse_mount_flags(capability.mount_flags, handle.kind)
    if handle.kind.always_signs:
        _check_always_signed(attributes)
    encrypted, warnings = _decide_encryption(handle, attributes, flags)
    access_point_id, deprecated = _access_point(handle, flags, encrypted=encrypted)
    if flags.iam and not encrypted:
        raise _contradiction("iam", "needs TLS", "leave out encryptInTransit: false")
    if flags.ca_file and not encrypted:
        raise _contradiction(f"cafile={flags.ca_file}", "needs TLS", "leave out encryptInTransit: false")
    identity = _identity(flags, attributes)
    if flags.iam_optional and identity is not None and identity.is_of_pod:
        # The mount without an identity could have more permissions than the pod.
        raise _contradiction("iam=auto", "excludes authenticationSource: pod", "use iam")
    return MountPlan(
        handle=replace(handle, access_point_id=access_point_id),
        attributes=_with_address(attributes, flags),
        encrypted=encrypted,
        iam=identity,
        iam_optional=flags.iam_optional,
        zone=None if attributes.cross_account else flags.zone,
        region=flags.region,
        checks_revocation=flags.ocsp,
        ca_file=flags.ca_file,
        nfs_options=_nfs_options(
            handle.kind, flags.others, read_only=read_only or capability.access_mode.reads_only
        ),
        warnings=(*warnings, *deprecated, *flags.warnings, *_ineffective_zone(attributes, flags)),
    )


def _check_always_signed(attributes: VolumeAttributes) -> None:
    """Raises InvalidArgument for what the AWS driver refuses for S3 Files."""
    if attributes.encrypted is False:
        problem = "is not possible with S3 Files, which always needs TLS"
        raise InvalidArgument(problem, field="encryptInTransit", value="false", remedy="leave it out")
    if attributes.cross_account:
        raise InvalidArgument(
            "is not possible with S3 Files",
            field="crossaccount",
            value="true",
            remedy="set mounttargetip to the address of a mount target",
        )


def _decide_encryption(
    handle: VolumeHandle, attributes: VolumeAttributes, flags: MountFlags
) -> tuple[bool, tuple[InvalidValue, ...]]:
    wanted = attributes.encrypted is not False
    if flags.tls and not wanted:
        raise _contradiction("tls", "contradicts encryptInTransit: false", "leave one of them out")
    if flags.notls and (wanted or handle.access_point_id):
        # Only a volume without an access point can be mounted without TLS.
        remedy = "leave it out" if handle.access_point_id else "set encryptInTransit to false"
        raise _contradiction("notls", "contradicts TLS", remedy)
    if wanted or not handle.access_point_id:
        return wanted, ()
    warning = InvalidValue(
        "has no effect because the volume has an access point and is encrypted",
        field="encryptInTransit",
        value="false",
        remedy="leave it out",
    )
    return True, (warning,)


def _access_point(
    handle: VolumeHandle, flags: MountFlags, *, encrypted: bool
) -> tuple[AccessPointId | None, tuple[InvalidValue, ...]]:
    if flags.access_point_id is None:
        return handle.access_point_id, ()
    if handle.access_point_id not in {None, flags.access_point_id}:
        raise _contradiction(
            f"accesspoint={flags.access_point_id}",
            f"is not the access point in the volume handle, {handle.access_point_id}",
            "leave it out",
        )
    if not encrypted:
        remedy = "leave out encryptInTransit: false"
        raise _contradiction(f"accesspoint={flags.access_point_id}", "needs TLS", remedy)
    warning = InvalidValue(
        "is deprecated", field=MOUNT_OPTIONS, value="accesspoint", remedy="put it into the volume handle"
    )
    return flags.access_point_id, (warning,)


def _ineffective_zone(attributes: VolumeAttributes, flags: MountFlags) -> Iterator[InvalidValue]:
    if attributes.cross_account and flags.zone is not None:
        yield InvalidValue(
            "has no effect because a file system of another account uses the zone ID of the node",
            field=MOUNT_OPTIONS,
            value=f"az={flags.zone}",
            remedy="leave it out",
        )


def _with_address(attributes: VolumeAttributes, flags: MountFlags) -> VolumeAttributes:
    address = flags.address or attributes.address
    if flags.address is not None and attributes.address not in {None, flags.address}:
        raise _contradiction(
            f"mounttargetip={flags.address}",
            f"is not the address in the volume attributes, {attributes.address}",
            "leave it out",
        )
    if attributes.cross_account and (address is not None or attributes.addresses):
        raise InvalidArgument(
            "exclude each other",
            field="volume attributes crossaccount and mounttargetip",
            remedy="give one of them",
        )
    return replace(attributes, address=address)


def _identity(flags: MountFlags, attributes: VolumeAttributes) -> IamIdentity | None:
    """The identity; raises InvalidArgument when a pod is to sign and something else is given, too."""
    source = flags.authentication_source or attributes.authentication_source
    if attributes.authentication_source not in {None, source}:
        raise _contradiction(
            f"authenticationSource={source}",
            f"is not the source in the volume attributes, {attributes.authentication_source}",
            "leave one of them out",
        )
    if source is AuthenticationSource.POD:
        return _identity_of_pod(flags)
    if not flags.iam:
        return None
    if flags.role_arn and flags.token_file:  # these two together win over a profile
        return IamIdentity(role_arn=flags.role_arn, token_file=flags.token_file)
    return IamIdentity(profile=flags.profile)


def _identity_of_pod(flags: MountFlags) -> IamIdentity:
    """The identity of the pod, and nothing in its place: the mount could get other permissions."""
    field = "authenticationSource"
    if not flags.iam:
        raise InvalidArgument("needs iam", field=field, value="pod", remedy="add iam to the mount options")
    given = {"awsprofile": flags.profile, "rolearn": flags.role_arn, "jwtpath": flags.token_file}
    for name, value in given.items():
        if value is not None:
            problem = f"excludes {name}, which selects other credentials"
            raise InvalidArgument(problem, field=field, value="pod", remedy=f"leave {name} out")
    return IamIdentity(is_of_pod=True)


def _nfs_options(kind: FileSystemKind, others: Sequence[str], *, read_only: bool) -> tuple[str, ...]:
    given = (*(("ro",) if read_only else ()), *(o for o in others if not (read_only and o == "rw")))
    names = {option.partition("=")[0] for option in given}
    version = _Default(option=f"nfsvers={kind.nfs_version}", unless=_VERSIONS)
    added = (one.option for one in (version, *_DEFAULTS) if names.isdisjoint(one.unless))
    return (*dict.fromkeys(given), *added)


def _contradiction(flag: str, problem: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(problem, field=MOUNT_OPTIONS, value=flag, remedy=remedy)
