"""The invariants, checked at every change of the simulated cluster, and the final state.

The exact promise: A volume is *protected* while it exists and must not be reclaimed, that is, while it is not
Released or its reclaim policy is not Delete. A removal is *committed* at the moment (a resource version of
the API server) at which the removed volume X gets its deletionTimestamp. When the directory or access point
of X is removed:

* X exists: a volume of kube-efs with exactly that directory or access point. It was Released with the policy
  Delete at the commit or at some moment since (or is so now, for a removal before the commit).
* No protected volume of kube-efs has its data there, regardless of late, lost or repeated requests.
* No protected volume of users has its data there, if the API server accepted it before the commit.
* X itself is not protected: it was not set to Retain before the commit.

A volume that users create while X is Terminating, or set to Retain after the commit, may lose its data and is
no longer checked. The same applies to a volume that was created late for a deleted claim: it never binds and
has no data. A volume that users create after the deletion of X is as safe as any other.

Users' volumes with a loopback port belong to the file system that had this port in the ConfigMap when they
were created.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.apiserver import ApiServer, Body
from tests.simulation.efs import Directory, Efs, FileSystem, Parts, root_of
from tests.simulation.history import History, Violation
from tests.simulation.targets import file_systems_by_port

from kube_efs.model.gids import GID_ANNOTATION
from kube_efs.model.names import OPENSHIFT_EFS_STUNNEL
from kube_efs.model.tunnel_volumes import FILE_SYSTEM_ID, FILE_SYSTEM_LABEL, ROOT_CLASS

MEANS = "simulation/means"
BY_USERS = "simulation/by-users"
# After this time without a change, all parts have seen it.
_STEADY_SECONDS = 100.0
_LATE_SECONDS = 3.0


@dataclass(slots=True, eq=False)
class Record:
    """The record of a volume, also after its deletion."""

    name: str
    uid: str
    body: Body
    by_users: bool
    accepted: int
    committed: int | None = None
    was_to_go: bool = False
    gone: int | None = None
    gone_at: float = 0.0
    # The directory that was still there when the volume was gone.
    left: Directory | None = None
    # The directory that goes with it: its own, or its access point's.
    root: "tuple[str, Parts] | None" = None
    # Whether a call of csi-provisioner removes it: nothing shows then how long that may take.
    by_call: bool = False
    # Whether people have deleted it: what cannot go then is left to them.
    by_hand: bool = False
    # Set to Retain when it had to be removed; not promised if that was after it was committed.
    is_kept: bool = False
    is_unpromised: bool = False
    written: int = 0
    made_at: float = 0.0
    # Whether its claim was gone when it was made.
    is_late: bool = False
    # When it was made, or kept.
    since: float = 0.0
    _source: "tuple[tuple[str, Parts] | None, str | None]" = (None, None)

    @property
    def is_gone(self) -> bool:
        """Whether the object was deleted."""
        return self.gone is not None

    @property
    def is_to_go(self) -> bool:
        """Whether it is Released with the policy Delete."""
        policy = self.body["spec"].get("persistentVolumeReclaimPolicy")
        return bool(self.body["status"]["phase"] == "Released" and policy == "Delete")

    @property
    def is_protected(self) -> bool:
        """Whether its data must be kept."""
        return not self.is_gone and not self.is_to_go and not self.is_unpromised

    @property
    def access_point_id(self) -> str | None:
        """The access point that it uses."""
        return self._source[1]

    @property
    def place(self) -> tuple[str, Parts] | None:
        """File system and directory; below the access point's root if there is one."""
        return self._source[0]

    @property
    def port(self) -> int | None:
        """Its loopback port."""
        spec = self.body["spec"]
        if (spec.get("nfs") or {}).get("server") != "127.0.0.1":
            return None
        options = [one for one in spec.get("mountOptions") or () if one.startswith("port=")]
        return int(options[0].removeprefix("port=")) if options else None

    @property
    def has_group(self) -> bool:
        """Whether its pods get its group, independent of its directory."""
        return GID_ANNOTATION in (self.body["metadata"].get("annotations") or {})

    @property
    def claim_uid(self) -> str | None:
        """The uid of its claim."""
        return (self.body["spec"].get("claimRef") or {}).get("uid")

    def __post_init__(self) -> None:
        # The source of a volume is immutable.
        self._source = _source(self.body)


def _source(body: Body) -> tuple[tuple[str, Parts] | None, str | None]:
    """Location and access point of a volume."""
    spec, annotations = body["spec"], body["metadata"].get("annotations") or {}
    if "nfs" in spec:
        server = spec["nfs"]["server"]
        named = annotations.get(MEANS) or annotations.get(FILE_SYSTEM_ID)
        file_system_id = named or (server.split(".")[0] if server.startswith("fs-") else None)
        return ((file_system_id, _split(spec["nfs"]["path"])) if file_system_id else None), None
    handle = (spec.get("csi") or {}).get("volumeHandle", "")
    if not handle:
        return None, None
    fields = [*handle.removeprefix("efs:").removeprefix("s3files:").split(":"), "", ""]
    options = [one.partition("=") for one in spec.get("mountOptions") or ()]
    named = next((value for name, _, value in options if name == "accesspoint"), None)
    return (fields[0], _split(fields[1])), fields[2] or named


class Invariants:
    """Checks all invariants, and records the first violation; ``has_socket``: csi-provisioner makes calls."""

    def __init__(
        self,
        server: ApiServer,
        efs: Efs,
        history: History,
        clock: Callable[[], float],
        *,
        has_socket: bool = False,
    ) -> None:
        self._clock = clock
        self._has_socket = has_socket
        self._server = server
        self._efs = efs
        self._history = history
        self.records: dict[str, Record] = {}
        server.observers.append(self._changed)
        efs.on_removal.append(self._directory_goes)
        efs.on_access_point_removal.append(self._access_point_goes)
        efs.on_file_system_removal.append(self._file_system_goes)
        efs.on_lost_mount.append(self._mount_is_lost)
        self.violation: Violation | None = None
        self._authors: dict[str, str] = {}
        self._ports: Mapping[int, str] = {}
        # The time since which the ConfigMap contains each file system.
        self._served: dict[str, float] = {}

    def fail(self, text: str) -> None:
        """Record the first violation."""
        if self.violation is None:
            self.violation = Violation(text)
            self._history.note("VIOLATION: {}", text)

    def confirmed(self, handle: str, began: int) -> None:
        """Record a last check of the driver, which began at that version, for volumes with the handle.

        It lists volumes at some moment and permits the removal of those that must be removed then. So each
        that had to be removed at any moment of the check may have been permitted.
        """
        for record in self.records.values():
            was_there = record.gone is None or record.gone > began
            has_handle = (record.body["spec"].get("csi") or {}).get("volumeHandle") == handle
            is_late = record.is_kept and record.accepted > began
            if not (was_there and has_handle and (record.is_to_go or is_late)):
                continue
            record.committed = began if record.committed is None else min(record.committed, began)
            record.was_to_go = record.by_call = True
            record.is_unpromised = record.is_unpromised or is_late
            self._history.note("the removal of volume {} is confirmed", record.name)

    def located(self, record: Record) -> tuple[str, Parts] | None:
        """The current location of the volume's data; None when its access point was deleted."""
        place, access_point_id = record.place, record.access_point_id
        if place is None or access_point_id is None:
            return place
        found = self._efs.access_points.get(access_point_id)
        return (place[0], (*root_of(found), *place[1])) if found else None

    def folder_of(self, record: Record) -> Directory | None:
        """The directory of the volume, if it exists."""
        place = self.located(record)
        if place is None or place[0] not in self._efs.file_systems:
            return None
        return self._efs.file_systems[place[0]].find(place[1])

    def _claim_of(self, record: Record) -> Body | None:
        """The claim of the volume, if it exists."""
        claim = record.body["spec"].get("claimRef") or {}
        found = self._server.find("persistentvolumeclaims", claim.get("name", ""), claim.get("namespace", ""))
        return found if found is not None and found["metadata"]["uid"] == record.claim_uid else None

    def _is_copy(self, record: Record) -> bool:
        """Whether the claim of the volume asks for a copy."""
        claim = self._claim_of(record)
        return claim is not None and "dataSource" in claim["spec"]

    def author_of(self, pod: str) -> str:
        """The process that created that pod."""
        return self._authors.get(pod, "")

    def live(self) -> Iterator[Record]:
        """Every existing volume except root volumes."""
        return (one for one in self.records.values() if not one.is_gone)

    # --- the API server's changes

    def _changed(self, plural: str, old: Body | None, new: Body | None) -> None:
        if (
            plural == "configmaps"
            and (new or old or {})["metadata"]["name"] == OPENSHIFT_EFS_STUNNEL.config_map
        ):
            self._check_config_map(new)
        if plural == "pods" and old is None and new is not None:
            self._authors[new["metadata"]["name"]] = self._server.author
        if plural != "persistentvolumes":
            return
        body = new or old or {}
        if body["spec"].get("storageClassName") == ROOT_CLASS:
            return
        uid, version = body["metadata"]["uid"], int(body["metadata"]["resourceVersion"])
        record = self.records.get(uid)
        if record is None:
            by_users = BY_USERS in (body["metadata"].get("annotations") or {})
            record = Record(body["metadata"]["name"], uid, body, by_users, version)
            self.records[uid] = record
            record.root, record.made_at = self._root(record), self._clock()
            record.since, record.is_late = record.made_at, self._claim_of(record) is None
            self._check_new(record)
            self._history.note("volume {} is made at {}", record.name, record.place or record.access_point_id)
        was_to_go = record.is_to_go
        record.body = body
        if new is None:
            record.gone, record.gone_at = self._server.version, self._clock()
            record.left = self.folder_of(record)
            self._history.note("volume {} is gone", record.name)
            return
        if "deletionTimestamp" in body["metadata"] and record.committed is None:
            record.committed, record.was_to_go = version, was_to_go
            record.by_hand = not self._server.author
            self._history.note("volume {} is Terminating (to go: {})", record.name, was_to_go)
        if record.committed is not None and record.is_to_go:
            record.was_to_go = True
        if was_to_go and not record.is_to_go:
            # A user wants to keep it.
            record.accepted, record.is_kept, record.since = version, True, self._clock()
            record.is_unpromised = record.is_unpromised or record.committed is not None
            self._history.note("volume {} is kept (promised: {})", record.name, not record.is_unpromised)

    def _check_config_map(self, new: Body | None) -> None:
        if new is None:
            # Without it, a new leader knows no tunnels before AWS has answered.
            self._served.clear()
        else:
            self._check_ports(new)
            self._check_tunnels(new)

    def _check_new(self, record: Record) -> None:
        if record.by_users:
            return
        claim = record.body["spec"].get("claimRef") or {}
        for other in self.live():
            if other is not record and record.claim_uid and other.claim_uid == record.claim_uid:
                self.fail(f"claim {claim.get('name')} has two volumes, {other.name} and {record.name}")
        self._check_gid(record)
        self._check_home(record)
        if self._claim_of(record) is not None:
            if record.access_point_id is not None:
                if record.access_point_id not in self._efs.access_points:
                    self.fail(f"volume {record.name} is made without its access point")
            elif self.folder_of(record) is None:
                self.fail(f"volume {record.name} is made without its directory")
            folder = self.folder_of(record)
            if self._is_copy(record) and (folder is None or folder.copied is None):
                self.fail(f"volume {record.name} is made without its copy")
            elif self._is_copy(record) and folder is not None and folder.lacks_data:
                self.fail(f"volume {record.name} is made without its data, whose source was removed before")

    def gid_of(self, record: Record) -> int | None:
        """The allocated group of a volume of kube-efs."""
        annotations = record.body["metadata"].get("annotations") or {}
        if GID_ANNOTATION in annotations:
            return int(annotations[GID_ANNOTATION])
        if record.access_point_id is not None:
            found = self._efs.access_points.get(record.access_point_id)
            return int(found["PosixUser"]["Gid"]) if found and found.get("PosixUser") else None
        if "csi" in record.body["spec"]:
            folder = self.folder_of(record)
            return folder.gid if folder else None
        return None

    def _check_gid(self, record: Record) -> None:
        gid = self.gid_of(record)
        if not gid or not self._owns(record, gid):
            return
        for other in self.live():
            if (
                other is not record
                and not other.by_users
                and self.gid_of(other) == gid
                and self._owns(other, gid)
                and self.located(other) != self.located(record)
                and (record.has_group or other.has_group or self._shares_file_system(record, other))
                and not self._is_between_calls(record, other)
                and not self._is_between_calls(other, record)
            ):
                self.fail(f"group id {gid} has two owners, {other.name} and {record.name}")

    def _owns(self, record: Record, gid: int) -> bool:
        """Whether pods or data of the volume have the group: by its claim, access point or directory.

        A late copy of a request can create a volume again when none of these exist. A late access point has
        an ID that another volume may have got meanwhile.
        """
        if record.access_point_id in self._efs.strays:
            return False
        folder = self.folder_of(record)
        return (
            self._claim_of(record) is not None
            or record.access_point_id in self._efs.access_points
            or (folder is not None and folder.gid == gid)
        )

    def _is_between_calls(self, one: Record, other: Record) -> bool:
        """Whether an access point was requested after the end of a process that had created a directory.

        With csi-provisioner, no process knows such a directory before the answer to the next call for it.
        A request that AWS did not answer is repeated with its IDs, because AWS may still carry it out.
        """
        if not self._has_socket:
            return False
        found, folder = self._efs.access_points.get(one.access_point_id or ""), self.folder_of(other)
        return (
            found is not None
            and folder is not None
            and other.access_point_id is None
            and not other.has_group
            and found["made_by"] != self.author_of(folder.made_by)
            and found["requested_at"] < other.made_at
        )

    def _shares_file_system(self, one: Record, other: Record) -> bool:
        places = self.located(one), self.located(other)
        return places[0] is not None and places[1] is not None and places[0][0] == places[1][0]

    def _check_ports(self, config_map: Body) -> None:
        ports = file_systems_by_port(config_map)
        if ports != self._ports:
            self._ports = ports
            self._history.note("ports {}", ports)
        for record in self.live():
            port, place = record.port, record.place
            if port is None or place is None:
                continue
            owner = ports.get(port)
            if owner is not None and owner != place[0]:
                self.fail(f"port {port} has two owners, {owner} and {place[0]} (volume {record.name})")

    def _check_tunnels(self, new: Body) -> None:
        """No file system that AWS has had for a while loses its tunnel because of one answer.

        The exception is a late request, which the leader repairs.
        """
        now, served = self._clock(), {*file_systems_by_port(new).values()}
        for file_system_id, since in self._served.items():
            is_old = (
                now > since + _STEADY_SECONDS / 2 and self._clock() <= self._server.sent_at + _LATE_SECONDS
            )
            if is_old and file_system_id not in served and self._is_steady(file_system_id):
                self.fail(f"{file_system_id} loses its tunnel though it is there")
        self._served = {one: self._served.get(one, now) for one in served}

    def _check_home(self, record: Record) -> None:
        """A claim without a file system gets the one with its existing directory."""
        claim = self._claim_of(record)
        if claim is None or record.place is None or not _is_open(claim):
            return
        users = [
            one
            for one in self.live()
            if one is not record and one.place is not None and one.place[1] == record.place[1]
        ]
        homes = {
            one.place[0]
            for one in users
            if one.place is not None
            and one.access_point_id is None
            and one.is_protected
            and self._clock() > one.since + _STEADY_SECONDS
            and self._is_steady(one.place[0])
            and not one.by_users
        }
        is_at_home = any(one.place == record.place for one in users) or self._was_left_just_now(record)
        if homes and not is_at_home:
            self.fail(f"volume {record.name} is made at {record.place} though {homes} have that directory")

    def _was_left_just_now(self, record: Record) -> bool:
        """Whether its directory was just left by another volume, which some parts may not know yet."""
        folder = self.folder_of(record)
        return folder is not None and any(
            one.left is folder and self._clock() <= one.gone_at + _STEADY_SECONDS
            for one in self.records.values()
        )

    def _is_steady(self, file_system_id: str) -> bool:
        found = self._efs.file_systems[file_system_id]
        if found.made_by:  # It goes with its volumes.
            return False
        return found.listed and self._clock() > found.since + _STEADY_SECONDS

    # --- removals

    def _directory_goes(self, file_system: FileSystem, parts: Parts, why: str) -> None:
        here = (file_system.file_system_id, parts)
        if any(is_in(one, here) or is_in(here, one) for one in self._efs.being_copied()):
            self.fail(f"{file_system.file_system_id}:/{'/'.join(parts)} goes by {why} while it is copied")
        text = f"{file_system.file_system_id}:/{'/'.join(parts)} goes by {why}"
        causes = [
            one for one in self.records.values() if not one.by_users and one.root == here and _may_go(one)
        ]
        self._judge(causes, [one for one in self.live() if is_in(self.located(one), here)], text)
        if not causes:
            self.fail(f"{text}, though no released volume has that directory")

    def _root(self, record: Record) -> tuple[str, Parts] | None:
        """The directory that is removed with a volume: its own, or that of its access point."""
        if record.access_point_id is None:
            return record.place
        found = self._efs.access_points.get(record.access_point_id)
        return (found["FileSystemId"], root_of(found)) if found else None

    def _access_point_goes(self, access_point: dict[str, Any]) -> None:
        access_point_id = access_point["AccessPointId"]
        through = [one for one in self.records.values() if one.access_point_id == access_point_id]
        causes = [one for one in through if not one.by_users and _may_go(one)]
        text = f"access point {access_point_id} goes"
        self._judge(causes, [one for one in through if not one.is_gone], text)
        on = self._efs.file_systems[access_point["FileSystemId"]]
        is_unused = bool(on.made_by) and not through and not self._is_claimed(access_point)
        if not causes and not is_unused:
            self.fail(f"{text}, though no released volume leads through it")

    def _is_claimed(self, access_point: dict[str, Any]) -> bool:
        """Whether the claim exists for which it was created."""
        claims = self._server.all("persistentvolumeclaims")
        return any(access_point["ClientToken"].endswith(one["metadata"]["uid"]) for one in claims)

    def _file_system_goes(self, file_system: FileSystem) -> None:
        """With it goes the data of all volumes on it, also of those whose access points are gone."""
        here = (file_system.file_system_id, ())
        on = [one for one in self.records.values() if is_in(one.place, here)]
        causes = [one for one in on if not one.by_users and _may_go(one)]
        text = f"{file_system.file_system_id} goes"
        self._judge(causes, [one for one in on if not one.is_gone], text)
        if not causes and (on or file_system.root.is_used):
            self.fail(f"{text}, though no released volume was on it")

    def _mount_is_lost(self, file_system_id: str, pod: str) -> None:
        """A mount without a server hangs, and with it the pod and its deletion."""
        self.fail(f"{pod} uses {file_system_id}, which has no mount targets any more")

    def _judge(self, causes: list[Record], hit: list[Record], text: str) -> None:
        for record in hit:
            if not record.is_protected or self._is_stillborn(record):
                # Its data may be removed with that of another volume: it is too late to keep it.
                record.is_unpromised = True
                continue
            if (record.by_users or record.is_kept) and any(_came_first(cause, record) for cause in causes):
                record.is_unpromised = True
                self._history.note("{}: volume {} came too late", text, record.name)
                continue
            phase = record.body["status"]["phase"]
            policy = record.body["spec"].get("persistentVolumeReclaimPolicy")
            self.fail(f"{text}, and with it the data of volume {record.name} ({phase}, {policy})")

    def _is_stillborn(self, record: Record) -> bool:
        """Whether it was created for a deleted claim, so that it was never used."""
        return record.is_late and not record.by_users and not record.written

    # --- written data

    def write(self, record: Record) -> None:
        """A pod writes a byte into a mounted volume."""
        folder = self.folder_of(record)
        if folder is None:
            place = self.located(record)
            if record.access_point_id is None or place is None or place[0] not in self._efs.file_systems:
                if record.is_protected:
                    self.fail(
                        f"volume {record.name} cannot be mounted: {record.place or 'nothing'} is not there"
                    )
                return
            # EFS creates the root of an access point at its first mount.
            self._efs.make_root(record.access_point_id)
            folder = self._efs.file_systems[place[0]].make(place[1])
        if folder.written.get(record.uid, 0) < record.written and record.is_protected:
            self.fail(f"volume {record.name} has lost {record.written} bytes")
        if not record.by_users:
            # Directories and access points can appear and disappear after the creation of their volumes.
            self._check_gid(record)
            gid = self.gid_of(record)
            if record.has_group and record.is_protected and folder.gid != gid:
                self.fail(f"volume {record.name} has group id {gid}, and its directory {folder.gid}")
        record.written += 1
        folder.written[record.uid] = record.written

    def check_data(self) -> None:
        """Check that every protected volume has its bytes."""
        for record in self.live():
            if record.is_protected and record.written:
                folder = self.folder_of(record)
                found = folder.written.get(record.uid, 0) if folder else 0
                if found < record.written:
                    self.fail(f"volume {record.name} has {found} of {record.written} bytes")


def _is_open(claim: Body) -> bool:
    """Whether neither the claim nor its class names a file system."""
    labels = (claim["spec"].get("selector") or {}).get("matchLabels") or {}
    return claim["spec"].get("storageClassName") == "auto" and FILE_SYSTEM_LABEL not in labels


def _came_first(cause: Record, record: Record) -> bool:
    """Whether the volume was accepted while the removed one was Terminating or a call removed it."""
    return (
        cause.committed is not None
        and cause.committed < record.accepted
        and (cause.gone is None or cause.by_call or record.accepted < cause.gone)
    )


def is_in(place: tuple[str, Parts] | None, directory: tuple[str, Parts] | None) -> bool:
    """Whether the location is that directory or below it."""
    return (
        place is not None
        and directory is not None
        and place[0] == directory[0]
        and place[1][: len(directory[1])] == directory[1]
    )


def was_removed(record: Record) -> bool:
    """Whether it was deleted, and its data had to be removed."""
    return (
        record.is_gone
        and not (record.by_users or record.by_hand or record.is_unpromised)
        and record.was_to_go
    )


def _may_go(record: Record) -> bool:
    """Whether its data may be removed because of this volume."""
    return record.was_to_go or record.is_to_go


def _split(path: str) -> Parts:
    return tuple(part for part in path.split("/") if part not in {"", "."})
