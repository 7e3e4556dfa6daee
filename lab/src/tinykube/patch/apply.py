"""Server-side apply, and the book-keeping of field owners for all other writes.

An applied configuration is merged into the live object. Fields that its manager applied before and leaves out
now are removed unless somebody else owns them too; fields that somebody else has set to another value are a
conflict, unless forced. The behaviour is that of ``sigs.k8s.io/structured-merge-diff``, with one difference:
a manager's list of fields is never folded into ``ancient-changes``.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from tinykube.errors import TinykubeError
from tinykube.objects.json_types import Json, JsonValue, json_equal, lookup
from tinykube.objects.zero_objects import completed
from tinykube.patch.field_sets import (
    Changes,
    FieldSet,
    Path,
    changes_between,
    fields_of,
    path_text,
    remove_fields,
    with_parents,
)
from tinykube.patch.laying_over import lay_over
from tinykube.patch.managed_fields import (
    Entry,
    FieldManager,
    Operation,
    disown,
    entries_of,
    owned,
    with_entries,
)
from tinykube.patch.merge_rules import Rules
from tinykube.patch.patches import PatchInvalid


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
