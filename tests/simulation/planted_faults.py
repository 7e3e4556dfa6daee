"""Planted faults: each removes one guard, fence or reservation, or restores an old defect.

The simulation must find them, otherwise it proves nothing. ``make simulate PLANTED=1`` runs each fault until
a seed finds it that has no violation without it. A fault is set in its own process and never removed.

Some faults are omitted, because no run can find them: another fence already covers each of them.

* The uid of the patch that removes a gate: names of pods are never reused.
* A lane's wait for a pod: ``_be_alone`` respects its lock too.
* A volume that is expected after a lost answer: the reservation lasts until the answer is clear, and the last
  check waits for the watch.
* A refused volume that stays known: each volume that blocks a removal is looked up, and forgotten if it does
  not exist.
"""

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from kube_efs.aws import catalogue
from kube_efs.controllers import claims, tunnel_targets
from kube_efs.controllers.claims import ClaimController
from kube_efs.controllers.tunnel_targets import TunnelTargetsController
from kube_efs.controllers.unfinished_file_systems import UnfinishedFileSystems
from kube_efs.kube import building
from kube_efs.kube.claims import ClaimStore
from kube_efs.kube.leases import Leadership
from kube_efs.kube.volumes import VolumeStore
from kube_efs.model import tunnel_volumes, volumes
from kube_efs.model.efs import targets
from kube_efs.model.efs.directories import Relation
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.model.efs.targets import PortUse, TunnelTargets
from kube_efs.model.errors import AwsNotFound, RemovalRefused, WorkerFailed
from kube_efs.model.volumes import Volume
from kube_efs.provisioning import engine as engines
from kube_efs.provisioning import guards, volume_index
from kube_efs.provisioning.backends.csi import access_points, file_systems, known_access_points
from kube_efs.provisioning.backends.csi import volumes as csi_volumes
from kube_efs.provisioning.backends.csi.access_points import AccessPoints
from kube_efs.provisioning.backends.csi.directories import CsiDirectories
from kube_efs.provisioning.backends.csi.file_systems import FileSystems
from kube_efs.provisioning.backends.csi.volumes import CsiVolumes
from kube_efs.provisioning.backends.directory import DirectoryBackend
from kube_efs.provisioning.backends.tunnel import TunnelBackend
from kube_efs.provisioning.copies import Copies
from kube_efs.provisioning.gid_ledger import GidIndex
from kube_efs.provisioning.guards import Guards, RemovalOrder
from kube_efs.provisioning.reservations import DirectoryReservations
from kube_efs.provisioning.volume_index import DirectoryIndex, VolumeIndex
from kube_efs.provisioning.workers import pod_objects as worker_objects
from kube_efs.provisioning.workers.pod_objects import ObservedPod
from kube_efs.provisioning.workers.pods import WorkerPods
from kube_efs.provisioning.workers.pool import WorkerPool

# The violations that planted faults must cause.
LOSS: Final = re.compile(r"goes|bytes|cannot be mounted|without its")
LEFTOVERS: Final = re.compile(r"has no volume|has two volumes")
STUCK: Final = re.compile(r"not settled")
PORTS: Final = re.compile(r"port .* two owners")
IDS: Final = re.compile(r"group id .* two owners")
TUNNELS: Final = re.compile(r"loses its tunnel")
MISPLACED: Final = re.compile(r"have that directory")
HUNG: Final = re.compile(r"has no mount targets")
TWICE: Final = re.compile(r"has two volumes")

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A fault, the expected violation, and the theme of the seeds that are tried first."""

    set_up: Callable[[], None]
    leads_to: re.Pattern[str]
    theme: str = ""


PLANTED_FAULTS: Final[dict[str, PlantedFault]] = {}


def planted_fault(
    leads_to: re.Pattern[str], theme: str = ""
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the function under its name, with hyphens."""

    def enter(function: Callable[[], None]) -> Callable[[], None]:
        PLANTED_FAULTS[function.__name__.replace("_", "-")] = PlantedFault(function, leads_to, theme)
        return function

    return enter


def _put(owner: Any, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: the fault would change nothing")
    original = getattr(owner, name)
    if callable(original):
        _check_signature(name, original, value)
    setattr(owner, name, value)


def _check_signature(name: str, original: Callable[..., Any], value: Callable[..., Any]) -> None:
    """Check that each call of the original also calls the fault; a TypeError would be another fault."""
    ours, parameters = inspect.signature(value), inspect.signature(original).parameters.values()
    named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    try:
        ours.bind(*(None for one in parameters if one.kind in _POSITIONAL), **named)
    except TypeError as error:
        raise TypeError(f"the fault for {name} cannot be called like the original: {error}") from None


async def _nothing(*_: object, **__: object) -> None:
    return None


# --- removal: the last check of the guards


@planted_fault(LOSS, "late checks")
def volume_is_terminated_after_the_removal() -> None:
    """The volume becomes Terminating after the removal of its data, as in an old version."""

    async def remove_first(self: Any, volume: Volume, removal: Any) -> Any:
        live = await self._live(volume)
        if live is None or not engines._is_removable(live):
            return None
        return live, await self._guards.check(removal, live)

    async def delete(self: Any, volume: Volume) -> None:
        if not volume.deleting:
            await self.terminate(replace(volume, resource_version=""))
        await release(self, volume)

    async def checked_last(self: Any, removal: Any, volume: Volume) -> Any:
        return await self._guards.check(removal, volume)

    release = VolumeStore.release
    _put(engines.Engine, "_terminated", remove_first)
    _put(engines.Engine, "_check_last", checked_last)
    _put(VolumeStore, "release", delete)


@planted_fault(LOSS, "late checks")
def change_to_retain_is_ignored() -> None:
    """A changed volume becomes Terminating, and is not checked again; one check would be sufficient."""
    terminate = VolumeStore.terminate

    async def any_version(self: VolumeStore, volume: Volume) -> None:
        await terminate(self, replace(volume, resource_version=""))

    async def guards_only(self: Any, removal: Any, volume: Volume) -> Any:
        return await self._guards.check_last(removal, volume)

    _put(VolumeStore, "terminate", any_version)
    _put(engines.Engine, "_check_last", guards_only)


@planted_fault(LOSS, "late checks")
def guard_is_not_checked_again() -> None:
    """The answer of the guard from before the lane, the pod and every wait is used."""
    _put(RemovalOrder, "confirm", _nothing)


@planted_fault(LOSS, "late checks")
def guard_does_not_wait_for_the_watch() -> None:
    """The last check uses an index that may not contain every volume yet."""
    _put(VolumeIndex, "seen_terminating", _nothing)


@planted_fault(LOSS, "late checks")
def guard_ignores_volumes_of_the_same_directory() -> None:
    """The directory is removed although another volume has it."""
    _without(Relation.SAME)


@planted_fault(LOSS, "late checks")
def guard_ignores_volumes_below() -> None:
    """The directory is removed although another volume is inside it."""
    _without(Relation.BELOW)


def _without(relation: Relation) -> None:
    related = DirectoryIndex.related

    def fewer(self: DirectoryIndex, location: Any) -> Mapping[Relation, frozenset[str]]:
        return {**related(self, location), relation: frozenset()}

    _put(DirectoryIndex, "related", fewer)


@planted_fault(LOSS, "access points")
def guard_ignores_access_points() -> None:
    """The directory is removed although it is the root of an access point."""

    async def none(*_: object) -> tuple[()]:
        return ()

    _put(Guards, "_access_points", none)


@planted_fault(LOSS, "access points")
def guard_uses_an_old_list_of_access_points() -> None:
    """The roots come from a list that may be 15 minutes old."""
    fresh = Guards._access_points

    async def old(self: Any, removed: Any, view: Any) -> Any:
        kept = self.__dict__.setdefault("old_listing", {})
        now, file_system_id = asyncio.get_running_loop().time(), removed.location.file_system_id
        if file_system_id not in kept or now > kept[file_system_id][0] + 900:
            kept[file_system_id] = (now, await fresh(self, removed, view))
        return kept[file_system_id][1]

    _put(Guards, "_access_points", old)


@planted_fault(LOSS, "s3 files")
def guard_asks_efs_about_access_points_of_s3_files() -> None:
    """EFS does not know the file system, so nothing uses its directories."""
    original = Guards._access_points

    async def of_efs(self: Guards, removed: Any, view: Any) -> Any:
        location = replace(removed.location, kind=FileSystemKind.EFS)
        try:
            return await original(self, replace(removed, location=location), view)
        except AwsNotFound:
            return ()

    _put(Guards, "_access_points", of_efs)


@planted_fault(LOSS, "reuse")
def guard_ignores_other_users_of_an_access_point() -> None:
    """An access point is deleted although another volume uses it."""
    _put(Guards, "_check_access_point", _nothing)


@planted_fault(LOSS, "access points")
def access_points_in_mount_options_are_not_read() -> None:
    """An access point is deleted although a volume names it in its mount options."""
    _put(volumes, "named_access_point", lambda _: None)


@planted_fault(LOSS)
def annotation_counts_only_for_ports() -> None:
    """The directory is removed although an annotated volume with another server uses it."""
    original = volumes.locate

    def without(volume: Any, targets: Any, servers: Any) -> Any:
        is_other = volume.nfs is not None and not volume.is_behind_port
        return original(replace(volume, file_system_id=None) if is_other else volume, targets, servers)

    _put(volume_index, "locate", without)


@planted_fault(STUCK)
def volume_of_a_parent_directory_blocks_removals() -> None:
    """A volume of the whole file system, as for backups, blocks every removal."""
    users = Guards._users

    async def refusing(self: Any, removed: Any, *others: Any) -> Any:
        found = await users(self, removed, *others)
        if found.above:
            raise RemovalRefused("lies below other volumes", field="directory", value=str(removed.location))
        return found

    _put(Guards, "_users", refusing)


@planted_fault(STUCK)
def finalizer_is_not_set() -> None:
    """No finalizer holds a volume during its removal; its directory is then not removed."""
    create = VolumeStore.create

    async def unheld(self: VolumeStore, volume: Volume) -> Volume:
        return await create(self, replace(volume, finalizers=()))

    _put(VolumeStore, "create", unheld)
    _put(VolumeStore, "protect", _nothing)


# --- worker pods


@planted_fault(LOSS, "late pods")
def pods_have_no_gate() -> None:
    """A late request to create a pod creates one that runs."""
    build = building.build_worker_pod

    def ungated(worker: Any) -> Any:
        return build(replace(worker, gate=None))

    _put(worker_objects, "build_worker_pod", ungated)


@planted_fault(LOSS, "two leaders")
def pods_run_at_once_on_one_directory() -> None:
    """Two pods of two leaders may work on one directory."""
    _put(WorkerPods, "_be_alone", _nothing)
    _put(WorkerPods, "in_the_way", lambda *_: None)


@planted_fault(LOSS, "lost nodes")
def terminating_pod_counts_as_ended() -> None:
    """A pod on a disconnected node continues, but no process waits for it."""
    has_ended = ObservedPod.has_ended.fget  # type: ignore[attr-defined]
    _put(ObservedPod, "has_ended", property(lambda self: has_ended(self) or self.is_deleting))


@planted_fault(LOSS, "late pods")
def gates_of_other_pods_are_removed() -> None:
    """A client removes every gate that it sees, also of pods that were created late."""
    note = WorkerPods._note

    def lifting(self: Any, change: Any) -> None:
        note(self, change)
        for pod in self._withdrawn():
            self._running.add(pod.name)
            asyncio.get_running_loop().create_task(self._lift(pod))

    _put(WorkerPods, "_note", lifting)


# --- reservations


@planted_fault(LOSS, "unclear volumes")
def nothing_is_reserved() -> None:
    """A claim may be served from a directory while it is being removed."""

    @asynccontextmanager
    async def free(*_: object, patience_seconds: float | None = None) -> Any:
        yield

    _put(DirectoryReservations, "making", free)
    _put(DirectoryReservations, "removing", free)


@planted_fault(LOSS, "unclear volumes")
def removals_begin_before_late_volumes_are_known() -> None:
    """The late volume of an earlier leader is created after the removal of its directory."""
    _put(claims, "_LATE_SECONDS", 0.0)


@planted_fault(LOSS, "unclear volumes")
def lease_is_released_while_an_answer_is_missing() -> None:
    """The next leader assumes that no request can still take effect."""
    _put(Leadership, "leave_to_expire", lambda self: None)


@planted_fault(TWICE, "automatic choice")
def lease_is_released_before_late_volumes_are_known() -> None:
    """The leader after the next one assumes that no request can still take effect."""
    acquire = Leadership.acquire

    async def released(self: Leadership) -> None:
        await acquire(self)
        self.release_at_end()

    _put(Leadership, "acquire", released)


@planted_fault(TWICE, "automatic choice")
def chosen_file_system_is_not_recorded() -> None:
    """The late volume of an earlier leader is on another file system than the new choice."""
    _put(ClaimStore, "record_file_system", _nothing)


@planted_fault(TWICE, "automatic choice")
def file_system_is_chosen_again_at_once() -> None:
    """A recorded choice is changed while the volume of an earlier leader can still be created."""
    _put(ClaimController, "expect_late_volumes", lambda self: None)


@planted_fault(LOSS, "second choice")
def only_the_first_file_system_is_reserved() -> None:
    """If the first of several file systems is full, the used directory is not reserved."""
    making = DirectoryReservations.making
    _put(DirectoryReservations, "making", lambda self, *locations: making(self, *locations[:1]))


@planted_fault(LOSS, "reuse")
def access_points_of_deleted_volumes_are_reused() -> None:
    """A claim gets an access point that is being removed with the volume of an earlier claim."""
    _put(CsiVolumes, "_refuse_leaving", lambda *_: None)


# --- what is known


@planted_fault(PORTS, "ports")
def ports_without_annotation_are_free() -> None:
    """The port of a static volume without our annotation is given to another file system."""
    _give_ports(lambda _, in_use: {port: use for port, use in in_use.items() if use.owners})


def _give_ports(carried: Callable[[TunnelTargets, Mapping[int, PortUse]], Mapping[int, PortUse]]) -> None:
    """Assign ports with a changed view of the ports of volumes."""
    follow = targets.follow_discovery

    def careless(current: TunnelTargets, *given: Any, ports_in_use: Any, **options: Any) -> TunnelTargets:
        return follow(current, *given, ports_in_use=carried(current, ports_in_use), **options)

    _put(tunnel_targets, "follow_discovery", careless)


@planted_fault(IDS, "group ids")
def group_ids_are_not_reserved() -> None:
    """A new leader does not know the group IDs in use."""

    def only_taken(self: Any, gid: int, holder: str, **options: Any) -> None:
        if holder.startswith(("fsap-", "user of")):
            return
        hold(self, gid, holder, **options)

    hold = GidIndex.hold
    _put(GidIndex, "hold", only_taken)


@planted_fault(STUCK, "file systems")
def relists_keep_deleted_volumes() -> None:
    """A volume that was deleted while a watch was broken stays known, so root volumes are not recreated."""

    def added_only(self: Any, volumes: Iterable[Volume]) -> None:
        for one in volumes:
            self.put_volume(one)

    _put(VolumeIndex, "replace_volumes", added_only)


# --- claims and leaders


@planted_fault(TWICE, "unclear volumes")
def names_of_volumes_are_not_deterministic() -> None:
    """A claim gets a second volume when the answer about its first is lost."""
    create = VolumeStore.create
    numbers = iter(range(1_000_000))

    async def other_name(self: VolumeStore, volume: Volume) -> Volume:
        return await create(self, replace(volume, name=f"{volume.name}-{next(numbers)}"))

    _put(VolumeStore, "create", other_name)


@planted_fault(LEFTOVERS, "full")
def unclear_attempts_are_abandoned() -> None:
    """The unfinished work for a deleted claim is left behind."""

    async def never(*_: object) -> bool:
        return False

    _put(ClaimController, "_persistence", lambda *_: never)
    _put(ClaimController, "_finish", _nothing)


@planted_fault(LEFTOVERS, "full")
def access_points_are_not_found_again() -> None:
    """Each attempt creates another access point."""
    create_on = AccessPoints._create_on

    async def another(self: Any, creation: Any, file_system_id: Any, token: str) -> Any:
        number = next(self.__dict__.setdefault("attempts", iter(range(1_000_000))))
        request = replace(creation.request, name=f"{creation.request.name}-{number}")
        another_one = replace(creation, request=request)
        return await create_on(self, another_one, file_system_id, f"{token}-{number}")

    _put(AccessPoints, "_create_on", another)


@planted_fault(IDS, "group ids")
def leaders_continue_without_their_lease() -> None:
    """A leader that cannot renew its Lease continues at the same time as the next one."""

    async def always(*_: object) -> None:
        await asyncio.Event().wait()

    _put(Leadership, "keep", always)


@planted_fault(STUCK, "clocks")
def late_creations_are_timed_by_the_wall_clock() -> None:
    """After the clock is set back, late creations by AWS are expected for too long."""
    init = AccessPoints.__init__

    def with_clock(self: Any, *given: Any, **options: Any) -> None:
        init(self, *given, **options, clock=vars(access_points)["time"].time)

    _put(AccessPoints, "__init__", with_clock)


# --- csi-provisioner


@planted_fault(STUCK, "csi-provisioner")
def pools_delete_pods_of_other_pools() -> None:
    """A pod is deleted before its own pool has read its results."""
    _put(WorkerPods, "_is_own", lambda *_: True)


@planted_fault(LOSS, "csi-provisioner")
def removals_continue_without_their_volumes() -> None:
    """An earlier call removes the data of a volume that was set to Retain and deleted."""

    async def none(*_: object) -> frozenset[str]:
        return frozenset()

    _put(Guards, "volumes_of", none)


@planted_fault(LOSS, "csi-provisioner")
def volumes_are_not_read_again() -> None:
    """A volume is removed with outdated knowledge of its policy and phase."""

    async def known(self: Any) -> Any:
        return self._index

    _put(Guards, "_list_volumes", known)


@planted_fault(IDS, "csi-provisioners in turn")
def directories_of_other_replicas_are_not_read() -> None:
    """A directory gets the ID of a directory of another replica's volume."""
    _put(CsiDirectories, "learn_ids", _nothing)
    make_at = CsiDirectories._make_at

    async def unclaimed(self: Any, *given: Any, own_group: bool = False) -> None:
        await make_at(self, *given)

    _put(CsiDirectories, "_make_at", unclaimed)


@planted_fault(STUCK, "csi-provisioners in turn")
def ids_of_removed_directories_stay_in_use() -> None:
    """A full range of access points contains the IDs of directories that another replica has removed."""

    async def no_scan(*_: object) -> bool:
        return False

    _put(CsiVolumes, "_free_ids", no_scan)


@planted_fault(IDS, "copies")
def directories_of_an_earlier_leader_are_not_read() -> None:
    """An access point gets the ID of a directory whose volume is created late."""
    _put(CsiDirectories, "_bases_of_classes", lambda _: frozenset())


@planted_fault(IDS, "csi-provisioners in turn")
def access_points_of_other_replicas_are_not_listed() -> None:
    """An access point gets the ID of one that another replica has created since the first list."""
    _put(known_access_points, "_FRESH_SECONDS", 1e9)


# --- unfinished work of an earlier leader


@planted_fault(LOSS, "earlier orders")
def volumes_are_released_before_pods_have_ended() -> None:
    """A volume is deleted while a pod of an earlier leader can still remove its directory."""
    for backend in (TunnelBackend, DirectoryBackend):
        _put(backend, "settled", _nothing)


@planted_fault(LOSS, "reuse")
def volumes_are_released_before_calls_have_ended() -> None:
    """A volume is deleted while a call of an earlier leader can still delete its access point."""
    _put(csi_volumes, "CALL_SECONDS", 0.0)


@planted_fault(LOSS, "earlier orders")
def access_points_are_returned_before_pods_have_ended() -> None:
    """An access point is returned while a pod of an earlier order can remove its directory."""
    _put(WorkerPool, "settled", _nothing)


@planted_fault(LOSS, "pauses")
def outdated_answers_are_used() -> None:
    """A process deletes an access point after a pause, with the old answer of the guards.

    It removes no gate this way, because the next leader has deleted the pod.
    """
    _put(guards, "_ANSWER_SECONDS", 1e9)


# --- file systems and ports


@planted_fault(LOSS, "file systems")
def volumes_of_unknown_file_systems_are_ignored() -> None:
    """A volume of an unknown file system does not block the removal of its directory."""
    _put(Guards, "_check_unlocated", _nothing)


@planted_fault(TUNNELS, "ports")
def one_answer_of_aws_is_sufficient() -> None:
    """One list without a file system removes its tunnel."""
    merge = catalogue.merge

    def listed_only(before: Any, answers: catalogue.Answers, doubtful: Any = ()) -> Any:
        return merge(before, replace(answers, left_out={}))

    _put(catalogue, "merge", listed_only)


@planted_fault(PORTS, "ports")
def ports_are_forgotten_with_the_config_map() -> None:
    """After a deletion of the ConfigMap, ports are assigned as in a new installation."""
    reconcile = TunnelTargetsController._reconcile

    async def forgetting(self: Any) -> None:
        if self._version is None:
            self._index.targets = TunnelTargets()
        await reconcile(self)

    _put(TunnelTargetsController, "_reconcile", forgetting)
    _give_ports(lambda current, in_use: in_use if current.ports else {})


@planted_fault(MISPLACED, "automatic choice")
def automatic_choice_ignores_existing_directories() -> None:
    """A claim without a file system gets an empty directory, although its data is on another one."""
    choose = tunnel_volumes._choose_automatically

    def anywhere(claim: Any, rules: Any, directory: Any, view: Any) -> Any:
        return choose(claim, rules, directory, replace(view, volumes_at=lambda _: []))

    _put(tunnel_volumes, "_choose_automatically", anywhere)


# --- copies


@planted_fault(LOSS, "copies")
def sources_are_removed_during_their_copy() -> None:
    """Neither a reservation nor the pod that copies protects the source."""
    blocks, fill = ObservedPod.blocks, Copies.fill

    def without_source(self: Any, file_system_id: Any, order: Any) -> bool:
        pod = replace(self, order=replace(self.order, source=None))
        return blocks(pod, file_system_id, replace(order, source=None))

    async def unreserved(self: Any, *arguments: Any, **options: Any) -> Any:
        self._reservations = DirectoryReservations()
        return await fill(self, *arguments, **options)

    _put(ObservedPod, "blocks", without_source)
    _put(Copies, "fill", unreserved)


@planted_fault(LOSS, "copies")
def sources_are_not_read_again() -> None:
    """A source that was removed while its copy waited counts as an empty volume."""
    _put(Copies, "_check_unchanged", _nothing)


@planted_fault(LOSS, "copies")
def volumes_are_created_before_their_copy_is_complete() -> None:
    """A failed copy does not fail the creation of its volume."""
    copied = Copies._copied

    async def careless(self: Any, *arguments: Any) -> Any:
        try:
            return await copied(self, *arguments)
        except WorkerFailed:
            return None

    _put(Copies, "_copied", careless)


@planted_fault(LOSS, "copies")
def claims_that_exist_get_a_volume_without_their_copy() -> None:
    """A claim counts as gone without a question to the API server."""

    async def gone(self: Any, claim: Any) -> bool:
        return True

    _put(ClaimStore, "is_gone", gone)


# --- file systems for claims


@planted_fault(LOSS, "own file systems")
def file_systems_are_removed_with_any_volume() -> None:
    """The guards do not look for other users of the file system."""

    async def nothing(self: Any, *arguments: Any) -> str:
        return ""

    _put(Guards, "_check_file_system", nothing)


@planted_fault(HUNG, "own file systems")
def removals_of_file_systems_do_not_wait_for_worker_pods() -> None:
    """The mount targets are deleted while a pod measures or empties the trash."""
    _put(CsiDirectories, "unused", _nothing)


@planted_fault(HUNG, "own file systems")
def worker_pods_start_on_file_systems_that_are_removed() -> None:
    """A pod that empties the trash does not look for a removal that has begun."""
    _put(WorkerPool, "_confirm_stay", _nothing)


@planted_fault(LEFTOVERS, "own file systems")
def unfinished_file_systems_stay() -> None:
    """Nobody removes file systems whose claims were deleted before they were ready."""

    async def nothing(self: Any) -> None:
        return None

    _put(UnfinishedFileSystems, "remove_all", nothing)


@planted_fault(LOSS, "own file systems by csi-provisioner")
def new_volumes_ignore_a_removal_that_has_begun() -> None:
    """The stage is neither read before a volume is created nor afterwards."""

    async def nothing(self: Any, file_system_id: Any) -> None:
        return None

    _put(FileSystems, "record_use", nothing)
    _put(file_systems, "_check_usable", lambda found: None)
