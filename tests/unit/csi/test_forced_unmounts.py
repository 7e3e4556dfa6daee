"""When an unmount is forced, on a simulated node whose server does not answer, in virtual time."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.unit.csi.node_world import NODE_INFO, World

from kube_efs.csi.node_volumes import NodeVolumes
from kube_efs.csi.publication import UnmountOptions
from kube_efs.model.errors import MountFailed, MountUnfinished

pytestmark = pytest.mark.virtual_time


@dataclass(slots=True)
class SilentServer(World):
    """umount(8) waits; by force, it fails until it is also lazy. ``layers`` mounts are at the target."""

    layers: int = 1
    # When an unmount was forced, in seconds, and whether it was lazy.
    forced: list[tuple[float, bool]] = field(default_factory=list)

    async def unmount(self, target: Path, *, force: bool = False, lazy: bool = False) -> None:
        if not force:
            await asyncio.Event().wait()
        self.forced.append((asyncio.get_running_loop().time(), lazy))
        if not lazy:
            raise MountFailed("target is busy", field="target", value=str(target))
        self.layers -= 1
        if not self.layers:
            await World.unmount(self, target)


@pytest.mark.parametrize(
    ("timeout_seconds", "limit_seconds", "layers", "began"),
    [
        pytest.param(30, 110, 1, [30], id="timeout is below half of the call"),
        pytest.param(100, 110, 1, [55], id="timeout is nearly that of the call"),
        pytest.param(3600, 110, 1, [55], id="timeout is above that of the call"),
        pytest.param(30, 4, 1, [2], id="call is short"),
        pytest.param(3600, 110, 2, [55, 84.5], id="two mounts"),
    ],
)
async def test_forced_unmount_fits_into_the_call(
    tmp_path: Path, timeout_seconds: float, limit_seconds: float, layers: int, began: list[float]
) -> None:
    world = SilentServer(tmp_path, layers=layers)
    options = UnmountOptions(timeout_seconds=timeout_seconds, force=True)
    volumes, one = NodeVolumes(world, world, NODE_INFO, options), world.wanted("one")
    await volumes.publish(one, timeout_seconds=limit_seconds)
    await volumes.unpublish(one.mount, timeout_seconds=limit_seconds)
    assert world.mounted == {}
    assert [at for at, _ in world.forced[::5]] == began
    assert [is_lazy for _, is_lazy in world.forced] == [False, False, False, False, True] * layers
    assert world.forced[-1][0] < limit_seconds


@pytest.mark.parametrize(("timeout_seconds", "ends"), [(30, 30), (3600, 110)])
async def test_without_force_the_call_ends_with_the_first_timeout(
    tmp_path: Path, timeout_seconds: float, ends: float
) -> None:
    world = SilentServer(tmp_path)
    volumes = NodeVolumes(world, world, NODE_INFO, UnmountOptions(timeout_seconds=timeout_seconds))
    one = world.wanted("one")
    await volumes.publish(one, timeout_seconds=110)
    with pytest.raises(MountUnfinished, match=f"is not unmounted within {ends} s"):
        await volumes.unpublish(one.mount, timeout_seconds=110)
    assert world.forced == []
    assert asyncio.get_running_loop().time() == ends
