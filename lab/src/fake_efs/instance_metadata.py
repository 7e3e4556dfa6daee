"""Instance metadata, version 2, of the machine that the embedded node pretends to be.

Paths and answers are those of "Instance metadata categories" and "Use IMDSv2" of the EC2 guide, as far as
kube-efs reads them.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web

from fake_efs.aws_api import Credentials

_TOKEN_SECONDS = range(1, 21601)
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 -- a header, no secret
_DOCUMENT = "dynamic/instance-identity/document"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """A network interface of the node: the subnet it is in is what chooses a mount target."""

    mac: str
    subnet_id: str
    vpc_id: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The machine; its first interface is the primary one."""

    instance_id: str
    account_id: str
    region: str
    zone: str
    zone_id: str
    interfaces: tuple[NetworkInterface, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRole:
    """The role that programs on the machine have; ``credentials`` gives those of now, and their end."""

    name: str
    credentials: Callable[[], tuple[Credentials, datetime]]


class InstanceMetadata:
    """The metadata service on a free port of ``host``; assigning ``instance`` moves the machine elsewhere."""

    def __init__(
        self,
        instance: Instance,
        *,
        role: InstanceRole | None = None,
        clock: Callable[[], float] = time.monotonic,
        host: str = "127.0.0.1",
    ) -> None:
        self._clock = clock
        self._host = host
        self._role = role
        self.instance = instance
        self.url = ""
        self._expiry_by_token: dict[str, float] = {}
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; ``url`` is set from now on."""
        application = web.Application()
        application.router.add_put("/latest/api/token", self._issue_token)
        application.router.add_get("/latest/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _issue_token(self, request: web.Request) -> web.Response:
        lifetime = request.headers.get(_TTL_HEADER, "")
        if not lifetime.isdecimal() or int(lifetime) not in _TOKEN_SECONDS:
            return web.Response(status=400)
        now = self._clock()
        self._expiry_by_token = {token: at for token, at in self._expiry_by_token.items() if at > now}
        token = secrets.token_urlsafe(32)
        self._expiry_by_token[token] = now + int(lifetime)
        return web.Response(text=token, headers={_TTL_HEADER: lifetime})

    async def _answer(self, request: web.Request) -> web.Response:
        if self._expiry_by_token.get(request.headers.get(_TOKEN_HEADER, ""), 0) <= self._clock():
            return web.Response(status=401)
        path = request.match_info["path"]
        if path == _DOCUMENT:
            return web.json_response(identity_document(self.instance))
        text = look_up({**metadata(self.instance), **role_metadata(self._role)}, path)
        return web.Response(status=404) if text is None else web.Response(text=text)


def identity_document(instance: Instance) -> dict[str, str]:
    """The instance identity document, for JSON."""
    return {
        "accountId": instance.account_id,
        "availabilityZone": instance.zone,
        "instanceId": instance.instance_id,
        "privateIp": instance.interfaces[0].address,
        "region": instance.region,
    }


def metadata(instance: Instance) -> Mapping[str, str]:
    """The values of the metadata by their path below ``/latest/``."""
    values = {
        "instance-id": instance.instance_id,
        "local-ipv4": instance.interfaces[0].address,
        "mac": instance.interfaces[0].mac,
        "placement/availability-zone": instance.zone,
        "placement/availability-zone-id": instance.zone_id,
        "placement/region": instance.region,
    }
    for number, interface in enumerate(instance.interfaces):
        base = f"network/interfaces/macs/{interface.mac}"
        values[f"{base}/device-number"] = str(number)
        values[f"{base}/local-ipv4s"] = interface.address
        values[f"{base}/mac"] = interface.mac
        values[f"{base}/subnet-id"] = interface.subnet_id
        values[f"{base}/vpc-id"] = interface.vpc_id
    return {f"meta-data/{path}": value for path, value in values.items()}


def role_metadata(role: InstanceRole | None) -> Mapping[str, str]:
    """The credentials of a role by their path, none without a role ("Retrieve security credentials")."""
    if role is None:
        return {}
    keys, expires_at = role.credentials()
    document = {
        "Code": "Success",
        "LastUpdated": _timestamp(datetime.now(UTC)),
        "Type": "AWS-HMAC",
        "AccessKeyId": keys.access_key_id,
        "SecretAccessKey": keys.secret_access_key,
        "Token": keys.session_token,
        "Expiration": _timestamp(expires_at),
    }
    return {f"meta-data/iam/security-credentials/{role.name}": json.dumps(document)}


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def look_up(values: Mapping[str, str], path: str) -> str | None:
    """The value at a path, or a directory's names, one in a line, with a slash for directories; or None."""
    if path in values:
        return values[path]
    folder = path.removesuffix("/") + "/"
    below = (known.removeprefix(folder) for known in values if known.startswith(folder))
    names = {first + slash for first, slash, _ in (rest.partition("/") for rest in below)}
    return "\n".join(sorted(names)) or None
