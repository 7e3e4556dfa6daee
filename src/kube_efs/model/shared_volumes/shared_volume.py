"""SharedVolumes: an access point of EFS as a claim in a namespace.

Group, names, labels and finalizer are those of aws-efs-operator, so that either can replace the other.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kube_efs.model.claims import Claim
from kube_efs.model.csi.volume_handles import parse_access_point_id, parse_strict_file_system_id
from kube_efs.model.errors import InvalidValue
from kube_efs.model.volumes import Volume

GROUP = "aws-efs.managed.openshift.io"
VERSION = "v1alpha1"
KIND = "SharedVolume"
PLURAL = "sharedvolumes"
# Newer API servers warn about it, because it has no path. SharedVolumes of the older system have it.
FINALIZER = "finalizer.awsefs.managed.openshift.io"
STORAGE_CLASS = "efs-sc"
STORAGE = "1Gi"
ACCESS_MODES = ("ReadWriteMany",)

OWNED: Final = "openshift.io/aws-efs-operator-owned"
OWNER_NAMESPACE: Final = "openshift.io/aws-efs-operator-shared-volume-owner-namespace"
OWNER_NAME: Final = "openshift.io/aws-efs-operator-shared-volume-owner-name"

_CLAIM_PREFIX = "pvc-"
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
_ACCESS_POINT_OPTION = "accesspoint="


class SharedVolumePhase(StrEnum):
    """``status.phase``; ``Ready`` means that volume and claim exist, not that they are bound."""

    PENDING = "Pending"
    READY = "Ready"
    DELETING = "Deleting"
    FAILED = "Failed"


class InvalidSharedVolume(InvalidValue):
    """The SharedVolume can never be served as it is; no other object can change that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The name of a SharedVolume, and the names of its volume and claim."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def volume_name(self) -> str:
        """The name of its PersistentVolume; SharedVolumes of two namespaces can have the same one."""
        return f"pv-{self.namespace}-{self.name}"

    @property
    def claim_name(self) -> str:
        """The name of its PersistentVolumeClaim."""
        return f"{_CLAIM_PREFIX}{self.name}"

    def check(self) -> None:
        """Raises InvalidSharedVolume if one of these names is too long."""
        longest = max((self.volume_name, self.claim_name), key=len)
        if len(longest) > _LONGEST_NAME:
            excess = len(longest) - _LONGEST_NAME
            remedy = f"use a name that is {excess} characters shorter"
            raise InvalidSharedVolume(
                f"is too long, as {longest[:3]}... would be",
                field="metadata.name",
                value=self.name,
                remedy=remedy,
            )


def owner_of_claim(namespace: str, name: str) -> Owner | None:
    """The SharedVolume whose claim has this name; None if none can have it."""
    bare = name.removeprefix(_CLAIM_PREFIX)
    return Owner(namespace=namespace, name=bare) if bare != name and bare else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The labels and annotations of an object that identify its SharedVolume.

    The older system reads the labels. A name that is too long for a label is shortened there, and complete in
    the annotations.
    """

    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations)

    @property
    def owner(self) -> Owner | None:
        """The owner that they identify; None if they are incomplete."""
        named = self.annotations or self.labels
        if OWNER_NAMESPACE not in named or OWNER_NAME not in named:
            return None
        return Owner(namespace=named[OWNER_NAMESPACE], name=named[OWNER_NAME])

    def names(self, owner: Owner) -> bool:
        """Whether they identify this owner; annotations take precedence over labels."""
        expected = marks_of(owner)
        if self.annotations:
            return self.annotations == expected.annotations
        return all(self.labels.get(key) == expected.labels[key] for key in (OWNER_NAMESPACE, OWNER_NAME))

    def suffice_for(self, owner: Owner) -> bool:
        """Whether they need no repair; objects of the older system have no annotations."""
        expected = marks_of(owner)
        if self.labels != expected.labels:
            return False
        is_shortened = expected.labels[OWNER_NAME] != owner.name
        return self.annotations == expected.annotations or not (self.annotations or is_shortened)


def marks_of(owner: Owner) -> Marks:
    """The marks of the objects of this owner."""
    annotations = {OWNER_NAMESPACE: owner.namespace, OWNER_NAME: owner.name}
    labels = {**annotations, OWNED: "true", OWNER_NAME: _as_label(owner.name)}
    return Marks(labels=labels, annotations=annotations)


def marks_among(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Marks:
    """The marks among the labels and annotations of an object."""
    return Marks(
        labels={key: labels[key] for key in (OWNED, OWNER_NAMESPACE, OWNER_NAME) if key in labels},
        annotations={key: annotations[key] for key in (OWNER_NAMESPACE, OWNER_NAME) if key in annotations},
    )


def _as_label(name: str) -> str:
    if len(name) <= _LONGEST_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_LABEL - len(digest) - 1]}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVolumeSource:
    """A file system and one of its access points, not validated."""

    file_system_id: str
    access_point_id: str

    def __str__(self) -> str:
        return f"access point {self.access_point_id} of {self.file_system_id}"

    @property
    def handle(self) -> str:
        """The handle of its volume, in the form of the older system."""
        return f"{self.file_system_id}::{self.access_point_id}"

    def check(self) -> None:
        """Raises InvalidSharedVolume if the CSI driver cannot mount it."""
        try:
            parse_strict_file_system_id(self.file_system_id, field="spec.fileSystemID")
            parse_access_point_id(self.access_point_id, field="spec.accessPointID")
        except InvalidValue as error:
            raise InvalidSharedVolume(
                error.problem, field=error.field, value=error.value, remedy=error.remedy
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedVolume:
    """A volume with the name of a SharedVolume's volume."""

    volume: Volume
    marks: Marks

    def belongs_to(self, owner: Owner) -> bool:
        """Whether it was created for this owner.

        The name is not enough, because two owners can have the same. The claim in its spec is more reliable
        than its labels, because only an administrator can change it.
        """
        claim = self.volume.claim
        is_for_claim = claim is not None and (claim.namespace, claim.name) == (
            owner.namespace,
            owner.claim_name,
        )
        return bool(self.marks) and (is_for_claim or self.marks.names(owner))

    @property
    def source(self) -> SharedVolumeSource | None:
        """Its access point; None if it is unknown.

        Early versions of the older system wrote the file system into the handle and the access point into a
        mount option.
        """
        handle = self.volume.csi.handle if self.volume.csi else ""
        match handle.removeprefix("efs:").split(":", 2):
            case [file_system_id] if file_system_id:
                found = [one for one in self.volume.mount_options if one.startswith(_ACCESS_POINT_OPTION)]
                access_point_id = found[0].removeprefix(_ACCESS_POINT_OPTION) if found else ""
            case [file_system_id, _, access_point_id] if file_system_id:
                pass
            case _:
                return None
        if not access_point_id:
            return None
        return SharedVolumeSource(file_system_id=file_system_id, access_point_id=access_point_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedClaim:
    """A claim with the name of a SharedVolume's claim."""

    claim: Claim
    marks: Marks

    @property
    def is_ours(self) -> bool:
        """Whether it was created for the SharedVolume; no other one in the namespace has the name."""
        return bool(self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """``status``; ``bound`` and ``matches`` are its conditions, None while they are unknown.

    ``phase`` is None before the first status. ``is_lasting`` is not stored: whether only a change of the
    SharedVolume, its volume or its claim can change the status. ``is_waiting``, which is not stored either:
    whether only such a change can end the wait, and the message may change before.
    """

    phase: SharedVolumePhase | None = None
    message: str = ""
    claim_name: str = ""
    bound: bool | None = None
    matches: bool | None = None
    generation: int = 0
    is_lasting: bool = field(default=False, compare=False)
    is_waiting: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVolume:
    """A SharedVolume; the IDs of ``source`` are not validated, and empty if they are missing.

    ``since`` has the time of each condition's last change, as text.
    """

    owner: Owner
    uid: str
    resource_version: str = ""
    generation: int = 0
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    source: SharedVolumeSource
    status: Status = field(default_factory=Status)
    since: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
