"""The location of the data of volumes with access points."""

from dataclasses import replace

import pytest
from tests.unit.provisioning.backends.csi.csi_world import FS, CsiWorld, request

from kube_efs.controllers.usage import AccessPointPlaces
from kube_efs.model.errors import AwsDenied
from kube_efs.model.volumes import CsiSource, Volume


def volume(handle: str, *, driver: str = "efs.csi.aws.com", secret: tuple[str, str] | None = None) -> Volume:
    return Volume(name="pv", csi=CsiSource(driver=driver, handle=handle), deletion_secret=secret)


async def test_volume_is_located_at_the_root_of_its_access_point() -> None:
    world = CsiWorld()
    made = await world.volumes.create(request("pvc-1", basePath="/teams"))
    places = AccessPointPlaces(world.accounts)
    found = await places.locate(volume(str(made.handle)))
    assert str(found) == f"{FS}:/teams/pvc-1"
    access_point_id = made.handle.access_point_id
    below = await places.locate(volume(f"{FS}:/logs:{access_point_id}"))
    assert str(below) == f"{FS}:/teams/pvc-1/logs"
    by_option = replace(volume(f"{FS}:/logs"), mount_options=(f"accesspoint={access_point_id}",))
    assert await places.locate(by_option) == below


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(volume(f"{FS}::fsap-00000000000000099"), id="deleted access point"),
        pytest.param(volume(f"{FS}:/data"), id="no access point"),
        pytest.param(volume("nonsense"), id="no handle"),
        pytest.param(volume(f"{FS}::fsap-1", driver="ebs.csi.aws.com"), id="another driver"),
        pytest.param(volume(f"{FS}::fsap-1", secret=("team", "role")), id="another account"),
        pytest.param(Volume(name="pv"), id="no CSI source"),
    ],
)
async def test_unknown_volume_has_no_location(other: Volume) -> None:
    assert await AccessPointPlaces(CsiWorld().accounts).locate(other) is None


async def test_refused_request_is_not_repeated_for_each_volume() -> None:
    world, now = CsiWorld(), 0.0
    made = volume(str((await CsiWorld().volumes.create(request("pvc-1"))).handle))
    world.api.faults["list"] = AwsDenied("is not allowed", field="DescribeAccessPoints", value=FS)
    places = AccessPointPlaces(world.accounts, clock=lambda: now)
    for _ in range(5):
        assert await places.locate(made) is None
    assert world.api.calls["list"] == 1
    now = 60.0
    await places.locate(made)
    assert world.api.calls["list"] == 2
