from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.claims import ReclaimPolicy, StorageClass
from kube_efs.model.efs.directories import Directory, Relation, parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, SubnetId
from kube_efs.model.efs.targets import PortUse, TunnelTarget, TunnelTargets
from kube_efs.model.errors import GidRangeFull, GidTaken, WorkerFailed, WorkerRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import ClaimReference, CsiSource, Location, NfsSource, Volume, VolumePhase
from kube_efs.provisioning.volume_index import DirectoryIndex, VolumeIndex

FS1, FS2 = FileSystemId("fs-1"), FileSystemId("fs-2")


def volume(
    name: str, *, uid: str = "", path: str = "/team/data", claim: str = "c", port: int = 20490
) -> Volume:
    return Volume(
        name=name,
        uid=uid or f"uid-of-{name}",
        file_system_id="fs-1",
        claim=ClaimReference(namespace="team", name="data", uid=ClaimUid(claim)),
        nfs=NfsSource(server="127.0.0.1", path=path),
        mount_options=(f"port={port}",),
    )


def at(path: str, file_system_id: FileSystemId = FS1) -> Location:
    return Location(file_system_id=file_system_id, directory=parse_directory(path))


# --- directories

_LOCATIONS = st.builds(
    Location,
    file_system_id=st.sampled_from([FS1, FS2]),
    directory=st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: Directory(tuple(parts))),
)
_NAMES = st.sampled_from(["v1", "v2", "v3"])
_STEPS = st.lists(st.tuples(st.booleans(), _LOCATIONS, _NAMES), max_size=30)


@given(_STEPS, _LOCATIONS)
def test_index_agrees_with_a_scan_of_every_volume(
    steps: list[tuple[bool, Location, str]], asked: Location
) -> None:
    index, users = DirectoryIndex(), set[tuple[Location, str]]()
    for is_added, location, user in steps:
        (index.add if is_added else index.discard)(location, user)
        (users.add if is_added else users.discard)((location, user))
    near = {
        relation: {
            user
            for location, user in users
            if location.file_system_id == asked.file_system_id
            and location.directory.relation_to(asked.directory) is relation
        }
        for relation in Relation
    }
    assert index.users(asked) == near[Relation.SAME]
    related = index.related(asked)
    assert {relation: set(names) for relation, names in related.items()} == {
        relation: near[relation] for relation in related
    }
    assert set(related) == {Relation.SAME, Relation.ABOVE, Relation.BELOW}


def test_index_keeps_nothing_of_directories_without_users() -> None:
    index = DirectoryIndex()
    for name in ("a", "b"):
        index.add(at("/team/example/data"), name)
    index.discard(at("/team/example/data"), "a")
    assert index.related(at("/team"))[Relation.BELOW] == {"b"}
    index.discard(at("/team/example/data"), "b")
    assert not any(vars(index).values())


# --- volumes


def test_volume_is_found_by_its_claim_and_its_directory() -> None:
    index = VolumeIndex()
    index.put_volume(volume("pv"))
    assert index.volume_of(ClaimUid("c")) == volume("pv")
    assert index.volume_of(ClaimUid("other")) is None
    assert index.location_of("pv") == at("/team/data")
    assert index.directories.users(at("/team/data")) == {"pv"}


def test_changed_volume_replaces_the_known_one() -> None:
    index = VolumeIndex()
    index.put_volume(volume("pv"))
    index.put_volume(volume("pv", path="/team/moved", claim="d"))
    assert index.volume_of(ClaimUid("c")) is None
    assert index.directories.users(at("/team/data")) == frozenset()
    assert index.directories.users(at("/team/moved")) == {"pv"}


def test_deleted_volume_is_removed_from_every_lookup() -> None:
    index = VolumeIndex()
    index.put_volume(volume("pv"))
    index.drop_volume(volume("pv"))
    assert not index.volumes
    assert index.volume_of(ClaimUid("c")) is None
    assert index.location_of("pv") is None
    assert index.directories.users(at("/team/data")) == frozenset()
    assert index.ports_in_use() == {}


def test_event_of_an_older_volume_of_the_same_name_changes_nothing() -> None:
    index = VolumeIndex()
    index.put_volume(volume("pv", uid="new"))
    index.drop_volume(volume("pv", uid="old"))
    assert index.volumes == {"pv": volume("pv", uid="new")}


def test_claim_without_its_volume_is_reported() -> None:
    index = VolumeIndex()
    without: list[str] = []
    index.on_volume_gone = without.append
    for one in ("dropped", "forgotten", "removed", "given away", "missing in the list"):
        index.put_volume(volume(one, claim=one))
        index.put_volume(replace(volume(one, claim=one), phase=VolumePhase.BOUND))
    assert without == []
    index.drop_volume(volume("dropped"))
    index.forget_volume("forgotten")
    index.removed_volume(volume("removed"), with_directory=True)
    index.put_volume(volume("given away", claim="another"))
    index.replace_volumes([volume("given away", claim="another")])
    released = replace(volume("released", claim="deleted"), phase=VolumePhase.RELEASED)
    index.put_volume(released)
    index.drop_volume(released)
    assert without == ["dropped", "forgotten", "removed", "given away", "missing in the list"]


def test_late_event_does_not_restore_a_removed_volume() -> None:
    index = VolumeIndex()
    index.put_volume(volume("pv"))
    index.removed_volume(volume("pv"), with_directory=True)
    index.put_volume(replace(volume("pv"), phase=VolumePhase.RELEASED))
    index.replace_volumes([volume("pv")])
    assert not index.volumes
    assert index.directories.users(at("/team/data")) == frozenset()


def test_new_volume_with_the_name_of_a_removed_one_is_indexed() -> None:
    index = VolumeIndex()
    index.put_volume(volume("pv"))
    index.removed_volume(volume("pv"), with_directory=True)
    index.drop_volume(volume("pv"))
    index.put_volume(volume("pv", uid="new"))
    assert index.volumes == {"pv": volume("pv", uid="new")}


def test_directory_of_an_expected_volume_is_in_use() -> None:
    index = VolumeIndex()
    index.expect_volume(volume("pv"))
    index.replace_volumes([])
    assert index.directories.users(at("/team/data")) == {"pv"}
    assert index.volume_of(ClaimUid("c")) is None
    assert index.ports_in_use() == {20490: OF_FS1}
    index.forget_volume("pv")
    assert index.directories.users(at("/team/data")) == frozenset()
    assert index.ports_in_use() == {}


def test_list_older_than_a_volume_does_not_remove_it() -> None:
    index = VolumeIndex()
    index.expect_volume(volume("pv"))
    index.made_volume(volume("pv"))
    index.replace_volumes([])
    assert index.volumes == {"pv": volume("pv")}
    assert index.directories.users(at("/team/data")) == {"pv"}


def test_list_newer_than_the_first_event_of_a_volume_removes_it() -> None:
    index = VolumeIndex()
    index.expect_volume(volume("pv"))
    index.made_volume(volume("pv"))
    index.put_volume(volume("pv"))
    index.replace_volumes([])
    assert not index.volumes
    assert index.directories.users(at("/team/data")) == frozenset()


def test_answer_does_not_undo_a_newer_watch_event() -> None:
    index = VolumeIndex()
    bound = replace(volume("pv"), phase=VolumePhase.BOUND)
    index.expect_volume(volume("pv"))
    index.put_volume(bound)
    index.made_volume(volume("pv"))
    assert index.volumes == {"pv": bound}
    index.made_volume(volume("pv", uid="new"))
    assert index.volumes == {"pv": volume("pv", uid="new")}


def test_expected_volume_with_a_new_location_leaves_the_old_one() -> None:
    index = VolumeIndex()
    index.expect_volume(volume("pv", path="/team/a"))
    index.expect_volume(volume("pv", path="/team/b"))
    index.forget_volume("pv")
    assert not any(index.directories.related(at("/team")).values())


def test_list_replaces_all_known_volumes() -> None:
    index = VolumeIndex()
    index.put_volume(volume("a", claim="a"))
    index.put_volume(volume("b", claim="b"))
    index.replace_volumes([volume("b", claim="b"), volume("c", claim="c")])
    assert set(index.volumes) == {"b", "c"}
    assert index.directories.users(at("/team/data")) == {"b", "c"}


def test_root_volume_is_not_related_to_other_directories() -> None:
    index = VolumeIndex()
    index.put_volume(replace(volume("root", path="/"), storage_class=ROOT_CLASS))
    assert not any(index.directories.related(at("/team/data")).values())


def test_root_volume_gives_the_port_of_its_file_system() -> None:
    index = VolumeIndex()
    index.put_volume(replace(volume("root", path="/"), storage_class=ROOT_CLASS))
    assert index.ports_in_use() == {20490: PortUse(owners=frozenset({FS1}), root=True)}


OF_FS1, UNKNOWN = PortUse(owners=frozenset({FS1})), PortUse(unnamed=True)


def static(
    name: str, *mount_options: str, server: str = "127.0.0.1", annotation: str | None = None
) -> Volume:
    """A manually created volume."""
    return Volume(
        name=name,
        uid=name,
        phase=VolumePhase.AVAILABLE,
        file_system_id=annotation,
        nfs=NfsSource(server=server, path="/team/data"),
        mount_options=mount_options,
    )


def test_access_points_are_in_use_except_those_that_go_with_their_volumes() -> None:
    index = VolumeIndex()
    here, other = "fs-0123456789abcdef0", "fs-0123456789abcdef1"

    def through(name: str, file_system_id: str, point: str) -> Volume:
        return Volume(name=name, uid=name, csi=CsiSource(handle=f"{file_system_id}::fsap-0000000{point}"))

    index.put_volume(through("bound", here, "1"))
    going = replace(
        through("going", here, "2"), phase=VolumePhase.RELEASED, reclaim_policy=ReclaimPolicy.DELETE
    )
    index.put_volume(going)
    index.put_volume(replace(going, name="kept", uid="kept", reclaim_policy=ReclaimPolicy.RETAIN))
    index.put_volume(through("elsewhere", other, "3"))
    index.expect_volume(through("being created", here, "4"))
    index.put_volume(through("deleted", here, "5"))
    index.forget_volume("deleted")
    in_use = index.access_points_in_use(FileSystemId(here))
    assert in_use == {"fsap-00000001", "fsap-00000002", "fsap-00000004"}
    index.forget_volume("kept")
    assert index.access_points_in_use(FileSystemId(here)) == {"fsap-00000001", "fsap-00000004"}


def test_index_maps_ports_to_file_systems() -> None:
    index = VolumeIndex()
    for one in (
        volume("a", port=20490),
        static("other file system", "port=20495", annotation="fs-2"),
        static("shared", "port=20496", annotation="fs-1"),
        static("shared too", "port=20496", annotation="fs-2"),
        static("unknown", "hard,port=20497"),
        static("unreadable", "port=20498", annotation="no id"),
        static("known and unknown", "port=20490"),
        static("two ports", "port=20499", "mountport=20500"),
        static("no port", server="localhost"),
        static("remote", "port=20501", server="fs-1.efs.us-east-1.amazonaws.com"),
    ):
        index.put_volume(one)
    assert index.ports_in_use() == {
        2049: UNKNOWN,
        20490: PortUse(owners=frozenset({FS1}), unnamed=True),
        20495: PortUse(owners=frozenset({FS2})),
        20496: PortUse(owners=frozenset({FS1, FS2})),
        20497: UNKNOWN,
        20498: UNKNOWN,
        20499: UNKNOWN,
        20500: UNKNOWN,
    }


@pytest.mark.parametrize("phase", VolumePhase)
def test_port_is_in_use_in_every_phase_of_the_volume(phase: VolumePhase) -> None:
    index = VolumeIndex()
    index.put_volume(replace(static("pv", "port=20497"), phase=phase, deleting=True))
    assert index.ports_in_use() == {20497: UNKNOWN}


def test_index_lists_volumes_of_ports_that_do_not_lead_to_their_file_system() -> None:
    index = VolumeIndex()
    index.targets = TunnelTargets(
        targets={FS1: TunnelTarget(file_system_id=FS1, port=20490)}, reserved={FS2: 20491}
    )
    for one in (
        static("of a known file system", "port=20490"),
        static("of a deleted file system", "port=20491"),
        static("annotated", "port=20492", annotation="fs-3"),
        static("with the port of an annotated one", "port=20492"),
        static("no port"),
        static("unknown", "port=20493"),
        static("annotated with another", "port=20490", annotation="fs-3"),
    ):
        index.put_volume(one)
    assert [one.name for one in index.volumes_of_unknown_port()] == ["unknown", "annotated with another"]


def test_volume_of_a_deleted_file_system_is_still_known_by_its_port() -> None:
    index = VolumeIndex()
    index.put_volume(static("pv", "port=20490", server="localhost"))
    index.targets = TunnelTargets(reserved={FS2: 20490})
    assert index.location_of("pv") == at("/team/data", FS2)
    assert [one.name for one in index.volumes_at(at("/team/data", FS2))] == ["pv"]


def test_location_of_a_volume_without_annotation_follows_the_ports() -> None:
    index = VolumeIndex()
    index.put_volume(replace(volume("pv"), file_system_id=None))
    assert index.location_of("pv") is None
    index.targets = TunnelTargets(targets={FS2: TunnelTarget(file_system_id=FS2, port=20490)})
    assert index.location_of("pv") == at("/team/data", FS2)
    index.targets = TunnelTargets()
    assert index.location_of("pv") is None
    assert index.directories.users(at("/team/data", FS2)) == frozenset()


def test_known_address_takes_precedence_over_the_annotation_from_then_on() -> None:
    index = VolumeIndex()
    index.put_volume(static("pv", server="10.0.0.4", annotation="fs-1"))
    assert index.location_of("pv") == at("/team/data", FS1)
    found = TunnelTarget(file_system_id=FS2, port=20490, address_by_subnet={SubnetId("subnet-1"): "10.0.0.4"})
    index.targets = TunnelTargets(targets={FS2: found})
    assert index.location_of("pv") == at("/team/data", FS2)


def test_directory_behind_the_port_of_another_file_system_is_in_use_there_too() -> None:
    index = VolumeIndex()
    index.put_volume(static("pv", "port=20490", annotation="fs-1"))
    place, other = at("/team/data", FS1), at("/team/data", FS2)
    assert [index.users_of(one)[Relation.SAME] for one in (place, other)] == [{"pv"}, set()]
    index.targets = TunnelTargets(targets={FS2: TunnelTarget(file_system_id=FS2, port=20490)})
    assert [index.users_of(one)[Relation.SAME] for one in (place, other)] == [{"pv"}, {"pv"}]
    assert index.volumes_on(FS2) == {"pv"}
    # The annotation decides where the data of a claim is.
    assert (index.location_of("pv"), index.volumes_at(other)) == (place, [])
    index.targets = TunnelTargets(targets={FS1: TunnelTarget(file_system_id=FS1, port=20490)})
    assert [index.users_of(one)[Relation.SAME] for one in (place, other)] == [{"pv"}, set()]
    index.forget_volume("pv")
    assert index.users_of(place)[Relation.SAME] == set()


def test_settings_identify_a_server_with_a_custom_name() -> None:
    direct = replace(volume("pv"), file_system_id=None, nfs=NfsSource(server="efs.example.com", path="/a"))
    for index, location in (
        (VolumeIndex(), None),
        (VolumeIndex({"efs.example.com": FS2}), at("/a", FS2)),
    ):
        index.put_volume(direct)
        assert index.location_of("pv") == location


# --- group ids

BASE = at("/pvs")
RANGE = GidRange(minimum=2000, maximum=2009)


def with_gid(name: str, gid: int | None, path: str = "") -> Volume:
    return replace(volume(name, claim=name, path=path or f"/pvs/{name}"), gid=gid)


def scanning_index() -> VolumeIndex:
    """The index of a controller that scans the base directory."""
    made = VolumeIndex()
    made.gid_ledger.add_base(BASE)
    return made


def scan(index: VolumeIndex, **found: int) -> set[str]:
    """Report directories of the base, by volume name, with their group IDs; returns the orphans."""
    begun = index.gid_ledger.begin_scan()
    places = {name: (at(f"/pvs/{name}"), gid) for name, gid in found.items()}
    return index.found_directories(begun, BASE, places)


def free(index: VolumeIndex) -> int | None:
    return index.gids.lowest_free(RANGE, "somebody")


def test_groups_of_volumes_are_in_use() -> None:
    index = scanning_index()
    index.replace_volumes([with_gid("a", 2000), with_gid("b", None), with_gid("c", 2001)])
    assert len(index.gids) == 2
    assert free(index) == 2002


def test_removed_volume_frees_its_group_with_its_directory() -> None:
    index = scanning_index()
    index.put_volume(with_gid("a", 2000))
    index.removed_volume(with_gid("a", 2000), with_directory=True)
    assert free(index) == 2000


def test_removed_volume_leaves_its_group_to_its_directory() -> None:
    index = scanning_index()
    index.put_volume(with_gid("a", 2000))
    index.removed_volume(with_gid("a", 2000), with_directory=False)
    assert (free(index), dict(index.volumes)) == (2001, {})
    index.put_volume(with_gid("a", 2000))  # a late event
    assert not index.volumes


def test_group_of_a_deleted_volume_stays_with_its_directory_until_that_is_removed() -> None:
    index = scanning_index()
    index.put_volume(with_gid("a", 2000))
    index.drop_volume(with_gid("a", 2000))
    assert free(index) == 2001
    assert scan(index, a=2000) == {"a"}
    assert free(index) == 2001
    scan(index)
    assert free(index) == 2000


def test_deleted_volume_without_a_location_frees_its_group() -> None:
    index = scanning_index()
    nowhere = replace(with_gid("a", 2000), nfs=None)
    index.put_volume(nowhere)
    index.drop_volume(nowhere)
    assert free(index) == 2000


@pytest.mark.parametrize("path", ["/elsewhere/a", "/pvs/deep/a"])
def test_deleted_volume_outside_scanned_directories_frees_its_group(path: str) -> None:
    index = scanning_index()
    index.put_volume(with_gid("a", 2000, path))
    scan(index)
    assert free(index) == 2001
    index.drop_volume(with_gid("a", 2000, path))
    assert free(index) == 2000


def test_id_of_another_controller_is_held_until_the_next_scan_shows_its_directory() -> None:
    index = scanning_index()
    index.gid_ledger.taken_by_another(2000, at("/pvs/a"))
    assert (free(index), index.gids.shared) == (2001, frozenset())
    assert scan(index, other=2000) == {"other"}
    assert (free(index), index.gids.shared) == (2001, frozenset())
    scan(index)
    assert free(index) == 2000


def test_manually_assigned_group_is_shared_until_it_is_changed_back() -> None:
    index = scanning_index()
    told: list[int] = []
    index.gids.on_shared = told.append
    for name, gid in (("a", 2000), ("b", 2001)):
        index.put_volume(with_gid(name, gid))
    scan(index, a=2001, b=2001)
    assert (told, index.gids.shared) == ([2001], frozenset({2001}))
    assert index.gids.known_holders(2001) == {"b", str(at("/pvs/a"))}
    scan(index, a=2000, b=2001)
    assert (told, index.gids.shared) == ([2001], frozenset())


def test_volume_holds_the_group_of_its_formerly_orphaned_directory() -> None:
    index = scanning_index()
    assert scan(index, a=2000) == {"a"}
    index.put_volume(with_gid("a", 2000))
    assert scan(index) == set()
    assert free(index) == 2001


def test_directory_used_by_another_volume_is_not_orphaned() -> None:
    index = scanning_index()
    index.put_volume(with_gid("a", 2000))
    migrated = replace(
        with_gid("a-csi", 2000), nfs=None, csi=CsiSource(handle="efs:fs-0123456789abcdef0:/pvs/./a")
    )
    place = at("/pvs/a", FileSystemId("fs-0123456789abcdef0"))
    index.put_volume(migrated)
    index.drop_volume(with_gid("a", 2000))
    assert index.found_directories(index.gid_ledger.begin_scan(), BASE, {"a": (place, 2000)}) == set()
    assert free(index) == 2001
    index.removed_volume(migrated, with_directory=True)
    assert free(index) == 2001  # until a scan shows that the directory was removed
    scan(index)
    assert free(index) == 2000


def test_directory_with_a_changed_group_holds_both_groups() -> None:
    index = scanning_index()
    index.put_volume(with_gid("a", 2000))
    assert scan(index, a=2001) == set()
    assert free(index) == 2002
    scan(index, a=2000)
    assert free(index) == 2001


def failing(index: VolumeIndex, name: str, error: Exception, within: GidRange = RANGE) -> int | None:
    """The group ID that a failing attempt gets."""
    had: list[int | None] = []
    with suppress(type(error)), index.gid_ledger.taking(within, name, at(f"/pvs/{name}")) as gid:
        had.append(gid)
        raise error
    return had[0]


@pytest.mark.parametrize("error", [GidTaken("belongs to another"), WorkerRefused("has a link in the way")])
def test_group_is_released_when_no_directory_was_created(error: WorkerFailed) -> None:
    index = scanning_index()
    assert failing(index, "a", error) == 2000
    assert free(index) == 2000


def test_group_is_held_after_a_failure_until_a_scan_finds_no_directory() -> None:
    index = scanning_index()
    assert failing(index, "a", WorkerFailed("was killed")) == 2000
    assert free(index) == 2001
    scan(index)
    assert free(index) == 2000


def test_group_is_held_after_a_success_until_a_scan_finds_no_directory() -> None:
    index = scanning_index()
    with index.gid_ledger.taking(RANGE, "a", at("/pvs/a")):
        pass
    assert free(index) == 2001
    scan(index)
    assert free(index) == 2000


def test_failed_attempt_keeps_the_group_of_an_existing_directory() -> None:
    index = scanning_index()
    scan(index, a=2000)
    assert failing(index, "a", WorkerFailed("was killed")) == 2000
    assert free(index) == 2001


def test_full_range_gives_no_group() -> None:
    index = scanning_index()
    one = GidRange(minimum=2000, maximum=2000)
    index.put_volume(with_gid("a", 2000))
    assert failing(index, "b", GidRangeFull("is full"), one) is None
    assert index.gids.of("b") is None


def test_new_index_is_empty() -> None:
    index = scanning_index()
    assert index.classes == dict[str, StorageClass]()
    assert index.targets == TunnelTargets()
    assert not index.discovery.complete


@pytest.mark.parametrize(
    ("before", "terminating", "may_be"),
    [
        pytest.param(ReclaimPolicy.RETAIN, ReclaimPolicy.RETAIN, False, id="Retain, then deleted"),
        pytest.param(ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN, True, id="Retain set while Terminating"),
        pytest.param(None, ReclaimPolicy.RETAIN, True, id="first seen while Terminating"),
        pytest.param(ReclaimPolicy.RETAIN, ReclaimPolicy.DELETE, True, id="Delete set while Terminating"),
    ],
)
def test_removal_can_start_when_a_volume_is_terminating_with_the_policy_delete(
    before: ReclaimPolicy | None, terminating: ReclaimPolicy, may_be: bool
) -> None:
    index = VolumeIndex()
    found = replace(volume("pv"), phase=VolumePhase.RELEASED)
    if before:
        index.put_volume(replace(found, reclaim_policy=before))
    ended = replace(found, deleting=True, reclaim_policy=terminating)
    index.put_volume(ended)
    assert index.may_be_ordered(ended) is may_be


@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        (("port=20490", "nfsvers=4.1"), {}),
        ((), {"mountOptions": "nfsvers=4.1,port=20490"}),
        ((), {"mountoptions": "port=20490"}),
    ],
)
def test_port_of_the_csi_driver_for_nfs_is_in_use(
    options: tuple[str, ...], attributes: dict[str, str]
) -> None:
    attributes = {"server": "127.0.0.1", "share": "/", **attributes}
    source = CsiSource(driver="nfs.csi.k8s.io", handle="x", attributes=attributes)
    index = VolumeIndex()
    index.put_volume(Volume(name="pv", uid="u", csi=source, mount_options=options))
    assert index.ports_in_use().keys() == {20490}
