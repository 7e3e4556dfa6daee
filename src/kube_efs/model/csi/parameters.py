"""The StorageClass parameters of ``efs.csi.aws.com``, which CreateVolume receives.

Names and defaults are those of the AWS driver 3.4.1. These features are new: ``provisioningMode: efs-dir``, a
directory without an access point; ``efs-fs``, a file system that is created for a claim or a namespace
(``file_system_templates.py``); several file systems, separated by commas in ``fileSystemId`` or
``fileSystemIds``, which are filled one after the other; access points without an identity; and choices of
claims (``claim_choices.py``).

All parameters are checked here, before any call to AWS. Parameters that the AWS driver silently ignores are
ignored with a warning.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum

from kube_efs.model.csi.claim_choices import (
    ALLOWED_GIDS,
    ALLOWED_MODES,
    ALLOWED_UIDS,
    AllowedChoices,
    check_apart,
    parse_allowed,
    parse_choice,
)
from kube_efs.model.csi.errors import InvalidArgument, refused_as_argument
from kube_efs.model.csi.file_system_templates import (
    TEMPLATE_PARAMETERS,
    FileSystemTemplate,
    parse_template,
)
from kube_efs.model.csi.parameter_texts import parse_boolean, parse_id, parse_mode
from kube_efs.model.csi.root_directories import VolumeOrigin, check_pattern, parse_base
from kube_efs.model.csi.sidecar_parameters import (
    CLAIM_NAME,
    CLAIM_NAMESPACE,
    SIDECAR_PREFIX,
    is_file_system_type,
)
from kube_efs.model.csi.volume_handles import parse_strict_file_system_id
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId, ZoneName, parse_zone_name
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.errors import InvalidValue, shown
from kube_efs.model.gids import GidRange

# The range in the documentation of the AWS driver. Its code stops at 60000. Then the IDs, not EFS, would
# limit a class with several file systems or without access points.
DEFAULT_GIDS = GidRange(minimum=50_000, maximum=7_000_000)

_VOLUME_NAME = f"{SIDECAR_PREFIX}pv/name"

_MODE = "provisioningMode"
_FILE_SYSTEM, _FILE_SYSTEMS = "fileSystemId", "fileSystemIds"
_CONFIG_REF, _SECRET_REF = "fileSystemIdConfigRef", "fileSystemIdSecretRef"
_SOURCES = (_FILE_SYSTEM, _FILE_SYSTEMS, _CONFIG_REF, _SECRET_REF)
_PERMISSIONS = "directoryPerms"
_POSIX_USER, _NO_USER = "posixUser", "none"
_GID_FIRST, _GID_LAST = "gidRangeStart", "gidRangeEnd"
_PATTERN, _UNIQUE = "subPathPattern", "ensureUniqueDirectory"
_REUSE, _ZONE_AFFINITY, _TAGGING = "reuseAccessPoint", "enforceZoneAffinity", "enableTagging"
_KNOWN = (
    *(_MODE, *_SOURCES, _PERMISSIONS, "uid", "gid", _GID_FIRST, _GID_LAST, "basePath", _PATTERN, _UNIQUE),
    *("az", _REUSE, _ZONE_AFFINITY, _TAGGING, _POSIX_USER, ALLOWED_UIDS, ALLOWED_GIDS, ALLOWED_MODES),
    *TEMPLATE_PARAMETERS,
)

# As the API server checks the names of most objects.
OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_DATA_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")


class ProvisioningMode(StrEnum):
    """What a volume is: an access point of EFS or of S3 Files, or a plain directory of an EFS file system.

    With ``FILE_SYSTEM``, the access point is on a file system that is created for it.
    """

    ACCESS_POINT = "efs-ap"
    DIRECTORY = "efs-dir"
    S3_FILES_ACCESS_POINT = "s3files-ap"
    FILE_SYSTEM = "efs-fs"

    @property
    def kind(self) -> FileSystemKind:
        """The kind of the file systems of such volumes."""
        is_s3 = self is ProvisioningMode.S3_FILES_ACCESS_POINT
        return FileSystemKind.S3_FILES if is_s3 else FileSystemKind.EFS

    @property
    def makes_access_points(self) -> bool:
        """Whether each volume is an access point."""
        return self is not ProvisioningMode.DIRECTORY


class ReferenceKind(StrEnum):
    """The kinds of objects that a file system's id can be read from."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105  # the name of a kind


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemReference:
    """The reference to the ID of the file system: one key of one object."""

    kind: ReferenceKind
    namespace: str
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name} data.{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeParameters:
    """The parameters of a class.

    ``file_systems`` are used in that order, or are in another object, or are created as described. A ``uid``
    or ``gid`` of None is allocated from ``gids``; 0 is root. Access points give them to all clients if
    ``enforces_user``. ``mode`` is that of the directory. With a ``pattern`` of None, the directory has the
    name of the volume; ``unique`` adds a suffix to a pattern. ``zone`` is the zone whose mount target volumes
    of another account use. Each of ``warnings`` causes a warning.
    """

    provisioning: ProvisioningMode
    file_systems: tuple[FileSystemId, ...] | FileSystemReference | FileSystemTemplate
    mode: int
    uid: int | None
    gid: int | None
    gids: GidRange
    enforces_user: bool = True
    allowed: AllowedChoices = field(default_factory=AllowedChoices)
    base: Directory
    pattern: str | None = None
    unique: bool = True
    zone: ZoneName | None = None
    reuses_access_point: bool = False
    zone_affinity: bool = False
    tagged: bool = True
    warnings: tuple[InvalidValue, ...] = ()

    @property
    def template(self) -> FileSystemTemplate | None:
        """The file systems that are created for claims; None if volumes are on existing ones."""
        return self.file_systems if isinstance(self.file_systems, FileSystemTemplate) else None


def parse_origin(parameters: Mapping[str, str]) -> VolumeOrigin:
    """The claim of the volume, as csi-provisioner reports it."""
    return VolumeOrigin(
        claim_name=parameters.get(CLAIM_NAME, ""),
        claim_namespace=parameters.get(CLAIM_NAMESPACE, ""),
        volume_name=parameters.get(_VOLUME_NAME, ""),
    )


def parse_parameters(parameters: Mapping[str, str], *, has_driver_tags: bool = False) -> VolumeParameters:
    """The values of the parameters; raises InvalidArgument for the first that cannot be served.

    ``has_driver_tags``: whether the driver was started with tags of its own, which ``enableTagging:
    "false"`` contradicts.
    """
    try:
        return _parse_parameters(parameters, has_driver_tags=has_driver_tags)
    except InvalidArgument as error:
        if error.field not in parameters:
            # The name of a missing parameter may be misspelt.
            group = _SOURCES if error.field in _SOURCES else (error.field,)
            for name in _unknown_names(parameters):
                if (near := _nearest(name)) in group:
                    error.remedy += f"; {shown(name)} is not known, did you mean {near}?"
        raise


def _parse_parameters(parameters: Mapping[str, str], *, has_driver_tags: bool) -> VolumeParameters:
    reuses = _boolean(parameters, _REUSE, default=False)
    zone_affinity = _boolean(parameters, _ZONE_AFFINITY, default=False)
    tagged = _boolean(parameters, _TAGGING, default=True)
    if has_driver_tags and not tagged:
        remedy = "leave it out, or set no KUBE_EFS_ACCESS_POINT_TAGS"
        raise InvalidArgument(
            "contradicts the tags of the driver", field=_TAGGING, value=parameters[_TAGGING], remedy=remedy
        )
    provisioning = _parse_provisioning(parameters)
    if provisioning.kind is FileSystemKind.S3_FILES:
        _check_only_for_efs(parameters)
    is_created = provisioning is ProvisioningMode.FILE_SYSTEM
    if is_created:
        _check_only_for_existing(parameters)
    enforces_user = _parse_enforces_user(parameters, provisioning)
    pattern = parameters.get(_PATTERN)
    if pattern is not None:
        check_pattern(pattern, field=_PATTERN)
    unique, warnings = _parse_unique(parameters)
    parsed = VolumeParameters(
        provisioning=provisioning,
        file_systems=parse_template(parameters) if is_created else _parse_source(parameters),
        mode=parse_mode(parameters.get(_PERMISSIONS, ""), field=_PERMISSIONS),
        uid=_optional_id(parameters, "uid", default=None if enforces_user else 0),
        gid=_optional_id(parameters, "gid", default=None if enforces_user else 0),
        gids=_parse_gids(parameters),
        enforces_user=enforces_user,
        allowed=parse_allowed(parameters),
        base=parse_base(parameters.get("basePath", ""), field="basePath"),
        pattern=pattern,
        unique=unique,
        zone=_parse_zone(parameters.get("az", "")),
        reuses_access_point=reuses,
        zone_affinity=zone_affinity,
        tagged=tagged,
        warnings=(*warnings, *_ineffective(parameters, provisioning), *_unknown(parameters)),
    )
    _check_allowed(parsed)
    return parsed


def with_choices(parameters: VolumeParameters, annotations: Mapping[str, str]) -> VolumeParameters:
    """The parameters for a claim with these annotations; raises InvalidArgument for a refused choice."""
    choice = parse_choice(annotations, parameters.allowed)
    return replace(
        parameters,
        uid=parameters.uid if choice.uid is None else choice.uid,
        gid=parameters.gid if choice.gid is None else choice.gid,
        mode=parameters.mode if choice.mode is None else choice.mode,
    )


def parse_referenced(text: str | None, reference: FileSystemReference) -> tuple[FileSystemId, ...]:
    """The file systems in the text of the referenced key, which is None if the key does not exist.

    Raises InvalidArgument, which never contains the value of a Secret.
    """
    field = str(reference)
    if text is None or not text.strip():
        raise InvalidArgument("is missing or empty", field=field, remedy="set it to the file system's ID")
    try:
        return _parse_file_systems(text, field)
    except InvalidArgument as error:
        if reference.kind is ReferenceKind.CONFIG_MAP:
            raise
        # Not chained, because tracebacks are logged and the cause contains the value.
        raise InvalidArgument(error.problem, field=field, remedy=error.remedy) from None


def _parse_provisioning(parameters: Mapping[str, str]) -> ProvisioningMode:
    text = parameters.get(_MODE)
    try:
        return ProvisioningMode(text or "")
    except ValueError as error:
        problem = "is missing" if text is None else "is not supported"
        raise InvalidArgument(
            problem, field=_MODE, value=text or "", remedy=f"use one of {', '.join(ProvisioningMode)}"
        ) from error


def _check_only_for_efs(parameters: Mapping[str, str]) -> None:
    """Raise InvalidArgument for a parameter that the AWS driver refuses for S3 Files, whatever its value."""
    for name in ("az", _REUSE):
        if name in parameters:
            raise InvalidArgument(
                "is only supported for EFS", field=name, value=parameters[name], remedy="leave it out"
            )


def _check_only_for_existing(parameters: Mapping[str, str]) -> None:
    """Raise InvalidArgument for a parameter about file systems that exist before the claim."""
    for name in (*_SOURCES, "az", _REUSE):
        if name in parameters:
            problem = f"contradicts {_MODE}: {ProvisioningMode.FILE_SYSTEM}, which creates file systems"
            raise InvalidArgument(problem, field=name, value=parameters[name], remedy="leave it out")


def _parse_source(parameters: Mapping[str, str]) -> tuple[FileSystemId, ...] | FileSystemReference:
    given = [name for name in _SOURCES if parameters.get(name, "").strip()]
    if not given:
        remedy = f"give one of {', '.join(_SOURCES)}"
        raise InvalidArgument("is missing", field=_FILE_SYSTEM, remedy=remedy)
    if len(given) > 1:
        raise InvalidArgument(
            "exclude each other", field=f"parameters {' and '.join(given)}", remedy="give one of them"
        )
    name, text = given[0], parameters[given[0]]
    if name == _CONFIG_REF:
        return _parse_reference(ReferenceKind.CONFIG_MAP, name, text)
    if name == _SECRET_REF:
        return _parse_reference(ReferenceKind.SECRET, name, text)
    return _parse_file_systems(text, name)


def _parse_file_systems(text: str, field: str) -> tuple[FileSystemId, ...]:
    names = [name.strip() for name in text.split(",")]
    ids = [parse_strict_file_system_id(name, field=field) for name in names if name]
    if not ids:
        remedy = "use an id such as fs-0123456789abcdef0"
        raise InvalidArgument("is not a valid file system ID", field=field, value=text, remedy=remedy)
    return tuple(dict.fromkeys(ids))


def _parse_reference(kind: ReferenceKind, field: str, text: str) -> FileSystemReference:
    parts = [part.strip() for part in text.split("/")]
    checks = (OBJECT_NAME, OBJECT_NAME, _DATA_KEY)
    if len(parts) != len(checks) or not all(map(re.Pattern.fullmatch, checks, parts)):
        remedy = f"use NAMESPACE/NAME/KEY of a {kind}"
        raise InvalidArgument("is not a valid reference", field=field, value=text, remedy=remedy)
    namespace, name, key = parts
    return FileSystemReference(kind=kind, namespace=namespace, name=name, key=key)


def _parse_enforces_user(parameters: Mapping[str, str], provisioning: ProvisioningMode) -> bool:
    text = parameters.get(_POSIX_USER)
    if text is None:
        return True
    if text != _NO_USER:
        remedy = f"use {_NO_USER}, or leave it out"
        raise InvalidArgument("is not supported", field=_POSIX_USER, value=text, remedy=remedy)
    if not provisioning.makes_access_points:
        remedy = f"leave it out; {provisioning} enforces no identity"
        raise InvalidArgument("is only for access points", field=_POSIX_USER, value=text, remedy=remedy)
    for name in (_GID_FIRST, _GID_LAST):
        if name in parameters:
            # AWS reports no owner of such an access point, so a restart would allocate its number again.
            raise InvalidArgument(
                f"has no effect with {_POSIX_USER}: {_NO_USER}, which allocates no numbers",
                field=name,
                value=parameters[name],
                remedy="leave it out, and set uid and gid",
            )
    return False


def _check_allowed(parameters: VolumeParameters) -> None:
    allowed = parameters.allowed
    if parameters.uid is None or parameters.gid is None:
        check_apart(allowed, parameters.gids)
    is_directory = parameters.provisioning is ProvisioningMode.DIRECTORY
    if allowed and is_directory and parameters.pattern is not None and not parameters.unique:
        # An existing directory gets the new owner and mode, so a claim could take the directory of another.
        raise InvalidArgument(
            "must be true if claims of efs-dir may choose owners or modes",
            field=_UNIQUE,
            value="false",
            remedy=f"leave it out, or leave out {ALLOWED_UIDS}, {ALLOWED_GIDS} and {ALLOWED_MODES}",
        )


def _optional_id(parameters: Mapping[str, str], name: str, *, default: int | None) -> int | None:
    text = parameters.get(name)
    return default if text is None else parse_id(text, field=name)


def _parse_gids(parameters: Mapping[str, str]) -> GidRange:
    first, last = parameters.get(_GID_FIRST), parameters.get(_GID_LAST)
    if first is None and last is None:
        return DEFAULT_GIDS
    if first is None or last is None:
        missing, other = (_GID_FIRST, _GID_LAST) if first is None else (_GID_LAST, _GID_FIRST)
        raise InvalidArgument("is missing", field=missing, remedy=f"give it together with {other}")
    minimum = parse_id(first, field=_GID_FIRST, least=1)
    maximum = parse_id(last, field=_GID_LAST, least=1)
    if maximum <= minimum:
        remedy = f"use a number above {minimum}"
        raise InvalidArgument(f"is not above {_GID_FIRST}", field=_GID_LAST, value=last, remedy=remedy)
    return GidRange(minimum=minimum, maximum=maximum)


def _parse_zone(text: str) -> ZoneName | None:
    with refused_as_argument():
        return parse_zone_name(text, field="az") if text else None


def _parse_unique(parameters: Mapping[str, str]) -> tuple[bool, tuple[InvalidValue, ...]]:
    try:
        return _boolean(parameters, _UNIQUE, default=True), ()
    except InvalidArgument as error:
        # In the AWS driver, everything except false counts as true, so it serves such classes.
        warning = InvalidValue(
            "is not a boolean and counts as true", field=error.field, value=error.value, remedy=error.remedy
        )
        return True, (warning,)


def _boolean(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = parameters.get(name)
    return default if text is None else parse_boolean(text, field=name)


def _ineffective(parameters: Mapping[str, str], provisioning: ProvisioningMode) -> tuple[InvalidValue, ...]:
    ineffective: dict[str, str] = {}
    if provisioning.kind is FileSystemKind.S3_FILES:
        ineffective[_ZONE_AFFINITY] = "S3 Files has no file systems of one zone"
    if provisioning is not ProvisioningMode.FILE_SYSTEM:
        ineffective |= dict.fromkeys(TEMPLATE_PARAMETERS, f"{provisioning} creates no file systems")
    return tuple(
        InvalidValue(
            f"has no effect because {reason}", field=name, value=parameters[name], remedy="leave it out"
        )
        for name, reason in ineffective.items()
        if name in parameters
    )


def _unknown(parameters: Mapping[str, str]) -> list[InvalidValue]:
    return [
        InvalidValue("is not known and has no effect", field="parameter", value=name, remedy=_meant(name))
        for name in _unknown_names(parameters)
    ]


def _unknown_names(parameters: Mapping[str, str]) -> list[str]:
    return [
        name
        for name in sorted(parameters)
        if name not in _KNOWN and not name.startswith(SIDECAR_PREFIX) and not is_file_system_type(name)
    ]


def _meant(name: str) -> str:
    near = _nearest(name)
    return f"did you mean {near}?" if near else "leave it out"


def _nearest(name: str) -> str | None:
    by_lower_case = {known.lower(): known for known in _KNOWN}
    near = get_close_matches(name.lower()[:100], by_lower_case, n=1)
    return by_lower_case[near[0]] if near else None
