"""The rules of openshift-efs-stunnel: which claims are served, from which file system, and with which volume.

Source: the README of that project (StorageClass parameters, claim labels) and the behavior of its programs.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.efs.directories import Directory, Permissions
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, VpcId, parse_file_system_id
from kube_efs.model.efs.targets import LAST_PORT, TunnelTargets
from kube_efs.model.errors import ClaimRefused, InvalidValue, LeftAlone, NotYet, RemovalRefused
from kube_efs.model.nfs_volumes import refuse_unservable, tunnel_mount_options
from kube_efs.model.volumes import LOOPBACK, ClaimReference, Location, NfsSource, Volume, locate

PREFIX = "efs-stunnel.gnuthought.com"
REJECTED = f"{PREFIX}/rejected"
REJECT_REASON = f"{PREFIX}/reject-reason"
FILE_SYSTEM_ID = f"{PREFIX}/file-system-id"
CHOSEN_FILE_SYSTEM = f"{PREFIX}/chosen-file-system"
ROOT_CLASS = "efs-stunnel-system"
ROOT_KEY_LABEL = "root_key"
FILE_SYSTEM_LABEL = "file_system_id"
BASE = Directory()
# A name ends with 5 characters of a hash; four claims of one directory will not have the same ones.
NAMES_TRIED = 4

_DEFAULT, _ALLOWED, _MODE = "default_file_system_id", "file_system_ids", "directory_mode"
_VOLUME_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]*")
_OCTAL = re.compile(r"[0-7]{3,4}")
_LABELS = "spec.selector.matchLabels"
_OWNED_POLICIES = {ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN}


class DefaultFileSystem(StrEnum):
    """Values of ``default_file_system_id`` that are not IDs."""

    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelClass:
    """The parameters of a storage class; ``allowed`` None means every file system.

    ``permissions`` are those of its directories.
    """

    default: FileSystemId | DefaultFileSystem | None
    allowed: tuple[FileSystemId, ...] | None
    permissions: Permissions


def _no_volumes(_: Location) -> Sequence[Volume]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The input for the choice of ``auto``: the file systems, their ports, and the existing volumes.

    ``own_vpcs`` are the VPCs of the nodes. If it is empty, they are unknown and exclude no file system.
    ``maybe_begun`` are the claims whose volume an earlier leader may have requested, by UID.
    """

    discovery: Discovery
    targets: TunnelTargets = field(default_factory=TunnelTargets)
    volumes_at: Callable[[Location], Sequence[Volume]] = _no_volumes
    own_vpcs: frozenset[VpcId] = frozenset()
    maybe_begun: Mapping[ClaimUid, Claim] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelRequest:
    """A valid request of a claim.

    ``is_chosen``: neither the claim nor its class names the file system, so the choice must be recorded on
    the claim before anything is created.
    """

    claim: Claim
    is_chosen: bool
    location: Location
    permissions: Permissions
    reclaim_policy: ReclaimPolicy
    mount_options: tuple[str, ...]


def parse_class(storage_class: StorageClass) -> TunnelClass:
    """The parameters of the class; raises ClaimRefused when one is malformed."""
    return TunnelClass(
        default=_parse_default(storage_class),
        allowed=_parse_allowed(storage_class),
        permissions=_parse_permissions(storage_class),
    )


def class_warnings(storage_class: StorageClass) -> tuple[InvalidValue, ...]:
    """The warnings about a class that is served: one, with all its unknown parameters."""
    known = (_DEFAULT, _ALLOWED, _MODE)
    unknown = sorted(storage_class.parameters.keys() - set(known))
    warning = InvalidValue(
        f"has unknown parameters, which have no effect: {', '.join(map(repr, unknown))}",
        field=f"StorageClass {storage_class.name}",
        remedy=f"known are {', '.join(known)}",
    )
    return (warning,) if unknown else ()


def _parse_default(storage_class: StorageClass) -> FileSystemId | DefaultFileSystem | None:
    text = storage_class.parameters.get(_DEFAULT, "").strip()
    if not text:
        return None
    if text == DefaultFileSystem.AUTO:
        return DefaultFileSystem.AUTO
    return _class_file_system(storage_class, _DEFAULT, text)


def _parse_allowed(storage_class: StorageClass) -> tuple[FileSystemId, ...] | None:
    names = [name.strip() for name in storage_class.parameters.get(_ALLOWED, "").split(",")]
    allowed = tuple(_class_file_system(storage_class, _ALLOWED, name) for name in names if name)
    return allowed or None


def _parse_permissions(storage_class: StorageClass) -> Permissions:
    """The mode 0777 for new directories; a mode that the class gives is for existing directories, too.

    openshift-efs-stunnel did ``chmod 777`` always. That is not the default, because a namespace can have the
    name of any directory at the top of the file system, and would open what lies there to everybody.
    """
    text = storage_class.parameters.get(_MODE, "").strip()
    if not text:
        return Permissions()
    if not _OCTAL.fullmatch(text):
        raise ClaimRefused(
            "is not a valid octal mode",
            field=f"StorageClass {storage_class.name} parameters.{_MODE}",
            value=text,
            remedy="use three or four octal digits, such as 0777",
        )
    return Permissions(mode=int(text, 8), enforced=True)


def _class_file_system(storage_class: StorageClass, parameter: str, text: str) -> FileSystemId:
    try:
        return parse_file_system_id(text)
    except InvalidValue as error:
        raise ClaimRefused(
            "is not a valid file system ID",
            field=f"StorageClass {storage_class.name} parameters.{parameter}",
            value=text,
            remedy="use ids such as fs-0123456789abcdef0",
        ) from error


def named_file_system(claim: Claim) -> str | None:
    """The file system that the claim's label asks for; None where the class decides.

    As in openshift-efs-stunnel, an empty label and ``auto`` stand for the default of the class.
    """
    named = (claim.match_labels or {}).get(FILE_SYSTEM_LABEL)
    return None if named in {"", DefaultFileSystem.AUTO} else named


def parse_request(claim: Claim, storage_class: StorageClass, view: ClusterView) -> TunnelRequest:
    """The request of the claim.

    Raises ClaimRefused if the claim cannot be served until it, its class or the set of file systems changes,
    LeftAlone for the label of root volumes, and NotYet for a file system that is not known or cannot be
    reached yet.
    """
    labels = claim.match_labels or {}
    if labels.get(ROOT_KEY_LABEL):
        # As in openshift-efs-stunnel, which serves a claim with an empty label.
        raise LeftAlone(
            "is reserved for the root volumes of file systems",
            field=f"{_LABELS}.{ROOT_KEY_LABEL}",
            remedy="create the claim again without this label",
        )
    _refuse_unserved(claim)
    volume_name = _parse_volume_name(labels.get("volume_name"))
    policy = _parse_policy(labels.get("reclaim_policy"), storage_class)
    directory = BASE / claim.namespace / volume_name
    file_system_id = _choose_file_system(claim, storage_class, directory, view)
    rules = parse_class(storage_class)
    return TunnelRequest(
        claim=claim,
        is_chosen=rules.default is DefaultFileSystem.AUTO and named_file_system(claim) is None,
        location=Location(file_system_id=file_system_id, directory=directory),
        permissions=rules.permissions,
        reclaim_policy=policy,
        mount_options=tunnel_mount_options(storage_class),
    )


def _refuse_unserved(claim: Claim) -> None:
    refuse_unservable(claim)
    if claim.match_labels is None:
        raise ClaimRefused("is missing", field="spec.selector", remedy="give matchLabels with a volume_name")


def _parse_volume_name(text: str | None) -> str:
    if text is None:
        remedy = "name the directory with a-z, 0-9, _ and -"
        raise ClaimRefused("is missing", field=f"{_LABELS}.volume_name", remedy=remedy)
    if not _VOLUME_NAME.fullmatch(text):
        remedy = "use a-z, 0-9 and _, and - after the first character"
        raise ClaimRefused("is not allowed", field=f"{_LABELS}.volume_name", value=text, remedy=remedy)
    return text


def _parse_policy(text: str | None, storage_class: StorageClass) -> ReclaimPolicy:
    if text is None:
        return storage_class.reclaim_policy
    if text not in _OWNED_POLICIES:
        remedy = "use Delete or Retain"
        raise ClaimRefused(
            "is not a reclaim policy", field=f"{_LABELS}.reclaim_policy", value=text, remedy=remedy
        )
    return ReclaimPolicy(text)


def _choose_file_system(
    claim: Claim, storage_class: StorageClass, directory: Directory, view: ClusterView
) -> FileSystemId:
    """The file system of the claim, else that of its class, else the choice of ``auto``.

    The name of a volume contains its file system, so the API server would not reject a second volume on
    another one. A choice by ``auto`` is therefore recorded on the claim, and after a crash it is not changed
    while the volume of the earlier leader can still appear.
    """
    rules, named = parse_class(storage_class), named_file_system(claim)
    if named is not None:
        return _known(_allowed_file_system(named, rules, storage_class), view.discovery)
    if rules.default is DefaultFileSystem.AUTO:
        chosen = _choose_automatically(claim, rules, directory, view)
    else:
        chosen = _known(_default_file_system(rules, storage_class), view.discovery)
    if claim.file_system not in {None, chosen} and claim.uid in view.maybe_begun:
        raise NotYet(
            f"was chosen by an earlier controller, whose volume can still appear; the choice is now {chosen}",
            field="file system",
            value=claim.file_system,
            remedy="wait; it is chosen again within 90 seconds after the controller became the leader",
        )
    return chosen


def _known(file_system_id: FileSystemId, discovery: Discovery) -> FileSystemId:
    if file_system_id not in discovery.usable:
        raise _not_known(file_system_id, discovery)
    return file_system_id


def _not_known(what: str, discovery: Discovery) -> NotYet:
    known = ", ".join(discovery.usable) or "none"
    remedy = f"known file systems: {known}"
    return NotYet("is not known (yet)", field="file system", value=what, remedy=remedy)


def _choose_automatically(
    claim: Claim, rules: TunnelClass, directory: Directory, view: ClusterView
) -> FileSystemId:
    """The file system for a claim whose class says ``auto``.

    If a volume keeps the directory on a file system, the claim waits for this one, because an empty directory
    on another one would look like lost data. Otherwise the file system must be reachable, preferably in the
    VPC of the nodes. If there are several, it is the first one in the list of the class, or the one that has
    been in use longest, which has the lowest port. Only the data and the VPC can change a recorded choice.
    """
    discovery = view.discovery
    there = {*discovery.unclear, *(fs for fs, one in discovery.file_systems.items() if not one.state.ending)}
    candidates = _in_order(there, rules, view.targets)
    if not candidates:
        raise _none_at_all(rules, discovery)
    volumes = {fs: view.volumes_at(Location(file_system_id=fs, directory=directory)) for fs in candidates}
    begun = _begun_by_others(claim, view)
    kept = {fs: [one for one in volumes[fs] if not one.to_be_reclaimed] for fs in candidates}
    homes = [fs for fs in candidates if fs in begun or kept[fs]]
    # A volume that is being deleted leaves its data, but nothing shows this after the volume is deleted.
    homes = [fs for fs in homes if fs in begun or not all(one.deleting for one in kept[fs])] or homes
    reachable = [fs for fs in homes or candidates if _is_reachable(fs, discovery)]
    if not reachable:
        raise _no_mount_target(homes or candidates, directory if homes else None, discovery)
    if homes:
        return claim.file_system if claim.file_system in reachable else reachable[0]
    return min(reachable, key=lambda fs: (not _is_near(fs, view), fs != claim.file_system, not volumes[fs]))


def _begun_by_others(claim: Claim, view: ClusterView) -> set[str | None]:
    """The file systems where an earlier leader may have requested volumes of the claim's directory."""
    return {
        named_file_system(one) or one.file_system
        for one in view.maybe_begun.values()
        if one.uid != claim.uid
        and one.namespace == claim.namespace
        and (one.match_labels or {}).get("volume_name") == (claim.match_labels or {}).get("volume_name")
    }


def _in_order(
    there: Iterable[FileSystemId], rules: TunnelClass, targets: TunnelTargets
) -> list[FileSystemId]:
    if rules.allowed is not None:
        return [fs for fs in rules.allowed if fs in there]
    return sorted(there, key=lambda fs: (targets.port_of(fs) or LAST_PORT + 1, fs))


def _is_reachable(file_system_id: FileSystemId, discovery: Discovery) -> bool:
    system = discovery.file_systems.get(file_system_id)
    return system is not None and system.state.usable and bool(system.usable_mount_targets)


def _is_near(file_system_id: FileSystemId, view: ClusterView) -> bool:
    """Whether it has a mount target in a VPC of the nodes; true if the VPCs are unknown."""
    vpcs = {one.vpc_id for one in view.discovery.file_systems[file_system_id].usable_mount_targets}
    return not view.own_vpcs or None in vpcs or bool(vpcs & view.own_vpcs)


def _none_at_all(rules: TunnelClass, discovery: Discovery) -> NotYet:
    if rules.allowed is not None:
        return _not_known(", ".join(rules.allowed), discovery)
    remedy = "create an EFS file system, or check the controller's AWS permissions"
    return NotYet("has not been discovered yet", field="file system", value="auto", remedy=remedy)


def _no_mount_target(
    candidates: Sequence[FileSystemId], directory: Directory | None, discovery: Discovery
) -> NotYet:
    """What each of the file systems lacks; ``directory`` is set if only they have it."""
    lacks = "; ".join(_lacking(fs, discovery) for fs in candidates)
    why = f"has the volume of {directory} but " if directory is not None else ""
    otherwise = ", or name another file system in the claim's label file_system_id" if why else ""
    return NotYet(
        f"{why}has no usable mount target ({lacks})",
        field="file system",
        value=", ".join(candidates),
        remedy=f"create a mount target in a subnet that the nodes reach{otherwise}",
    )


def _lacking(file_system_id: FileSystemId, discovery: Discovery) -> str:
    system = discovery.file_systems.get(file_system_id)
    if system is None:
        return f"AWS has not reported the mount targets of {file_system_id} yet"
    if not system.state.usable:
        return f"{file_system_id} is {system.state}"
    targets = ", ".join(
        f"{one.mount_target_id} in {one.subnet_id} is {one.state}" for one in system.mount_targets
    )
    return f"{file_system_id}: {targets}" if targets else f"{file_system_id} has no mount target"


def _allowed_file_system(text: str, rules: TunnelClass, storage_class: StorageClass) -> FileSystemId:
    field = f"{_LABELS}.{FILE_SYSTEM_LABEL}"
    try:
        chosen = parse_file_system_id(text)
    except InvalidValue as error:
        remedy = "use an id such as fs-0123456789abcdef0"
        raise ClaimRefused("is not a valid file system ID", field=field, value=text, remedy=remedy) from error
    if rules.allowed is not None and chosen not in rules.allowed:
        remedy = f"StorageClass {storage_class.name} allows {', '.join(rules.allowed)}"
        raise ClaimRefused("is not allowed", field=field, value=text, remedy=remedy)
    return chosen


def _default_file_system(rules: TunnelClass, storage_class: StorageClass) -> FileSystemId:
    if rules.default is None:
        raise ClaimRefused(
            "is missing",
            field=f"{_LABELS}.{FILE_SYSTEM_LABEL}",
            remedy=f"give it, or set default_file_system_id in StorageClass {storage_class.name}",
        )
    if rules.allowed is not None and rules.default not in rules.allowed:
        raise ClaimRefused(
            "is not in file_system_ids",
            field=f"StorageClass {storage_class.name} parameters.default_file_system_id",
            value=rules.default,
            remedy="add it there, or use another default",
        )
    return FileSystemId(rules.default)


def volume_name(request: TunnelRequest, attempt: int = 0) -> str:
    """``efs-stunnel-<fs id>-<namespace>-<volume_name>-<5 characters of the claim's uid>``.

    The same claim always gets the same name, so that a repeated attempt finds the volume of the first one.
    ``attempt`` gives another name if the volume of another claim has this one. Names of Kubernetes objects
    cannot contain underscores.
    """
    namespace, directory = request.location.directory.parts
    readable = f"{request.location.file_system_id}-{namespace}-{directory}".replace("_", "-")
    return f"efs-stunnel-{readable}-{_suffix(request.claim.uid, attempt)}"


def _suffix(uid: ClaimUid, attempt: int) -> str:
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).digest()
    return base64.b32encode(digest).decode().lower()[:5]


def volume_for(request: TunnelRequest, *, port: int, provisioner: str, attempt: int = 0) -> Volume:
    """The volume that serves the request through the tunnel at that loopback port."""
    claim = request.claim
    return Volume(
        name=volume_name(request, attempt),
        reclaim_policy=request.reclaim_policy,
        storage_class=claim.storage_class or "",
        provisioned_by=provisioner,
        file_system_id=str(request.location.file_system_id),
        claim=ClaimReference(namespace=claim.namespace, name=claim.name, uid=claim.uid),
        nfs=NfsSource(server=LOOPBACK, path=str(request.location.directory)),
        mount_options=(f"port={port}", *request.mount_options),
        labels=claim.match_labels or {},
        access_modes=claim.access_modes,
        capacity=claim.requested_storage,
    )


def removable_location(volume: Volume) -> Location:
    """The directory that may be removed with this volume, judged from the volume alone.

    Raises RemovalRefused unless it is exactly ``/<namespace of its claim>/<volume_name>``.
    """
    location = locate(volume, TunnelTargets())
    if location is None or volume.nfs is None or volume.nfs.server != LOOPBACK:
        remedy = "remove the volume manually"
        raise RemovalRefused(
            "does not name a directory behind a tunnel", field="volume", value=volume.name, remedy=remedy
        )
    parts = location.directory.parts
    namespace = volume.claim.namespace if volume.claim else ""
    is_plain = volume.nfs.path == str(location.directory)
    if not is_plain or len(parts) != 2 or parts[0] != namespace or not _VOLUME_NAME.fullmatch(parts[1]):
        remedy = f"only /{namespace}/<volume_name> is removed; remove the volume manually"
        raise RemovalRefused(
            "is not the claim's directory", field="spec.nfs.path", value=volume.nfs.path, remedy=remedy
        )
    return location


def root_name(file_system_id: FileSystemId) -> str:
    """The name of the root claim and the root volume, with which workers mount a whole file system."""
    return f"efs-stunnel-{file_system_id}"
