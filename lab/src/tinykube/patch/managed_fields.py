"""Who owns which fields of an object, as ``metadata.managedFields`` records it (``FieldsV1``).

A path is a tuple of elements in the form that FieldsV1 writes them: ``f:spec`` a field, ``k:{"name":"a"}``
the element of a keyed list, ``v:"x"`` an element of a set. What counts as one field is for the merge rules to
say: an atomic map or list is one, with all that is in it. Null is a value like any other.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from tinykube.objects.values import Json, JsonValue, json_equal, lookup, without
from tinykube.patch.merge_rules import DEFAULT, ListType, Rules

Path: TypeAlias = tuple[str, ...]
FieldSet: TypeAlias = frozenset[Path]

_SELF = "."
_ABSENT: Final = object()
_NOTHING = (_ABSENT, DEFAULT)


class Changes(NamedTuple):
    """The fields that differ between two objects; whole subtrees are listed with everything in them."""

    written: FieldSet
    removed: FieldSet


def children_of(value: JsonValue, rules: Rules) -> dict[str, tuple[JsonValue, Rules]] | None:
    """The parts of a value that are fields of their own; None when it is one field itself.

    Of list elements with the same key the first counts.
    """
    if isinstance(value, dict) and not rules.atomic:
        return {f"f:{key}": (part, rules.child(key)) for key, part in value.items()}
    if isinstance(value, list) and rules.list_type is not ListType.ATOMIC:
        return {element_of(part, rules): (part, rules.element) for part in reversed(value)}
    return None


def element_of(value: JsonValue, rules: Rules) -> str:
    """The path element of one element of a set or keyed list."""
    if rules.list_type is ListType.SET or not isinstance(value, dict):
        return f"v:{_compact(value)}"
    return f"k:{_compact({key: value.get(key, rules.key_defaults.get(key)) for key in sorted(rules.keys)})}"


def fields_of(value: JsonValue, rules: Rules) -> FieldSet:
    """Every field that an applied configuration sets."""
    return frozenset(_fields(value, rules, ()))


def _fields(value: JsonValue, rules: Rules, path: Path) -> Iterator[Path]:
    for element, (part, part_rules) in (children_of(value, rules) or {}).items():
        below = (*path, element)
        is_entry = rules.elements is not None and element.removeprefix("f:") not in rules.fields
        if is_entry or part == {} or children_of(part, part_rules) is None:
            yield below
        yield from _fields(part, part_rules, below)


def changes_between(old: Json, new: Json, rules: Rules) -> Changes:
    """The fields written and removed on the way from one object to the other."""
    written: set[Path] = set()
    removed: set[Path] = set()

    def compare(before: JsonValue, after: JsonValue, inner: Rules, path: Path) -> None:
        parts_before, parts_after = children_of(before, inner), children_of(after, inner)
        # A null that becomes a map or list, or was one, is a map or list without parts.
        is_leaf = not all(
            parts is not None or value is None
            for value, parts in ((before, parts_before), (after, parts_after))
        )
        if after is _ABSENT:
            removed.add(path)
        elif before is _ABSENT or (is_leaf and not json_equal(before, after)):
            written.add(path)
        parts_before, parts_after = parts_before or {}, parts_after or {}
        for element, (_, part_rules) in {**parts_before, **parts_after}.items():
            part_before, part_after = (
                parts.get(element, _NOTHING)[0] for parts in (parts_before, parts_after)
            )
            compare(part_before, part_after, part_rules, (*path, element))

    compare(old, new, rules, ())
    return Changes(written=frozenset(written), removed=frozenset(removed))


def with_parents(fields: FieldSet) -> FieldSet:
    """The set and all named fields on the way to its members."""
    return fields | {
        path[:depth] for path in fields for depth in range(1, len(path)) if path[depth - 1].startswith("f:")
    }


def remove_fields(value: JsonValue, fields: FieldSet, rules: Rules, path: Path = ()) -> JsonValue:
    """The value without these fields and everything in them."""
    if children_of(value, rules) is None or not fields:
        return value
    if isinstance(value, dict):
        return {
            key: remove_fields(part, fields, rules.child(key), (*path, f"f:{key}"))
            for key, part in value.items()
            if (*path, f"f:{key}") not in fields
        }
    return [
        remove_fields(part, fields, rules.element, (*path, element_of(part, rules)))
        for part in value
        if (*path, element_of(part, rules)) not in fields
    ]


def to_fields_v1(fields: FieldSet) -> Json:
    """The set as FieldsV1: a tree, where ``.`` marks a member that has members below it."""
    tree: Json = {}
    for path in sorted(fields):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        node[_SELF] = {}
    return _without_needless_marks(tree)


def _without_needless_marks(node: Mapping[str, Json]) -> Json:
    if node.keys() == {_SELF}:
        return {}
    return {element: _without_needless_marks(below) for element, below in node.items()}


def from_fields_v1(tree: Json) -> FieldSet:
    """The set that FieldsV1 means."""
    return frozenset(_members(tree, ()))


def _members(node: Json, path: Path) -> Iterable[Path]:
    if path and (not node or _SELF in node):
        yield path
    for element, below in node.items():
        if element != _SELF:
            yield from _members(below, (*path, element))


def _compact(value: JsonValue) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


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
class Entry:
    """The fields that a manager (``fieldManager`` of its requests) owns, by one operation and subresource.

    ``time`` is when it last changed them (RFC 3339; empty: never).
    """

    manager: str
    operation: Operation
    api_version: str
    subresource: str = ""
    time: str
    fields: FieldSet

    @property
    def key(self) -> tuple[str, Operation, str]:
        """The difference between entries."""
        return (self.manager, self.operation, self.subresource)

    def less(self, fields: FieldSet) -> "Entry":
        """The entry without these fields."""
        return replace(self, fields=self.fields - fields)

    def ownable(self) -> "Entry":
        """The entry without the fields that nobody owns."""
        return self.less(_NOBODYS)


def owned(stored: Json | None) -> tuple[Entry, ...]:
    """The entries that a stored object carries."""
    return tuple(
        Entry(
            manager=encoded["manager"],
            operation=Operation(encoded["operation"]),
            api_version=encoded["apiVersion"],
            subresource=encoded.get("subresource", ""),
            time=encoded.get("time", ""),
            fields=from_fields_v1(encoded["fieldsV1"]),
        )
        for encoded in lookup(stored, "metadata", "managedFields") or ()
    )


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
    encoded: Json = {
        "manager": entry.manager,
        "operation": str(entry.operation),
        "apiVersion": entry.api_version,
        **({"time": entry.time} if entry.time else {}),
        "fieldsType": "FieldsV1",
        "fieldsV1": to_fields_v1(entry.fields),
    }
    return {**encoded, "subresource": entry.subresource} if entry.subresource else encoded
