"""With the permissions of efs-provisioner, volumes have no finalizer, and are removed safely all the same."""

from dataclasses import replace

import pytest
from tests.unit.provisioning.world import DIRECTORY_PROVISIONER, World, directory_claim

from kube_efs.model.claims import ReclaimPolicy
from kube_efs.model.errors import KubeConflict, RemovalRefused
from kube_efs.model.volumes import FINALIZER, NfsSource, Volume, VolumePhase
from kube_efs.provisioning.engine import DataFate, Engine


class Older(World):
    """A controller that may create and delete volumes, but not change them."""

    def start(self) -> Engine:
        super().start()
        self.engine = Engine(
            index=self.index,
            backends=[self.directory],
            store=self.store,
            guards=self.guards,
            finalizes=False,
            clock=lambda: self.now,
        )
        return self.engine


@pytest.fixture
async def world() -> Older:
    made = Older()
    await made.scan()
    return made


async def test_volume_without_a_finalizer_is_removed_after_its_data(world: Older) -> None:
    (volume,) = await world.released([directory_claim()])
    assert volume.finalizers == ()
    assert not world.engine.is_unprotected(volume)
    done = await world.engine.reclaim(volume)
    assert done is not None
    assert done.data is DataFate.REMOVED
    assert (world.store.volumes, world.folders.there) == ({}, set())
    passed = world.moment.passed
    assert passed.index("after remove") < passed.index("before release")
    assert "before protect" not in passed


async def test_removal_is_repeated_after_a_crash_before_the_volume_was_deleted(world: Older) -> None:
    (volume,) = await world.released([directory_claim()])
    world.folders.there.clear()
    assert await world.engine.reclaim(volume) is not None
    assert not world.store.volumes


def _beside(volume: Volume, path: str) -> Volume:
    """A volume that an administrator has just created and that no watch has shown."""
    nfs = NfsSource(server=DIRECTORY_PROVISIONER.server, path=path)
    return Volume(name="mine", uid="mine", phase=VolumePhase.BOUND, nfs=nfs)


async def test_volume_that_no_watch_has_shown_keeps_the_data(world: Older) -> None:
    (volume,) = await world.released([directory_claim()])
    assert volume.nfs
    beside = _beside(volume, volume.nfs.path)
    world.moment.on_moment = lambda name: world.store.volumes.update(mine=beside) or 0
    done = await world.engine.reclaim(volume)
    assert done is not None
    assert done.data is DataFate.SHARED
    assert len(world.folders.there) == 1
    assert set(world.store.volumes) == {"mine"}


async def test_volume_below_that_no_watch_has_shown_prevents_the_removal(world: Older) -> None:
    (volume,) = await world.released([directory_claim()])
    assert volume.nfs
    beside = _beside(volume, f"{volume.nfs.path}/inside")
    world.moment.on_moment = lambda name: world.store.volumes.update(mine=beside) or 0
    with pytest.raises(RemovalRefused, match="contains the directory of volume mine"):
        await world.engine.reclaim(volume)
    assert len(world.folders.there) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"reclaim_policy": ReclaimPolicy.RETAIN}, id="Retain"),
        pytest.param({"phase": VolumePhase.BOUND}, id="bound again"),
        pytest.param({"deleting": True}, id="deleted"),
    ],
)
async def test_change_at_the_last_moment_keeps_the_data(world: Older, change: dict[str, object]) -> None:
    (volume,) = await world.released([directory_claim()])

    def change_it(name: str) -> int:
        if name == "before confirm":
            world.store.volumes[volume.name] = replace(volume, **change)  # type: ignore[arg-type]
        return 0

    world.moment.on_moment = change_it
    with pytest.raises(KubeConflict, match="must no longer be removed"):
        await world.engine.reclaim(volume)
    assert len(world.folders.there) == 1


async def test_volume_with_a_finalizer_of_a_former_installation_is_committed_as_before(world: Older) -> None:
    (volume,) = await world.released([directory_claim()])
    world.add(replace(volume, finalizers=(FINALIZER,)))
    done = await world.engine.reclaim(world.index.volumes[volume.name])
    assert done is not None
    assert "after delete" in world.moment.passed
    assert not world.store.volumes
