"""Server-side apply, and the book-keeping of field owners for all other writes.

An applied configuration is merged into the live object. Fields that its manager applied before and leaves out
now are removed unless somebody else owns them too. Fields that somebody else has set to another value get the
new value and owner: every apply is forced. The rest is as in ``sigs.k8s.io/structured-merge-diff``, with two
differences: a manager's list of fields is never folded into ``ancient-changes``, and ``spec`` and the like,
which are always there in Go, have an owner as maps have.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import bad_request
from tinykube.objects.values import Json, JsonValue, json_equal, lookup, without
from tinykube.patch.managed_fields import (
    Changes,
    Entry,
    FieldSet,
    Operation,
    changes_between,
    disown,
    element_of,
    fields_of,
    owned,
    remove_fields,
    with_entries,
    with_parents,
)
from tinykube.patch.merge_rules import ListType, Rules
from tinykube.patch.patches import PatchInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes objects of a type, through which subresource (if any), and when."""

    resource: ResourceType
    name: str
    subresource: str = ""
    now: str

    def apply(self, live: Json | None, applied: Json) -> Json:
        """The live object (None: there is none yet) after this manager has applied its configuration.

        Both are as the request's version shows them. Fields that the (sub)resource does not write get no
        owner; putting the old ones back is for the caller. Raises 400 for ``managedFields`` in the
        configuration and for ambiguous keyed lists.
        """
        if lookup(applied, "metadata", "managedFields") is not None:
            raise bad_request("metadata.managedFields must be nil")
        rules = self.resource.rules
        before, config = disown(live), _without_nulls(applied)
        entry = self._entry(Operation.APPLY, self._writable(fields_of(config, rules)))
        known = owned(live)
        previous = next((other for other in known if other.key == entry.key), None)
        others = [other for other in known if other.key != entry.key]
        kept = entry.fields.union(*(other.fields for other in others))
        given_up = with_parents(previous.fields) - with_parents(kept) if previous else frozenset()
        try:
            after = remove_fields(lay_over(before, config, rules), given_up, rules)
        except PatchInvalid as error:
            raise bad_request(str(error)) from error
        changes = self._changes(before, after)
        entry = entry.ownable()
        if live is not None and json_equal(before, after):
            # Who changes only owners has no time, as in Kubernetes.
            entry = replace(entry, time=previous.time if previous else "")
        entries = [entry, *(other.less(changes.written | changes.removed) for other in others)]
        return with_entries(after, entries)

    def write(self, old: Json | None, new: Json) -> Json:
        """The stored form of a create (``old`` is None), update or patch, with its owners brought up to date.

        Owners that the request itself names do not count. Objects without any stay so.
        """
        after, known = disown(new), owned(old)
        if old is not None and not known:
            return after
        changes = self._changes(disown(old), after)
        written = self._entry(Operation.UPDATE, changes.written).ownable()
        entries = {entry.key: entry.less(changes.written | changes.removed) for entry in known}
        if written.fields:
            previous = entries.get(written.key)
            fields = written.fields | (previous.fields if previous else frozenset())
            entries[written.key] = replace(written, fields=fields)
        return with_entries(after, entries.values())

    def _entry(self, operation: Operation, fields: FieldSet) -> Entry:
        return Entry(
            manager=self.name,
            operation=operation,
            api_version=self.resource.api_version,
            subresource=self.subresource,
            time=self.now,
            fields=fields,
        )

    def _changes(self, old: Json, new: Json) -> Changes:
        return Changes(*map(self._writable, changes_between(old, new, self.resource.rules)))

    def _writable(self, fields: FieldSet) -> FieldSet:
        return frozenset(path for path in fields if path and self._writes(path[0].removeprefix("f:")))

    def _writes(self, field: str) -> bool:
        """Whether the (sub)resource writes this top-level field."""
        if self.subresource != "status":
            return field != "status" or not self.resource.has_status
        return field == "status" or (field == "metadata" and not self.resource.custom)


def lay_over(live: JsonValue, config: JsonValue, rules: Rules) -> JsonValue:
    """The live value with the configuration laid over it.

    Maps are merged, keyed lists element by element, sets united; everything else is replaced. Raises
    PatchInvalid when an element of a keyed list lacks a key, or two have the same.
    """
    if isinstance(config, dict) and not rules.atomic:
        below = live if isinstance(live, dict) else {}
        laid = {key: lay_over(below.get(key), part, rules.child(key)) for key, part in config.items()}
        return {**below, **laid}
    if isinstance(config, list) and rules.list_type is not ListType.ATOMIC:
        return _lay_list_over(live if isinstance(live, list) else [], config, rules)
    return config


def _lay_list_over(live: list[JsonValue], config: list[JsonValue], rules: Rules) -> list[JsonValue]:
    """Elements in the order of the configuration; those that only the live list has keep their places."""
    wanted = {element_of(part, rules): part for part in config}
    _check_unambiguous(config, wanted, rules)
    rest = [(element_of(part, rules), part) for part in live]
    present = dict(reversed(rest))
    shared = [element for element in wanted if element in present]
    result: list[JsonValue] = []
    for element, part in wanted.items():
        while rest and rest[0][0] != element and not (shared and rest[0][0] == shared[0]):
            passed, passed_part = rest.pop(0)
            if passed not in wanted:
                result.append(passed_part)
        if element in present:
            shared.remove(element)
        if rest and rest[0][0] == element:
            rest.pop(0)
        result.append(lay_over(present.get(element), part, rules.element))
    return result + [part for element, part in rest if element not in wanted]


def _check_unambiguous(config: list[JsonValue], wanted: Collection[str], rules: Rules) -> None:
    for part in config if rules.list_type is ListType.MAP else ():
        for key in rules.keys:
            if not isinstance(part, dict) or (key not in part and key not in rules.key_defaults):
                raise PatchInvalid(f"an element lacks its key {key}", value=part)
    if len(config) != len(wanted):
        raise PatchInvalid("two elements have the same key")


def _without_nulls(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def same_but_for_times(new: Json, old: Json) -> bool:
    """Whether nothing differs but the resource version and times in ``managedFields``."""
    return json_equal(_without_times(new), _without_times(old))


def _without_times(json_object: Json) -> Json:
    metadata = json_object["metadata"]
    entries = [without(entry, "time") for entry in metadata.get("managedFields") or ()]
    return {
        **json_object,
        "metadata": {**without(metadata, "resourceVersion"), "managedFields": entries},
    }
