"""Access points and IAM through tunnels on demand: the identity of the agent, and the checks of EFS."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from tests.integration.on_demand_options import on_demand_options
from tests.integration.tunnel_node import eventually, running

from fake_efs.aws_api import ACCOUNT_ID, CREDENTIALS
from fake_efs.identities import INSTANCE_ROLE
from fake_efs.service import EmbeddedEfs
from kube_efs.aws.connection import AwsConnection, Service
from kube_efs.aws.credential_sources import IamOptions, ProfileFiles
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.tunnels.api.client import TunnelClient, connect_tunnels
from kube_efs.tunnels.options import TunnelOptions
from kube_efs.tunnels.reservations import Holder, TunnelSpec
from kube_efs_lab.aws import aws_options
from tiny_ca.authority import Authority

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not Path("/usr/bin/stunnel").exists(), reason="stunnel is not installed"),
]

REGION = Region("us-east-1")
UID, GID = 4321, 8765
ROLE, USER = f"arn:aws:iam::{ACCOUNT_ID}:role/{INSTANCE_ROLE}", f"arn:aws:iam::{ACCOUNT_ID}:user/embedded"
PROFILES = """\
[known]
aws_access_key_id = {known.access_key_id}
aws_secret_access_key = {known.secret_access_key}
[guessing]
aws_access_key_id = {known.access_key_id}
aws_secret_access_key = guessed
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An agent with tunnels to a file system, and access to files through them."""

    efs: EmbeddedEfs
    aws: AwsConnection
    file_system: FileSystemId
    address: str
    client: TunnelClient
    folder: Path

    async def access_point(self, path: str, file_system: FileSystemId | None = None) -> AccessPointId:
        creation = {"OwnerUid": UID, "OwnerGid": GID, "Permissions": "0750"}
        made = await self.aws.call(
            Service.EFS,
            "CreateAccessPoint",
            ClientToken=os.urandom(8).hex(),
            FileSystemId=file_system or self.file_system,
            PosixUser={"Uid": UID, "Gid": GID},
            RootDirectory={"Path": path, "CreationInfo": creation},
        )
        return AccessPointId(made["AccessPointId"])

    async def tunnel(self, **spec: Any) -> str:
        """The NFS address of the root of a new tunnel."""
        wanted = TunnelSpec(**{"file_system_id": self.file_system, "address": self.address, **spec})
        port = await self.client.ensure(wanted, Holder("pod"))
        return f"nfs://127.0.0.1//?version=4&nfsport={port}&mountport={port}"

    async def write(self, tunnel: str, name: str, text: str) -> bool:
        source = self.folder / "source"
        source.write_text(text)
        return (await nfs("nfs-cp", str(source), tunnel.replace("//?", f"//{name}?")))[0] == 0

    async def leads_somewhere(self, tunnel: str) -> bool:
        return (await nfs("nfs-ls", tunnel))[0] == 0

    @asynccontextmanager
    async def refusal(self, reason: str) -> AsyncIterator[None]:
        """The file system refuses a client for this reason while the context is open."""
        with capture_logs() as logs:
            yield
            await eventually(
                lambda: any(reason in line.get("reason", "") for line in logs), f"a refusal: {reason}"
            )

    @asynccontextmanager
    async def policy(self, *statements: Mapping[str, Any]) -> AsyncIterator[None]:
        """A policy of these statements while the context is open, then one that allows everything."""
        await self._put_policy(*statements)
        yield
        await self._put_policy(statement("*"))

    async def _put_policy(self, *statements: Mapping[str, Any]) -> None:
        text = json.dumps({"Version": "2012-10-17", "Statement": statements})
        await self.aws.call(Service.EFS, "PutFileSystemPolicy", FileSystemId=self.file_system, Policy=text)


def statement(principal: str, effect: str = "Allow") -> Mapping[str, Any]:
    actions = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]
    return {"Effect": effect, "Principal": {"AWS": principal}, "Action": actions}


async def nfs(tool: str, *arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        tool, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(30):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def efs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEfs]:
    async with EmbeddedEfs(tmp_path_factory.mktemp("efs"), region=REGION) as efs:
        yield efs


@pytest_asyncio.fixture(loop_scope="module")
async def site(efs: EmbeddedEfs, tmp_path: Path) -> AsyncIterator[Site]:
    socket, profiles = tmp_path / "run" / "tunnel.sock", tmp_path / "credentials"
    profiles.write_text(PROFILES.format(known=CREDENTIALS))
    on_demand = on_demand_options(
        socket, files=ProfileFiles(credentials=profiles, config=tmp_path / "config")
    )
    credentials = replace(on_demand.credentials, metadata_endpoint=efs.metadata_url)
    options = TunnelOptions(
        region=REGION,
        conf_path=tmp_path / "stunnel.conf",
        ca_file=efs.ca_file,
        retry_seconds=0.1,
        on_demand=replace(on_demand, credentials=credentials),
    )
    file_system = FileSystemId(await efs.create_file_system("data", zones=[ZoneName("us-east-1a")]))
    [target] = await efs.mount_targets(file_system)
    async with (
        AwsConnection(aws_options(efs.endpoint_url)) as aws,
        running(options),
        connect_tunnels(socket) as client,
    ):
        yield Site(
            efs=efs,
            aws=aws,
            file_system=file_system,
            address=target.address,
            client=client,
            folder=tmp_path,
        )
        await client.release(Holder("pod"))
    await efs.delete_file_system(file_system)


async def test_each_access_point_has_its_own_root_and_identity(site: Site) -> None:
    one, two = await site.access_point("/apps/one"), await site.access_point("/apps/two")
    first, second = await site.tunnel(access_point_id=one), await site.tunnel(access_point_id=two)

    assert await site.write(first, "file", "of one")
    assert await site.write(second, "file", "of two")
    whole = await site.tunnel()
    assert await site.leads_somewhere(whole)

    data = site.efs.folder(site.file_system)
    for name in ("one", "two"):
        root, file = data / "apps" / name, data / "apps" / name / "file"
        found = root.stat()
        assert (found.st_uid, found.st_gid, stat.filemode(found.st_mode)) == (UID, GID, "drwxr-x---")
        assert (file.stat().st_uid, file.stat().st_gid) == (UID, GID), "every writer's file is that user's"
        assert file.read_text() == f"of {name}"
    # Mounted without an access point the identity is the client's.
    assert await site.write(whole, "file", "of all")
    assert (data / "file").stat().st_uid == os.getuid()


async def test_client_certificate_must_name_the_file_system(site: Site) -> None:
    there = FileSystemId(await site.efs.create_file_system("there", zones=[ZoneName("us-east-1b")]))
    # The address answers with the other one's name, so that the client itself sees nothing wrong.
    site.efs.present(site.file_system, site.efs.authority.issue([dns_name(there, REGION)]))
    tunnel = await site.tunnel(file_system_id=there)
    async with site.refusal(f"file system of the client certificate: '{there}' is not {site.file_system}"):
        assert not await site.leads_somewhere(tunnel)

    site.efs.present(site.file_system, Authority.create().issue([dns_name(site.file_system, REGION)]))
    assert not await site.leads_somewhere(await site.tunnel())
    site.efs.present(site.file_system, None)
    assert await site.leads_somewhere(await site.tunnel())


async def test_access_point_must_belong_to_the_file_system(site: Site) -> None:
    there = FileSystemId(await site.efs.create_file_system("there", zones=[ZoneName("us-east-1b")]))
    elsewhere = await site.access_point("/", there)
    tunnel = await site.tunnel(access_point_id=elsewhere)
    async with site.refusal(f"'{elsewhere}' is not an access point of {site.file_system}"):
        assert not await site.leads_somewhere(tunnel)


async def test_policy_allows_only_the_signed_role(site: Site) -> None:
    point = await site.access_point("/signed")
    async with site.policy(statement(ROLE), statement(USER, "Deny")):
        unsigned = await site.tunnel(access_point_id=point)
        async with site.refusal("'a client without IAM signature' is not allowed ClientMount"):
            assert not await site.leads_somewhere(unsigned)
        # The role of the instance, as its metadata give it.
        assert await site.write(await site.tunnel(access_point_id=point, iam=IamOptions()), "file", "signed")
        # Somebody else of the account, by a profile.
        other = await site.tunnel(access_point_id=point, iam=IamOptions(profile="known"))
        async with site.refusal(f"'{USER}' is denied ClientMount"):
            assert not await site.leads_somewhere(other)
    found = site.efs.folder(site.file_system) / "signed" / "file"
    assert (found.stat().st_uid, found.read_text()) == (UID, "signed")
    assert await site.leads_somewhere(other)


async def test_signature_is_verified_even_without_a_policy(site: Site) -> None:
    tunnel = await site.tunnel(iam=IamOptions(profile="guessing"))
    async with site.refusal(f"IAM signature by key: '{CREDENTIALS.access_key_id}' does not match"):
        assert not await site.leads_somewhere(tunnel)
    assert await site.leads_somewhere(await site.tunnel(iam=IamOptions(profile="known")))
