"""SharedVolumes: an access point of EFS as a claim in a namespace.

Group, names, labels and finalizer are those of aws-efs-operator, so that either can follow the other.
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
# Newer API servers warn of it, since it is not a domain and path; SharedVolumes of the older system carry it.
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
    """``status.phase``; ``Ready`` means that volume and claim are there, not that they are bound."""

    PENDING = "Pending"
    READY = "Ready"
    DELETING = "Deleting"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A SharedVolume's name, and what its volume and claim are called."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def volume_name(self) -> str:
        """The PersistentVolume's; SharedVolumes of two namespaces can mean the same one."""
        return f"pv-{self.namespace}-{self.name}"

    @property
    def claim_name(self) -> str:
        """The PersistentVolumeClaim's."""
        return f"{_CLAIM_PREFIX}{self.name}"

    def check(self) -> None:
        """See that both can be made; raises InvalidValue."""
        longest = max((self.volume_name, self.claim_name), key=len)
        if len(longest) > _LONGEST_NAME:
            excess = len(longest) - _LONGEST_NAME
            remedy = f"use a name that is {excess} characters shorter"
            raise InvalidValue(
                f"is too long, as {longest[:3]}... would be",
                field="metadata.name",
                value=self.name,
                remedy=remedy,
            )


def owner_of_claim(namespace: str, name: str) -> Owner | None:
    """Whose claim has this name; None when no SharedVolume's can."""
    bare = name.removeprefix(_CLAIM_PREFIX)
    return Owner(namespace=namespace, name=bare) if bare != name and bare else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Those labels and annotations of an object that say whose it is.

    Labels are what the older system reads. A name that is too long for one is shortened there, and whole in
    the annotations.
    """

    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations)

    @property
    def owner(self) -> Owner | None:
        """The owner that they name in full."""
        named = self.annotations or self.labels
        if OWNER_NAMESPACE not in named or OWNER_NAME not in named:
            return None
        return Owner(namespace=named[OWNER_NAMESPACE], name=named[OWNER_NAME])

    def names(self, owner: Owner) -> bool:
        """Whether they say that the object is this owner's; annotations win over labels."""
        expected = marks_of(owner)
        if self.annotations:
            return self.annotations == expected.annotations
        return all(self.labels.get(key) == expected.labels[key] for key in (OWNER_NAMESPACE, OWNER_NAME))

    def suffice_for(self, owner: Owner) -> bool:
        """Whether nothing has to be repaired; what the older system made has no annotations."""
        expected = marks_of(owner)
        if self.labels != expected.labels:
            return False
        is_shortened = expected.labels[OWNER_NAME] != owner.name
        return self.annotations == expected.annotations or not (self.annotations or is_shortened)


def marks_of(owner: Owner) -> Marks:
    """The marks of what is made for this owner."""
    annotations = {OWNER_NAMESPACE: owner.namespace, OWNER_NAME: owner.name}
    labels = {**annotations, OWNED: "true", OWNER_NAME: _as_label(owner.name)}
    return Marks(labels=labels, annotations=annotations)


def marks_among(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Marks:
    """Those among an object's labels and annotations."""
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
class Source:
    """A file system and one of its access points, as written."""

    file_system_id: str
    access_point_id: str

    def __str__(self) -> str:
        return f"access point {self.access_point_id} of {self.file_system_id}"

    @property
    def handle(self) -> str:
        """The handle of its volume, in the older system's form."""
        return f"{self.file_system_id}::{self.access_point_id}"

    def check(self) -> None:
        """See that the CSI driver can mount it; raises InvalidValue."""
        parse_strict_file_system_id(self.file_system_id, field="spec.fileSystemID")
        parse_access_point_id(self.access_point_id, field="spec.accessPointID")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedVolume:
    """A volume that has the name of a SharedVolume's."""

    volume: Volume
    marks: Marks

    def belongs_to(self, owner: Owner) -> bool:
        """Whether it was made for this owner.

        A name alone says nothing, as two owners can have the same. The claim that it is reserved for is the
        better witness, since only an administrator can change it.
        """
        claim = self.volume.claim
        is_for_claim = claim is not None and (claim.namespace, claim.name) == (
            owner.namespace,
            owner.claim_name,
        )
        return bool(self.marks) and (is_for_claim or self.marks.names(owner))

    @property
    def source(self) -> Source | None:
        """Where it leads; None when that is not known.

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
        return Source(file_system_id=file_system_id, access_point_id=access_point_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedClaim:
    """A claim that has the name of a SharedVolume's."""

    claim: Claim
    marks: Marks

    @property
    def is_ours(self) -> bool:
        """Whether it was made for the SharedVolume; no other one has the name in the namespace."""
        return bool(self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """``status``; ``bound`` and ``matches`` are its conditions, None while nothing is known.

    ``phase`` None is a SharedVolume that was not handled yet.
    """

    phase: SharedVolumePhase | None = None
    message: str = ""
    claim_name: str = ""
    bound: bool | None = None
    matches: bool | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVolume:
    """A SharedVolume; the ids of ``source`` are unchecked, and empty where they are missing.

    ``since`` has the time of each condition's last change, as text.
    """

    owner: Owner
    uid: str
    resource_version: str = ""
    generation: int = 0
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    source: Source
    status: Status = field(default_factory=Status)
    since: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
