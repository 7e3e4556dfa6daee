from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kube_efs.model.claims import StorageClass
from kube_efs.model.directories import Directory, Relation, parse_directory
from kube_efs.model.gids import GidRange
from kube_efs.model.ids import ClaimUid, FileSystemId
from kube_efs.model.targets import TunnelTarget, TunnelTargets
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import ClaimReference, CsiSource, Location, NfsSource, Volume, VolumePhase
from kube_efs.provisioning.inventory import DirectoryIndex, Inventory

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


@given(_STEPS, _LOCATIONS, _NAMES)
def test_the_index_says_what_looking_at_every_volume_says(
    steps: list[tuple[bool, Location, str]], asked: Location, name: str
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
    assert index.sharers(asked, name) == near[Relation.SAME] - {name}
    neighbours = index.neighbours(asked)
    assert near[Relation.ABOVE] <= neighbours
    assert neighbours <= near[Relation.ABOVE] | near[Relation.BELOW]
    assert bool(neighbours) == bool(near[Relation.ABOVE] | near[Relation.BELOW])
    assert (not near[Relation.BELOW]) or neighbours & near[Relation.BELOW]


# --- volumes


def test_a_volume_is_found_by_its_claim_and_its_directory() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("pv"))
    assert inventory.volume_of(ClaimUid("c")) == volume("pv")
    assert inventory.volume_of(ClaimUid("other")) is None
    assert inventory.location_of("pv") == at("/team/data")
    assert inventory.directories.sharers(at("/team/data"), "") == {"pv"}


def test_a_changed_volume_replaces_what_was_known() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("pv"))
    inventory.put_volume(volume("pv", path="/team/moved", claim="d"))
    assert inventory.volume_of(ClaimUid("c")) is None
    assert inventory.directories.sharers(at("/team/data"), "") == frozenset()
    assert inventory.directories.sharers(at("/team/moved"), "") == {"pv"}


def test_a_volume_that_is_gone_is_gone_everywhere() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("pv"))
    inventory.drop_volume(volume("pv"))
    assert not inventory.volumes
    assert inventory.volume_of(ClaimUid("c")) is None
    assert inventory.location_of("pv") is None
    assert inventory.directories.sharers(at("/team/data"), "") == frozenset()
    assert inventory.ports_in_use() == {}


def test_news_of_an_older_volume_of_that_name_change_nothing() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("pv", uid="new"))
    inventory.drop_volume(volume("pv", uid="old"))
    assert inventory.volumes == {"pv": volume("pv", uid="new")}


def test_a_volume_that_was_removed_does_not_come_back_by_late_news() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("pv"))
    inventory.removed_volume(volume("pv"), with_directory=True)
    inventory.put_volume(replace(volume("pv"), phase=VolumePhase.RELEASED))
    inventory.replace_volumes([volume("pv")])
    assert not inventory.volumes
    assert inventory.directories.sharers(at("/team/data"), "") == frozenset()


def test_a_new_volume_of_a_removed_one_s_name_is_seen() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("pv"))
    inventory.removed_volume(volume("pv"), with_directory=True)
    inventory.drop_volume(volume("pv"))
    inventory.put_volume(volume("pv", uid="new"))
    assert inventory.volumes == {"pv": volume("pv", uid="new")}


def test_the_directory_of_a_volume_to_come_is_in_use() -> None:
    inventory = Inventory()
    inventory.expect_volume(volume("pv"))
    inventory.replace_volumes([])
    assert inventory.directories.sharers(at("/team/data"), "") == {"pv"}
    assert inventory.volume_of(ClaimUid("c")) is None
    assert inventory.ports_in_use() == {}
    inventory.forget_volume("pv")
    assert inventory.directories.sharers(at("/team/data"), "") == frozenset()


def test_a_list_that_is_older_than_a_volume_does_not_remove_it() -> None:
    inventory = Inventory()
    inventory.expect_volume(volume("pv"))
    inventory.made_volume(volume("pv"))
    inventory.replace_volumes([])
    assert inventory.volumes == {"pv": volume("pv")}
    assert inventory.directories.sharers(at("/team/data"), "") == {"pv"}


def test_a_list_that_is_newer_than_a_volume_s_first_news_does() -> None:
    inventory = Inventory()
    inventory.expect_volume(volume("pv"))
    inventory.made_volume(volume("pv"))
    inventory.put_volume(volume("pv"))
    inventory.replace_volumes([])
    assert not inventory.volumes
    assert inventory.directories.sharers(at("/team/data"), "") == frozenset()


def test_an_answer_does_not_undo_what_a_watch_has_shown() -> None:
    inventory = Inventory()
    bound = replace(volume("pv"), phase=VolumePhase.BOUND)
    inventory.expect_volume(volume("pv"))
    inventory.put_volume(bound)
    inventory.made_volume(volume("pv"))
    assert inventory.volumes == {"pv": bound}
    inventory.made_volume(volume("pv", uid="new"))
    assert inventory.volumes == {"pv": volume("pv", uid="new")}


def test_a_name_that_is_expected_elsewhere_leaves_nothing_behind() -> None:
    inventory = Inventory()
    inventory.expect_volume(volume("pv", path="/team/a"))
    inventory.expect_volume(volume("pv", path="/team/b"))
    inventory.forget_volume("pv")
    assert inventory.directories.neighbours(at("/team")) == frozenset()


def test_a_list_is_all_there_is() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("a", claim="a"))
    inventory.put_volume(volume("b", claim="b"))
    inventory.replace_volumes([volume("b", claim="b"), volume("c", claim="c")])
    assert set(inventory.volumes) == {"b", "c"}
    assert inventory.directories.sharers(at("/team/data"), "b") == {"c"}


def test_a_root_volume_is_nobody_s_neighbour() -> None:
    inventory = Inventory()
    inventory.put_volume(replace(volume("root", path="/"), storage_class=ROOT_CLASS))
    assert inventory.directories.neighbours(at("/team/data")) == frozenset()
    assert inventory.ports_in_use() == {}


def test_ports_that_volumes_carry() -> None:
    inventory = Inventory()
    inventory.put_volume(volume("a", port=20490))
    inventory.put_volume(replace(volume("b", port=20495), file_system_id="fs-2"))
    inventory.put_volume(replace(volume("no-port"), mount_options=()))
    inventory.put_volume(
        replace(
            volume("direct", port=2049),
            nfs=NfsSource(server="fs-1.efs.us-east-1.amazonaws.com", path="/"),
        )
    )
    assert inventory.ports_in_use() == {20490: FS1, 20495: FS2}


def test_a_volume_known_by_its_port_only_follows_the_ports() -> None:
    inventory = Inventory()
    inventory.put_volume(replace(volume("pv"), file_system_id=None))
    assert inventory.location_of("pv") is None
    inventory.targets = TunnelTargets(targets={FS2: TunnelTarget(file_system_id=FS2, port=20490)})
    assert inventory.location_of("pv") == at("/team/data", FS2)
    inventory.targets = TunnelTargets()
    assert inventory.location_of("pv") is None
    assert inventory.directories.sharers(at("/team/data", FS2), "") == frozenset()


def test_a_server_s_name_that_says_nothing_is_known_from_the_settings() -> None:
    direct = replace(volume("pv"), file_system_id=None, nfs=NfsSource(server="efs.example.com", path="/a"))
    for inventory, location in (
        (Inventory(), None),
        (Inventory({"efs.example.com": FS2}), at("/a", FS2)),
    ):
        inventory.put_volume(direct)
        assert inventory.location_of("pv") == location


# --- group ids

BASE = at("/pvs")
RANGE = GidRange(minimum=2000, maximum=2009)


def with_gid(name: str, gid: int | None, path: str = "") -> Volume:
    return replace(volume(name, claim=name, path=path or f"/pvs/{name}"), gid=gid)


def scan(inventory: Inventory, **found: int) -> set[str]:
    """Directories of the base by the names of their volumes, with their groups."""
    begun = inventory.begin_scan()
    places = {name: (at(f"/pvs/{name}"), gid) for name, gid in found.items()}
    return inventory.found_directories(begun, BASE, places)


def free(inventory: Inventory) -> int | None:
    return inventory.gids.lowest_free(RANGE, "somebody")


def test_groups_of_volumes_are_in_use() -> None:
    inventory = Inventory()
    inventory.replace_volumes([with_gid("a", 2000), with_gid("b", None), with_gid("c", 2001)])
    assert len(inventory.gids) == 2
    assert free(inventory) == 2002


def test_a_group_that_two_volumes_have_is_told_of_once() -> None:
    inventory = Inventory()
    with capture_logs() as logs:
        for _ in range(2):
            inventory.replace_volumes([with_gid("a", 2000), with_gid("b", 2000)])
    assert logs == [
        {"event": "gid-shared", "log_level": "warning", "volume": "b", "gid": 2000, "others": ["a"]}
    ]


def test_a_removed_volume_frees_its_group_with_its_directory() -> None:
    inventory = Inventory()
    inventory.put_volume(with_gid("a", 2000))
    inventory.removed_volume(with_gid("a", 2000), with_directory=True)
    assert free(inventory) == 2000


def test_a_removed_volume_leaves_its_group_to_its_directory() -> None:
    inventory = Inventory()
    inventory.put_volume(with_gid("a", 2000))
    inventory.removed_volume(with_gid("a", 2000), with_directory=False)
    assert (free(inventory), dict(inventory.volumes)) == (2001, {})
    inventory.put_volume(with_gid("a", 2000))  # late news
    assert not inventory.volumes


def test_a_volume_that_vanishes_leaves_its_group_to_its_directory_until_that_is_gone() -> None:
    inventory = Inventory()
    inventory.put_volume(with_gid("a", 2000))
    inventory.drop_volume(with_gid("a", 2000))
    assert free(inventory) == 2001
    assert scan(inventory, a=2000) == {"a"}
    assert free(inventory) == 2001
    scan(inventory)
    assert free(inventory) == 2000


def test_a_volume_that_is_nowhere_takes_its_group_with_it() -> None:
    inventory = Inventory()
    nowhere = replace(with_gid("a", 2000), nfs=None)
    inventory.put_volume(nowhere)
    inventory.drop_volume(nowhere)
    assert free(inventory) == 2000


@pytest.mark.parametrize("path", ["/elsewhere/a", "/pvs/deep/a"])
def test_a_scan_says_nothing_of_what_it_does_not_see(path: str) -> None:
    inventory = Inventory()
    inventory.put_volume(with_gid("a", 2000, path))
    inventory.drop_volume(with_gid("a", 2000, path))
    scan(inventory)
    assert free(inventory) == 2001


def test_a_directory_that_comes_to_a_volume_again_is_the_volume_s() -> None:
    inventory = Inventory()
    assert scan(inventory, a=2000) == {"a"}
    inventory.put_volume(with_gid("a", 2000))
    assert scan(inventory) == set()
    assert free(inventory) == 2001


def test_a_directory_that_another_volume_leads_to_is_not_without_one() -> None:
    inventory = Inventory()
    inventory.put_volume(with_gid("a", 2000))
    migrated = replace(
        with_gid("a-csi", 2000), nfs=None, csi=CsiSource(handle="efs:fs-0123456789abcdef0:/pvs/./a")
    )
    place = at("/pvs/a", FileSystemId("fs-0123456789abcdef0"))
    inventory.put_volume(migrated)
    inventory.drop_volume(with_gid("a", 2000))
    assert inventory.found_directories(inventory.begin_scan(), BASE, {"a": (place, 2000)}) == set()
    assert free(inventory) == 2001
    inventory.removed_volume(migrated, with_directory=True)
    assert free(inventory) == 2001  # until it is seen that the directory is gone
    scan(inventory)
    assert free(inventory) == 2000


def test_a_directory_with_a_group_of_somebody_else_s_choice_holds_both() -> None:
    inventory = Inventory()
    inventory.put_volume(with_gid("a", 2000))
    assert scan(inventory, a=2001) == set()
    assert free(inventory) == 2002
    scan(inventory, a=2000)
    assert free(inventory) == 2001


def failing(inventory: Inventory, within: GidRange, name: str) -> int | None:
    """The group that an attempt had which failed."""
    had: list[int | None] = []
    with suppress(KeyError), inventory.taking_gid(within, name, at(f"/pvs/{name}")) as gid:
        had.append(gid)
        raise KeyError
    return had[0]


def test_a_group_is_given_back_unless_the_block_succeeds() -> None:
    inventory = Inventory()
    assert failing(inventory, RANGE, "a") == 2000
    assert free(inventory) == 2000
    with inventory.taking_gid(RANGE, "a", at("/pvs/a")):
        pass
    assert free(inventory) == 2001
    scan(inventory)
    assert free(inventory) == 2000


def test_a_group_that_a_directory_had_before_stays_with_it_when_the_block_fails() -> None:
    inventory = Inventory()
    scan(inventory, a=2000)
    assert failing(inventory, RANGE, "a") == 2000
    assert free(inventory) == 2001


def test_a_range_that_is_full_is_no_group() -> None:
    inventory = Inventory()
    one = GidRange(minimum=2000, maximum=2000)
    inventory.put_volume(with_gid("a", 2000))
    assert failing(inventory, one, "b") is None
    assert inventory.gids.of("b") is None


def test_nothing_is_known_at_first() -> None:
    inventory = Inventory()
    assert inventory.classes == dict[str, StorageClass]()
    assert inventory.targets == TunnelTargets()
    assert not inventory.discovery.complete
