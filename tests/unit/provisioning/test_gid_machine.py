"""No two volumes get one group ID, in any order of claims, watch events, scans and crashes.

The machine compares the state of the controller with the truth: the volumes of the API server, whose events
arrive late, and the directories of the file system.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from structlog.testing import capture_logs

from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import ClaimReference, Location, NfsSource, Volume
from kube_efs.provisioning.volume_index import VolumeIndex

FS = FileSystemId("fs-1")
BASE = Location(file_system_id=FS, directory=parse_directory("/pvs"))
# The classes of claims, whose ranges overlap; the range of a class does not change.
RANGES = [
    GidRange(minimum=2000, maximum=2003),
    GidRange(minimum=2002, maximum=2006),
    GidRange(minimum=2000, maximum=2010),
]
NAMES = "abcdef"


def place(name: str) -> Location:
    return Location(file_system_id=FS, directory=parse_directory(f"/pvs/{name}"))


def scanning_index() -> VolumeIndex:
    made = VolumeIndex()
    made.gid_ledger.add_base(BASE)
    return made


@dataclass
class Attempt:
    """A claim that is being served; its directory does not exist yet."""

    taking: AbstractContextManager[int | None]
    gid: int


class _MakingFailedError(Exception):
    pass


class Groups(RuleBasedStateMachine):
    """The current controller, and the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = capture_logs()
        self.logs.__enter__()
        self.volumes: dict[str, Volume] = {}
        self.directories: dict[str, int] = {}
        self.attempts: dict[str, Attempt] = {}
        self.events: list[tuple[str, Volume | list[Volume]]] = []
        self.scan: tuple[int, dict[str, int]] | None = None
        self.made = 0
        self.shown: set[str | None] = set()
        self.index = scanning_index()

    def teardown(self) -> None:
        self.logs.__exit__(None, None, None)

    # --- claims and volumes

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        within = RANGES[NAMES.index(name) % len(RANGES)]
        if name in self.attempts or name in self.index.volumes:
            return
        taking = self.index.gid_ledger.taking(within, name, place(name))
        gid = taking.__enter__()
        if gid is None:
            used = {*self.directories.values(), *(one.gid for one in self.volumes.values())}
            used |= {one.gid for one in self.attempts.values()}
            # The IDs of deleted volumes are held until an event or a scan shows the deletion.
            assert used or self.index.gids
            taking.__exit__(_MakingFailedError, _MakingFailedError(), None)
            return
        assert gid in within
        others = {one for holder, one in self.directories.items() if holder != name}
        assert gid not in others, "the group of another directory"
        self.attempts[name] = Attempt(taking, gid)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), answer=st.sampled_from(["made", "lost", "refused"]))
    def make(self, data: st.DataObject, answer: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.attempts)))
        attempt = self.attempts.pop(name)
        self.directories[name] = attempt.gid
        attempt.taking.__exit__(None, None, None)
        wanted = self.new_volume(name, self.index.gids.of(name))
        self.index.expect_volume(wanted)
        if answer == "refused":
            return  # the next attempt gives the directory the group of a volume whose answer was lost
        volume = self.volumes.get(name)
        if volume is None:
            volume = self.volumes[name] = wanted
            self.events.append(("put", volume))
        else:  # an earlier answer was lost
            assert volume.gid is not None
            self.directories[name] = volume.gid
        if answer == "made":
            self.index.made_volume(volume)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def fail_to_make(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.attempts)))
        attempt = self.attempts.pop(name)
        if data.draw(st.booleans(), label="its worker has created it"):
            self.directories[name] = attempt.gid
        attempt.taking.__exit__(_MakingFailedError, _MakingFailedError(), None)

    @precondition(lambda self: self.known())
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        volume = self.volumes.pop(data.draw(st.sampled_from(self.known())))
        self.directories.pop(volume.name, None)
        self.events.append(("drop", volume))
        self.index.removed_volume(volume, with_directory=True)

    @precondition(lambda self: self.seen())
    @rule(data=st.data())
    def delete_by_hand(self, data: st.DataObject) -> None:
        """A volume that no watch has shown counts as being created until the next start."""
        volume = self.volumes.pop(data.draw(st.sampled_from(self.seen())))
        self.events.append(("drop", volume))

    @rule(name=st.sampled_from(NAMES))
    def remove_directory_by_hand(self, name: str) -> None:
        if name not in self.volumes and name not in self.attempts:
            self.directories.pop(name, None)

    # --- what the controller learns

    @rule(number=st.integers(1, 4))
    def events_arrive(self, number: int) -> None:
        for _ in range(min(number, len(self.events))):
            what, found = self.events.pop(0)
            if isinstance(found, list):
                self.shown |= {one.uid for one in found}
                self.index.replace_volumes(found)
            elif what == "put":
                self.shown.add(found.uid)
                self.index.put_volume(found)
            else:
                self.index.drop_volume(found)

    @rule()
    def break_watch(self) -> None:
        self.events = [("list", list(self.volumes.values()))]

    @rule()
    def begin_scan(self) -> None:
        self.scan = (self.index.gid_ledger.begin_scan(), dict(self.directories))

    @precondition(lambda self: self.scan)
    @rule()
    def end_scan(self) -> None:
        assert self.scan
        (number, seen), self.scan = self.scan, None
        self.index.found_directories(number, BASE, {name: (place(name), gid) for name, gid in seen.items()})

    @rule()
    def crash(self) -> None:
        """A new leader reads all volumes and directories before it serves a claim."""
        self.attempts, self.index = {}, scanning_index()
        self.break_watch()
        self.events_arrive(1)
        self.begin_scan()
        self.end_scan()

    @rule()
    def quiet(self) -> None:
        """After all events and a scan, only used group IDs are held."""
        self.events_arrive(len(self.events))
        self.begin_scan()
        self.end_scan()
        used = {*self.directories.values(), *(one.gid for one in self.attempts.values())}
        used |= {one.gid for one in self.volumes.values() if one.gid is not None}
        assert len(self.index.gids) == len(used)

    # --- what always holds

    @invariant()
    def no_two_volumes_have_one_group(self) -> None:
        gids = [one.gid for one in self.volumes.values()]
        gids += [one.gid for name, one in self.attempts.items() if name not in self.volumes]
        assert None not in gids
        assert len(set(gids)) == len(gids)

    @invariant()
    def a_volume_and_its_directory_have_the_same_group(self) -> None:
        for name in self.known():
            volume = self.volumes[name]
            assert self.directories.get(name, volume.gid) == volume.gid

    # ---

    def known(self) -> list[str]:
        return sorted(
            name
            for name, volume in self.volumes.items()
            if name in self.index.volumes
            and self.index.volumes[name].uid == volume.uid
            and name not in self.attempts
        )

    def seen(self) -> list[str]:
        return sorted(name for name, volume in self.volumes.items() if volume.uid in self.shown)

    def new_volume(self, name: str, gid: int | None) -> Volume:
        self.made += 1
        return Volume(
            name=name,
            uid=f"uid-{self.made}",
            file_system_id=FS,
            claim=ClaimReference(namespace="team", name=name, uid=ClaimUid(name)),
            nfs=NfsSource(server="127.0.0.1", path=f"/pvs/{name}"),
            gid=gid,
        )


Groups.TestCase.settings = settings(stateful_step_count=40)
TestGroups = Groups.TestCase
