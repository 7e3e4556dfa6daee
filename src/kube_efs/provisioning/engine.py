"""Claims to volumes, released volumes to nothing, for every kind of volume alike.

A claim gets at most one volume whatever crashes or repeats: the volume's name is derived from the claim,
what it stands on is made idempotently, and the volume object comes last. A directory goes only when every
guard agrees, and the volume object after it.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum

import structlog

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, ReclaimPolicy
from kube_efs.model.errors import (
    KubeAlreadyExists,
    KubeNotFound,
    NotYet,
    RemovalRefused,
    WorkerRefused,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import FINALIZER, Location, Volume, VolumePhase
from kube_efs.provisioning.backends import Backend, Plan
from kube_efs.provisioning.inventory import Inventory
from kube_efs.provisioning.reservations import Reservations

log = structlog.get_logger(__name__)

# A name is 5 characters of a hash long; that four claims of one directory share them will not happen.
_NAMES_TRIED = 4


class Removal(StrEnum):
    """What became of the data of a volume that was deleted."""

    REMOVED = "removed"
    SHARED = "shared"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """A volume that was deleted, and why its data is still there if it is.

    ``location`` is None where that was not looked at.
    """

    volume: Volume
    removal: Removal
    location: Location | None = None
    reason: str = ""


class Engine:
    """Decides what is to be done for a claim or a volume, and does it in the right order."""

    def __init__(
        self,
        *,
        inventory: Inventory,
        backends: Sequence[Backend],
        store: VolumeStore,
        reservations: Reservations | None = None,
    ) -> None:
        self._inventory = inventory
        self._backends = {backend.provisioner: backend for backend in backends}
        self._store = store
        self._reservations = reservations or Reservations()

    def plan(self, claim: Claim) -> Plan | None:
        """How to serve the claim; None when there is nothing to do for it here and now.

        Raises ClaimRefused when it cannot be served, NotYet when something is not there yet.
        """
        if not claim.wants_volume or self._inventory.volume_of(claim.uid):
            return None
        storage_class = self._inventory.classes.get(claim.storage_class or "")
        backend = self._backends.get(storage_class.provisioner) if storage_class else None
        if storage_class is None or backend is None or _is_for_another(claim, backend):
            self._complain(claim)
            return None
        if storage_class.waits_for_consumer and not claim.selected_node:
            return None
        return backend.plan(claim, storage_class)

    def marks_refused(self, claim: Claim) -> bool:
        """Whether the refusal of that claim is written into its annotations."""
        storage_class = self._inventory.classes.get(claim.storage_class or "")
        backend = self._backends.get(storage_class.provisioner) if storage_class else None
        return backend is not None and backend.marks_refused_claims

    def _complain(self, claim: Claim) -> None:
        """Tell of a claim that Kubernetes has given to us while its class is none of ours; raises NotYet."""
        if claim.storage_provisioner not in self._backends or claim.storage_class == ROOT_CLASS:
            return
        storage_class = self._inventory.classes.get(claim.storage_class or "")
        if storage_class is None:
            raise NotYet(
                "does not exist",
                field="spec.storageClassName",
                value=claim.storage_class or "",
                remedy="create the StorageClass",
            )
        raise NotYet(
            f"is not {claim.storage_provisioner}, which the claim was given to",
            field=f"StorageClass {storage_class.name} provisioner",
            value=storage_class.provisioner,
            remedy="delete the claim and create it anew",
        )

    async def provision(self, plan: Plan) -> Volume:
        """Make the volume; doing it again gives the same one. Raises KubeEfsError."""
        async with self._reservations.making(plan.location) if plan.location else nullcontext():
            await plan.make()
            volume = await self._create(plan)
            self._inventory.made_volume(volume)
            return volume

    async def _create(self, plan: Plan) -> Volume:
        for attempt in range(_NAMES_TRIED):
            wanted = replace(plan.volume(attempt), finalizers=(FINALIZER,))
            self._inventory.expect_volume(wanted)
            try:
                return await self._store.create(wanted)
            except KubeAlreadyExists:
                found = await self._store.get(wanted.name)
                if found.claim and found.claim.uid == plan.claim.uid:
                    await plan.adopt(found)
                    return found
                log.warning("volume-name-taken", volume=wanted.name, claim=plan.claim.key)
        raise KubeAlreadyExists(
            "belongs to another claim",
            field="volume",
            value=plan.volume(0).name,
            remedy="delete the volumes of that name that nobody uses",
        )

    async def reclaim(self, volume: Volume) -> Reclaimed | None:
        """Delete a released volume and its data; None when it is not to be deleted.

        Waits while the directory is in the hands of another claim or volume. Raises RemovalRefused when a
        guard says no, and whatever KubeEfsError keeps the backend or the API server from it.
        """
        backend = self._backends.get(volume.provisioned_by or "")
        if backend is None:
            return None
        if _is_let_go(volume) and backend.owns(volume):
            return await self._let_go(volume, _why_kept(volume))
        if not _is_to_go(volume):
            return None
        try:
            return await self._remove(volume, backend)
        except (RemovalRefused, WorkerRefused) as error:
            if not (volume.deleting and backend.owns(volume)):
                raise
            # Somebody has deleted it by hand, as people do with one that cannot go by itself.
            return await self._let_go(volume, str(error))

    async def _let_go(self, volume: Volume, reason: str) -> Reclaimed | None:
        live = await self._live(volume)
        if live is None or (live.phase, live.reclaim_policy) != (volume.phase, volume.reclaim_policy):
            return None
        await self._store.release(live)
        return Reclaimed(volume=volume, removal=Removal.KEPT, reason=reason)

    async def _remove(self, volume: Volume, backend: Backend) -> Reclaimed | None:
        location = backend.removable(volume)
        if location is None:
            return await self._remove_elsewhere(volume, backend)
        async with self._reservations.removing(location):
            live = await self._live(volume)
            if live is None or not _is_to_go(live):
                return None
            directories = self._inventory.directories
            sharers = await self._existing(lambda: directories.sharers(location, volume.name))
            if not sharers:
                _refuse(volume, location, await self._existing(lambda: directories.neighbours(location)))
                await backend.remove(volume)
            await self._store.delete(live)
            self._inventory.removed_volume(volume, with_directory=not sharers)
        if sharers:
            reason = f"{location} is used by {', '.join(sorted(sharers))} too"
            return Reclaimed(volume=volume, removal=Removal.SHARED, location=location, reason=reason)
        return Reclaimed(volume=volume, removal=Removal.REMOVED, location=location)

    async def _remove_elsewhere(self, volume: Volume, backend: Backend) -> Reclaimed | None:
        """Remove what is no directory that other volumes could use."""
        live = await self._live(volume)
        if live is None or not _is_to_go(live):
            return None
        await backend.remove(volume)
        await self._store.delete(live)
        self._inventory.removed_volume(volume, with_directory=True)
        return Reclaimed(volume=volume, removal=Removal.REMOVED)

    async def protect(self, volume: Volume) -> None:
        """See that a volume of ours is not gone before its directory is dealt with; raises KubeError."""
        if self.is_unprotected(volume):
            await self._store.protect(volume)

    def is_unprotected(self, volume: Volume) -> bool:
        """Whether the volume is ours, and somebody who deletes it would leave its directory behind."""
        backend = self._backends.get(volume.provisioned_by or "")
        is_ours = backend is not None and backend.owns(volume) and volume.storage_class != ROOT_CLASS
        return is_ours and not volume.deleting and FINALIZER not in volume.finalizers

    async def _live(self, volume: Volume) -> Volume | None:
        """The volume as the API server has it, if it is there: data does not come back."""
        try:
            live = await self._store.get(volume.name)
        except KubeNotFound:
            self._inventory.forget_volume(volume.name)
            return None
        return live if live.uid == volume.uid else None

    async def _existing(self, names: Callable[[], frozenset[str]]) -> frozenset[str]:
        """Those of the volumes that are there; watches may miss a deletion, so each is looked up.

        One that is not there is forgotten, and ``names`` asked again.
        """
        while wanted := names():
            missing = [name for name in wanted if not await self._exists(name)]
            if not missing:
                return wanted
            for name in missing:
                self._inventory.forget_volume(name)
        return wanted

    async def _exists(self, volume: str) -> bool:
        try:
            await self._store.get(volume)
        except KubeNotFound:
            return False
        return True


def _is_for_another(claim: Claim, backend: Backend) -> bool:
    """Whether Kubernetes has given the claim to somebody else; it may not have come to that yet."""
    return claim.storage_provisioner not in {None, backend.provisioner}


def _is_to_go(volume: Volume) -> bool:
    return (
        volume.to_be_reclaimed
        and volume.storage_class != ROOT_CLASS
        and (not volume.deleting or FINALIZER in volume.finalizers)
    )


def _is_let_go(volume: Volume) -> bool:
    """Whether somebody has deleted the volume, its data is to stay, and it waits for us only."""
    return (
        volume.deleting
        and FINALIZER in volume.finalizers
        and volume.phase is not VolumePhase.BOUND
        and not _is_to_go(volume)
    )


def _why_kept(volume: Volume) -> str:
    if volume.reclaim_policy is ReclaimPolicy.DELETE:
        return f"it was {volume.phase} when somebody deleted it, and not Released"
    return f"its reclaim policy is {volume.reclaim_policy}"


def _refuse(volume: Volume, location: Location, neighbours: frozenset[str]) -> None:
    if neighbours:
        raise RemovalRefused(
            f"lies above or below the directory of volume {', '.join(sorted(neighbours))}",
            field="directory",
            value=str(location),
            remedy=f"delete those volumes first, or set {volume.name} to Retain",
        )
