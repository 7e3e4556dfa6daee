"""The embedded EFS as tunnels and NFS clients see it: real stunnel, real NFS, real AWS calls."""

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
import pytest
import pytest_asyncio

from fake_efs.admission import Admission
from fake_efs.aws_api import AwsClient
from fake_efs.data_plane import DataPlane
from fake_efs.errors import InvalidValue, NotYet
from fake_efs.file_systems import FileSystem, MountTarget, dns_name, server_names
from fake_efs.identities import Identities
from fake_efs.process import ChildProcess
from fake_efs.service import EmbeddedEfs, LoopbackRange
from fake_efs.tls_front import NFS_PORT, Condition
from kube_efs.model.efs.ids import Region, ZoneName
from tiny_ca.authority import Authority

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGION = Region("us-east-1")
ZONES = [ZoneName("us-east-1a"), ZoneName("us-east-1b"), ZoneName("us-east-1c")]
DEADLINE_SECONDS = 60.0
SMALL = 3000  # libnfs 4.0 cannot send more than a 4 KiB call with NFSv4

TUNNEL = """\
foreground = yes
pid =
fips = no
debug = info
[tunnel]
client = yes
accept = 127.0.0.1:0
connect = {address}:{port}
CAfile = {ca_file}
checkHost = {name}
verifyChain = yes
sslVersionMin = {version}
sslVersionMax = {version}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A running stunnel client in front of one mount target."""

    port: int
    log_file: Path

    def url(self, path: str) -> str:
        return f"nfs://127.0.0.1/{path}?version=4&nfsport={self.port}&mountport={self.port}"

    async def nfs(self, tool: str, *arguments: str) -> tuple[int, bytes]:
        """Run one of libnfs's tools; gives its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            tool, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(200):  # the longest copies 200 MB
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, output


@asynccontextmanager
async def tunnel(
    efs: EmbeddedEfs, system: str, address: str, folder: Path, version: str = "TLSv1.3"
) -> AsyncIterator[Tunnel]:
    """Run a stunnel that verifies chain and name as those of kube-efs do."""
    configuration, log_file = folder / "stunnel.conf", folder / "stunnel.log"
    name = dns_name(system, efs.region)
    configuration.write_text(
        TUNNEL.format(address=address, port=NFS_PORT, ca_file=efs.ca_file, name=name, version=version)
    )
    process = await ChildProcess.start("stunnel", str(configuration), log_file=log_file)
    try:
        port = await process.listening_port(timeout_seconds=DEADLINE_SECONDS)
        yield Tunnel(port=port, log_file=log_file)
    finally:
        await process.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 -- a test looks from outside
            await asyncio.sleep(0.02)
    assert condition(), what


async def refused(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, NFS_PORT)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def efs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedEfs]:
    async with EmbeddedEfs(tmp_path_factory.mktemp("efs"), region=REGION) as efs:
        yield efs


@pytest_asyncio.fixture(loop_scope="module")
async def file_system(efs: EmbeddedEfs) -> AsyncIterator[str]:
    file_system_id = await efs.create_file_system("data")
    yield file_system_id
    with contextlib.suppress(InvalidValue):
        efs.folder(file_system_id)
        await efs.delete_file_system(file_system_id)


@pytest_asyncio.fixture(loop_scope="module")
async def target(efs: EmbeddedEfs, file_system: str) -> MountTarget:
    return (await efs.mount_targets(file_system))[0]


async def test_two_file_systems_come_up_and_leave_nothing(tmp_path: Path) -> None:
    async with EmbeddedEfs(tmp_path) as efs:
        systems = await asyncio.gather(efs.create_file_system("one"), efs.create_file_system("two"))
        targets = [target for system in systems for target in await efs.mount_targets(system)]
        assert len({target.address for target in targets}) == 6
        assert [target.zone for target in targets] == ZONES * 2
        assert all([not await refused(target.address) for target in targets])
        pids = [served.pid for served in (efs.data_plane.served(s).nfs.process for s in systems)]  # type: ignore[union-attr]
    assert all([await refused(target.address) for target in targets])
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    async with httpx2.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(efs.endpoint_url)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_a_file_written_through_a_tunnel_is_read_by_another_connection(
    efs: EmbeddedEfs, file_system: str, target: MountTarget, tmp_path: Path, version: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(SMALL))
    async with tunnel(efs, file_system, target.address, tmp_path, version) as through:
        assert (await through.nfs("nfs-cp", str(source), through.url("/file")))[0] == 0
        assert await through.nfs("nfs-cat", through.url("/file")) == (0, source.read_bytes())
    assert (efs.folder(file_system) / "file").read_bytes() == source.read_bytes()
    traffic = efs.traffic(target.mount_target_id)
    assert (traffic.connections, traffic.handshakes) == (2, 2)
    assert traffic.bytes_received > SMALL
    assert traffic.bytes_sent > SMALL


async def test_what_a_pod_does_in_the_folder_is_seen_at_once(
    efs: EmbeddedEfs, file_system: str, target: MountTarget, tmp_path: Path
) -> None:
    file = efs.folder(file_system) / "file"
    async with tunnel(efs, file_system, target.address, tmp_path) as through:
        for text in (b"one", b"more than one", b"1"):
            file.write_bytes(text)
            assert await through.nfs("nfs-cat", through.url("/file")) == (0, text)
        file.unlink()
        assert (await through.nfs("nfs-cat", through.url("/file")))[0] != 0
        (efs.folder(file_system) / "folder").mkdir()
        _, listing = await through.nfs("nfs-ls", through.url("/"))
        assert [line.split()[-1] for line in listing.decode().splitlines()] == ["folder"]


async def test_two_hundred_megabytes_arrive_unchanged(
    efs: EmbeddedEfs, file_system: str, target: MountTarget, tmp_path: Path
) -> None:
    digest = hashlib.sha256()
    with (efs.folder(file_system) / "big").open("wb") as big:
        for _ in range(200):
            block = os.urandom(1 << 20)
            digest.update(block)
            big.write(block)
    async with tunnel(efs, file_system, target.address, tmp_path) as through:
        assert (await through.nfs("nfs-cp", through.url("/big"), str(tmp_path / "copy")))[0] == 0
    with (tmp_path / "copy").open("rb") as copy:
        assert hashlib.file_digest(copy, "sha256").digest() == digest.digest()
    assert efs.traffic(target.mount_target_id).bytes_sent > 200 << 20
    await until(lambda: efs.traffic(target.mount_target_id).open == 0, "connections are closed")


@pytest.mark.parametrize("wrong", ["name", "authority"])
async def test_with_a_wrong_certificate_no_byte_of_nfs_passes(
    efs: EmbeddedEfs, file_system: str, target: MountTarget, tmp_path: Path, wrong: str
) -> None:
    (efs.folder(file_system) / "secret").write_text("secret")
    if wrong == "name":
        certificate = efs.authority.issue(server_names("fs-99999999", efs.region))
    else:
        certificate = Authority.create().issue(server_names(file_system, efs.region))
    efs.present(file_system, certificate)
    async with tunnel(efs, file_system, target.address, tmp_path) as through:
        code, output = await through.nfs("nfs-cat", through.url("/secret"))
        assert code != 0
        assert output == b""
        traffic = efs.traffic(target.mount_target_id)
        assert traffic.connections >= 1
        assert (traffic.handshakes, traffic.bytes_received, traffic.bytes_sent) == (0, 0, 0)
        assert "certificate verify failed" in through.log_file.read_text()
        efs.present(file_system, None)
        assert await through.nfs("nfs-cat", through.url("/secret")) == (0, b"secret")


async def test_a_deleted_file_system_is_gone_with_its_data(
    efs: EmbeddedEfs, file_system: str, target: MountTarget
) -> None:
    folder = efs.folder(file_system)
    (folder / "data").write_text("data")
    assert efs.file_system_at(target.address) == file_system
    await efs.delete_file_system(file_system)
    assert await refused(target.address)
    assert not folder.exists()
    assert efs.file_system_at(target.address) is None
    with pytest.raises(InvalidValue, match="is not served"):
        efs.folder(file_system)


async def test_a_moved_mount_target_serves_at_its_new_address(
    efs: EmbeddedEfs, file_system: str, target: MountTarget, tmp_path: Path
) -> None:
    (efs.folder(file_system) / "file").write_text("still here")
    zone = target.zone
    await efs.delete_mount_target(target.mount_target_id)
    assert await refused(target.address)
    address = target.address.rpartition(".")[0] + ".200"
    moved = await efs.create_mount_target(file_system, zone, address=address)
    assert moved.address == address
    async with tunnel(efs, file_system, moved.address, tmp_path) as through:
        assert await through.nfs("nfs-cat", through.url("/file")) == (0, b"still here")


async def test_what_another_aws_client_makes_is_served_without_asking(efs: EmbeddedEfs) -> None:
    code = (
        "import boto3; efs = boto3.client('efs'); ec2 = boto3.client('ec2'); "
        "fs = efs.create_file_system(CreationToken='other')['FileSystemId']; "
        f"print(efs.create_mount_target(FileSystemId=fs, SubnetId='{efs.subnets[1].subnet_id}')['IpAddress'])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=efs.environment(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        output, _ = await process.communicate()
    address = output.decode().strip()
    await until(lambda: efs.file_system_at(address) is not None, f"{address} is served")
    found = efs.file_system_at(address)
    assert found is not None
    await efs.delete_file_system(found)


async def test_a_dead_nfs_server_is_started_again(
    efs: EmbeddedEfs, file_system: str, target: MountTarget, tmp_path: Path
) -> None:
    (efs.folder(file_system) / "file").write_text("still here")
    served = efs.data_plane.served(file_system)
    before = served.nfs
    assert before is not None
    await before.process.kill()
    await until(lambda: served.nfs is not before, "another server")
    async with tunnel(efs, file_system, target.address, tmp_path) as through:
        assert await through.nfs("nfs-cat", through.url("/file")) == (0, b"still here")


async def test_a_failing_mount_target_fails_alone(efs: EmbeddedEfs, file_system: str) -> None:
    first, second, third = await efs.mount_targets(file_system)
    await efs.data_plane.front(first.mount_target_id).become(Condition.REFUSING)
    await efs.data_plane.front(second.mount_target_id).become(Condition.SILENT)
    assert await refused(first.address)
    assert not await refused(second.address)
    await efs.data_plane.settle()
    assert await refused(first.address), "the data plane does not undo what a test has set"
    assert not await refused(third.address)


async def test_the_node_sits_in_the_first_subnet(efs: EmbeddedEfs) -> None:
    async with httpx2.AsyncClient(base_url=efs.metadata_url, trust_env=False, timeout=5) as client:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = (await client.put("/latest/api/token", headers=ttl)).text
        client.headers["X-aws-ec2-metadata-token"] = token
        base = "/latest/meta-data"
        mac = (await client.get(f"{base}/mac")).text
        subnet = (await client.get(f"{base}/network/interfaces/macs/{mac}/subnet-id")).text
        zone = (await client.get(f"{base}/placement/availability-zone")).text
    assert (subnet, zone) == (efs.subnets[0].subnet_id, ZONES[0])


async def test_an_address_that_is_taken_stops_no_other(tmp_path: Path) -> None:
    file_system_id, addresses = "fs-01234567", LoopbackRange.acquire()
    good, bad = (str(addresses.network[number]) for number in (4, 5))
    targets = tuple(
        MountTarget(
            mount_target_id=f"fsmt-{number}",
            subnet_id=f"subnet-{number}",
            zone=ZONES[number],
            address=address,
        )
        for number, address in enumerate([bad, good])
    )

    async def discover() -> tuple[FileSystem, ...]:
        return (FileSystem(file_system_id=file_system_id, mount_targets=targets),)

    plane = DataPlane(
        discover,
        authority=Authority.create(),
        region=REGION,
        work_dir=tmp_path,
        admission=Admission(AwsClient(None), AwsClient(None), Identities(REGION)),
    )
    other = await asyncio.start_server(lambda _, writer: writer.close(), bad, NFS_PORT)
    try:
        with pytest.raises(NotYet, match=rf"'fsmt-0' cannot listen on {bad}: .*address already in use"):
            await plane.settle()
        assert plane.file_system_at(good) == file_system_id
        other.close()
        await other.wait_closed()
        await plane.settle()
        assert plane.file_system_at(bad) == file_system_id
    finally:
        other.close()
        await plane.stop()
        addresses.release()
