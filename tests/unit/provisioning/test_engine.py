"""A claim gets at most one volume, and data is removed only when all guards agree, despite failures."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.provisioning.world import (
    AWS_EFS,
    DIRECTORY_PROVISIONER,
    EFS,
    PROVISIONER,
    World,
    claim,
    directory_claim,
)

from kube_efs.model.claims import Claim, ClaimPhase, ReclaimPolicy
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.targets import TunnelTargets
from kube_efs.model.errors import (
    ClaimRefused,
    KubeAlreadyExists,
    KubeUnavailable,
    LeftAlone,
    NotYet,
    RemovalRefused,
)
from kube_efs.model.tunnel_volumes import ROOT_CLASS
from kube_efs.model.volumes import (
    FINALIZER,
    ClaimReference,
    CsiSource,
    Location,
    NfsSource,
    Volume,
    VolumePhase,
)
from kube_efs.provisioning.backends.tunnel import TunnelPlan
from kube_efs.provisioning.engine import DataFate, Engine

FS1 = FileSystemId("fs-1")


@pytest.fixture
def world() -> World:
    return World()


def at(path: str) -> Location:
    return Location(file_system_id=FS1, directory=parse_directory(path))


DATA = at("/team/example")

UNASSIGNED = replace(claim(), storage_provisioner=None)


# --- which claims are planned


async def test_our_claim_is_planned(world: World) -> None:
    plan = world.engine.plan(claim())
    assert plan is not None
    assert (await plan.locations(), plan.claim) == ((DATA,), claim())


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(replace(UNASSIGNED, storage_class="other"), id="another class"),
        pytest.param(replace(UNASSIGNED, storage_class=None), id="no class yet"),
        pytest.param(replace(UNASSIGNED, storage_class=""), id="no class requested"),
        pytest.param(replace(claim(), phase=ClaimPhase.BOUND), id="bound"),
        pytest.param(replace(claim(), volume_name="pv"), id="with volumeName"),
        pytest.param(replace(claim(), deleting=True), id="being deleted"),
        pytest.param(replace(claim(), storage_class=ROOT_CLASS), id="root claim"),
    ],
)
def test_claim_that_needs_no_volume_of_ours_is_not_planned(world: World, wanted: Claim) -> None:
    assert world.engine.plan(wanted) is None


def test_class_of_another_provisioner_is_ignored(world: World) -> None:
    world.index.classes["efs"] = replace(EFS, provisioner="other.example/efs")
    assert world.engine.plan(UNASSIGNED) is None


def test_claim_assigned_to_another_provisioner_is_left_alone(world: World) -> None:
    with pytest.raises(LeftAlone) as caught:
        world.engine.plan(replace(claim(), storage_provisioner="old.example/efs"))
    assert str(caught.value) == (
        "annotation volume.kubernetes.io/storage-provisioner: 'old.example/efs' is not "
        "gnuthought.com/efs-stunnel, the provisioner of StorageClass efs; Kubernetes corrects it within a "
        "minute; otherwise delete the claim and create it again"
    )


@pytest.fixture
def renamed(world: World) -> Engine:
    """A controller with a new name; the class and its volumes have the old one."""
    world.index.classes["efs"] = replace(EFS, provisioner="old.example/efs")
    return Engine(
        index=world.index,
        backends=[world.directory],
        store=world.store,
        guards=world.guards,
        former_names=lambda: {"old.example/efs"},
    )


def test_class_with_the_former_name_of_the_provisioner_is_reported(renamed: Engine) -> None:
    with pytest.raises(LeftAlone) as caught:
        renamed.plan(claim())
    assert str(caught.value) == (
        "StorageClass efs provisioner: 'old.example/efs' is an earlier name of this provisioner, which is "
        "example.com/aws-efs now; create the class and the claim again with the new name, or set "
        "STORAGE_PROVISIONER_NAME to the earlier one"
    )


OLD = Volume(
    name="old",
    uid="old",
    phase=VolumePhase.RELEASED,
    reclaim_policy=ReclaimPolicy.DELETE,
    provisioned_by="old.example/efs",
    finalizers=(FINALIZER,),
)


async def test_released_volume_of_the_former_name_is_reported(world: World, renamed: Engine) -> None:
    world.add(OLD)
    with pytest.raises(LeftAlone) as caught:
        await renamed.reclaim(OLD)
    assert str(caught.value) == (
        "annotation pv.kubernetes.io/provisioned-by: 'old.example/efs' is an earlier name of this "
        "provisioner, which is example.com/aws-efs now; set the annotation to the new name, or "
        "STORAGE_PROVISIONER_NAME to the earlier one; the volume is then removed"
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"reclaim_policy": ReclaimPolicy.RETAIN}, id="to be retained"),
        pytest.param({"phase": VolumePhase.BOUND, "deleting": True}, id="in use"),
        pytest.param({"provisioned_by": "other.example/efs"}, id="of another provisioner"),
        pytest.param({"storage_class": ROOT_CLASS}, id="root"),
    ],
)
async def test_volume_that_stays_rightly_is_not_reported(
    world: World, renamed: Engine, changes: dict[str, Any]
) -> None:
    volume = replace(OLD, **changes)
    world.add(volume)
    assert await renamed.reclaim(volume) is None


def test_claim_that_waits_for_its_pod_is_not_served(world: World) -> None:
    world.index.classes["efs"] = replace(EFS, waits_for_consumer=True)
    assert world.engine.plan(claim()) is None
    assert world.engine.plan(replace(claim(), selected_node="node-1")) is not None


async def test_claim_with_a_volume_is_not_planned(world: World) -> None:
    await world.provision(claim())
    assert world.engine.plan(claim()) is None


def test_refusal_is_raised_to_the_caller(world: World) -> None:
    with pytest.raises(ClaimRefused):
        world.engine.plan(replace(claim(), match_labels={}))


def test_claim_waits_for_the_port_of_its_file_system(world: World) -> None:
    world.index.targets = TunnelTargets()
    with pytest.raises(NotYet) as caught:
        world.engine.plan(claim())
    assert str(caught.value) == (
        "file system: 'fs-1' has no tunnel port yet; it gets one with the next discovery"
    )


def test_claim_waits_for_a_missing_file_system(world: World) -> None:
    world.index.discovery = Discovery(complete=True)
    with pytest.raises(NotYet):
        world.engine.plan(claim())


# --- claims that Kubernetes has assigned to a provisioner (the annotation storage-provisioner)


def test_claim_is_served_only_after_kubernetes_has_assigned_it_to_us(world: World) -> None:
    """Before, it may still get a volume that exists."""
    assert world.engine.plan(UNASSIGNED) is None
    assert world.engine.plan(replace(UNASSIGNED, storage_provisioner=PROVISIONER)) is not None


def test_missing_class_is_reported_on_a_claim_assigned_to_us(world: World) -> None:
    world.index.classes.clear()
    with pytest.raises(NotYet) as caught:
        world.engine.plan(replace(claim(), storage_provisioner=PROVISIONER))
    assert str(caught.value) == "spec.storageClassName: 'efs' does not exist; create the StorageClass"
    assert not world.engine.marks_refused(claim())


@pytest.mark.parametrize("given_to", [None, "other.example/efs"], ids=["unassigned", "assigned to another"])
def test_missing_class_of_a_claim_not_assigned_to_us_is_ignored(world: World, given_to: str | None) -> None:
    world.index.classes.clear()
    assert world.engine.plan(replace(claim(), storage_provisioner=given_to)) is None


@pytest.mark.parametrize(
    "now",
    ["other.example/efs", DIRECTORY_PROVISIONER.name],
    ids=["another provisioner", "another provisioner of ours"],
)
def test_class_with_a_changed_provisioner_is_reported(world: World, now: str) -> None:
    world.index.classes["efs"] = replace(EFS, provisioner=now)
    with pytest.raises(NotYet) as caught:
        world.engine.plan(replace(claim(), storage_provisioner=PROVISIONER))
    assert str(caught.value) == (
        f"StorageClass efs provisioner: {now!r} is not {PROVISIONER}, which the claim was assigned to; "
        "delete the claim and create it again"
    )


def test_root_claims_cause_no_refusal(world: World) -> None:
    root = replace(claim(), storage_class="efs-stunnel-system", storage_provisioner=PROVISIONER)
    assert world.engine.plan(root) is None


@pytest.mark.parametrize(
    ("wanted", "is_marked"),
    [
        pytest.param(claim(), True, id="tunnel"),
        pytest.param(directory_claim(), False, id="directory"),
        pytest.param(replace(claim(), storage_class="other"), False, id="unknown class"),
    ],
)
def test_only_refused_tunnel_claims_are_annotated(world: World, wanted: Claim, is_marked: bool) -> None:
    assert world.engine.marks_refused(wanted) is is_marked


# --- provisioning


async def test_directory_is_created_before_the_volume(world: World) -> None:
    volume = await world.provision(claim())
    assert world.moment.passed == ["before make", "after make", "before create", "after create"]
    assert world.folders.there == {DATA}
    assert volume == world.store.volumes[volume.name]
    assert world.index.volume_of(claim().uid) == volume


@pytest.mark.parametrize("wanted", [claim(), directory_claim()], ids=["tunnel", "directory"])
async def test_every_new_volume_has_the_finalizer(world: World, wanted: Claim) -> None:
    await world.scan()
    volume = await world.provision(wanted)
    assert volume.finalizers == (FINALIZER,)
    assert not world.engine.is_unprotected(volume)


async def test_claim_finds_its_existing_volume(world: World) -> None:
    plan = world.engine.plan(claim())
    assert plan is not None
    first = await world.engine.provision(plan)
    assert await world.engine.provision(plan) == first
    assert list(world.store.volumes) == [first.name]


async def test_name_of_a_foreign_volume_is_skipped(world: World) -> None:
    plan = world.engine.plan(claim())
    assert isinstance(plan, TunnelPlan)
    taken = [replace(plan.volume(attempt), claim=None) for attempt in range(2)]
    for volume in taken:
        world.store.volumes[volume.name] = volume
    made = await world.engine.provision(plan)
    assert made.name == plan.volume(2).name
    assert [world.store.volumes[volume.name] for volume in taken] == taken


async def test_error_is_raised_when_every_name_is_taken(world: World) -> None:
    plan = world.engine.plan(claim())
    assert isinstance(plan, TunnelPlan)
    for attempt in range(4):
        volume = plan.volume(attempt)
        world.store.volumes[volume.name] = replace(
            volume, claim=ClaimReference(namespace="team", name="other", uid=None)
        )
    with pytest.raises(KubeAlreadyExists) as caught:
        await world.engine.provision(plan)
    assert str(caught.value) == (
        f"volume: {plan.volume(0).name!r} belongs to another claim; delete unused volumes of that name"
    )


class _Crash(BaseException):
    """The process ends here."""


class _FailingAt:
    """Raises an error at the given moment."""

    def __init__(self, step: int, error: type[BaseException]) -> None:
        self._left, self._error = step, error

    def __call__(self, name: str) -> int:
        self._left -= 1
        if self._left == 0:
            raise self._error(name)
        return 0


_FAULTS = st.lists(st.tuples(st.integers(1, 8), st.sampled_from([KubeUnavailable, _Crash])), max_size=4)


@given(faults=_FAULTS, taken=st.integers(0, 3))
def test_claim_gets_exactly_one_volume_despite_failures(
    faults: list[tuple[int, type[BaseException]]], taken: int
) -> None:
    async def scenario() -> None:
        world = World()
        plan = world.engine.plan(claim())
        assert isinstance(plan, TunnelPlan)
        for attempt in range(taken):
            foreign = replace(plan.volume(attempt), claim=None)
            world.store.volumes[foreign.name] = foreign
        for step, error in faults:
            world.moment.on_moment = _FailingAt(step, error)
            try:
                again = world.engine.plan(claim())
                if again is not None:
                    await world.engine.provision(again)
            except KubeUnavailable:
                continue
            except _Crash:
                world.start()
        world.moment.on_moment = lambda _: 0
        again = world.engine.plan(claim())
        if again is not None:
            await world.engine.provision(again)
        ours = [volume for volume in world.store.volumes.values() if volume.claim]
        assert [volume.name for volume in ours] == [plan.volume(taken).name]
        assert DATA in world.folders.there

    asyncio.run(scenario())


@given(st.lists(st.integers(0, 5), min_size=20, max_size=20))
def test_two_concurrent_controllers_create_one_volume(pauses: list[int]) -> None:
    async def scenario() -> None:
        world = World()
        old, new = world.engine, world.start()
        waits = iter(pauses * 10)
        world.moment.on_moment = lambda _: next(waits)
        plans = [old.plan(claim()), new.plan(claim()), new.plan(claim("u2"))]
        volumes = await asyncio.gather(
            *(engine.provision(plan) for engine, plan in zip((old, new, new), plans, strict=True) if plan)
        )
        assert volumes[0] == volumes[1]
        assert set(world.store.volumes) == {volumes[0].name, volumes[2].name}

    asyncio.run(scenario())


# --- reclaiming


async def test_released_volume_is_removed_with_its_directory(world: World) -> None:
    (volume,) = await world.released([claim()])
    world.moment.passed.clear()
    done = await world.engine.reclaim(volume)
    assert done is not None
    assert (done.volume, done.location, done.data, done.reason) == (volume, DATA, DataFate.REMOVED, "")
    asked = ["before get", "after get", "before roots"]
    assert world.moment.passed == [
        *asked,
        "before delete",
        "after delete",
        "before confirm",
        "before roots",
        "before get",
        "after get",
        "before remove",
        "after remove",
        "before release",
    ]
    assert (world.store.volumes, world.folders.there) == ({}, set())
    assert not world.index.volumes


RELEASED = Volume(
    name="pv",
    uid="pv-uid",
    phase=VolumePhase.RELEASED,
    reclaim_policy=ReclaimPolicy.DELETE,
    storage_class="efs",
    provisioned_by=PROVISIONER,
    file_system_id="fs-1",
    claim=ClaimReference(namespace="team", name="data", uid=claim().uid),
    nfs=NfsSource(server="127.0.0.1", path="/team/example"),
    mount_options=("port=20490",),
)
NOT_REMOVABLE = [
    *(
        pytest.param({"phase": phase}, id=f"phase {phase}")
        for phase in VolumePhase
        if phase is not VolumePhase.RELEASED
    ),
    pytest.param({"reclaim_policy": ReclaimPolicy.RETAIN}, id="Retain"),
    pytest.param({"reclaim_policy": ReclaimPolicy.RECYCLE}, id="Recycle"),
    pytest.param({"storage_class": "efs-stunnel-system"}, id="root volume"),
    pytest.param({"deleting": True}, id="deleted by another client"),
]


@pytest.mark.parametrize(
    "changes",
    [
        *NOT_REMOVABLE,
        pytest.param({"provisioned_by": None}, id="no provisioner"),
        pytest.param({"provisioned_by": "other.example/efs"}, id="another provisioner"),
    ],
)
async def test_volume_that_must_not_be_removed_is_kept(world: World, changes: dict[str, object]) -> None:
    volume = replace(RELEASED, **changes)  # type: ignore[arg-type]
    world.add(volume)
    world.folders.there.add(DATA)
    with suppress(LeftAlone):
        assert await world.engine.reclaim(volume) is None
    assert (set(world.store.volumes), world.folders.there) == ({"pv"}, {DATA})


@pytest.mark.parametrize(
    "changes", [*NOT_REMOVABLE, pytest.param({"uid": "another"}, id="new volume of the same name")]
)
async def test_volume_that_changed_in_the_api_server_is_not_removed(
    world: World, changes: dict[str, object]
) -> None:
    world.add(RELEASED)
    world.folders.there.add(DATA)
    world.store.volumes["pv"] = replace(RELEASED, **changes)  # type: ignore[arg-type]
    assert await world.engine.reclaim(RELEASED) is None
    assert (set(world.store.volumes), world.folders.there) == ({"pv"}, {DATA})


async def test_deleted_volume_removes_no_data(world: World) -> None:
    world.add(RELEASED)
    world.folders.there.add(DATA)
    world.store.volumes.clear()
    assert await world.engine.reclaim(RELEASED) is None
    assert world.folders.there == {DATA}
    assert not world.index.volumes


async def test_volume_of_another_shape_is_refused(world: World) -> None:
    volume = replace(RELEASED, nfs=NfsSource(server="127.0.0.1", path="/team"))
    world.add(volume)
    world.folders.there.add(at("/team"))
    with pytest.raises(RemovalRefused):
        await world.engine.reclaim(volume)
    assert (set(world.store.volumes), world.folders.removed) == ({"pv"}, [])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({}, id="another claim"),
        pytest.param({"phase": VolumePhase.RELEASED, "reclaim_policy": ReclaimPolicy.RETAIN}, id="Retain"),
        pytest.param({"provisioned_by": None, "claim": None}, id="created manually"),
        pytest.param(
            {"nfs": NfsSource(server="fs-1.efs.us-east-1.amazonaws.com", path="/team/example")},
            id="without a tunnel",
        ),
        pytest.param({"nfs": None, "csi": CsiSource(handle="fs-1:/team/example")}, id="CSI volume"),
        pytest.param(
            {"nfs": NfsSource(server="127.0.0.1", path="//team/./example/")},
            id="same path, written differently",
        ),
    ],
)
async def test_directory_used_by_another_volume_is_kept(world: World, other: dict[str, object]) -> None:
    sharer = replace(RELEASED, name="sharer", uid="s", **{"phase": VolumePhase.BOUND, **other})  # type: ignore[arg-type]
    world.add(RELEASED, sharer)
    world.folders.there.add(DATA)
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.SHARED
    assert done.reason == "fs-1:/team/example is also used by sharer"
    assert (set(world.store.volumes), world.folders.there) == ({"sharer"}, {DATA})


async def test_unnoticed_deletion_of_a_sharer_does_not_keep_the_directory(world: World) -> None:
    world.add(RELEASED, replace(RELEASED, name="sharer", uid="s"))
    world.folders.there.add(DATA)
    del world.store.volumes["sharer"]
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED
    assert world.folders.there == set()


async def test_sharer_deleted_during_its_lookup_does_not_keep_the_directory(world: World) -> None:
    sharer = replace(RELEASED, name="sharer", uid="s")
    world.add(RELEASED, sharer)
    gets = 0

    def gone_meanwhile(moment: str) -> int:
        nonlocal gets
        gets += moment == "before get"
        if gets == 2:
            world.store.volumes.pop("sharer", None)
            world.index.drop_volume(sharer)
        return 0

    world.moment.on_moment = gone_meanwhile
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


def near_at(path: str) -> Volume:
    return replace(
        RELEASED, name="near", uid="n", provisioned_by=None, nfs=NfsSource(server="127.0.0.1", path=path)
    )


async def test_directory_above_the_one_of_another_volume_is_not_removed(world: World) -> None:
    world.add(RELEASED, near_at("/team/example/deep"))
    world.folders.there.add(DATA)
    with pytest.raises(RemovalRefused) as caught:
        await world.engine.reclaim(RELEASED)
    assert str(caught.value) == (
        "directory: 'fs-1:/team/example' contains the directory of volume near; "
        "delete those first, or set the reclaim policy of this volume to Retain"
    )
    assert caught.value.volumes == {"near"}
    assert (set(world.store.volumes), world.folders.there) == ({"pv", "near"}, {DATA})
    assert not world.store.volumes["pv"].deleting


@pytest.mark.parametrize(
    "above",
    [
        pytest.param(near_at("/"), id="whole file system"),
        pytest.param(near_at("/team"), id="parent directory"),
        pytest.param(
            replace(near_at("/"), nfs=None, csi=CsiSource(handle="fs-1")),
            id="whole file system, CSI volume",
        ),
        pytest.param(replace(near_at("/"), phase=VolumePhase.BOUND), id="whole file system, Bound"),
    ],
)
async def test_volume_above_a_directory_does_not_keep_it(world: World, above: Volume) -> None:
    world.add(RELEASED, above)
    world.folders.there.add(DATA)
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert (done.data, done.above) == (DataFate.REMOVED, ("near",))
    assert (set(world.store.volumes), world.folders.there) == ({"near"}, set())


@pytest.mark.parametrize("path", ["/team", "/team/example/deep"])
async def test_unnoticed_deletion_of_a_related_volume_blocks_no_removal(world: World, path: str) -> None:
    near = replace(RELEASED, name="near", uid="n", nfs=NfsSource(server="127.0.0.1", path=path))
    world.add(RELEASED, near)
    del world.store.volumes["near"]
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


async def test_data_is_kept_for_a_volume_with_unconfirmed_creation(world: World) -> None:
    world.add(RELEASED)
    world.folders.there.add(DATA)

    def lose_the_answer(moment: str) -> int:
        if moment == "after create":
            raise KubeUnavailable("could not be reached", field="volume")
        return 0

    world.moment.on_moment = lose_the_answer
    with pytest.raises(KubeUnavailable):
        await world.provision(claim("u2"))
    world.moment.on_moment = lambda _: 0

    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.SHARED
    assert world.folders.there == {DATA}


async def test_data_is_removed_when_the_expected_volume_was_never_created(world: World) -> None:
    world.add(RELEASED)
    world.folders.there.add(DATA)

    def refuse(moment: str) -> int:
        if moment == "before create":
            raise KubeUnavailable("could not be reached", field="volume")
        return 0

    world.moment.on_moment = refuse
    with pytest.raises(KubeUnavailable):
        await world.provision(claim("u2"))
    world.moment.on_moment = lambda _: 0

    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


async def test_data_is_kept_for_a_volume_newer_than_the_last_list(world: World) -> None:
    world.add(RELEASED)
    listed = list(world.store.volumes.values())
    made = await world.provision(claim("u2"))
    world.index.replace_volumes(listed)
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.reason == f"fs-1:/team/example is also used by {made.name}"


@pytest.mark.parametrize(
    ("path", "file_system"), [("/team/example2", "fs-1"), ("/team/exampl", "fs-1"), ("/team", "fs-2")]
)
async def test_unrelated_directory_blocks_no_removal(world: World, path: str, file_system: str) -> None:
    apart = replace(RELEASED, nfs=NfsSource(server="127.0.0.1", path=path), file_system_id=file_system)
    world.add(RELEASED, replace(apart, name="apart", uid="a", provisioned_by=None))
    done = await world.engine.reclaim(RELEASED)
    assert done is not None
    assert done.data is DataFate.REMOVED


async def test_removal_waits_for_a_missing_file_system(world: World) -> None:
    world.add(RELEASED)
    world.index.targets = TunnelTargets()
    with pytest.raises(NotYet) as caught:
        await world.engine.reclaim(RELEASED)
    assert str(caught.value) == (
        "file system: 'fs-1' is not known; "
        "if the file system was deleted, delete the volume and remove its finalizer"
    )
    assert set(world.store.volumes) == {"pv"}


@given(st.lists(st.integers(0, 5), min_size=20, max_size=20), st.integers(2, 4))
def test_sharers_released_at_one_moment_remove_the_directory_once(pauses: list[int], count: int) -> None:
    async def scenario() -> None:
        world = World()
        volumes = await world.released([claim(f"u{number}") for number in range(count)])
        waits = iter(pauses * 10)
        world.moment.on_moment = lambda _: next(waits)
        done = await asyncio.gather(*(world.engine.reclaim(volume) for volume in volumes))
        assert sorted(one.data for one in done if one) == [
            DataFate.REMOVED,
            *[DataFate.SHARED] * (count - 1),
        ]
        assert world.folders.removed == [DATA]
        assert world.store.volumes == {}

    asyncio.run(scenario())


@given(st.lists(st.integers(0, 5), min_size=20, max_size=20))
def test_claim_created_during_a_removal_has_its_directory(pauses: list[int]) -> None:
    async def scenario() -> None:
        world = World()
        (old,) = await world.released([claim("u1")])
        waits = iter(pauses * 10)
        world.moment.on_moment = lambda _: next(waits)
        await asyncio.gather(world.engine.reclaim(old), world.provision(claim("u2")))
        assert [volume.claim and volume.claim.uid for volume in world.store.volumes.values()] == ["u2"]
        assert world.folders.there == {DATA}

    asyncio.run(scenario())


@given(_FAULTS)
def test_released_volume_is_removed_once_after_its_directory_despite_failures(
    faults: list[tuple[int, type[BaseException]]],
) -> None:
    async def scenario() -> None:
        world = World()
        (volume,) = await world.released([claim()])
        for step, error in faults:
            world.moment.on_moment = _FailingAt(step, error)
            try:
                await world.engine.reclaim(volume)
            except KubeUnavailable:
                pass
            except _Crash:
                world.start()
            assert world.store.volumes or not world.folders.there
        world.moment.on_moment = lambda _: 0
        await world.engine.reclaim(volume)
        assert (world.store.volumes, world.folders.removed) == ({}, [DATA])

    asyncio.run(scenario())


async def test_retained_data_is_available_to_the_next_claim_of_that_name(world: World) -> None:
    (kept,) = await world.released([claim("u1", policy="Retain")])
    assert await world.engine.reclaim(kept) is None
    volume = await world.provision(claim("u2"))
    assert volume.nfs == kept.nfs
    assert set(world.store.volumes) == {kept.name, volume.name}


# --- deleted volumes that the finalizer holds

HELD = replace(RELEASED, finalizers=("kubernetes.io/pv-protection", FINALIZER), deleting=True)
DIRECTORY_VOLUME = replace(
    HELD,
    provisioned_by=DIRECTORY_PROVISIONER.name,
    file_system_id=None,
    storage_class=AWS_EFS.name,
    nfs=NfsSource(server=DIRECTORY_PROVISIONER.server, path="/pvs/data-pvc-1"),
    mount_options=(),
)


async def test_deleted_volume_in_phase_released_is_removed_with_its_directory(world: World) -> None:
    world.add(HELD)
    world.folders.there.add(DATA)
    done = await world.engine.reclaim(HELD)
    assert done is not None
    assert (done.data, world.folders.removed) == (DataFate.REMOVED, [DATA])
    assert world.moment.passed[-3:] == ["before remove", "after remove", "before release"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"reclaim_policy": ReclaimPolicy.RETAIN}, "its reclaim policy is Retain", id="Retain"),
        pytest.param(
            {"reclaim_policy": ReclaimPolicy.RETAIN, "phase": VolumePhase.AVAILABLE},
            "its reclaim policy is Retain",
            id="Available and Retain",
        ),
        pytest.param(
            {"phase": VolumePhase.AVAILABLE},
            "it was Available when it was deleted, and not Released",
            id="Available",
        ),
        pytest.param(
            {"nfs": NfsSource(server="127.0.0.1", path="/team")},
            "path",
            id="unsupported path",
        ),
    ],
)
async def test_deletion_of_a_volume_is_completed_and_its_data_kept(
    world: World, changes: dict[str, object], reason: str
) -> None:
    volume = replace(HELD, **changes)  # type: ignore[arg-type]
    world.add(volume)
    world.folders.there.add(DATA)
    done = await world.engine.reclaim(volume)
    assert done is not None
    assert (done.data, done.location) == (DataFate.KEPT, None)
    assert reason in done.reason
    assert world.moment.passed[-1] == "before release"
    assert (world.store.volumes, world.folders.there, world.folders.removed) == ({}, {DATA}, [])


async def test_deletion_of_a_volume_keeps_data_with_a_nested_volume(world: World) -> None:
    world.add(HELD, near_at("/team/example/deep"))
    world.folders.there.add(DATA)
    done = await world.engine.reclaim(HELD)
    assert done is not None
    # Without a remedy: the volume is gone.
    assert done.reason == "directory: 'fs-1:/team/example' contains the directory of volume near"
    assert (set(world.store.volumes), world.folders.there) == ({"near"}, {DATA})


async def test_deleted_volume_in_use_is_not_changed(world: World) -> None:
    bound = replace(HELD, phase=VolumePhase.BOUND)
    world.add(bound)
    assert await world.engine.reclaim(bound) is None
    assert world.store.volumes == {"pv": bound}


@pytest.mark.parametrize(
    "live",
    [
        pytest.param({"phase": VolumePhase.BOUND}, id="Bound"),
        pytest.param({"reclaim_policy": ReclaimPolicy.DELETE}, id="Delete"),
        pytest.param({"uid": "another"}, id="new volume of the same name"),
    ],
)
async def test_finalizer_is_kept_when_the_volume_changed_in_the_api_server(
    world: World, live: dict[str, object]
) -> None:
    seen = replace(HELD, reclaim_policy=ReclaimPolicy.RETAIN, phase=VolumePhase.RELEASED)
    world.add(seen)
    world.store.volumes["pv"] = replace(seen, **live)  # type: ignore[arg-type]
    assert await world.engine.reclaim(seen) is None
    assert "before release" not in world.moment.passed


async def test_refused_removal_of_a_volume_that_is_not_deleted_is_an_error(world: World) -> None:
    volume = replace(DIRECTORY_VOLUME, deleting=False, nfs=NfsSource(server="efs.example.com", path="/pvs"))
    world.add(volume)
    with pytest.raises(RemovalRefused):
        await world.engine.reclaim(volume)
    assert world.store.volumes == {"pv": volume}


NAMESAKE = replace(DIRECTORY_VOLUME, nfs=NfsSource(server="another.example.com", path="/pvs/data-pvc-1"))


@pytest.mark.parametrize("policy", [ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN])
async def test_volume_of_the_same_provisioner_on_another_server_is_not_changed(
    world: World, policy: ReclaimPolicy
) -> None:
    volume = replace(NAMESAKE, reclaim_policy=policy)
    world.add(volume)
    if policy is ReclaimPolicy.DELETE:
        with pytest.raises(RemovalRefused) as caught:
            await world.engine.reclaim(volume)
        assert caught.value.field == "spec.nfs.server"
    else:
        assert await world.engine.reclaim(volume) is None
    assert (world.store.volumes, world.moment.passed) == ({"pv": volume}, [])


@pytest.mark.parametrize(
    ("volume", "is_unprotected"),
    [
        pytest.param(replace(RELEASED, phase=VolumePhase.BOUND), True, id="tunnel"),
        pytest.param(replace(DIRECTORY_VOLUME, deleting=False, finalizers=()), True, id="directory"),
        pytest.param(
            replace(RELEASED, finalizers=("kubernetes.io/pv-protection",)),
            True,
            id="only a foreign finalizer",
        ),
        pytest.param(replace(RELEASED, finalizers=(FINALIZER,)), False, id="protected"),
        pytest.param(replace(RELEASED, deleting=True), False, id="Terminating"),
        pytest.param(replace(RELEASED, provisioned_by="other.example/efs"), False, id="another provisioner"),
        pytest.param(replace(RELEASED, provisioned_by=None), False, id="created manually"),
        pytest.param(replace(RELEASED, storage_class="efs-stunnel-system"), False, id="root volume"),
        pytest.param(
            replace(NAMESAKE, deleting=False, finalizers=()), False, id="same provisioner on another server"
        ),
        pytest.param(
            replace(DIRECTORY_VOLUME, deleting=False, finalizers=(), nfs=None), False, id="no NFS source"
        ),
    ],
)
async def test_our_volumes_are_protected(world: World, volume: Volume, is_unprotected: bool) -> None:
    world.add(volume)
    assert world.engine.is_unprotected(volume) is is_unprotected
    await world.engine.protect(volume)
    assert ("before protect" in world.moment.passed) is is_unprotected
