"""An STS that answers with a web page: the real processes continue, and recover when it works again."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap
from tests.integration.nfs_backend import Authority, Backend
from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import NEAR, document, host_of, stunnels_of, target
from tests.serving import serving

from kube_efs.aws.credential_sources import IamOptions
from kube_efs.model.efs.ids import FileSystemId, Region
from kube_efs.tunnels.api.client import connect_tunnels
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs_lab.program import Program
from tinykube.api import ApiServer
from tinykube.ports import free_port

pytestmark = pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed")

SECONDS = 40.0
REGION = Region("us-east-1")
FS = FileSystemId("fs-0123456789abcdef0")
ROLE = "arn:aws:iam::123456789012:role/efs"
JWT = "planted-5e1b-jwt"
SECRET_KEY = "planted8d4fSecretKey"
POD = Holder("volume-1 /var/lib/kubelet/pods/1")
PAGE = "<html><body>Sign in, {token}<br></body></html>"


@dataclass
class Aws:
    """EFS and STS on one port; while ``is_invalid``, STS answers with a web page that repeats the request."""

    url: str = ""
    is_invalid: bool = False
    refused: int = 0

    async def sts(self, request: web.Request) -> web.Response:
        form = await request.post()
        if self.is_invalid:
            self.refused += 1
            return web.Response(content_type="text/html", text=PAGE.format(token=form["WebIdentityToken"]))
        ends = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        action = "AssumeRoleWithWebIdentity"
        return web.Response(
            content_type="text/xml",
            text=f"<{action}Response><{action}Result><Credentials><AccessKeyId>ASIA1</AccessKeyId>"
            f"<SecretAccessKey>{SECRET_KEY}</SecretAccessKey><SessionToken>{SECRET_KEY}</SessionToken>"
            f"<Expiration>{ends}</Expiration></Credentials></{action}Result></{action}Response>",
        )

    async def metadata(self, _request: web.Request) -> web.Response:
        return web.Response(content_type="text/html", text=PAGE)

    async def file_systems(self, _request: web.Request) -> web.Response:
        return web.json_response({"FileSystems": [{"FileSystemId": FS, "LifeCycleState": "available"}]})

    async def mount_targets(self, _request: web.Request) -> web.Response:
        one = {"MountTargetId": "fsmt-0a", "FileSystemId": FS, "SubnetId": "subnet-0a"}
        one |= {"LifeCycleState": "available", "IpAddress": "10.0.1.5", "AvailabilityZoneName": "us-east-1a"}
        return web.json_response({"MountTargets": [one]})


@pytest.fixture
async def aws() -> AsyncIterator[Aws]:
    fake, app = Aws(), web.Application()
    app.router.add_post("/", fake.sts)
    app.router.add_get("/2015-02-01/file-systems", fake.file_systems)
    app.router.add_get("/2015-02-01/mount-targets", fake.mount_targets)
    app.router.add_route("*", "/latest/{path:.*}", fake.metadata)
    async with serving(app) as fake.url:
        yield fake


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name, because paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="sts-") as name:
        yield Path(name)


@pytest.fixture
def environment(aws: Aws, folder: Path, api_server: ApiServer) -> dict[str, str]:
    (folder / "kubeconfig").write_text(api_server.kubeconfig())
    (folder / "jwt").write_text(JWT)
    (folder / "credentials").write_text(
        f"[team]\naws_access_key_id = AKIA1\naws_secret_access_key = {SECRET_KEY}\n"
    )
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "KUBECONFIG": str(folder / "kubeconfig"),
        "NODE_NAME": "node-1",
        "POD_NAME": "controller-0",
        "POD_NAMESPACE": "default",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_STS": aws.url,
        "AWS_ENDPOINT_URL_EFS": aws.url,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "credentials"),
        "AWS_CONFIG_FILE": str(folder / "config"),
        "KUBE_EFS_HEALTH_HOST": "127.0.0.1",
        "KUBE_EFS_HEALTH_PORT": "0",
        "LOGGING_LEVEL": "DEBUG",
    }


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            while not await condition():  # noqa: ASYNC110 - other processes tell no event
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {SECONDS:g} s: {what}")


async def fetched(program: Program, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{program.health_url}{path}") as answer:
        return await (answer.text() if path == "/metrics" else answer.json())


async def metric(program: Program, start: str) -> float:
    lines = (await fetched(program, "/metrics")).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


async def is_alive(program: Program) -> bool:
    return program.running and bool((await fetched(program, "/healthz"))["ok"])


async def test_agent_renews_other_certificates_despite_invalid_answers_of_sts(
    environment: dict[str, str], aws: Aws, folder: Path, kube: AsyncClient
) -> None:
    authority, port, conf = Authority(folder, "ca"), free_port(), folder / "stunnel.conf"
    ports = on_demand_options(folder).ports
    environment |= {
        "KUBE_EFS_ZONE": "us-east-1a",
        "KUBE_EFS_SUBNETS": NEAR,
        "KUBE_EFS_CA_FILE": str(authority.file),
        "KUBE_EFS_TUNNEL_SOCKET": str(folder / "tunnel.sock"),
        "KUBE_EFS_TUNNEL_PORTS": f"{ports.first}-{ports.last}",
        "KUBE_EFS_PROBE_INTERVAL_SECONDS": "0.2",
        "STUNNEL_CONF_PATH": str(conf),
    }
    first, second = (Program("tunnel", environment, folder / name) for name in ("first.log", "second.log"))
    renewals = "kube_efs_certificate_renewals_total"

    async def tunnels() -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in (await fetched(second, "/tunnels"))["tunnels"]}

    try:
        async with Backend(authority, host_of(FS)) as backend:
            data = {"efs-stunnel.yaml": document(target(FS, port, a=backend.address)).targets}
            metadata = ObjectMeta(name="efs-stunnel", namespace="default")
            await kube.create(ConfigMap(metadata=metadata, data=data))
            signed = TunnelSpec(
                file_system_id=FS,
                region=REGION,
                address=backend.address,
                iam=IamOptions(role_arn=ROLE, token_file=str(folder / "jwt")),
            )
            other = TunnelSpec(
                file_system_id=FS, region=REGION, address=backend.address, iam=IamOptions(profile="team")
            )
            await first.start()
            async with connect_tunnels(folder / "tunnel.sock", timeout_seconds=SECONDS) as client:
                for spec in (signed, other):
                    await client.ensure(spec, POD)
            assert await first.stop() == 0

            aws.is_invalid = True
            await second.start()  # which renews at once what is signed
            for outcome, what in (
                ("failed", "the failure is counted"),
                ("succeeded", "the other is renewed"),
            ):
                start = f'{renewals}{{outcome="{outcome}"}}'
                await until(partial(_at_least, second, start, 1), what)
            found = await tunnels()
            assert found[other.name]["reason"] == ""
            assert found[signed.name]["reason"].startswith(
                f"certificate not renewed: web identity {ROLE}: gave an invalid answer (ResponseParserError"
            )

            async def root_is_up() -> bool:
                return bool((await tunnels())[""]["state"] == "up")

            await until(root_is_up, "the tunnel of the ConfigMap is served meanwhile")
            assert await is_alive(second)

            aws.is_invalid = False

            async def is_well() -> bool:
                return not (await tunnels())[signed.name]["reason"]

            await until(is_well, "the certificate is renewed")
            assert await metric(second, f'{renewals}{{outcome="succeeded"}}') == 2
            assert aws.refused >= 1
            assert await is_alive(second)
            async with connect_tunnels(folder / "tunnel.sock") as client:
                await client.release(POD)
    finally:
        for program in (first, second):
            await program.stop()
        for pid in stunnels_of(conf):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _check_no_secret_is_logged(folder / "first.log", folder / "second.log")


async def test_controller_discovers_file_systems_after_invalid_answers_of_sts(
    environment: dict[str, str], aws: Aws, folder: Path, kube: AsyncClient
) -> None:
    environment |= {
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "jwt"),
        "KUBE_EFS_BACKENDS": "tunnel",
        "EFS_POLLING_INTERVAL": "0.2",
    }
    controller = Program("controller", environment, folder / "log")
    aws.is_invalid = True
    failures = 'kube_efs_discovery_failures_total{part="file_systems"}'

    async def has_targets() -> bool:
        with suppress(ApiError):
            found = await kube.get(ConfigMap, "efs-stunnel", namespace="default")
            return FS in (found.data or {}).get("efs-stunnel.yaml", "")
        return False

    try:
        await controller.start()
        await until(partial(_at_least, controller, failures, 3), "discovery fails time and again")
        assert await is_alive(controller)
        assert await metric(controller, "kube_efs_file_systems") == 0

        aws.is_invalid = False
        await until(has_targets, "the file system is discovered")
        assert await metric(controller, "kube_efs_file_systems") == 1
        assert await is_alive(controller)
        # The boundary has translated the answer: no duty has met an unexpected error.
        assert await metric(controller, "kube_efs_duty_failures_total") == 0
    finally:
        await controller.stop()
    _check_no_secret_is_logged(folder / "log")


async def test_invalid_instance_metadata_are_retried_at_the_start(
    environment: dict[str, str], aws: Aws, folder: Path
) -> None:
    environment |= {"AWS_EC2_METADATA_SERVICE_ENDPOINT": aws.url, "AWS_REGION": ""}
    for command in ("controller", "tunnel"):
        program = Program(command, environment | {"STUNNEL_CONF_PATH": str(folder / "s")}, folder / command)
        try:
            await program.start()
            await until(partial(_has_logged, folder / command, "location-not-found"), "it is asked again")
            assert await is_alive(program)
            assert not (await fetched(program, "/readyz"))["ok"]
        finally:
            await program.stop()


async def _at_least(program: Program, start: str, wanted: float) -> bool:
    return await metric(program, start) >= wanted


async def _has_logged(log: Path, text: str) -> bool:
    return text in await asyncio.to_thread(log.read_text)


def _check_no_secret_is_logged(*logs: Path) -> None:
    for log in logs:
        text = log.read_text()
        assert "Sign in" not in text
        assert [one for one in (JWT, SECRET_KEY) if one in text] == []
