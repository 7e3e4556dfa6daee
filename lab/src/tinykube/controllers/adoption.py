"""What a workload takes over and lets go of, as by Kubernetes' pkg/controller/controller_ref_manager.go.

An object that nobody controls becomes that of the workload whose selector selects it; one of its own that
the selector selects no more is left to itself. Neither is asked of what is being deleted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tinykube.controllers.caches import Change
from tinykube.controllers.values import Controller, Key, Meta, Requirement


class Controlled(Protocol):
    """What workloads control: pods, and ReplicaSets."""

    @property
    def meta(self) -> Meta:
        """Its metadata."""

    @property
    def controller(self) -> Controller | None:
        """What it belongs to."""


class Selecting(Protocol):
    """A workload; a selector of no requirements selects nothing."""

    @property
    def meta(self) -> Meta:
        """Its metadata."""

    @property
    def selector(self) -> tuple[Requirement, ...]:
        """What an object must have to be the workload's, all of it."""


C = TypeVar("C", bound=Controlled)


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make the workload the controller of an object that has none."""

    target: Meta


@dataclass(frozen=True, slots=True)
class Release:
    """Take the workload from the owners of an object."""

    target: Meta


def plan_adoption(owner: Selecting, found: Iterable[Controlled]) -> Iterator[Adopt | Release]:
    """What to take over and let go of."""
    if owner.meta.deleting or not owner.selector:
        return
    for one in found:
        if may_adopt(owner, one):
            yield Adopt(one.meta)
        elif one.controller and one.controller.uid == owner.meta.uid and not _selects(owner, one):
            yield Release(one.meta)


def may_adopt(owner: Selecting, found: Controlled) -> bool:
    """Whether the object is to be the workload's, and is nobody's."""
    return found.controller is None and not found.meta.deleting and _selects(owner, found)


def concerned(change: Change[C], kind: str, owners: Mapping[Key, Selecting]) -> set[Key]:
    """The workloads of this kind that hear of a change: who controlled the object, controls it, or may."""
    states = [state for state in (change.before, change.after) if state is not None]
    keys = {
        Key(state.meta.key.namespace, state.controller.name)
        for state in states
        if state.controller is not None and state.controller.kind == kind
    }
    after = change.after
    if after is not None and after.controller is None:
        keys |= {key for key, owner in owners.items() if may_adopt(owner, after)}
    return keys


def _selects(owner: Selecting, found: Controlled) -> bool:
    here = found.meta.key.namespace == owner.meta.key.namespace
    return here and bool(owner.selector) and all(one.accepts(found.meta.labels) for one in owner.selector)
