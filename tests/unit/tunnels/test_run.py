"""The location of a node, with and without instance metadata."""

from pathlib import Path

import pytest

from kube_efs.aws.location import NodeLocation
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName
from kube_efs.model.errors import InvalidSetting
from kube_efs.tunnels.run import find_location

HERE = NodeLocation(
    region=Region("us-east-1"),
    zone=ZoneName("us-east-1a"),
    subnets=(SubnetId("subnet-0a"),),
    zone_id="use1-az1",
    instance_id="i-0a",
)
ELSEWHERE = NodeLocation(region=Region("eu-west-1"), zone=ZoneName("eu-west-1b"), subnets=())


async def here() -> NodeLocation:
    return HERE


async def elsewhere() -> NodeLocation:
    return ELSEWHERE


async def silence() -> NodeLocation:
    raise InvalidSetting("is not set and the instance metadata does not contain it", field="AWS_REGION")


async def test_stored_location_is_used_without_metadata(tmp_path: Path) -> None:
    path = tmp_path / "location.json"
    assert await find_location(path, here) == HERE
    assert await find_location(path, silence) == HERE
    assert path.stat().st_mode & 0o777 == 0o600


async def test_metadata_replace_the_stored_location(tmp_path: Path) -> None:
    path = tmp_path / "location.json"
    await find_location(path, here)
    assert await find_location(path, elsewhere) == ELSEWHERE
    assert await find_location(path, silence) == ELSEWHERE


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="nothing"),
        pytest.param("{", id="truncated file"),
        pytest.param("[]", id="other text"),
        pytest.param('{"region": "us-east-1"}', id="too few fields"),
        pytest.param(
            '{"region": "us-east-1\\ncert = /x", "zone": "a", "subnets": [], "zone_id": null,'
            ' "instance_id": null}',
            id="invalid region",
        ),
    ],
)
async def test_setting_is_required_without_metadata_and_stored_location(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "location.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidSetting, match="the instance metadata does not contain it"):
        await find_location(path, silence)


async def test_directory_that_is_not_writable_does_not_prevent_the_start(tmp_path: Path) -> None:
    assert await find_location(tmp_path / "missing" / "location.json", here) == HERE
