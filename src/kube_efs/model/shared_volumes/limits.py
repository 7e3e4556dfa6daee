"""The access points that the SharedVolumes of a namespace may use.

A SharedVolume gets a volume without an administrator. Without limits, a user who can create SharedVolumes
reaches every file system in the network.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kube_efs.model.errors import InvalidValue
from kube_efs.model.shared_volumes.shared_volume import GROUP, SharedVolumeSource

ANNOTATION = f"{GROUP}/allowed"
EVERYTHING = "*"
OTHERS = "*"

_ID = re.compile(r"(fs|fsap)-[0-9a-f]+")
_REMEDY = "use ids such as fs-0123456789abcdef0 or fsap-0123456789abcdef0 with commas between them, or *"


@dataclass(frozen=True, slots=True)
class Allowance:
    """IDs of file systems and access points; None means all."""

    ids: frozenset[str] | None = None

    def permits(self, source: SharedVolumeSource) -> bool:
        """Whether the file system, or this access point of it, is among them."""
        return self.ids is None or not self.ids.isdisjoint((source.file_system_id, source.access_point_id))

    def __str__(self) -> str:
        return "everything" if self.ids is None else ", ".join(sorted(self.ids)) or "nothing"


def parse_allowance(text: str, *, field: str) -> Allowance:
    """The IDs, separated by commas or blanks; ``*`` means all. Raises InvalidValue."""
    entries = frozenset(text.replace(",", " ").split())
    if EVERYTHING in entries:
        return Allowance()
    for entry in sorted(entries):
        if not _ID.fullmatch(entry):
            raise InvalidValue("is not a valid ID", field=field, value=entry, remedy=_REMEDY)
    return Allowance(entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The allowances in the settings, of each named namespace and of all ``others``.

    If the settings do not name a namespace, its annotation takes precedence over ``others``.
    """

    by_namespace: Mapping[str, Allowance] = field(default_factory=lambda: MappingProxyType({}))
    others: Allowance = field(default_factory=Allowance)

    def allowance(self, namespace: str, annotation: str | None) -> Allowance:
        """What the namespace may use; raises InvalidValue for an annotation that cannot be read."""
        named = self.by_namespace.get(namespace)
        if named is not None:
            return named
        if annotation is None:
            return self.others
        return parse_allowance(annotation, field=f"annotation {ANNOTATION} of namespace {namespace}")

    def check(self, namespace: str, annotation: str | None, source: SharedVolumeSource) -> None:
        """Raises InvalidValue if the namespace may not use the source."""
        allowance = self.allowance(namespace, annotation)
        if not allowance.permits(source):
            remedy = (
                f"use another one, or have an administrator change annotation {ANNOTATION} of the Namespace"
            )
            problem = f"is not allowed in namespace {namespace}, which may use {allowance}"
            raise InvalidValue(problem, field="spec", value=source.handle, remedy=remedy)
