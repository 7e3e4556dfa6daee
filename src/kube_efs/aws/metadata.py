"""Instance metadata of EC2, only version 2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Final, Self

import aiohttp

from kube_efs.aws.errors import aws_errors, reading
from kube_efs.model.efs.ids import (
    Region,
    SubnetId,
    VpcId,
    ZoneName,
    parse_region,
    parse_subnet_id,
    parse_vpc_id,
    parse_zone_name,
)
from kube_efs.model.errors import (
    AwsDenied,
    AwsError,
    AwsInvalidAnswer,
    AwsNotFound,
    AwsUnavailable,
    InvalidValue,
)

DEFAULT_ENDPOINT: Final = "http://169.254.169.254"

# Six hours, the longest that the service accepts.
_TOKEN_LIFETIME_SECONDS: Final = 21600
# Tokens are renewed a little early, so that none expires during a request.
_TOKEN_MARGIN_SECONDS: Final = 60
_ATTEMPTS: Final = 3
_RETRY_DELAY_SECONDS: Final = 0.1
_MAC_ADDRESS: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_INSTANCE_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_FIELD: Final = "instance metadata"
_REFUSALS: Final[Mapping[int, type[AwsError]]] = MappingProxyType(
    {401: AwsDenied, 403: AwsDenied, 404: AwsNotFound}
)
_REMEDY: Final = "in a pod without host networking, set the instance's metadata hop limit to 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceIdentity:
    """The ID and location of this instance."""

    region: Region
    zone: ZoneName
    instance_id: str


class InstanceMetadata:
    """The instance metadata service while its context is open; over IPv6 it is at ``http://[fd00:ec2::254]``.

    Every method may raise AwsError: AwsNotFound when an entry does not exist, AwsInvalidAnswer when the
    answer is not from instance metadata. In a pod with its own network, the service answers only if the
    instance allows two network hops (``HttpPutResponseHopLimit``).
    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout_seconds: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._clock = clock
        self._token = ""
        self._token_ends = clock()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Never through a proxy: the answer would be about the proxy's instance.
        self._session = aiohttp.ClientSession(timeout=self._timeout, trust_env=False)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def identity(self) -> InstanceIdentity:
        """Region, zone and ID of this instance, from its identity document."""
        text = await self._get("dynamic/instance-identity/document")
        with reading(_FIELD, subject="instance-identity/document"):
            document = json.loads(text)
            return InstanceIdentity(
                region=parse_region(document["region"]),
                zone=parse_zone_name(document["availabilityZone"]),
                instance_id=_parse_instance_id(document["instanceId"]),
            )

    async def zone_id(self) -> str:
        """The zone ID, such as ``use1-az1``, which is the same in every account."""
        path = "meta-data/placement/availability-zone-id"
        text = await self._get(path)
        with reading(_FIELD, subject=path):
            return parse_zone_name(text)

    async def subnets(self) -> tuple[SubnetId, ...]:
        """The subnet of every network interface, without repetition."""
        found = await self._of_interfaces("subnet-id")
        with reading(_FIELD, subject="subnet-id"):
            return tuple(dict.fromkeys([parse_subnet_id(text) for text in found]))

    async def vpcs(self) -> frozenset[VpcId]:
        """The VPC of every network interface."""
        found = await self._of_interfaces("vpc-id")
        with reading(_FIELD, subject="vpc-id"):
            return frozenset([parse_vpc_id(text) for text in found])

    async def _of_interfaces(self, entry: str) -> list[str]:
        listing = await self._get("meta-data/network/interfaces/macs/")
        addresses = [line.rstrip("/") for line in listing.split()]
        found = [
            await self._of_interface(address, entry)
            for address in addresses
            if _MAC_ADDRESS.fullmatch(address)
        ]
        return [text for text in found if text is not None]

    async def _of_interface(self, mac_address: str, entry: str) -> str | None:
        try:
            return await self._get(f"meta-data/network/interfaces/macs/{mac_address}/{entry}")
        except AwsNotFound:  # The interface was detached meanwhile.
            return None

    async def _get(self, path: str, *, shown: str = "") -> str:
        """The entry; errors contain ``shown`` if the path contains a part of an answer."""
        try:
            return await self._get_once(path, shown or path)
        except AwsDenied:
            # The token is no longer valid, for example after a stop and start of the instance.
            self._token = ""
            return await self._get_once(path, shown or path)

    async def _get_once(self, path: str, shown: str) -> str:
        headers = {"X-aws-ec2-metadata-token": await self._valid_token()}
        return await self._request("GET", path, headers, shown)

    async def _valid_token(self) -> str:
        if not self._token or self._clock() >= self._token_ends:
            asked_at = self._clock()
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFETIME_SECONDS)}
            self._token = await self._request("PUT", "api/token", headers, "api/token")
            self._token_ends = asked_at + _TOKEN_LIFETIME_SECONDS - _TOKEN_MARGIN_SECONDS
        return self._token

    async def _request(self, method: str, path: str, headers: dict[str, str], shown: str) -> str:
        for attempt in range(1, _ATTEMPTS):
            try:
                return await self._request_once(method, path, headers, shown)
            except AwsUnavailable:
                await asyncio.sleep(_RETRY_DELAY_SECONDS * attempt)
        return await self._request_once(method, path, headers, shown)

    async def _request_once(self, method: str, path: str, headers: dict[str, str], shown: str) -> str:
        if self._session is None:
            raise AwsUnavailable("is not open", field=_FIELD, value=shown)
        subject = f"{self._endpoint}/latest/{shown}"
        with aws_errors(_FIELD, subject=subject, remedy=_REMEDY):
            url = f"{self._endpoint}/latest/{path}"
            async with self._session.request(method, url, headers=headers, allow_redirects=False) as answer:
                text = await answer.text()
        if answer.status != 200:
            kind = _REFUSALS.get(answer.status, AwsInvalidAnswer)
            raise kind(f"was answered with status {answer.status}", field=_FIELD, value=subject)
        return text.strip()


def _parse_instance_id(value: object) -> str:
    if not isinstance(value, str) or not _INSTANCE_ID.fullmatch(value):
        raise InvalidValue("is not a valid instance ID", field="instanceId", value=value)
    return value
