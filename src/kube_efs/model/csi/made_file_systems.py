"""File systems that the driver has created for claims, as their tags describe them.

The tags are the driver's only memory of them, so that any later process can continue. CreateFileSystem sets
them atomically. Two of them decide what may happen:

* ``stage``: ``creating``, then ``ready``. No new volume may use one that is ``removing``.
* ``used`` is set with ``ready``, before the first volume exists, and never removed. Without it, a file system
  contains no data, and may be removed when its claim does not exist any more. The stage alone would not prove
  that: a process that wants to remove an unused file system may write it later than one that uses it.

Each time a file system becomes ``ready`` to be used, ``used`` gets another value. ``checked`` gets the same
value when the contents were checked, before a removal deletes the first mount target: without mount targets,
nobody can look for snapshots. So the check counts until the file system is used again, and not longer. If a
removal is refused after that, the file system becomes ``ready`` without mount targets. It is only used again
when it has new ones. A stage ``removing`` that AWS records late does not take the check back, because it is
written without the two others. A late ``ready`` does: that is safe, and the removal asks for a mount target.

Tags can be copied to other file systems: AWS Backup does so when it restores one. A creation token cannot.
So the token is a tag, too, and a file system with another token is not one of these.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kube_efs.model.csi.access_point_tags import CLAIM_NAME, CLAIM_NAMESPACE, CLUSTER, VOLUME_NAME, Tag
from kube_efs.model.csi.access_points import VolumeRequest
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument
from kube_efs.model.csi.file_system_templates import SCOPE, FileSystemTemplate, PerformanceMode, Scope
from kube_efs.model.efs.file_systems import LifeCycleState
from kube_efs.model.efs.ids import FileSystemId, ZoneName

# Creation tokens of all file systems of kube-efs, and names of the security groups of those for claims.
TOKEN_PREFIX: Final = "kube-efs-"  # noqa: S105  # no secret
# The reason of the events of a claim about the steps of the creation.
CREATING_FILE_SYSTEM: Final = "CreatingFileSystem"

_PREFIX: Final = "efs.csi.aws.com/"
STAGE_TAG: Final = f"{_PREFIX}stage"
USED_TAG: Final = f"{_PREFIX}used"
CHECKED_TAG: Final = f"{_PREFIX}checked"
_TOKEN_TAG: Final = f"{_PREFIX}creation-token"
# EFS accepts so many of a resource.
_TAGS_MAX: Final = 50
_SCOPE_TAG: Final = f"{_PREFIX}scope"
_OWNER_TAG: Final = f"{_PREFIX}created-for"
_KUBERNETES_TAG: Final = f"{_PREFIX}kubernetes-cluster"


class Stage(StrEnum):
    """How far the creation or the removal is."""

    CREATING = "creating"
    READY = "ready"
    REMOVING = "removing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemOwner:
    """Whose file system it is: the name of a volume, or the uid of a namespace.

    ``cluster`` is the uid of the namespace ``kube-system``. Both are different in every cluster.
    """

    scope: Scope
    name: str
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFileSystem:
    """One of them. ``is_used``: whether a volume may be or may have been on it.

    ``use`` identifies its use since it became ready the last time. ``is_checked``: since then, a removal has
    found nothing that must stay.
    ``mount_targets`` is their number, in any state. ``addresses`` are theirs, if they were read.
    """

    file_system_id: FileSystemId
    owner: FileSystemOwner
    stage: Stage
    is_used: bool = True
    use: str = ""
    is_checked: bool = False
    token: str
    state: LifeCycleState = LifeCycleState.AVAILABLE
    mount_targets: int = 0
    addresses: frozenset[str] = frozenset()
    created: float = 0.0
    performance: PerformanceMode = PerformanceMode.GENERAL_PURPOSE
    zone: ZoneName | None = None

    @property
    def security_group(self) -> str:
        """The name of its own security group, if its class names none."""
        return self.token


def creation_token(owner: FileSystemOwner, template: FileSystemTemplate) -> str:
    """The token with which EFS creates one file system, however often it is requested.

    Each template has its own file system in a namespace. A volume has one file system, whatever its class
    becomes meanwhile.
    """
    parts = [
        owner.cluster,
        owner.scope,
        owner.name,
        template.identity if owner.scope is Scope.NAMESPACE else "",
    ]
    return f"{TOKEN_PREFIX}{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:40]}"


def check_owner_known(request: VolumeRequest) -> None:
    """Raise InvalidArgument if the class has a file system for each namespace, and the claim is not known."""
    template = request.parameters.template
    if template is not None and template.scope is Scope.NAMESPACE and not request.origin.is_known:
        raise InvalidArgument(
            "needs the claim's name and namespace",
            field=SCOPE,
            value=str(template.scope),
            remedy="run csi-provisioner with --extra-create-metadata",
        )


def tags_for(
    owner: FileSystemOwner, request: VolumeRequest, template: FileSystemTemplate, of_driver: Iterable[Tag]
) -> Mapping[str, str]:
    """The tags of a new file system; no class and no setting changes those that decide about it.

    Raises InvalidArgument for more tags than EFS accepts.
    """
    origin = request.origin
    is_namespace = owner.scope is Scope.NAMESPACE
    described = {
        "Name": origin.claim_namespace if is_namespace else "/".join(_named(request)),
        CLAIM_NAMESPACE: origin.claim_namespace,
        CLAIM_NAME: "" if is_namespace else origin.claim_name,
        VOLUME_NAME: "" if is_namespace else request.name,
    }
    deciding = {
        CLUSTER: "true",
        _SCOPE_TAG: str(owner.scope),
        _OWNER_TAG: owner.name,
        _KUBERNETES_TAG: owner.cluster,
        _TOKEN_TAG: creation_token(owner, template),
        STAGE_TAG: str(Stage.CREATING),
    }
    known = {key: value[:256] for key, value in described.items() if value}
    given = {**known, **{one.key: one.value for one in of_driver}, **dict(template.tags)}
    # A new file system has neither of these two: it would count as used, and get no policy.
    tags = {key: value for key, value in given.items() if key not in {USED_TAG, CHECKED_TAG}} | deciding
    # Two more are added when it is used and when it is removed.
    if len(tags) + 2 > _TAGS_MAX:
        room = max(0, _TAGS_MAX - 2 - len(tags) + len(template.tags))
        remedy = f"use at most {room} tags"
        raise InvalidArgument("has more tags than EFS accepts", field="fileSystemTags", remedy=remedy)
    return tags


def _named(request: VolumeRequest) -> tuple[str, ...]:
    origin = request.origin
    return (origin.claim_namespace, origin.claim_name) if origin.is_known else (request.name,)


def read_owner(tags: Mapping[str, str], token: str) -> tuple[FileSystemOwner, Stage] | None:
    """The owner and the stage in the tags of the file system with that creation token.

    None unless the driver has created it.
    """
    if tags.get(_TOKEN_TAG) != token:
        return None
    name, cluster = tags.get(_OWNER_TAG, ""), tags.get(_KUBERNETES_TAG, "")
    if tags.get(CLUSTER) != "true" or not name or not cluster:
        return None
    try:
        owner = FileSystemOwner(scope=Scope(tags.get(_SCOPE_TAG, "")), name=name, cluster=cluster)
        return owner, Stage(tags.get(STAGE_TAG, ""))
    except ValueError:
        return None


def check_template(found: MadeFileSystem, template: FileSystemTemplate) -> None:
    """Raise ExistingVolumeDiffers if the file system of that volume is not what the class describes now.

    Only what EFS cannot change is compared: people may have changed the rest since.
    """
    wanted = (template.performance, template.zone)
    if (found.performance, found.zone) != wanted:
        raise ExistingVolumeDiffers(
            f"was created with {found.performance} in {found.zone or 'every zone'}",
            field="file system",
            value=found.file_system_id,
            remedy="use the class as it was, or delete the claim",
        )
