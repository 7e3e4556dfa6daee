"""What is particular about the objects of one kind: their names, defaults, prepared fields and rules."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tinykube.objects.deletion import DeletionRules
from tinykube.objects.json_types import Json
from tinykube.objects.metadata import NameRule
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
    statuses alone, ``prepare_status`` (new, old) set what only the server sets.
    ``problems`` (new, old or None) says what is not acceptable.
    """

    name_rule: NameRule = subdomain_problem
    default: Callable[[Json], Json] = _unchanged
    prepare_create: Callable[[Json], Json] = _unchanged
    prepare_update: Callable[[Json, Json], Json] = _new
    prepare_status: Callable[[Json, Json], Json] = _new
    problems: Callable[[Json, Json | None], Iterable[Cause]] = _no_problems
    deletion: DeletionRules = field(default_factory=DeletionRules)
