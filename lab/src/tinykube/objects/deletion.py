"""What a delete request does to an object: the pure part of ``apiserver/pkg/registry/generic/registry``.

An object that somebody holds on to (finalizers, a grace period, a namespace's content) is only marked;
it goes away with the update that takes the last hold, or with the kubelet's own delete request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from tinykube.objects.metadata import FOREGROUND, ORPHAN, with_metadata
from tinykube.objects.values import Json, lookup, timestamp

_GC_FINALIZERS = {"Orphan": ORPHAN, "Foreground": FOREGROUND}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """What the client asked for; None where it did not say."""

    grace_period_seconds: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRules:
    """How deletion of one kind differs from that of others.

    ``grace`` gives the seconds to grant to an object when so many are asked (pods); ``held`` says whether
    more than finalizers holds an object, and ``mark`` completes one that is marked (namespaces). The mark of
    some kinds does not count as a new generation.
    """

    grace: Callable[[Json, int | None], int] | None = None
    held: Callable[[Json], bool] = lambda _: False
    mark: Callable[[Json], Json] = lambda marked: marked
    collects_dependents: bool = True
    moves_generation: bool = True


class Deletion(NamedTuple):
    """``marked`` must be stored first, unless None; then the object must be removed if ``remove``."""

    marked: Json | None
    remove: bool


def begin_deletion(
    json_object: Json, options: DeleteOptions, rules: DeletionRules, now: datetime
) -> Deletion:
    """What a delete request does to this object now; preconditions have been checked."""
    metadata, asked = json_object["metadata"], options.grace_period_seconds
    granted = metadata.get("deletionGracePeriodSeconds") or 0
    seconds: int | None = None  # for kinds without grace, or where it has run out already
    if rules.grace is not None and "deletionTimestamp" not in metadata:
        seconds = rules.grace(json_object, asked)
    elif rules.grace is not None and granted:
        if asked is None or asked >= granted:
            return Deletion(None, remove=False)
        seconds = asked
    changed = _with_gc_finalizer(json_object, options) if rules.collects_dependents else json_object
    held = bool(changed["metadata"].get("finalizers")) or rules.held(changed)
    if seconds is None and not held:
        return Deletion(None, remove=True)
    marked = rules.mark(_marked(changed, seconds or 0, now, rules))
    return Deletion(marked, remove=seconds == 0 and not held)


def removed_by_update(new: Json, old: Json, rules: DeletionRules) -> bool:
    """Whether this update takes the last hold on an object that is being deleted."""
    before = old["metadata"]
    return (
        "deletionTimestamp" in before
        and not before.get("deletionGracePeriodSeconds")
        and not new["metadata"].get("finalizers")
        and not rules.held(new)
    )


def _marked(json_object: Json, grace_seconds: int, now: datetime, rules: DeletionRules) -> Json:
    """The object as being deleted; the moment may move to an earlier one, never to a later one."""
    metadata = json_object["metadata"]
    moment = timestamp(now + timedelta(seconds=grace_seconds))
    generation = metadata.get("generation")
    if "deletionTimestamp" in metadata:
        moment = min(moment, metadata["deletionTimestamp"])
    elif generation and rules.moves_generation:
        generation += 1
    return with_metadata(
        json_object,
        deletionTimestamp=moment,
        deletionGracePeriodSeconds=grace_seconds,
        generation=generation,
    )


def _with_gc_finalizer(json_object: Json, options: DeleteOptions) -> Json:
    """The object with the garbage collector's finalizer that the propagation policy asks for."""
    if options.propagation is None:
        return json_object
    before = lookup(json_object, "metadata", "finalizers") or []
    finalizers = [name for name in before if name not in _GC_FINALIZERS.values()]
    if wanted := _GC_FINALIZERS.get(options.propagation):
        finalizers.append(wanted)
    return json_object if finalizers == before else with_metadata(json_object, finalizers=finalizers or None)
