"""Claims to volumes, released volumes to nothing, for every kind of volume alike.

A claim gets at most one volume whatever crashes or repeats: the volume's name is derived from the claim,
what it stands on is made idempotently, and the volume object comes last. A directory goes only when every
guard agrees, and the volume object after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from kube_efs.kube.volumes import VolumeStore
from kube_efs.model.claims import Claim, ReclaimPolicy, StorageClass
from kube_efs.model.errors import KubeAlreadyExists, KubeNotFound, RemovalRefused
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import Location, Volume, VolumePhase
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """A volume that was deleted; ``sharers`` are the volumes that still use its directory."""

    volume: Volume
    location: Location
    removal: Removal
    sharers: frozenset[str] = frozenset()


class Engine:
    """Decides what is to be done for a claim or a volume, and does it in the right order."""

    def __init__(self, *, inventory: Inventory, backends: Sequence[Backend], store: VolumeStore) -> None:
        self._inventory = inventory
        self._backends = backends
        self._store = store
        self._reservations = Reservations()

    def serves(self, storage_class: StorageClass) -> bool:
        """Whether some backend serves claims of that class."""
        return self._backend_for(storage_class) is not None

    def plan(self, claim: Claim) -> Plan | None:
        """How to serve the claim; None when there is nothing to do for it here and now.

        Raises ClaimRefused when it cannot be served, NotYet when something is not there yet.
        """
        storage_class = self._inventory.classes.get(claim.storage_class or "")
        if storage_class is None or not claim.wants_volume or self._inventory.volume_of(claim.uid):
            return None
        backend = self._backend_for(storage_class)
        if backend is None or (storage_class.waits_for_consumer and not claim.selected_node):
            return None
        return backend.plan(claim, storage_class)

    async def provision(self, plan: Plan) -> Volume:
        """Make the volume; doing it again gives the same one. Raises KubeEfsError."""
        async with self._reservations.making(plan.location):
            await plan.make()
            volume = await self._create(plan)
            self._inventory.made_volume(volume)
            return volume

    async def _create(self, plan: Plan) -> Volume:
        for attempt in range(_NAMES_TRIED):
            wanted = plan.volume(attempt)
            self._inventory.expect_volume(wanted)
            try:
                return await self._store.create(wanted)
            except KubeAlreadyExists:
                found = await self._store.get(wanted.name)
                if found.claim and found.claim.uid == plan.claim.uid:
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
        backend = next((one for one in self._backends if one.owns(volume)), None)
        if backend is None or not _is_to_go(volume):
            return None
        location = backend.removable(volume)
        async with self._reservations.removing(location):
            if not await self._is_still_to_go(volume):
                return None
            directories = self._inventory.directories
            sharers = await self._existing(lambda: directories.sharers(location, volume.name))
            if not sharers:
                _refuse(volume, location, await self._existing(lambda: directories.neighbours(location)))
                await backend.remove(location)
            await self._store.delete(volume)
            self._inventory.removed_volume(volume)
        removal = Removal.SHARED if sharers else Removal.REMOVED
        return Reclaimed(volume=volume, location=location, removal=removal, sharers=sharers)

    async def _is_still_to_go(self, volume: Volume) -> bool:
        """Ask the API server itself: a watch may be late, and data does not come back."""
        try:
            live = await self._store.get(volume.name)
        except KubeNotFound:
            self._inventory.removed_volume(volume)
            return False
        return live.uid == volume.uid and _is_to_go(live)

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

    def _backend_for(self, storage_class: StorageClass) -> Backend | None:
        return next((one for one in self._backends if one.serves(storage_class)), None)


def _is_to_go(volume: Volume) -> bool:
    return (
        volume.phase is VolumePhase.RELEASED
        and volume.reclaim_policy is ReclaimPolicy.DELETE
        and volume.storage_class != ROOT_CLASS
        and not volume.deleting
    )


def _refuse(volume: Volume, location: Location, neighbours: frozenset[str]) -> None:
    if neighbours:
        raise RemovalRefused(
            f"lies above or below the directory of volume {', '.join(sorted(neighbours))}",
            field="directory",
            value=str(location),
            remedy=f"delete those volumes first, or set {volume.name} to Retain",
        )
