"""Instance metadata: the tree of values, and the service with its tokens."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx2
import pytest

from fake_efs.aws_api import Credentials
from fake_efs.instance_metadata import (
    Instance,
    InstanceMetadata,
    InstanceRole,
    NetworkInterface,
    look_up,
    metadata,
)
from kube_efs.model.efs.ids import Region, SubnetId, ZoneName

FIRST_MAC, SECOND_MAC = "02:00:7f:10:00:01", "02:00:7f:10:10:01"
INSTANCE = Instance(
    instance_id="i-0123456789abcdef0",
    account_id="123456789012",
    region=Region("us-east-1"),
    zone=ZoneName("us-east-1a"),
    zone_id="use1-az6",
    interfaces=(
        NetworkInterface(mac=FIRST_MAC, subnet_id=SubnetId("subnet-1"), vpc_id="vpc-1", address="10.0.0.1"),
        NetworkInterface(mac=SECOND_MAC, subnet_id=SubnetId("subnet-2"), vpc_id="vpc-1", address="10.0.1.1"),
    ),
)
TOKEN_PATH = "/latest/api/token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("meta-data/placement/region", "us-east-1"),
        ("meta-data/placement/availability-zone", "us-east-1a"),
        ("meta-data/placement/availability-zone-id", "use1-az6"),
        ("meta-data/instance-id", "i-0123456789abcdef0"),
        ("meta-data/mac", FIRST_MAC),
        ("meta-data/placement", "availability-zone\navailability-zone-id\nregion"),
        ("meta-data/network/interfaces/macs/", f"{FIRST_MAC}/\n{SECOND_MAC}/"),
        (f"meta-data/network/interfaces/macs/{SECOND_MAC}/subnet-id", "subnet-2"),
        (f"meta-data/network/interfaces/macs/{SECOND_MAC}/vpc-id", "vpc-1"),
        (f"meta-data/network/interfaces/macs/{SECOND_MAC}/device-number", "1"),
        ("meta-data/place", None),
        ("meta-data/instance-id/", None),
        ("user-data", None),
    ],
)
def test_values_and_listings(path: str, expected: str | None) -> None:
    assert look_up(metadata(INSTANCE), path) == expected


class Clock:
    """A clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(clock: Clock) -> AsyncIterator[httpx2.AsyncClient]:
    service = InstanceMetadata(INSTANCE, clock=clock)
    await service.start()
    try:
        async with httpx2.AsyncClient(base_url=service.url, trust_env=False, timeout=5) as client:
            yield client
    finally:
        await service.stop()


async def token(client: httpx2.AsyncClient, seconds: str) -> str:
    answer = await client.put(TOKEN_PATH, headers={TTL: seconds})
    assert answer.status_code == 200
    assert answer.headers[TTL] == seconds
    return answer.text


async def test_a_token_opens_the_document(client: httpx2.AsyncClient) -> None:
    headers = {TOKEN: await token(client, "60")}
    answer = await client.get("/latest/dynamic/instance-identity/document", headers=headers)
    assert answer.json() == {
        "accountId": "123456789012",
        "availabilityZone": "us-east-1a",
        "instanceId": "i-0123456789abcdef0",
        "privateIp": "10.0.0.1",
        "region": "us-east-1",
    }


async def test_a_role_is_listed_and_its_credentials_are_those_of_now() -> None:
    end = datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)
    credentials = iter(
        [Credentials(access_key_id=f"ASIA{n}", secret_access_key="s", session_token="t") for n in range(4)]
    )
    role = InstanceRole(name="node", credentials=lambda: (next(credentials), end))
    service = InstanceMetadata(INSTANCE, role=role)
    await service.start()
    try:
        async with httpx2.AsyncClient(base_url=service.url, trust_env=False, timeout=5) as client:
            headers = {TOKEN: await token(client, "60")}
            base = "/latest/meta-data/iam/security-credentials/"
            assert (await client.get(base, headers=headers)).text == "node"
            document = (await client.get(base + "node", headers=headers)).json()
            again = (await client.get(base + "node", headers=headers)).json()
            other = await client.get(base + "other", headers=headers)
    finally:
        await service.stop()
    datetime.strptime(document.pop("LastUpdated"), "%Y-%m-%dT%H:%M:%SZ").astimezone(UTC)
    assert document == {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": "ASIA1",
        "SecretAccessKey": "s",
        "Token": "t",
        "Expiration": "2026-02-28T23:59:59Z",
    }
    assert (again["AccessKeyId"], other.status_code) == ("ASIA2", 404)


async def test_values_are_served_as_text_and_unknown_paths_are_not_found(client: httpx2.AsyncClient) -> None:
    headers = {TOKEN: await token(client, "60")}
    answer = await client.get("/latest/meta-data/placement/region", headers=headers)
    assert (answer.status_code, answer.text) == (200, "us-east-1")
    assert (await client.get("/latest/meta-data/nothing", headers=headers)).status_code == 404


@pytest.mark.parametrize("headers", [{}, {TOKEN: "made-up"}], ids=["no token", "unknown token"])
async def test_without_a_valid_token_nothing_is_reported(
    client: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await client.get("/latest/meta-data/instance-id", headers=headers)
    assert (answer.status_code, answer.text) == (401, "")


async def test_a_token_ends_with_its_time_to_live(client: httpx2.AsyncClient, clock: Clock) -> None:
    headers = {TOKEN: await token(client, "60")}
    clock.now += 59
    assert (await client.get("/latest/meta-data/mac", headers=headers)).status_code == 200
    clock.now += 1
    assert (await client.get("/latest/meta-data/mac", headers=headers)).status_code == 401


@pytest.mark.parametrize("seconds", ["", "0", "21601", "-1", "many"])
async def test_a_token_needs_a_time_to_live_in_range(client: httpx2.AsyncClient, seconds: str) -> None:
    assert (await client.put(TOKEN_PATH, headers={TTL: seconds})).status_code == 400
