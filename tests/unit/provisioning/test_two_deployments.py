"""Two controllers share a file system and a range, and neither sees the other's volumes in time.

Only the API server is a fake. Threads create the directories in a temporary directory, as in a mount.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.provisioning.world import AWS_EFS, World, directory_claim

from kube_efs.model.claims import Claim
from kube_efs.model.efs.directories import Directory, FoundDirectory, Permissions
from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import GidRangeFull
from kube_efs.model.volumes import Location, NfsSource, Volume, VolumePhase
from kube_efs.provisioning.workers import file_system
from kube_efs.provisioning.workers.contract import Confirm


class Tree:
    """Creates, lists and removes real directories."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def make(self, location: Location, permissions: Permissions) -> None:
        await asyncio.to_thread(file_system.make_directory, self.root, location.directory, permissions)

    async def children(self, location: Location) -> Sequence[FoundDirectory]:
        return await asyncio.to_thread(file_system.list_children, self.root, location.directory)

    async def remove(
        self, location: Location, base: Directory, confirm: Confirm, *, tenant: str = ""
    ) -> None:
        await confirm()
        await asyncio.to_thread(file_system.move_to_trash, self.root, location.directory, base=base)


class Clusters:
    """Two clusters; each has a controller of the same provisioner on the same file system."""

    def __init__(self, root: Path, *, gids: tuple[int, int]) -> None:
        self.root = root
        self.worlds = [World(), World()]
        for world in self.worlds:
            world.folders = Tree(root)  # type: ignore[assignment]  # the methods that a controller needs
            parameters = {"gidMin": str(gids[0]), "gidMax": str(gids[1])}
            world.classes[AWS_EFS.name] = replace(AWS_EFS, parameters=parameters)
            world.start()

    async def scan(self) -> None:
        for world in self.worlds:
            await world.scan()

    def volumes(self) -> list[Volume]:
        return [volume for world in self.worlds for volume in world.store.volumes.values()]

    def group_of(self, volume: Volume) -> int:
        assert volume.nfs
        return (self.root / volume.nfs.path.lstrip("/")).stat().st_gid

    def claim(self, which: int, number: int) -> Claim:
        claim = directory_claim(number)
        return replace(claim, uid=ClaimUid(f"{which}{claim.uid[1:]}"))

    async def provision(self, which: int, number: int) -> Volume:
        return await self.worlds[which].provision(self.claim(which, number))


async def test_concurrent_claims_of_two_clusters_get_different_ids(tmp_path: Path) -> None:
    clusters = Clusters(tmp_path, gids=(2000, 2999))
    await clusters.scan()
    made = await asyncio.gather(
        *(clusters.provision(which, number) for number in range(1, 17) for which in (0, 1))
    )
    assert len({volume.gid for volume in made}) == 32
    assert all(clusters.group_of(volume) == volume.gid for volume in made)


async def test_range_is_not_full_when_the_other_cluster_deleted_its_volumes(tmp_path: Path) -> None:
    """The other controller runs in the same cluster, so its volumes are known; its base differs."""
    one = Clusters(tmp_path, gids=(2000, 2000)).worlds[0]
    await one.scan()
    neighbours = Volume(
        name="pvc-of-another",
        uid="u",
        gid=2000,
        provisioned_by="example.com/other",
        nfs=NfsSource(server="efs.example.com", path="/other/data"),
    )
    one.add(neighbours)
    with pytest.raises(GidRangeFull):
        await one.provision(directory_claim(1))
    one.index.drop_volume(neighbours)
    assert (await one.provision(directory_claim(1))).gid == 2000


_WHICH, _NUMBERS = st.integers(0, 1), st.integers(1, 5)


class Sharing(RuleBasedStateMachine):
    """Claims of both are created and deleted, users change groups, controllers restart, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.clusters = Clusters(Path(self.folder.name), gids=(2000, 2007))
        self.deleted: set[tuple[int, int]] = set()  # the UID of a claim is never reused
        self.loop.run_until_complete(self.clusters.scan())

    def teardown(self) -> None:
        self.quiet()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    @rule(claims=st.lists(st.tuples(_WHICH, _NUMBERS), min_size=1, max_size=4, unique=True))
    def serve(self, claims: list[tuple[int, int]]) -> None:
        self.loop.run_until_complete(self._serve([one for one in claims if one not in self.deleted]))

    @rule(which=_WHICH, number=_NUMBERS)
    def delete(self, which: int, number: int) -> None:
        self.loop.run_until_complete(self._delete(which, number))

    @rule(which=_WHICH, number=_NUMBERS, gid=st.integers(2000, 2007))
    def change_group_by_hand(self, which: int, number: int, gid: int) -> None:
        volume = self._volume(which, number)
        if volume is not None and volume.nfs:
            os.chown(self.clusters.root / volume.nfs.path.lstrip("/"), 0, gid)

    @rule(which=_WHICH)
    def look(self, which: int) -> None:
        self.loop.run_until_complete(self.clusters.worlds[which].scan())

    @rule(which=_WHICH)
    def restart(self, which: int) -> None:
        self.clusters.worlds[which].start()
        self.look(which)

    @rule()
    def quiet(self) -> None:
        """After a scan, only the group IDs of volumes and directories are held."""
        self.loop.run_until_complete(self.clusters.scan())
        volumes = self.clusters.volumes()
        used = {volume.gid for volume in volumes} | {self.clusters.group_of(volume) for volume in volumes}
        for world in self.clusters.worlds:
            held = {gid for gid in range(2000, 2008) if world.index.gids.holders(gid)}
            assert held <= used

    @invariant()
    def no_two_volumes_were_given_one_group(self) -> None:
        given = [volume.gid for volume in self.clusters.volumes()]
        assert len(given) == len(set(given))

    async def _serve(self, claims: list[tuple[int, int]]) -> None:
        await asyncio.gather(*(self._serve_one(*one) for one in claims))

    async def _serve_one(self, which: int, number: int) -> None:
        world = self.clusters.worlds[which]
        with suppress(GidRangeFull):
            plan = world.engine.plan(self.clusters.claim(which, number))
            if plan is not None:
                await world.engine.provision(plan)

    async def _delete(self, which: int, number: int) -> None:
        volume = self._volume(which, number)
        if volume is None:
            return
        self.deleted.add((which, number))
        released = replace(volume, phase=VolumePhase.RELEASED)
        self.clusters.worlds[which].add(released)
        await self.clusters.worlds[which].engine.reclaim(released)

    def _volume(self, which: int, number: int) -> Volume | None:
        name = f"pvc-{self.clusters.claim(which, number).uid}"
        return self.clusters.worlds[which].store.volumes.get(name)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
