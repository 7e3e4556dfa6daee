"""What is particular about the objects of one kind: their names, defaults, prepared fields and rules."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tinykube.objects.deletion import DeletionRules
from tinykube.objects.json_types import Json, json_equal, lookup
from tinykube.objects.metadata import IMMUTABLE, NameRule
from tinykube.objects.names import subdomain_problem
from tinykube.objects.statuses import Cause


def _unchanged(json_object: Json) -> Json:
    return json_object


def _new(new: Json, _old: Json) -> Json:
    return new


def _no_problems(_new: Json, _old: Json | None) -> Iterable[Cause]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """The rules of one kind. Functions take objects as immutable and give new ones.

    ``default`` fills in what a client left out. ``prepare_create``, ``prepare_update`` (new, old) and, for
    statuses alone, ``prepare_status`` (new, old) set what only the server sets. ``required`` and
    ``immutable`` are paths of fields that must be given, or stay as they are; ``other_problems`` (new, old
    or None) says what else is not acceptable.
    """

    name_rule: NameRule = subdomain_problem
    default: Callable[[Json], Json] = _unchanged
    prepare_create: Callable[[Json], Json] = _unchanged
    prepare_update: Callable[[Json, Json], Json] = _new
    prepare_status: Callable[[Json, Json], Json] = _new
    required: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    other_problems: Callable[[Json, Json | None], Iterable[Cause]] = _no_problems
    deletion: DeletionRules = field(default_factory=DeletionRules)

    def problems(self, new: Json, old: Json | None) -> Iterator[Cause]:
        """What is not acceptable about a new object, or about an update of an old one."""
        for path in self.required:
            if not lookup(new, *path.split(".")):
                yield Cause(path, "is required")
        for path in self.immutable if old is not None else ():
            after, before = (lookup(one, *path.split(".")) for one in (new, old))
            if not json_equal(after or None, before or None):
                yield Cause(path, IMMUTABLE)
        yield from self.other_problems(new, old)
