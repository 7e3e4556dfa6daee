"""Instance metadata, with a server that implements IMDSv2."""

import traceback
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from tests.serving import answering, serving

from kube_efs.aws.metadata import InstanceIdentity, InstanceMetadata
from kube_efs.model.efs.ids import Region, ZoneName
from kube_efs.model.errors import AwsDenied, AwsInvalidAnswer, AwsNotFound, AwsUnavailable

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
        with pytest.raises(AwsInvalidAnswer, match="instance-identity/document' gave an invalid answer"):
            await metadata.identity()


async def test_hostile_region_is_refused_and_not_quoted(imds: tuple[FakeImds, str]) -> None:
    fake, url = imds
    fake.entries["dynamic/instance-identity/document"] = DOCUMENT.replace('eu-west-1"', 'evil/../"', 1)
    async with InstanceMetadata(url) as metadata:
        with pytest.raises(AwsInvalidAnswer, match="region is not valid") as caught:
            await metadata.identity()
    assert "evil" not in "".join(traceback.format_exception(caught.value))
