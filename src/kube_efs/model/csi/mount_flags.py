"""Mount flags, one by one: those of ``mount.efs``, those for the kernel, and those that are refused.

The flags for S3 Files are those of ``mount.s3files``: zones have IDs, and the version of NFS is 4.1 or 4.2.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from kube_efs.model.csi.cross_account import ROLE_ARN
from kube_efs.model.csi.errors import InvalidArgument, refused_as_argument
from kube_efs.model.csi.volume_attributes import AuthenticationSource, parse_authentication_source
from kube_efs.model.csi.volume_handles import AccessPointId, parse_access_point_id
from kube_efs.model.efs.ids import Region, ZoneName, parse_region, parse_zone_name
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import parse_address, parse_ca_file
from kube_efs.model.errors import InvalidValue

MOUNT_OPTIONS = "mountOptions"

_SWITCHES = frozenset({"tls", "notls", "iam", "ocsp", "noocsp"})
_SETTINGS = frozenset(
    {
        "accesspoint",
        "az",
        "azid",
        "region",
        "mounttargetip",
        "awsprofile",
        "rolearn",
        "jwtpath",
        "verify",
        "tlsport",
    }
    | {"cafile", "authenticationsource"}
)
# For worker pods: mount.efs treats it as iam.
_OPTIONAL_IAM = "auto"
_WITHOUT_EFFECT = frozenset({"stunnel", "nodirects3read", "nos3readcache"})

_PAST_TUNNEL = "would bypass the tunnel"
_UNVERIFIED = "would weaken the verification of the server"
_NO_MOUNT = "would not mount the volume"
_REFUSED = {
    **dict.fromkeys(("port", "addr", "mountport", "mountaddr", "mounthost", "clientaddr"), _PAST_TUNNEL),
    "capath": _UNVERIFIED,
    # For mount(8) these are other operations, or a success before the mount exists.
    **dict.fromkeys(("bind", "rbind", "move", "remount", "bg", "fake", "loop"), _NO_MOUNT),
    **dict.fromkeys(("shared", "slave", "private", "unbindable"), _NO_MOUNT),
    **dict.fromkeys(("rshared", "rslave", "rprivate", "runbindable"), _NO_MOUNT),
    "netns": "is not allowed because the tunnel is in the network namespace of the node",
    "crossaccount": "is not allowed",
}
_ALWAYS_TLS = "is not allowed because S3 Files always needs TLS and an identity"
_REFUSED_BY_KIND: Mapping[FileSystemKind, Mapping[str, str]] = {
    FileSystemKind.EFS: {"azid": "is not allowed because each node uses the ID of its own zone"},
    FileSystemKind.S3_FILES: {
        "az": "is not allowed because S3 Files knows zones by their IDs",
        "notls": _ALWAYS_TLS,
        "stunnel": "is not allowed, as in the AWS driver",
    },
}
# As a volume of S3 Files must not be mounted.
_OLD_NFS = re.compile(r"(nfsvers|vers)=([23]|4|4\.0)|v[234]|v4\.0|minorversion=0")
_REMEDIES = {
    "az": "use azid and the ID of a zone, such as use1-az1",
    "azid": "use az and the name of a zone",
    "crossaccount": "set crossaccount in the provisioner secret or the volume's attributes",
}

# A part ends at a comma outside of quotes.
_PART = re.compile(r'(?:[^,"]|"[^"]*(?:"|\Z))+')
_QUOTED = re.compile(r'"([^"]*)"')
# Only text that mount(8), the kernel and a shell read as a single plain word.
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
_VALUE = re.compile(r"[A-Za-z0-9_.:/@%+-]{1,255}")
_PROFILE = re.compile(r"[A-Za-z0-9_.@+-]{1,128}")
_TOKEN_FILE = re.compile(r"(/[A-Za-z0-9_.-]*[A-Za-z0-9_-]){1,32}")  # no component is . or ..


@dataclass(frozen=True, slots=True, kw_only=True)
class MountFlags:
    """The parsed flags; None and False if they are not set. ``others`` are options for the kernel.

    ``iam_optional`` (``iam=auto``): if the mount fails with the identity, it is tried without. The tunnel
    agent of the node decides whether ``ca_file`` is allowed. ``zone`` is the name of a zone, for S3 Files its
    ID.
    """

    tls: bool
    notls: bool
    iam: bool
    iam_optional: bool
    ocsp: bool
    access_point_id: AccessPointId | None
    zone: ZoneName | None
    region: Region | None
    address: str | None
    profile: str | None
    role_arn: str | None
    token_file: str | None
    ca_file: str | None
    authentication_source: AuthenticationSource | None
    others: tuple[str, ...]
    warnings: tuple[InvalidValue, ...]


class _Flag(NamedTuple):
    name: str
    value: str | None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


def parse_mount_flags(flags: Sequence[str], kind: FileSystemKind = FileSystemKind.EFS) -> MountFlags:
    """The meaning of the flags; raises InvalidArgument for what is malformed, dangerous or contradictory.

    A flag may contain several, separated by commas, as for ``mount.efs``. A comma in double quotes separates
    nothing. The case of names and of access point IDs does not matter; the case of other values does.
    """
    own: dict[str, str | None] = {}
    others: list[str] = []
    warnings: list[InvalidValue] = []
    for flag in _single_flags(flags):
        if problem := _REFUSED_BY_KIND[kind].get(flag.name):
            raise _refused(flag, problem, _REMEDIES.get(flag.name, "leave it out"))
        if kind is FileSystemKind.S3_FILES and _OLD_NFS.fullmatch(str(flag)):
            raise _refused(flag, "is too old for S3 Files", "use nfsvers=4.2, or leave it out")
        if flag.name in _WITHOUT_EFFECT or flag.name.startswith("awscredsuri"):
            warnings.append(_without_effect(flag))
        elif flag.name in _SWITCHES | _SETTINGS:
            _add(own, flag)
        else:
            others.append(_checked_other(flag))
    if kind.always_signs and own.setdefault("iam", None) is not None:
        raise _refused(_Flag("iam", own["iam"]), _ALWAYS_TLS, "leave it out")
    _check_together(own)
    warnings += _ineffective(own)
    return _mount_flags(own, tuple(others), tuple(warnings))


def named_access_point(flags: Iterable[str]) -> AccessPointId | None:
    """The access point among the flags; None without a valid one. The other flags are not checked."""
    for flag in _raw_flags(flags):
        if flag.name == "accesspoint":
            with suppress(InvalidArgument):
                return parse_access_point_id((_parsed_quotes(flag).value or "").lower(), field=MOUNT_OPTIONS)
    return None


def _single_flags(flags: Iterable[str]) -> Iterator[_Flag]:
    return map(_parsed_quotes, _raw_flags(flags))


def _raw_flags(flags: Iterable[str]) -> Iterator[_Flag]:
    for flag in (part.strip(" ") for text in flags for part in _PART.findall(text)):
        if flag:
            name, has_value, value = flag.partition("=")
            yield _Flag(name.lower(), value if has_value else None)


def _parsed_quotes(flag: _Flag) -> _Flag:
    """The flag without the quotes around its value, which only options of ``mount.efs`` may have.

    No option of a volume needs a comma in its value, and neither mount(8) nor stunnel.conf must get one.
    """
    if '"' not in str(flag):
        return flag
    quoted = _QUOTED.fullmatch(flag.value or "")
    if quoted is None:
        raise _refused(flag, "has quotes that are not around its value", 'use NAME="VALUE"')
    if "," in quoted[1]:
        raise _refused(flag, "has a comma in its value", "use a value without commas")
    return _Flag(flag.name, quoted[1]) if flag.name in _SETTINGS else flag


def _add(own: dict[str, str | None], flag: _Flag) -> None:
    is_optional_iam = (flag.name, flag.value) == ("iam", _OPTIONAL_IAM)
    if flag.name in _SWITCHES and flag.value is not None and not is_optional_iam:
        raise _refused(flag, "takes no value", f"use {flag.name}")
    if flag.name in _SETTINGS and not flag.value:
        raise _refused(flag, "needs a value", f"use {flag.name}=VALUE")
    if own.setdefault(flag.name, flag.value) != flag.value:
        raise _refused(flag, "is given twice with different values", "give it once")


def _checked_other(flag: _Flag) -> str:
    if flag.name in _REFUSED:
        raise _refused(flag, _REFUSED[flag.name], _REMEDIES.get(flag.name, "leave it out"))
    if not _NAME.fullmatch(flag.name) or (flag.value is not None and not _VALUE.fullmatch(flag.value)):
        raise _refused(flag, "is malformed", "use NAME or NAME=VALUE, of letters, digits and _.:/@%+-")
    return str(flag)


def _check_together(own: dict[str, str | None]) -> None:
    for one, other in (("tls", "notls"), ("ocsp", "noocsp")):
        if one in own and other in own:
            raise _refused(_Flag(one, None), f"contradicts {other}", "leave one of them out")
    if "awsprofile" in own and "iam" not in own:
        raise _refused(_Flag("awsprofile", own["awsprofile"]), "needs iam", "add iam")
    if own.get("verify", "2") != "2":
        raise _refused(_Flag("verify", own["verify"]), _UNVERIFIED, "leave it out")


def _ineffective(own: dict[str, str | None]) -> Iterator[InvalidValue]:
    if "tlsport" in own:  # the tunnel is shared, and its agent assigns the port
        yield _without_effect(_Flag("tlsport", own["tlsport"]))
    pair = {"rolearn", "jwtpath"} & own.keys()
    if pair and not ("iam" in own and len(pair) == 2):
        name = min(pair)
        yield InvalidValue(
            "has no effect",
            field=MOUNT_OPTIONS,
            value=name,
            remedy="use iam, rolearn and jwtpath together",
        )


def _mount_flags(
    own: dict[str, str | None], others: tuple[str, ...], warnings: tuple[InvalidValue, ...]
) -> MountFlags:
    access_point, zone, region, address, ca_file = (
        own.get(n) for n in ("accesspoint", "az", "region", "mounttargetip", "cafile")
    )
    zone = zone or own.get("azid")
    if "tlsport" in own and not re.fullmatch(r"[0-9]{1,5}", own["tlsport"] or ""):
        raise _refused(_Flag("tlsport", own["tlsport"]), "is not a valid port", "leave it out")
    with refused_as_argument():
        return MountFlags(
            tls="tls" in own,
            notls="notls" in own,
            iam="iam" in own,
            iam_optional=own.get("iam") == _OPTIONAL_IAM,
            ocsp="ocsp" in own,
            access_point_id=parse_access_point_id(access_point.lower(), field=MOUNT_OPTIONS)
            if access_point
            else None,
            zone=parse_zone_name(zone, field=MOUNT_OPTIONS) if zone else None,
            region=parse_region(region, field=MOUNT_OPTIONS) if region else None,
            address=parse_address(address, field=MOUNT_OPTIONS) if address else None,
            profile=_matching(_PROFILE, own, "awsprofile"),
            role_arn=_matching(ROLE_ARN, own, "rolearn"),
            token_file=_matching(_TOKEN_FILE, own, "jwtpath"),
            ca_file=parse_ca_file(ca_file, field=MOUNT_OPTIONS) if ca_file else None,
            authentication_source=parse_authentication_source(
                source, field=f"{MOUNT_OPTIONS}, authenticationSource"
            )
            if (source := own.get("authenticationsource"))
            else None,
            others=others,
            warnings=warnings,
        )


def _matching(pattern: re.Pattern[str], own: dict[str, str | None], name: str) -> str | None:
    value = own.get(name)
    if value is not None and not pattern.fullmatch(value):
        raise _refused(_Flag(name, value), "is malformed", "use letters, digits and _.@/:+- only")
    return value


def _without_effect(flag: _Flag) -> InvalidValue:
    return InvalidValue("has no effect", field=MOUNT_OPTIONS, value=str(flag), remedy="leave it out")


def _refused(flag: _Flag, problem: str, remedy: str) -> InvalidArgument:
    return InvalidArgument(problem, field=MOUNT_OPTIONS, value=str(flag), remedy=remedy)
