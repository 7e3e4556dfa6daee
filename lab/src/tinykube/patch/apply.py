"""How an applied configuration is merged into the live object.

Maps are merged, keyed lists element by element, sets united; everything else is replaced.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tinykube.errors import TinykubeError
from tinykube.objects.decoding import in_wire_form
from tinykube.objects.resources import ResourceType
from tinykube.objects.statuses import ApiError, Cause, bad_request
from tinykube.objects.values import Json, JsonValue, json_equal, lookup, without
from tinykube.objects.zero_objects import completed
from tinykube.patch.managed_fields import (
    Changes,
    Entry,
    FieldManager,
    FieldSet,
    Operation,
    Path,
    changes_between,
    disown,
    element_of,
    entries_of,
    fields_of,
    owned,
    path_text,
    remove_fields,
    with_entries,
    with_parents,
)
from tinykube.patch.merge_rules import ListType, Rules
from tinykube.patch.patches import PatchInvalid


def lay_over(live: JsonValue, config: JsonValue, rules: Rules, path: Path = ()) -> JsonValue:
    """The live value with the configuration laid over it.

    Raises:
        PatchInvalid: an element of a keyed list lacks a key, or two have the same.
    """
    if isinstance(config, dict) and not rules.atomic:
        below = live if isinstance(live, dict) else {}
        laid = {
            key: lay_over(below.get(key), part, rules.child(key), (*path, f"f:{key}"))
            for key, part in config.items()
        }
        return {**below, **laid}
    if isinstance(config, list) and rules.list_type is not ListType.ATOMIC:
        return _lay_list_over(live if isinstance(live, list) else [], config, rules, path)
    return config


def _lay_list_over(
    live: list[JsonValue], config: list[JsonValue], rules: Rules, path: Path
) -> list[JsonValue]:
    """Elements in the order of the configuration; those that only the live list has keep their places."""
    wanted = {element_of(part, rules): part for part in config}
    _check_unambiguous(config, wanted, rules, path)
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
        result.append(lay_over(present.get(element), part, rules.element, (*path, element)))
    return result + [part for element, part in rest if element not in wanted]


def _check_unambiguous(config: list[JsonValue], wanted: Collection[str], rules: Rules, path: Path) -> None:
    for part in config if rules.list_type is ListType.MAP else ():
        for key in rules.keys:
            if not isinstance(part, dict) or (key not in part and key not in rules.key_defaults):
                raise PatchInvalid(f"an element lacks its key {key}", field=path_text(path), value=part)
    if len(config) != len(wanted):
        raise PatchInvalid("two elements have the same key", field=path_text(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A field that this manager (in the words of a message) owns and the applied configuration changes."""

    manager: str
    path: Path

    @property
    def field(self) -> str:
        """The field as a message names it."""
        return path_text(self.path)


class ApplyConflict(TinykubeError):
    """Other managers own fields that were applied with other values."""

    def __init__(self, conflicts: Collection[Conflict]) -> None:
        self.conflicts = tuple(sorted(conflicts, key=lambda one: (one.manager, one.field)))
        listed = ", ".join(f"conflict with {one.manager}: {one.field}" for one in self.conflicts)
        super().__init__(f"Apply failed with {len(self.conflicts)} conflicts: {listed}")


def apply(
    live: Json | None,
    applied: Json,
    *,
    manager: FieldManager,
    force: bool,
    rules: Rules,
    now: str,
    ignored: Collection[str] = (),
) -> Json:
    """The live object (None: there is none yet) after this manager has applied its configuration.

    ``ignored`` names top-level fields that the request cannot write, such as ``status`` outside of the
    status subresource; they are not owned, and putting the old ones back is for the caller.

    Raises:
        ApplyConflict: other managers own some of the fields with other values, and ``force`` is not set.
        PatchInvalid: the configuration carries ``managedFields``, or a keyed list in it is ambiguous.
    """
    if lookup(applied, "metadata", "managedFields") is not None:
        raise PatchInvalid("metadata.managedFields must be nil", field="metadata.managedFields")
    before, config = disown(live), _without_nulls(applied)
    entry = Entry(
        manager=manager,
        operation=Operation.APPLY,
        time=now,
        fields=_writable(fields_of(config, rules), ignored),
    )
    known = owned(live)
    previous = next((other for other in known if other.key == entry.key), None)
    others = [other for other in known if other.key != entry.key]
    kept = entry.fields.union(*(other.fields for other in others))
    given_up = with_parents(previous.fields) - with_parents(kept) if previous else frozenset()
    after = remove_fields(lay_over(before, config, rules), given_up, rules)
    changes = _writable_changes(_changes(before, after, rules), ignored)
    if not force:
        _check_conflicts(others, changes)
    entry = entry.ownable()
    if live is not None and json_equal(before, after):
        # Who changes nothing but owners has no time, as in Kubernetes.
        entry = replace(entry, time=previous.time if previous else "")
    entries = [entry, *(other.less(changes.written | changes.removed) for other in others)]
    return with_entries(after, entries)


def track_update(
    old: Json | None,
    new: Json,
    *,
    manager: FieldManager,
    rules: Rules,
    now: str,
    ignored: Collection[str] = (),
) -> Json:
    """The new object of a create (``old`` is None), update or patch, with its owners brought up to date.

    A request may set ``managedFields`` itself (kubectl does, to move from client-side to server-side apply),
    except through a subresource; ``[{}]`` does away with them. Objects without any stay so.
    """
    requested = lookup(new, "metadata", "managedFields")
    after = disown(new)
    if requested == [{}] and not manager.subresource:
        return after
    known = () if manager.subresource else entries_of(requested)
    known = known or owned(old)
    if old is not None and not known:
        return after
    changes = _writable_changes(_changes(disown(old), after, rules), ignored)
    written = Entry(manager=manager, operation=Operation.UPDATE, time=now, fields=changes.written).ownable()
    entries = {entry.key: entry.less(changes.written | changes.removed) for entry in known}
    if written.fields:
        previous = entries.get(written.key)
        fields = written.fields | (previous.fields if previous else frozenset())
        entries[written.key] = replace(written, fields=fields)
    return with_entries(after, entries.values())


def _changes(old: Json, new: Json, rules: Rules) -> Changes:
    return changes_between(completed(old, rules.zero), completed(new, rules.zero), rules)


def _check_conflicts(others: Collection[Entry], changes: Changes) -> None:
    conflicts = [
        Conflict(manager=other.description, path=path)
        for other in others
        for path in other.fields & changes.written
    ]
    if conflicts:
        raise ApplyConflict(conflicts)


def _writable(fields: FieldSet, ignored: Collection[str]) -> FieldSet:
    return frozenset(path for path in fields if path and path[0].removeprefix("f:") not in ignored)


def _writable_changes(changes: Changes, ignored: Collection[str]) -> Changes:
    return Changes(written=_writable(changes.written, ignored), removed=_writable(changes.removed, ignored))


def _without_nulls(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who writes which resource, through which subresource, and when."""

    resource: ResourceType
    manager: str
    subresource: str
    now: str

    def of_write(self, old: Json | None, new: Json) -> Json:
        """The object to write with its ``managedFields`` brought up to date."""
        tracked = track_update(
            None if old is None else in_wire_form(self.resource, old),
            in_wire_form(self.resource, new),
            manager=self._field_manager,
            rules=self.resource.rules,
            now=self.now,
            ignored=self._ignored(new),
        )
        return self.resource.form.to_stored(tracked) if self.resource.form else tracked

    def of_apply(self, live: Json | None, applied: Json, *, force: bool) -> Json:
        """The live object with the applied configuration merged in, both as the request's version shows them.

        Raises 400 or 409.
        """
        try:
            return apply(
                live,
                applied,
                manager=self._field_manager,
                force=force,
                rules=self.resource.rules,
                now=self.now,
                ignored=self._ignored(applied),
            )
        except ApplyConflict as error:
            raise _refused(error) from error
        except PatchInvalid as error:
            raise bad_request(str(error)) from error

    @property
    def _field_manager(self) -> FieldManager:
        return FieldManager(
            name=self.manager, api_version=self.resource.api_version, subresource=self.subresource
        )

    def _ignored(self, new: Json) -> tuple[str, ...]:
        """Top-level fields that this (sub)resource does not write."""
        if self.subresource != "status":
            return ("status",) if self.resource.has_status else ()
        written = {"status"} if self.resource.custom else {"status", "metadata"}
        return tuple(field for field in new if field not in written)


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


def _refused(conflict: ApplyConflict) -> ApiError:
    causes = [
        Cause(one.field, f"conflict with {one.manager}", "FieldManagerConflict") for one in conflict.conflicts
    ]
    return ApiError(409, "Conflict", conflict.problem, causes=causes)
