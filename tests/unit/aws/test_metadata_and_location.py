"""Instance metadata and location, with a server that implements IMDSv2."""

import traceback
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.serving import answering, serving

from kube_efs.aws.location import (
    NodeLocation,
    find_vpcs,
    resolve_location,
    resolve_region,
    until_valid,
)
from kube_efs.aws.metadata import InstanceIdentity, InstanceMetadata
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName
from kube_efs.model.errors import AwsDenied, AwsNotFound, AwsOddAnswer, AwsUnavailable, InvalidSetting

DOCUMENT = '{"region": "eu-west-1", "availabilityZone": "eu-west-1b", "instanceId": "i-0abc"}'
MACS = "meta-data/network/interfaces/macs"


class FakeImds:
    """Answers only requests with a token that it issued and has not revoked."""

    def __init__(self) -> None:
        self.entries = {
            "dynamic/instance-identity/document": DOCUMENT,
            "meta-data/placement/availability-zone-id": "euw1-az2",
            f"{MACS}/": "02:00:00:00:00:01/\n02:00:00:00:00:02/\n02:00:00:00:00:03/",
            f"{MACS}/02:00:00:00:00:01/subnet-id": "subnet-0a",
            f"{MACS}/02:00:00:00:00:02/subnet-id": "subnet-0b",
            f"{MACS}/02:00:00:00:00:03/subnet-id": "subnet-0a",
        }
        self.tokens: list[str] = []
        self.valid: set[str] = set()
        self.failures_to_come = 0
        self.requests = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.requests += 1
        if self.failures_to_come:
            self.failures_to_come -= 1
            return web.Response(status=503)
        path = request.match_info["path"]
        if request.method == "PUT" and path == "api/token":
            assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            self.tokens.append(f"token-{len(self.tokens)}")
            self.valid.add(self.tokens[-1])
            return web.Response(text=self.tokens[-1])
        if request.headers.get("X-aws-ec2-metadata-token") not in self.valid:
            return web.Response(status=401)
        return web.Response(text=self.entries[path]) if path in self.entries else web.Response(status=404)


@pytest.fixture
async def imds() -> AsyncIterator[tuple[FakeImds, str]]:
    fake = FakeImds()
    async with serving(answering(fake.handle, "/latest/")) as url:
        yield fake, url


async def test_metadata_gives_identity_and_location_of_the_instance(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    async with InstanceMetadata(f"{url}/") as metadata:
        assert await metadata.identity() == InstanceIdentity(
            region=Region("eu-west-1"), zone=ZoneName("eu-west-1b"), instance_id="i-0abc"
        )
        assert await metadata.zone_id() == "euw1-az2"
        assert await metadata.subnets() == ("subnet-0a", "subnet-0b")
    assert fake.tokens == ["token-0"]


async def test_token_is_renewed_before_it_expires_and_after_it_was_revoked(
    imds: tuple[FakeImds, str],
) -> None:
    fake, url = imds
    now = [0.0]
    async with InstanceMetadata(url, clock=lambda: now[0]) as metadata:
        await metadata.zone_id()
        now[0] = 21530.0
        await metadata.zone_id()
        assert fake.tokens == ["token-0"]
        now[0] = 21550.0
        await metadata.zone_id()
        assert fake.tokens == ["token-0", "token-1"]
        fake.valid.clear()
        assert await metadata.zone_id() == "euw1-az2"
        assert fake.tokens == ["token-0", "token-1", "token-2"]


async def test_refusal_of_every_token_is_a_denial(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    fake.valid = NothingIsAdded()
    async with InstanceMetadata(url) as metadata:
        with pytest.raises(AwsDenied, match="status 401"):
            await metadata.zone_id()
    assert len(fake.tokens) == 2


class NothingIsAdded(set[str]):
    def add(self, element: str) -> None:
        del element


async def test_short_failure_is_retried_and_a_long_one_is_reported(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    async with InstanceMetadata(url) as metadata:
        fake.failures_to_come = 2
        assert await metadata.zone_id() == "euw1-az2"
        fake.failures_to_come = 3
        with pytest.raises(AwsUnavailable, match="status 503"):
            await metadata.zone_id()
        assert fake.failures_to_come == 0


async def test_unreachable_service_is_unavailability_with_the_hop_limit_hint() -> None:
    async with InstanceMetadata("http://127.0.0.1:9") as metadata:
        with pytest.raises(AwsUnavailable, match="hop limit to 2") as caught:
            await metadata.identity()
    assert caught.value.value == "http://127.0.0.1:9/latest/api/token"


async def test_missing_entry_is_not_found(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    del fake.entries["meta-data/placement/availability-zone-id"]
    async with InstanceMetadata(url) as metadata:
        with pytest.raises(AwsNotFound):
            await metadata.zone_id()


async def test_detached_and_invalid_interfaces_are_omitted(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    fake.entries["meta-data/network/elsewhere/subnet-id"] = "subnet-0c"
    fake.entries[f"{MACS}/"] = "../../elsewhere/\n02:00:00:00:00:09/\n02:00:00:00:00:02/"
    async with InstanceMetadata(url) as metadata:
        assert await metadata.subnets() == ("subnet-0b",)


@pytest.mark.parametrize("document", ["<html>", "[]", '{"region": "eu-west-1"}'])
async def test_invalid_document_is_unavailability(imds: tuple[FakeImds, str], document: str) -> None:
    fake, url = imds
    fake.entries["dynamic/instance-identity/document"] = document
    async with InstanceMetadata(url) as metadata:
        with pytest.raises(AwsOddAnswer, match="instance-identity/document' gave an invalid answer"):
            await metadata.identity()


async def test_hostile_region_is_refused_and_not_quoted(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    fake.entries["dynamic/instance-identity/document"] = DOCUMENT.replace('eu-west-1"', 'evil/../"', 1)
    async with InstanceMetadata(url) as metadata:
        with pytest.raises(AwsOddAnswer, match="region is not valid") as caught:
            await metadata.identity()
    assert "evil" not in "".join(traceback.format_exception(caught.value))


async def test_without_settings_all_values_come_from_the_instance(imds: tuple[FakeImds, str]) -> None:
    async with InstanceMetadata(imds[1]) as metadata:
        assert await resolve_region(metadata) == "eu-west-1"
        assert await resolve_location(metadata) == NodeLocation(
            region=Region("eu-west-1"),
            zone=ZoneName("eu-west-1b"),
            subnets=(SubnetId("subnet-0a"), SubnetId("subnet-0b")),
            zone_id="euw1-az2",
            instance_id="i-0abc",
        )


async def test_each_setting_overrides_its_part(imds: tuple[FakeImds, str]) -> None:
    async with InstanceMetadata(imds[1]) as metadata:
        location = await resolve_location(
            metadata, zone=ZoneName("eu-west-1c"), subnets=[SubnetId("subnet-9")]
        )

    assert location == NodeLocation(
        region=Region("eu-west-1"),
        zone=ZoneName("eu-west-1c"),
        subnets=(SubnetId("subnet-9"),),
        instance_id="i-0abc",
    )


async def test_instance_metadata_is_not_read_when_all_settings_are_present(
    imds: tuple[FakeImds, str],
) -> None:
    fake, url = imds
    async with InstanceMetadata(url) as metadata:
        assert await resolve_region(metadata, region=Region("us-east-1")) == "us-east-1"
        location = await resolve_location(
            metadata, region=Region("us-east-1"), zone=ZoneName("us-east-1a"), subnets=[SubnetId("subnet-1")]
        )
    assert (location.region, location.zone, location.subnets) == ("us-east-1", "us-east-1a", ("subnet-1",))
    assert fake.requests == 0


@pytest.mark.parametrize(
    ("region", "zone", "variable"),
    [
        (None, None, "AWS_REGION"),
        (Region("us-east-1"), None, "KUBE_EFS_ZONE"),
        (Region("us-east-1"), ZoneName("us-east-1a"), "KUBE_EFS_SUBNETS"),
    ],
)
async def test_missing_value_names_its_variable(
    region: Region | None, zone: ZoneName | None, variable: str
) -> None:
    async with InstanceMetadata("http://127.0.0.1:9") as metadata:
        with pytest.raises(InvalidSetting, match=f"set {variable}") as caught:
            await resolve_location(metadata, region=region, zone=zone)

    assert caught.value.field == variable
    assert isinstance(caught.value.__cause__, AwsUnavailable)


async def test_instance_without_subnets_names_the_variable(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    fake.entries[f"{MACS}/"] = ""
    async with InstanceMetadata(url) as metadata:
        with pytest.raises(InvalidSetting, match="no network interface") as caught:
            await resolve_location(metadata)
    assert caught.value.field == "KUBE_EFS_SUBNETS"


async def test_missing_zone_id_is_accepted(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    del fake.entries["meta-data/placement/availability-zone-id"]
    async with InstanceMetadata(url) as metadata:
        assert (await resolve_location(metadata)).zone_id is None


@pytest.mark.parametrize("odd", ["<html>", "{", '{"region": "x y"}'])
async def test_start_waits_while_answers_are_invalid(imds: tuple[FakeImds, str], odd: str) -> None:
    fake, url = imds
    fake.entries["dynamic/instance-identity/document"] = odd
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            fake.entries["dynamic/instance-identity/document"] = DOCUMENT

    async with InstanceMetadata(url) as metadata:
        assert await until_valid(lambda: resolve_region(metadata), sleep=sleep) == "eu-west-1"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_start_does_not_wait_for_values_that_only_a_setting_provides() -> None:
    async with InstanceMetadata("http://127.0.0.1:9") as metadata:
        with pytest.raises(InvalidSetting, match="set AWS_REGION"):
            await until_valid(lambda: resolve_region(metadata))


async def test_vpcs_of_an_instance_are_listed(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    for number, vpc in ((1, "vpc-0a"), (2, "vpc-0b"), (3, "vpc-0a")):
        fake.entries[f"{MACS}/02:00:00:00:00:0{number}/vpc-id"] = vpc
    async with InstanceMetadata(url) as metadata:
        assert await find_vpcs(metadata) == {"vpc-0a", "vpc-0b"}


@pytest.mark.parametrize("vpc", [None, "no vpc"])
async def test_missing_vpcs_are_unknown(imds: tuple[FakeImds, str], vpc: str | None) -> None:
    fake, url = imds
    if vpc:
        fake.entries[f"{MACS}/02:00:00:00:00:01/vpc-id"] = vpc
    async with InstanceMetadata(url) as metadata:
        assert await find_vpcs(metadata) == frozenset()


async def test_vpcs_are_unknown_without_metadata() -> None:
    async with InstanceMetadata("http://127.0.0.1:1") as metadata:
        assert await find_vpcs(metadata) == frozenset()
