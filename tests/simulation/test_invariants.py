"""The checks of group IDs, of removals and of copies in the simulation."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.simulation.apiserver import ApiServer, Body
from tests.simulation.efs import Efs
from tests.simulation.history import History
from tests.simulation.invariants import Invariants, Record
from tests.simulation.replica import note_confirmations
from tests.simulation.virtual import VirtualLoop

from kube_efs.model.csi.volume_handles import parse_volume_handle
from kube_efs.model.gids import GID_ANNOTATION
from kube_efs.provisioning.guards import Permit, Removal

GID = 2007


class World:
    """A file system, an API server, and the checks of both."""

    def __init__(self, loop: VirtualLoop) -> None:
        history = History(loop.time)
        self.server = ApiServer(loop, history)
        efs = Efs()
        self.file_system = efs.add("fs-0000000a")
        self.invariants = Invariants(self.server, efs, history, loop.time)

    def make_claim(self, name: str, **spec: object) -> str:
        """Create a claim; returns its uid."""
        spec["storageClassName"] = "group"
        body: Body = {"metadata": {"name": name, "namespace": "red"}, "spec": spec}
        return str(self.server.create("persistentvolumeclaims", body)["metadata"]["uid"])

    def make_directory(self, name: str) -> None:
        """Create the directory of a claim, with the group."""
        self.file_system.make(("dirs", name)).gid = GID

    def make_volume(self, name: str, claim_uid: str) -> Record:
        """Create the volume of a claim, with the group."""
        body: Body = {
            "metadata": {"name": f"pvc-{name}", "annotations": {GID_ANNOTATION: str(GID)}},
            "spec": {
                "nfs": {"server": "fs-0000000a.efs.eu-west-1.amazonaws.com", "path": f"/dirs/{name}"},
                "claimRef": {"name": name, "namespace": "red", "uid": claim_uid},
                "persistentVolumeReclaimPolicy": "Delete",
            },
        }
        self.server.create("persistentvolumes", body)
        return next(one for one in self.invariants.live() if one.name == f"pvc-{name}")

    def make_all(self, name: str) -> Record:
        """Create a claim with its directory and its volume."""
        uid = self.make_claim(name)
        self.make_directory(name)
        return self.make_volume(name, uid)

    @property
    def violation(self) -> str:
        """The text of the violation, empty without one."""
        return str(self.invariants.violation or "")


@pytest.fixture
def world() -> Iterator[World]:
    loop = VirtualLoop()
    yield World(loop)
    loop.close()


def test_volumes_of_claims_do_not_share_a_group(world: World) -> None:
    world.make_all("one")
    world.make_all("two")
    assert world.violation == "group id 2007 has two owners, pvc-one and pvc-two"


def test_volume_created_late_owns_no_group_without_claim_and_directory(world: World) -> None:
    world.make_all("one")
    world.make_volume("late", "of-a-claim-that-is-gone")
    assert not world.violation


def test_group_is_free_while_a_volume_created_late_waits_for_its_removal(world: World) -> None:
    world.make_volume("late", "of-a-claim-that-is-gone")
    world.make_all("one")
    assert not world.violation


def test_volume_created_late_does_not_own_the_group_of_a_manually_created_directory(world: World) -> None:
    world.make_all("one")
    world.file_system.make(("dirs", "late"))
    world.make_volume("late", "of-a-claim-that-is-gone")
    assert not world.violation


def test_existing_directory_owns_its_group_without_a_claim(world: World) -> None:
    world.make_all("one")
    world.make_directory("kept")
    world.make_volume("kept", "of-a-claim-that-is-gone")
    assert world.violation == "group id 2007 has two owners, pvc-one and pvc-kept"


def test_directory_that_gets_the_group_later_is_detected_at_the_next_write(world: World) -> None:
    one = world.make_all("one")
    world.make_volume("late", "of-a-claim-that-is-gone")
    world.make_directory("late")
    world.invariants.write(one)
    assert world.violation == "group id 2007 has two owners, pvc-late and pvc-one"


@pytest.mark.parametrize(
    ("at_the_check", "is_unpromised"), [("Delete", True), ("Retain", False)], ids=["to go", "kept"]
)
def test_volume_is_kept_too_late_if_the_last_check_has_seen_it_to_go(
    world: World, at_the_check: str, is_unpromised: bool
) -> None:
    handle = "efs:fs-0000000a:/csi/./one"
    spec: Body = {"csi": {"volumeHandle": handle}, "persistentVolumeReclaimPolicy": "Delete"}
    world.server.create("persistentvolumes", {"metadata": {"name": "pvc-one"}, "spec": spec})
    world.server.update("persistentvolumes", "pvc-one", lambda body: body["status"].update(phase="Released"))
    (record,) = world.invariants.live()

    def set_policy(policy: str) -> None:
        change = {"persistentVolumeReclaimPolicy": policy}
        world.server.update("persistentvolumes", "pvc-one", lambda body: body["spec"].update(change))

    async def check(*_: object) -> Permit:
        # Only what is in the list during the check counts, not what the volume was when it began.
        set_policy(at_the_check)
        return Permit()

    guards = SimpleNamespace(check_handle=check)
    driver = SimpleNamespace(_volumes=SimpleNamespace(_guards=guards))
    set_policy("Retain")
    note_confirmations(driver, world)  # type: ignore[arg-type]
    asyncio.run(guards.check_handle(Removal(), parse_volume_handle(handle), frozenset()))
    set_policy("Retain")
    assert record.is_unpromised is is_unpromised


def make_copy(world: World, *, lacks_data: bool) -> None:
    """Create a claim for a copy, with its volume."""
    uid = world.make_claim("copy", dataSource={"kind": "PersistentVolumeClaim", "name": "one"})
    world.make_directory("copy")
    folder = world.file_system.make(("dirs", "copy"))
    folder.copied, folder.lacks_data = {}, lacks_data
    world.make_volume("copy", uid)


def test_empty_volume_may_have_an_empty_copy(world: World) -> None:
    make_copy(world, lacks_data=False)
    assert not world.violation


def test_empty_copy_of_a_source_that_was_removed_with_data_is_detected(world: World) -> None:
    make_copy(world, lacks_data=True)
    assert world.violation == "volume pvc-copy is made without its data, whose source was removed before"
