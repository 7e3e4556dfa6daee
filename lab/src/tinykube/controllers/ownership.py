"""Who owns whom, and what follows from an owner's end (pkg/controller/garbagecollector of Kubernetes)."""

from collections.abc import Iterable
from dataclasses import dataclass

from tinykube.controllers.values import Meta

# metav1.FinalizerDeleteDependents and metav1.FinalizerOrphanDependents
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One of ``metadata.ownerReferences``; ``blocks`` is its blockOwnerDeletion."""

    api_version: str
    kind: str
    name: str
    uid: str
    blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Any object, with its owners; ``kind`` is ``apiVersion/Kind``."""

    meta: Meta
    kind: str
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete the object, since each of its owners is gone (``absent`` to be made sure of) or wants it to."""

    target: Owned
    absent: tuple[Owner, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disown:
    """Remove one owner from the object's references."""

    target: Owned
    owner_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlock:
    """Remove a finalizer from the object, which is then gone."""

    target: Owned
    finalizer: str


Step = Delete | Disown | Unlock


class Graph:
    """All followed objects by uid, and the dependents of each uid."""

    def __init__(self) -> None:
        self._objects: dict[str, Owned] = {}
        self._dependents: dict[str, set[str]] = {}

    def put(self, found: Owned) -> None:
        """Take over the newest state of an object."""
        self.drop(found.meta.uid)
        self._objects[found.meta.uid] = found
        for owner in found.owners:
            self._dependents.setdefault(owner.uid, set()).add(found.meta.uid)

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""
        found = self._objects.pop(uid, None)
        for owner in found.owners if found else ():
            self._dependents[owner.uid].discard(uid)
            if not self._dependents[owner.uid]:
                del self._dependents[owner.uid]

    def get(self, uid: str) -> Owned | None:
        """The object of that uid, if there is one."""
        return self._objects.get(uid)

    def dependents(self, uid: str) -> tuple[Owned, ...]:
        """The objects that name this uid as an owner."""
        return tuple(self._objects[dependent] for dependent in sorted(self._dependents.get(uid, ())))


def decide(found: Owned, graph: Graph, followed: Iterable[str]) -> tuple[Step, ...]:
    """What to do about an object; owners of a kind that is not among ``followed`` are taken to live."""
    if found.meta.deleting:
        return _finish(found, graph.dependents(found.meta.uid))
    if not found.owners:
        return ()
    kinds = set(followed)
    gone, leaving = [], []
    for owner in found.owners:
        live = graph.get(owner.uid)
        if live is None and f"{owner.api_version}/{owner.kind}" in kinds:
            gone.append(owner)
        elif live is not None and live.meta.deleting and FOREGROUND in live.meta.finalizers:
            leaving.append(owner)
        else:
            return ()
    return (Delete(target=found, absent=tuple(gone)),)


def _finish(found: Owned, dependents: tuple[Owned, ...]) -> tuple[Step, ...]:
    """For an object that is deleted together with its dependents, or leaves them behind."""
    if ORPHAN in found.meta.finalizers:
        disowned = tuple(Disown(target=item, owner_uid=found.meta.uid) for item in dependents)
        return disowned or (Unlock(target=found, finalizer=ORPHAN),)
    if FOREGROUND not in found.meta.finalizers:
        return ()
    if not any(owner.blocks and owner.uid == found.meta.uid for item in dependents for owner in item.owners):
        return (Unlock(target=found, finalizer=FOREGROUND),)
    return ()
