"""The stored location of a node, with and without instance metadata; what requires FIPS mode."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fake_efs.instance_metadata import Instance, NetworkInterface
from fake_efs.instance_metadata import InstanceMetadata as Service
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.location import LocationSource, ProcessLocation
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName
from kube_efs.model.errors import AwsUnavailable, InvalidSetting
from kube_efs.settings.loading import load
from kube_efs.settings.tunnel import TunnelSettings
from kube_efs.tunnels.mount_targets import NodeLocation
from kube_efs.tunnels.run import find_stored_location, find_zone_id, fips_mode_required_by

HERE = ProcessLocation(
    region=Region("us-east-1"),
    zone=ZoneName("us-east-1a"),
    zone_id=ZoneName("use1-az1"),
    subnets=(SubnetId("subnet-0a"),),
)
INTERFACE = NetworkInterface(
    mac="02:00:7f:10:00:01", subnet_id="subnet-0a", vpc_id="vpc-1", address="10.0.0.1"
)


def an_instance(region: str, zone: str, zone_id: str) -> Instance:
    return Instance(
        instance_id="i-0a",
        account_id="123456789012",
        region=region,
        zone=zone,
        zone_id=zone_id,
        interfaces=(INTERFACE,),
    )


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service(an_instance("us-east-1", "us-east-1a", "use1-az1"))
    await service.start()
    yield service
    await service.stop()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "KUBE_EFS_ZONE", "KUBE_EFS_ZONE_ID", "KUBE_EFS_SUBNETS"):
        monkeypatch.delenv(name, raising=False)


async def found(path: Path, url: str) -> ProcessLocation:
    """The location as a new agent finds it."""
    settings = TunnelSettings(node_name="node-1")
    async with InstanceMetadata(url, timeout_seconds=1) as metadata:
        return await find_stored_location(path, settings, metadata, None)


NOBODY = "http://127.0.0.1:9"


def without_node_id(location: ProcessLocation) -> ProcessLocation:
    return ProcessLocation(
        region=location.region, zone=location.zone, zone_id=location.zone_id, subnets=location.subnets
    )


async def test_stored_location_is_used_without_metadata(tmp_path: Path, service: Service) -> None:
    path = tmp_path / "location.json"
    assert without_node_id(await found(path, service.url)) == HERE
    again = await found(path, NOBODY)
    assert again == HERE
    assert (again.region_source, again.zone_source) == (LocationSource.STORED, LocationSource.STORED)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_metadata_replace_the_stored_location(tmp_path: Path, service: Service) -> None:
    path = tmp_path / "location.json"
    await found(path, service.url)
    service.instance = an_instance("eu-west-1", "eu-west-1b", "euw1-az2")
    assert (await found(path, service.url)).zone == "eu-west-1b"
    assert (await found(path, NOBODY)).zone == "eu-west-1b"


async def test_zone_id_stays_known_while_the_metadata_do_not_contain_it(
    tmp_path: Path, service: Service
) -> None:
    path = tmp_path / "location.json"
    await found(path, service.url)
    service.instance = replace(service.instance, zone_id="")
    assert without_node_id(await found(path, service.url)) == HERE
    assert json.loads(path.read_text())["zone_id"] == "use1-az1"
    # That of another node, from which the disk was copied, is not used.
    service.instance = replace(service.instance, zone="us-east-1b")
    assert (await found(path, service.url)).zone_id is None


async def test_zone_id_is_asked_for_until_a_source_has_it(tmp_path: Path, service: Service) -> None:
    settings = TunnelSettings(node_name="node-1", metadata_endpoint=service.url, state_dir=tmp_path)
    service.instance = replace(service.instance, zone_id="")
    pauses, set_locations = list[float](), list[NodeLocation]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            service.instance = replace(service.instance, zone_id="use1-az1")

    known = NodeLocation(zone=HERE.zone)
    await find_zone_id(known, set_locations.append, settings, None, sleep=sleep)
    assert pauses == [10, 20, 40]
    subnets = frozenset(HERE.subnets)
    assert set_locations == [NodeLocation(subnets=subnets, zone=HERE.zone, zone_id=HERE.zone_id)]
    path = tmp_path / "stunnel.place.json"
    assert json.loads(path.read_text())["zone_id"] == "use1-az1"


async def test_zone_id_that_comes_later_leaves_the_known_subnets(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def subnets(_: InstanceMetadata) -> tuple[SubnetId, ...]:
        raise AwsUnavailable("was not answered")

    async def sleep(_: float) -> None:
        assert set_locations == []

    monkeypatch.setattr(InstanceMetadata, "subnets", subnets)
    settings = TunnelSettings(
        node_name="node-1", metadata_endpoint=service.url, state_dir=tmp_path / "missing"
    )
    set_locations = list[NodeLocation]()
    known = NodeLocation(subnets=frozenset(HERE.subnets), zone=HERE.zone)
    await find_zone_id(known, set_locations.append, settings, None, sleep=sleep)
    assert set_locations == [replace(known, zone_id=HERE.zone_id)]


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
async def test_setting_is_required_without_metadata_cluster_and_stored_location(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "location.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidSetting, match="set AWS_REGION"):
        await found(path, NOBODY)


async def test_location_that_an_earlier_version_has_stored_is_used(tmp_path: Path) -> None:
    path = tmp_path / "location.json"
    stored = {"region": "us-east-1", "zone": "us-east-1a", "subnets": ["subnet-0a"], "zone_id": "use1-az1"}
    path.write_text(json.dumps({**stored, "instance_id": "i-0a"}))
    assert await found(path, NOBODY) == HERE


async def test_stored_location_has_every_key_that_an_earlier_version_needs(
    tmp_path: Path, service: Service
) -> None:
    path = tmp_path / "location.json"
    await found(path, service.url)
    assert json.loads(path.read_text()) == {
        "region": "us-east-1",
        "zone": "us-east-1a",
        "zone_id": "use1-az1",
        "subnets": ["subnet-0a"],
        "instance_id": "i-0a",
    }


async def test_directory_that_is_not_writable_does_not_prevent_the_start(
    tmp_path: Path, service: Service
) -> None:
    path = tmp_path / "missing" / "location.json"
    assert without_node_id(await found(path, service.url)) == HERE


@pytest.mark.parametrize(
    ("variables", "node_is_in_it", "required_by"),
    [
        pytest.param({}, False, "", id="nothing"),
        pytest.param({}, True, "the node (crypto.fips_enabled)", id="node"),
        pytest.param({"FIPS_ENABLED": "true"}, False, "FIPS_ENABLED", id="setting"),
        pytest.param({"AWS_USE_FIPS_ENDPOINT": "True"}, False, "AWS_USE_FIPS_ENDPOINT", id="endpoints"),
        pytest.param({"AWS_USE_FIPS_ENDPOINT": "false"}, False, "", id="no endpoints"),
        pytest.param({"FIPS_ENABLED": "false"}, True, "", id="not despite the node"),
        pytest.param(
            {"FIPS_ENABLED": "false", "AWS_USE_FIPS_ENDPOINT": "true"}, True, "", id="not despite endpoints"
        ),
    ],
)
def test_fips_mode_is_required_by_the_first_of_setting_endpoints_and_node(
    variables: dict[str, str], node_is_in_it: bool, required_by: str
) -> None:
    settings = load(TunnelSettings, variables)
    assert fips_mode_required_by(settings, node_is_in_it=node_is_in_it) == required_by
