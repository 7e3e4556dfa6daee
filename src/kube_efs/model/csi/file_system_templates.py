"""The file systems that classes describe (``provisioningMode: efs-fs``): one for a claim, or for a namespace.

The parameters have the names and values of the EFS API: CreateFileSystem, PutLifecycleConfiguration and
PutBackupPolicy of https://docs.aws.amazon.com/efs/latest/ug/api-reference.html. Every file system is
encrypted. The default policy refuses clients without TLS.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from kube_efs.model.csi.errors import InvalidArgument, refused_as_argument
from kube_efs.model.csi.parameter_texts import parse_boolean
from kube_efs.model.efs.ids import SubnetId, ZoneName, parse_subnet_id, parse_zone_name

SCOPE: Final = "scope"
_THROUGHPUT, _MIBPS, _PERFORMANCE = "throughputMode", "provisionedThroughputInMibps", "performanceMode"
_KMS_KEY, _ZONE, _BACKUP, _POLICY = "kmsKeyId", "availabilityZoneName", "backup", "fileSystemPolicy"
_TAGS, _SUBNETS, _GROUPS = "fileSystemTags", "subnetIds", "securityGroupIds"
_TO_IA, _TO_ARCHIVE, _TO_PRIMARY = "transitionToIA", "transitionToArchive", "transitionToPrimaryStorageClass"
TEMPLATE_PARAMETERS: Final = (
    *(SCOPE, _THROUGHPUT, _MIBPS, _PERFORMANCE, _KMS_KEY, _ZONE, _BACKUP, _POLICY),
    *(_TAGS, _SUBNETS, _GROUPS, _TO_IA, _TO_ARCHIVE, _TO_PRIMARY),
)

_TRANSITIONS: Final = (
    "AFTER_1_DAY",
    *(f"AFTER_{days}_DAYS" for days in (7, 14, 30, 60, 90, 180, 270, 365)),
)
_TRANSITIONS_BACK: Final = ("AFTER_1_ACCESS",)
# EFS, KmsKeyId: an ID, an alias, or the ARN of either.
_KEY_ARN: Final = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:"
_KEY: Final = re.compile(
    rf"({_KEY_ARN}key/)?([0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}|mrk-[0-9a-f]{{32}})"
    rf"|({_KEY_ARN})?alias/[A-Za-z0-9/_-]{{1,250}}"
)
_GROUP: Final = re.compile(r"sg-[0-9a-z]{1,40}")
_TAG: Final = re.compile(r"(?!(?i:aws):)[\w .:/=+@-]{1,128}")
_TAG_VALUE: Final = re.compile(r"[\w .:/=+@-]{0,256}")
# CreateMountTarget accepts so many.
_GROUPS_MAX: Final = 5

_Choice = TypeVar("_Choice", bound=StrEnum)
_Value = TypeVar("_Value")


class Scope(StrEnum):
    """Whose volumes are on a file system."""

    CLAIM = "claim"
    NAMESPACE = "namespace"


class ThroughputMode(StrEnum):
    """How EFS limits the throughput."""

    BURSTING = "bursting"
    ELASTIC = "elastic"
    PROVISIONED = "provisioned"


class PerformanceMode(StrEnum):
    """How EFS stores the data."""

    GENERAL_PURPOSE = "generalPurpose"
    MAX_IO = "maxIO"


class ClientPolicy(StrEnum):
    """What the policy of the file system requires of clients."""

    NONE = "none"
    TLS = "tls"
    TLS_AND_IAM = "tls-and-iam"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemTemplate:
    """The file systems of a class.

    ``throughput_mibps`` is only for provisioned throughput. A ``kms_key`` of None is the key of AWS for EFS.
    With ``zone``, they are One Zone file systems. ``transitions`` are the lifecycle policies by the name of
    the API. Without ``subnets``, those of the cluster's nodes are used, and without ``security_groups`` one
    is created that allows NFS from the network. ``identity`` distinguishes the templates of one namespace.
    """

    scope: Scope = Scope.CLAIM
    throughput: ThroughputMode = ThroughputMode.ELASTIC
    throughput_mibps: float | None = None
    performance: PerformanceMode = PerformanceMode.GENERAL_PURPOSE
    kms_key: str | None = None
    zone: ZoneName | None = None
    transitions: tuple[tuple[str, str], ...] = ()
    backup: bool = False
    policy: ClientPolicy = ClientPolicy.TLS
    tags: tuple[tuple[str, str], ...] = ()
    subnets: tuple[SubnetId, ...] = ()
    security_groups: tuple[str, ...] = ()
    identity: str = ""


def parse_template(parameters: Mapping[str, str]) -> FileSystemTemplate:
    """The file systems of a class with these parameters; raises InvalidArgument."""
    performance = _parse_choice(parameters, _PERFORMANCE, PerformanceMode.GENERAL_PURPOSE)
    is_max_io = performance is PerformanceMode.MAX_IO
    # Maximum I/O excludes elastic throughput, which is what AWS recommends otherwise.
    default = ThroughputMode.BURSTING if is_max_io else ThroughputMode.ELASTIC
    throughput = _parse_choice(parameters, _THROUGHPUT, default)
    zone = _parse_zone(parameters)
    if is_max_io and (throughput is ThroughputMode.ELASTIC or zone is not None):
        field, value = (_ZONE, str(zone)) if zone is not None else (_THROUGHPUT, str(throughput))
        remedy = f"use {_PERFORMANCE}: {PerformanceMode.GENERAL_PURPOSE}, or leave out {field}"
        raise InvalidArgument(f"excludes {_PERFORMANCE}: maxIO", field=field, value=value, remedy=remedy)
    transitions = tuple(_parse_transitions(parameters))
    _check_archive(parameters, throughput, performance)
    groups = _parse_list(parameters, _GROUPS, _parse_group)
    if len(groups) > _GROUPS_MAX:
        value, remedy = parameters[_GROUPS], f"give at most {_GROUPS_MAX}"
        raise InvalidArgument("has too many security groups", field=_GROUPS, value=value, remedy=remedy)
    return FileSystemTemplate(
        scope=_parse_choice(parameters, SCOPE, Scope.CLAIM),
        throughput=throughput,
        throughput_mibps=_parse_mibps(parameters, throughput),
        performance=performance,
        kms_key=_parse_key(parameters),
        zone=zone,
        transitions=transitions,
        backup=_BACKUP in parameters and parse_boolean(parameters[_BACKUP], field=_BACKUP),
        policy=_parse_choice(parameters, _POLICY, ClientPolicy.TLS),
        tags=_parse_tags(parameters.get(_TAGS, "")),
        subnets=_parse_list(parameters, _SUBNETS, lambda text: parse_subnet_id(text, field=_SUBNETS)),
        security_groups=groups,
        identity=_identity(parameters),
    )


def client_policy(kind: ClientPolicy) -> str | None:
    """The policy of a file system, as JSON; None without one, which allows every client everything.

    With any policy, clients without an IAM identity have only the access that a statement allows.
    """
    if kind is ClientPolicy.NONE:
        return None
    statements: list[Mapping[str, object]] = [
        {
            "Sid": "RequireTls",
            "Effect": "Deny",
            "Principal": {"AWS": "*"},
            "Action": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    ]
    if kind is ClientPolicy.TLS:
        actions = [f"elasticfilesystem:Client{name}" for name in ("Mount", "Write", "RootAccess")]
        statements.append(
            {
                "Sid": "AllowClients",
                "Effect": "Allow",
                "Principal": {"AWS": "*"},
                "Action": actions,
                "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}},
            }
        )
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _identity(parameters: Mapping[str, str]) -> str:
    """A text that is the same for the same parameters, whatever their order, also in later versions."""
    given = {name: parameters[name] for name in TEMPLATE_PARAMETERS if name in parameters}
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


def _parse_choice(parameters: Mapping[str, str], name: str, default: _Choice) -> _Choice:
    text = parameters.get(name)
    if text is None:
        return default
    choices = type(default)
    try:
        return choices(text)
    except ValueError as error:
        remedy = f"use one of {', '.join(choices)}"
        raise InvalidArgument("is not supported", field=name, value=text, remedy=remedy) from error


def _parse_mibps(parameters: Mapping[str, str], throughput: ThroughputMode) -> float | None:
    text = parameters.get(_MIBPS)
    is_provisioned = throughput is ThroughputMode.PROVISIONED
    if text is None and is_provisioned:
        remedy = "give the throughput in MiB/s"
        raise InvalidArgument("is missing", field=_MIBPS, remedy=remedy)
    if text is None:
        return None
    if not is_provisioned:
        problem = f"has no effect with {_THROUGHPUT}: {throughput}"
        raise InvalidArgument(problem, field=_MIBPS, value=text, remedy="leave it out")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text) or float(text) < 1:
        remedy = "use a number from 1, in MiB/s"
        raise InvalidArgument("is not a throughput", field=_MIBPS, value=text, remedy=remedy)
    return float(text)


def _parse_key(parameters: Mapping[str, str]) -> str | None:
    text = parameters.get(_KMS_KEY)
    if text is not None and not _KEY.fullmatch(text):
        remedy = "use the ID, the ARN or the alias of a key"
        raise InvalidArgument("is not a KMS key", field=_KMS_KEY, value=text, remedy=remedy)
    return text


def _parse_zone(parameters: Mapping[str, str]) -> ZoneName | None:
    if _ZONE not in parameters:
        return None
    with refused_as_argument():
        return parse_zone_name(parameters[_ZONE], field=_ZONE)


def _parse_transitions(parameters: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for name in (_TO_IA, _TO_ARCHIVE, _TO_PRIMARY):
        text = parameters.get(name)
        if text is None:
            continue
        known = _TRANSITIONS_BACK if name == _TO_PRIMARY else _TRANSITIONS
        if text not in known:
            remedy = f"use one of {', '.join(known)}"
            raise InvalidArgument("is not supported", field=name, value=text, remedy=remedy)
        yield f"{name[0].upper()}{name[1:]}", text


def _check_archive(
    parameters: Mapping[str, str], throughput: ThroughputMode, performance: PerformanceMode
) -> None:
    """Raise InvalidArgument for an archive that EFS refuses; see PutLifecycleConfiguration."""
    archive, infrequent = parameters.get(_TO_ARCHIVE), parameters.get(_TO_IA)
    if archive is None:
        return
    if throughput is not ThroughputMode.ELASTIC or performance is not PerformanceMode.GENERAL_PURPOSE:
        problem = f"needs {_THROUGHPUT}: {ThroughputMode.ELASTIC}"
        raise InvalidArgument(problem, field=_TO_ARCHIVE, value=archive, remedy="use it, or leave this out")
    if infrequent is not None and _TRANSITIONS.index(archive) <= _TRANSITIONS.index(infrequent):
        problem = f"is not later than {_TO_IA}"
        raise InvalidArgument(problem, field=_TO_ARCHIVE, value=archive, remedy="use a later one")


def _parse_tags(text: str) -> tuple[tuple[str, str], ...]:
    tags: dict[str, str] = {}
    for item in filter(None, (one.strip() for one in text.split(","))):
        key, has_value, value = (part.strip() for part in item.partition("="))
        if not has_value or not _TAG.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
            remedy = "use key=value,key=value, without keys of AWS"
            raise InvalidArgument("is not a tag", field=_TAGS, value=item, remedy=remedy)
        tags[key] = value
    return tuple(tags.items())


def _parse_list(
    parameters: Mapping[str, str], name: str, parse: Callable[[str], _Value]
) -> tuple[_Value, ...]:
    if name not in parameters:
        return ()
    with refused_as_argument():
        found = [parse(item.strip()) for item in parameters[name].split(",") if item.strip()]
    if not found:
        remedy = "give at least one, or leave it out"
        raise InvalidArgument("is empty", field=name, value=parameters[name], remedy=remedy)
    return tuple(dict.fromkeys(found))


def _parse_group(text: str) -> str:
    if not _GROUP.fullmatch(text):
        remedy = "use IDs such as sg-0123456789abcdef0"
        raise InvalidArgument("is not a security group", field=_GROUPS, value=text, remedy=remedy)
    return text
