"""The entries of ``metadata.managedFields``: which manager owns which fields, and since when."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from tinykube.objects.json_types import Json, lookup, without
from tinykube.patch.field_sets import FieldSet, from_fields_v1, to_fields_v1

# Nobody owns what identifies the object or is the server's to set.
_NOBODYS: Final[FieldSet] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            "creationTimestamp",
            "generation",
            "managedFields",
            "name",
            "namespace",
            "resourceVersion",
            "selfLink",
            "uid",
        )
    }
)


class Operation(StrEnum):
    """How a manager came to own fields: by server-side apply, or by any other write."""

    APPLY = "Apply"
    UPDATE = "Update"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldManager:
    """Who writes: the name (``fieldManager`` of the request), and through which version and subresource."""

    name: str
    api_version: str
    subresource: str = ""


EntryKey: TypeAlias = tuple[str, Operation, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The fields that one manager owns; ``time`` is when it last changed them (RFC 3339; empty: never)."""

    manager: FieldManager
    operation: Operation
    time: str
    fields: FieldSet

    @property
    def key(self) -> EntryKey:
        """What tells entries apart; one who applies keeps its entry when it goes to another version."""
        version = "" if self.operation is Operation.APPLY else self.manager.api_version
        return (self.manager.name, self.operation, version, self.manager.subresource)

    @property
    def description(self) -> str:
        """The manager as a conflict's message names it."""
        manager = self.manager
        through = f' with subresource "{manager.subresource}"' if manager.subresource else ""
        using = f" using {manager.api_version}" if self.operation is Operation.UPDATE else ""
        return f'"{manager.name}"{through}{using}'

    def less(self, fields: FieldSet) -> "Entry":
        """The entry without these fields."""
        return replace(self, fields=self.fields - fields)

    def ownable(self) -> "Entry":
        """The entry without the fields that nobody owns."""
        return self.less(_NOBODYS)


def entries_of(managed_fields: object) -> tuple[Entry, ...]:
    """The entries of a ``managedFields`` list; none at all when there is anything wrong with it."""
    if not isinstance(managed_fields, list):
        return ()
    try:
        return tuple(_entry(encoded) for encoded in managed_fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        return ()


def _entry(encoded: Json) -> Entry:
    return Entry(
        manager=FieldManager(
            name=encoded.get("manager", ""),
            api_version=encoded["apiVersion"],
            subresource=encoded.get("subresource", ""),
        ),
        operation=Operation(encoded["operation"]),
        time=encoded.get("time", ""),
        fields=from_fields_v1(encoded["fieldsV1"]),
    )


def owned(json_object: Json | None) -> tuple[Entry, ...]:
    """The entries that an object carries."""
    return entries_of(lookup(json_object, "metadata", "managedFields"))


def disown(json_object: Json | None) -> Json:
    """The object without its ``managedFields``; an empty one for none."""
    if not json_object or "managedFields" not in json_object.get("metadata", {}):
        return json_object or {}
    return {**json_object, "metadata": without(json_object["metadata"], "managedFields")}


def with_entries(json_object: Json, entries: Iterable[Entry]) -> Json:
    """The object with these entries in Kubernetes' order; those that own nothing are left out."""
    encoded = [
        _encoded(entry)
        for entry in sorted(entries, key=lambda e: (e.operation, e.time, *e.key))
        if entry.fields
    ]
    bare = disown(json_object)
    return {**bare, "metadata": {**bare.get("metadata", {}), "managedFields": encoded}} if encoded else bare


def _encoded(entry: Entry) -> Json:
    manager = entry.manager
    encoded: Json = {
        "manager": manager.name,
        "operation": str(entry.operation),
        "apiVersion": manager.api_version,
        **({"time": entry.time} if entry.time else {}),
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields_v1(entry.fields),
    }
    return {**encoded, "subresource": manager.subresource} if manager.subresource else encoded
