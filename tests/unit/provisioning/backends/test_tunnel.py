"""Which file system a claim for a tunnel volume gets."""

from dataclasses import replace

import pytest
from tests.unit.provisioning.world import (
    EFS,
    FILE_SYSTEMS,
    PROVISIONER,
    World,
    claim,
    directory_claim,
    reachable,
)

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.copies import CopySource
from kube_efs.model.efs.directories import Permissions, parse_directory
from kube_efs.model.efs.file_systems import Discovery
from kube_efs.model.efs.ids import ClaimUid, FileSystemId, VpcId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import KubeDenied, KubeEfsError, NotYet
from kube_efs.model.volumes import ClaimReference, Location, NfsSource, VolumePhase
from kube_efs.provisioning.backends.tunnel import TunnelBackend, TunnelPlan

FS1, FS2 = FILE_SYSTEMS
# Sorts before the others, as the ID of a new file system can.
FS0 = FileSystemId("fs-0")


@pytest.fixture
def world() -> World:
    return World()


def place_of(world: World, name: str = "data") -> FileSystemId:
    backend = TunnelBackend(
        provisioner=PROVISIONER,
        index=world.index,
        directories=world.folders,
        copies=world.copies,
        record_choice=world.record_choice,
    )
    plan = backend.plan(claim(name), EFS)
    assert plan is not None
    return plan.request.location.file_system_id


async def test_volume_gets_the_current_port_of_its_file_system(world: World) -> None:
    plan = world.engine.plan(claim("data"))
    assert isinstance(plan, TunnelPlan)
    fs, targets = plan.request.location.file_system_id, world.index.targets
    (port,) = plan.volume(0).loopback_ports
    others = {one: target for one, target in targets.targets.items() if one != fs}
    others[FS0] = TunnelTarget(file_system_id=FS0, port=port)
    world.index.targets = TunnelTargets(targets=others)
    with pytest.raises(NotYet, match="no tunnel port"):
        await world.engine.provision(plan)
    assert not world.store.volumes
    # The file system has a port again.
    world.index.targets = TunnelTargets(targets={**others, fs: replace(targets.targets[fs], port=20999)})
    assert (await world.engine.provision(plan)).loopback_ports == {20999}


async def test_choice_is_recorded_before_anything_is_created(world: World) -> None:
    plan = world.engine.plan(claim("data"))
    assert isinstance(plan, TunnelPlan)
    answers: list[KubeEfsError] = [KubeDenied("is denied", field="claim"), NotYet("has changed")]

    async def refuse(*_: object) -> None:
        raise answers.pop(0)

    async def never(error: KubeEfsError, is_unclear: bool) -> bool:
        raise AssertionError(f"counts as begun: {error}, {is_unclear}")

    while answers:
        # If the claim is deleted now, nothing has to be completed.
        with pytest.raises(KubeEfsError, match=r"is denied|has changed"):
            await world.engine.provision(replace(plan, record_choice=refuse), again=never)
    assert not world.folders.there
    await world.engine.provision(plan)
    assert world.choices == {plan.claim.uid: plan.request.location.file_system_id}


async def test_creation_for_a_deleted_claim_is_finished_without_a_record(world: World) -> None:
    plan = world.engine.plan(claim("data"))
    assert plan is not None
    await world.engine.provision(plan, is_begun=True)
    assert not world.choices
    assert world.folders.there


async def test_choice_made_by_the_claim_is_not_recorded(world: World) -> None:
    asking = claim("data")
    labels = {**(asking.match_labels or {}), "file_system_id": FS2}
    plan = world.engine.plan(replace(asking, match_labels=labels))
    assert plan is not None
    await world.engine.provision(plan)
    assert not world.choices


async def test_choice_of_an_earlier_controller_is_kept(world: World) -> None:
    asking = replace(claim("data"), file_system=FS0)
    world.index.maybe_begun = {asking.uid: asking}
    with pytest.raises(NotYet, match="'fs-0' was chosen by an earlier controller"):
        world.engine.plan(asking)


def see(world: World, *file_systems: FileSystemId) -> None:
    found = {fs: reachable(fs) for fs in file_systems}
    world.index.discovery = Discovery(file_systems=found, complete=True)


def make(world: World, policy: ReclaimPolicy, phase: VolumePhase) -> None:
    """The volume of an earlier claim for the same directory."""
    backend = TunnelBackend(
        provisioner=PROVISIONER,
        index=world.index,
        directories=world.folders,
        copies=world.copies,
        record_choice=world.record_choice,
    )
    plan = backend.plan(claim("data"), EFS)
    assert plan is not None
    world.index.put_volume(replace(plan.volume(0), uid="pv", reclaim_policy=policy, phase=phase))


@pytest.mark.parametrize(
    ("policy", "phase"),
    [
        (ReclaimPolicy.RETAIN, VolumePhase.RELEASED),
        (ReclaimPolicy.RETAIN, VolumePhase.AVAILABLE),
        (ReclaimPolicy.DELETE, VolumePhase.BOUND),
    ],
)
def test_claim_gets_the_file_system_with_the_data_of_its_directory(
    world: World, policy: ReclaimPolicy, phase: VolumePhase
) -> None:
    see(world, FS2)
    make(world, policy, phase)
    see(world, FS0, FS1, FS2)
    assert place_of(world) == FS2


def test_claim_waits_while_its_data_is_unreachable(world: World) -> None:
    see(world, FS2)
    make(world, ReclaimPolicy.RETAIN, VolumePhase.RELEASED)
    world.index.discovery = Discovery(
        file_systems={FS1: reachable(FS1)}, unclear=frozenset({FS2}), complete=True
    )
    with pytest.raises(NotYet, match="fs-2"):
        place_of(world)


def test_file_system_in_the_vpc_of_the_controller_is_preferred(world: World) -> None:
    found = {
        fs: replace(reachable(fs), mount_targets=(replace(reachable(fs).mount_targets[0], vpc_id=vpc),))
        for fs, vpc in ((FS1, VpcId("vpc-b")), (FS2, VpcId("vpc-a")))
    }
    world.index.discovery = Discovery(file_systems=found, complete=True)
    assert place_of(world) == FS1
    world.index.own_vpcs = frozenset({VpcId("vpc-a")})
    assert place_of(world) == FS2


def _give_a_mode(world: World) -> None:
    world.index.classes[EFS.name] = replace(EFS, parameters={**EFS.parameters, "directory_mode": "0777"})


async def test_directory_of_another_namespace_keeps_its_mode(world: World) -> None:
    _give_a_mode(world)
    await world.scan()
    theirs = await world.provision(directory_claim())
    (place,) = world.folders.there
    permissions = world.folders.permissions[place]
    # A tenant may create a namespace with the name of the base directory of another provisioner.
    base, name = place.directory.parts
    await world.provision(claim(namespace=base, volume_name=name))
    assert world.folders.permissions == {place: permissions}
    # Below the other volume, which is not the one of its own namespace.
    above = replace(theirs, name="above", uid="above", nfs=NfsSource(server="efs.example.com", path="/shop"))
    world.add(above)
    inside = Location(file_system_id=FS1, directory=parse_directory("/shop/private"))
    world.folders.there.add(inside)
    await world.provision(claim("u2", namespace="shop", volume_name="private"))
    assert inside not in world.folders.permissions


async def test_directory_behind_the_port_of_another_namespace_keeps_its_mode(world: World) -> None:
    """Its pods mount what is behind the port, whatever the annotation of their volume names."""
    _give_a_mode(world)
    mine = await world.provision(claim())
    theirs = replace(
        mine,
        name="theirs",
        uid="theirs",
        claim=ClaimReference(namespace="other", name="data"),
        file_system_id="fs-9",
    )
    world.add(theirs)
    world.folders.permissions.clear()
    await world.provision(claim("u2"))
    assert world.folders.permissions == {}


@pytest.mark.parametrize("provisioned_by", [PROVISIONER, None])
async def test_existing_directory_of_the_namespace_gets_the_mode_of_the_class(
    world: World, provisioned_by: str | None
) -> None:
    _give_a_mode(world)
    first = await world.provision(claim())
    place = world.index.location_of(first.name)
    assert place is not None
    # A volume of the whole file system, and one for backups that an administrator has created.
    for path in ("/", "/team"):
        other = ClaimReference(namespace="backup", name="all", uid=ClaimUid("b"))
        nfs = NfsSource(server="127.0.0.1", path=path)
        world.add(replace(first, name=f"all{path}", uid=path, claim=other, nfs=nfs, provisioned_by=None))
    world.folders.permissions.clear()
    world.add(replace(first, provisioned_by=provisioned_by))
    await world.provision(claim("u2"))
    assert world.folders.permissions == {place: Permissions(enforced=True)}


async def test_clone_does_not_replace_the_directory_of_another_volume(world: World) -> None:
    make(world, ReclaimPolicy.DELETE, VolumePhase.BOUND)
    asking = replace(claim("data"), uid=ClaimUid("second"))
    plan = world.engine.plan(asking)
    assert isinstance(plan, TunnelPlan)
    place = replace(plan.request.location, directory=parse_directory("/old"))
    world.sources.by_claim[asking.uid] = CopySource(location=place)
    (first,) = world.index.volumes
    await world.engine.provision(plan)
    ((_, terms),) = world.folders.copies
    assert terms.in_use
    world.folders.copies.clear()
    # Its own volume, which is expected after a lost answer, is not another one.
    world.index.drop_volume(world.index.volumes[first])
    world.index.expect_volume(plan.volume(1))
    await plan.make()
    ((_, terms),) = world.folders.copies
    assert not terms.in_use
