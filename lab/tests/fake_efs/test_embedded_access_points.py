"""Access points and IAM at the embedded mount targets, with the certificates that kube-efs makes itself."""

import asyncio
import contextlib
import json
import os
import stat
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from tests.child_processes import children_with

from fake_efs.aws_api import ACCOUNT_ID, DRIVER
from fake_efs.aws_api import CREDENTIALS as OWN
from fake_efs.errors import InvalidValue
from fake_efs.file_systems import MountTarget
from fake_efs.identities import DRIVER_ARN, INSTANCE_ROLE
from fake_efs.process import ChildProcess
from fake_efs.service import EmbeddedEfs
from fake_efs.tls_front import NFS_PORT
from kube_efs.aws.connection import AwsConnection, AwsCredentials, Service
from kube_efs.aws.credential_loading import load_credentials
from kube_efs.aws.credential_sources import CredentialOptions, CredentialSource, ProfileFiles, SourceKind
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.file_systems import dns_name
from kube_efs.model.efs.ids import FileSystemId, Region, ZoneName
from kube_efs.model.efs.kinds import FileSystemKind
from kube_efs.tunnels.on_demand import certificate as certificates
from kube_efs.tunnels.on_demand.certificate import CertificateSubject, ClientKey, make_certificate
from kube_efs_lab.aws import aws_options
from tiny_ca.authority import trusting

pytestmark = pytest.mark.asyncio(loop_scope="module")

CREDENTIALS = AwsCredentials(access_key_id=OWN.access_key_id, secret_access_key=OWN.secret_access_key)
# Those of a node whose policy allows everything but mounts of S3 Files.
RESTRICTED = AwsCredentials(access_key_id=DRIVER.access_key_id, secret_access_key=DRIVER.secret_access_key)
WITHOUT_MOUNT = json.dumps(
    {
        "Statement": [
            {"Effect": "Allow", "Action": "*", "Resource": "*"},
            {"Effect": "Deny", "Action": "s3files:ClientMount", "Resource": "*"},
        ]
    }
)
REGION = Region("us-east-1")
DEADLINE_SECONDS = 60.0
UID, GID, TEAM = 4321, 8765, 7777
USER = {"Uid": UID, "Gid": GID}
CREATION = {"OwnerUid": UID, "OwnerGid": GID, "Permissions": "0750"}
OTHER_FILE_SYSTEM = FileSystemId("fs-99999999")
UNKNOWN_ACCESS_POINT = AccessPointId("fsap-99999999999999999")

# RFC 7530, 16
ACCESS, GET_HANDLE, LOOK_UP_PARENT, PUT_ROOT_HANDLE = (struct.pack(">I", code) for code in (3, 10, 16, 24))
MAY_EXTEND = 8
OK, NO_ENTRY, DENIED, OLD_VERSION = 0, 2, 13, 10021

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

TUNNEL = """\
foreground = yes
pid =
[tunnel]
client = yes
accept = 127.0.0.1:0
connect = {address}:{port}
cert = {certificate}
CAfile = {ca_file}
checkHost = {name}
verifyChain = yes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laboratory:
    """A file system with one mount target, and a client that can have any certificate."""

    efs: EmbeddedEfs
    aws: AwsConnection
    file_system: FileSystemId
    target: MountTarget
    key: ClientKey
    kind: FileSystemKind = FileSystemKind.EFS
    folder: Path = field(default_factory=Path)

    @property
    def data(self) -> Path:
        return self.efs.folder(self.file_system)

    async def access_point(self, path: str = "/", **description: object) -> AccessPointId:
        root = {"Path": path, **({"CreationInfo": c} if (c := description.pop("creation", None)) else {})}
        answer = await self.aws.call(
            Service.EFS,
            "CreateAccessPoint",
            ClientToken=os.urandom(8).hex(),
            FileSystemId=self.file_system,
            RootDirectory=root,
            **description,
        )
        return AccessPointId(answer["AccessPointId"])

    def subject(self, access_point: AccessPointId | None = None) -> CertificateSubject:
        return CertificateSubject(
            node="node",
            file_system_id=self.file_system,
            kind=self.kind,
            region=REGION,
            access_point_id=access_point,
        )

    def pem(
        self,
        subject: CertificateSubject,
        credentials: AwsCredentials | None = None,
        *,
        age: timedelta = timedelta(),
    ) -> Path:
        made = make_certificate(subject, self.key, now=datetime.now(UTC) - age, credentials=credentials)
        file = self.folder / f"{os.urandom(8).hex()}.pem"
        file.write_bytes(made.secret_pem)
        return file

    async def ask(self, certificate: Path | None, operation: bytes = GET_HANDLE) -> int | None:
        """The status of an NFS operation on the root, None when the connection was refused."""
        async with self.connection(certificate) as streams:
            reply = await compound(*streams, operation)
        return None if reply is None else reply.status

    async def may_write(self, certificate: Path, *, groups: Sequence[int]) -> bool:
        """Whether somebody who says to be root, and of these groups, may add to the root directory."""
        async with self.connection(certificate) as streams:
            reply = await compound(*streams, ACCESS + struct.pack(">I", MAY_EXTEND), groups=groups)
        assert reply is not None
        assert reply.status == OK
        return reply.result[-4:] == struct.pack(">I", MAY_EXTEND)

    @asynccontextmanager
    async def connection(self, certificate: Path | None) -> AsyncIterator[Streams]:
        context = trusting(self.efs.ca_file.read_text())
        if certificate is not None:
            context.load_cert_chain(certificate)
        name = dns_name(self.file_system, REGION, kind=self.kind)
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(
                self.target.address, NFS_PORT, ssl=context, server_hostname=name
            )
            try:
                yield reader, writer
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    @asynccontextmanager
    async def tunnel(self, certificate: Path) -> AsyncIterator["Tunnel"]:
        configuration, log_file = self.folder / "stunnel.conf", self.folder / "stunnel.log"
        configuration.write_text(
            TUNNEL.format(
                address=self.target.address,
                port=NFS_PORT,
                certificate=certificate,
                ca_file=self.efs.ca_file,
                name=dns_name(self.file_system, REGION),
            )
        )
        process = await ChildProcess.start("stunnel", str(configuration), log_file=log_file)
        try:
            yield Tunnel(port=await process.listening_port(timeout_seconds=DEADLINE_SECONDS))
        finally:
            await process.stop()

    @asynccontextmanager
    async def refusal(self, reason: str) -> AsyncIterator[None]:
        """Checks that one client is refused for this reason before a byte of NFS passes."""
        traffic = self.efs.traffic(self.target.mount_target_id)
        before = replace(traffic)
        with capture_logs() as logs:
            yield
        refusals = [line for line in logs if line["event"] == "mount_target_refused_client"]
        assert [line["log_level"] for line in refusals] == ["warning"], logs
        assert reason in refusals[0]["reason"]
        assert traffic.refused == before.refused + 1
        assert (traffic.bytes_received, traffic.bytes_sent) == (before.bytes_received, before.bytes_sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an NFS server said: the status of the last operation that it did, and the results of all."""

    status: int
    result: bytes


async def compound(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, operation: bytes, groups: Sequence[int] = ()
) -> Reply | None:
    """Do an operation on the root by NFSv4.0, as root with more groups; None when the connection ends."""
    # stamp, name of the machine, user, group, more groups (RFC 5531, 8.1)
    credentials = struct.pack(f">IIIII{len(groups)}I", 0, 0, 0, 0, len(groups), *groups)
    call = (
        struct.pack(">IIIIII", 1, 0, 2, 100003, 4, 1)
        + struct.pack(">II", 1, len(credentials))
        + credentials
        + struct.pack(">II", 0, 0)
        + struct.pack(">III", 0, 0, 2)
        + PUT_ROOT_HANDLE
        + operation
    )
    try:
        writer.write(struct.pack(">I", 0x80000000 | len(call)) + call)
        await writer.drain()
        size = int.from_bytes(await reader.readexactly(4)) & 0x7FFFFFFF
        reply = await reader.readexactly(size)
    except (OSError, asyncio.IncompleteReadError):
        return None
    return Reply(status=int.from_bytes(reply[24:28]), result=reply[36:])


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    reply = await compound(reader, writer, GET_HANDLE)
    return reply is not None and reply.status == OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A running stunnel in front of the mount target."""

    port: int

    def url(self, path: str, uid: int = 0) -> str:
        return f"nfs://127.0.0.1/{path}?version=4&nfsport={self.port}&uid={uid}&gid={uid}"

    async def nfs(self, tool: str, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            tool, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_laboratory(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Laboratory]:
    folder = tmp_path_factory.mktemp("efs")
    async with EmbeddedEfs(folder, region=REGION, driver_policy=WITHOUT_MOUNT) as efs:
        options = aws_options(efs.endpoint_url)
        async with AwsConnection(options) as aws:
            file_system = FileSystemId(await efs.create_file_system("data", zones=[ZoneName("us-east-1a")]))
            (target,) = await efs.mount_targets(file_system)
            key = await ClientKey.generate()
            yield Laboratory(efs=efs, aws=aws, file_system=file_system, target=target, key=key)


@pytest.fixture
def laboratory(module_laboratory: Laboratory, tmp_path: Path) -> Laboratory:
    return replace(module_laboratory, folder=tmp_path)


def owner_and_mode(path: Path) -> tuple[int, int, str]:
    found = path.lstat()
    return found.st_uid, found.st_gid, stat.filemode(found.st_mode)


@pytest.mark.parametrize("client_uid", [0, 1000], ids=["root", "somebody"])
async def test_whoever_writes_through_an_access_point_is_its_user(
    laboratory: Laboratory, client_uid: int
) -> None:
    root = f"/apps/web-{client_uid}"
    access_point = await laboratory.access_point(root, PosixUser=USER, creation=CREATION)
    source = laboratory.folder / "source"
    source.write_text("hello")
    async with laboratory.tunnel(laboratory.pem(laboratory.subject(access_point))) as tunnel:
        code, output = await tunnel.nfs("nfs-cp", str(source), tunnel.url("/file", client_uid))
        assert code == 0, output
        assert await tunnel.nfs("nfs-cat", tunnel.url("/file", client_uid)) == (0, "hello")
        _, listing = await tunnel.nfs("nfs-ls", tunnel.url("/", client_uid))
    assert [line.split()[-1] for line in listing.splitlines()] == ["file"]
    folder = laboratory.data / root.strip("/")
    assert owner_and_mode(folder) == (UID, GID, "drwxr-x---")
    assert owner_and_mode(folder.parent) == (0, 0, "drwxr-xr-x")
    assert owner_and_mode(folder / "file")[:2] == (UID, GID)
    assert (folder / "file").read_text() == "hello"


async def test_the_user_may_not_do_what_the_mode_forbids_even_as_root(laboratory: Laboratory) -> None:
    folder = laboratory.data / "closed"
    folder.mkdir(0o700)
    (folder / "secret").write_text("secret")
    access_point = await laboratory.access_point("/closed", PosixUser=USER)
    async with laboratory.tunnel(laboratory.pem(laboratory.subject(access_point))) as tunnel:
        code, output = await tunnel.nfs("nfs-cat", tunnel.url("/secret"))
    assert code != 0
    assert "NFS4ERR_ACCESS" in output


async def test_a_client_brings_no_groups_and_secondary_ones_are_not_given(laboratory: Laboratory) -> None:
    folder = laboratory.data / "team"
    folder.mkdir()
    os.chown(folder, 0, TEAM)
    folder.chmod(0o770)
    own = await laboratory.access_point("/team", PosixUser={"Uid": UID, "Gid": TEAM})
    other = await laboratory.access_point("/team", PosixUser=USER)
    secondary = await laboratory.access_point("/team", PosixUser={**USER, "SecondaryGids": [TEAM]})
    allowed = [
        await laboratory.may_write(laboratory.pem(laboratory.subject(access_point)), groups=[TEAM])
        for access_point in (own, other, secondary)
    ]
    assert allowed == [True, False, False]


async def test_without_a_user_clients_keep_their_own_identity(laboratory: Laboratory) -> None:
    access_point = await laboratory.access_point("/shared", creation={**CREATION, "Permissions": "0777"})
    source = laboratory.folder / "source"
    source.write_text("hello")
    async with laboratory.tunnel(laboratory.pem(laboratory.subject(access_point))) as tunnel:
        assert (await tunnel.nfs("nfs-cp", str(source), tunnel.url("/file", 1234)))[0] == 0
    assert owner_and_mode(laboratory.data / "shared/file")[:2] == (1234, 1234)


async def test_there_is_no_way_up_from_the_root(laboratory: Laboratory) -> None:
    access_point = await laboratory.access_point("/a/b/c", creation=CREATION)
    certificate = laboratory.pem(laboratory.subject(access_point))
    assert await laboratory.ask(certificate, GET_HANDLE) == OK
    assert await laboratory.ask(certificate, LOOK_UP_PARENT) == NO_ENTRY


async def test_an_existing_root_keeps_its_owner_and_mode(laboratory: Laboratory) -> None:
    folder = laboratory.data / "existing"
    folder.mkdir()
    folder.chmod(0o711)
    access_point = await laboratory.access_point("/existing", PosixUser=USER, creation=CREATION)
    assert await laboratory.ask(laboratory.pem(laboratory.subject(access_point))) == OK
    assert owner_and_mode(folder) == (0, 0, "drwx--x--x")


async def test_a_root_that_was_replaced_is_served_anew(laboratory: Laboratory) -> None:
    folder = laboratory.data / "replaced"
    access_point = await laboratory.access_point("/replaced", PosixUser=USER, creation=CREATION)
    certificate = laboratory.pem(laboratory.subject(access_point))
    assert await laboratory.ask(certificate) == OK
    folder.rename(folder.with_name("replaced.old"))
    async with laboratory.tunnel(certificate) as tunnel:
        _, before = await tunnel.nfs("nfs-ls", tunnel.url("/"))
        (folder / "new").write_text("")
        _, after = await tunnel.nfs("nfs-ls", tunnel.url("/"))
    assert (before, after.split()[-1]) == ("", "new")


async def test_twenty_access_points_are_served_at_once(laboratory: Laboratory) -> None:
    access_points = [
        await laboratory.access_point(f"/many/{number}", PosixUser=USER, creation=CREATION)
        for number in range(20)
    ]
    certificates = [laboratory.pem(laboratory.subject(access_point)) for access_point in access_points]
    answers = await asyncio.gather(*(laboratory.ask(certificate) for certificate in certificates))
    assert answers == [OK] * 20


Change = Callable[[CertificateSubject], CertificateSubject]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            lambda subject: replace(subject, file_system_id=OTHER_FILE_SYSTEM),
            "file system of the client certificate: 'fs-99999999' is not fs-",
            id="another file system",
        ),
        pytest.param(
            lambda subject: replace(subject, access_point_id=UNKNOWN_ACCESS_POINT),
            "access point: 'fsap-99999999999999999' does not exist",
            id="unknown access point",
        ),
        pytest.param(
            lambda subject: replace(subject, access_point_id="web"),
            "access point extension: 'web' is not a valid access point ID",
            id="malformed extension",
        ),
    ],
)
async def test_certificates_that_lead_nowhere_are_refused(
    laboratory: Laboratory, change: Change, reason: str
) -> None:
    certificate = laboratory.pem(change(laboratory.subject()))
    async with laboratory.refusal(reason):
        assert await laboratory.ask(certificate) is None


async def test_a_certificate_that_has_expired_is_refused(laboratory: Laboratory) -> None:
    certificate = laboratory.pem(laboratory.subject(), age=timedelta(hours=4))
    async with laboratory.refusal("client certificate: is valid from "):
        assert await laboratory.ask(certificate) is None


async def test_an_access_point_of_another_file_system_is_refused(laboratory: Laboratory) -> None:
    other = FileSystemId(await laboratory.efs.create_file_system("other", zones=[]))
    there = replace(laboratory, file_system=other)
    access_point = await there.access_point("/")
    async with laboratory.refusal(f"'{access_point}' is not an access point of {laboratory.file_system}"):
        assert await laboratory.ask(laboratory.pem(laboratory.subject(access_point))) is None
    await laboratory.efs.delete_file_system(other)


async def test_a_deleted_access_point_is_refused_at_once_but_not_cut(laboratory: Laboratory) -> None:
    access_point = await laboratory.access_point("/deleted", creation=CREATION)
    certificate = laboratory.pem(laboratory.subject(access_point))
    async with laboratory.tunnel(certificate) as tunnel:
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        assert await answers(reader, writer)
        await laboratory.aws.call(Service.EFS, "DeleteAccessPoint", AccessPointId=access_point)
        async with laboratory.refusal(f"access point: '{access_point}' does not exist"):
            assert await laboratory.ask(certificate) is None
        assert await answers(reader, writer)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        pytest.param(lambda _: None, "'/unusable' does not exist, and has no CreationInfo", id="missing"),
        pytest.param(lambda path: path.write_text(""), "is not a directory at unusable", id="a file"),
        pytest.param(
            lambda path: path.symlink_to("/etc"), "is not a directory at unusable", id="a symbolic link"
        ),
    ],
)
async def test_a_root_that_cannot_be_used_is_refused(
    laboratory: Laboratory, prepare: Callable[[Path], object], reason: str
) -> None:
    access_point = await laboratory.access_point("/unusable")
    root = laboratory.data / "unusable"
    prepare(root)
    async with laboratory.refusal(reason):
        assert await laboratory.ask(laboratory.pem(laboratory.subject(access_point))) is None
    with pytest.raises(InvalidValue, match=reason):
        await laboratory.efs.access_point_folder(access_point)
    root.unlink(missing_ok=True)


async def test_the_folder_of_an_access_point_is_made_as_by_a_connection(laboratory: Laboratory) -> None:
    access_point = await laboratory.access_point("/bound/here", PosixUser=USER, creation=CREATION)
    folder = await laboratory.efs.access_point_folder(access_point)
    assert folder == laboratory.data / "bound/here"
    assert owner_and_mode(folder) == (UID, GID, "drwxr-x---")
    with pytest.raises(InvalidValue, match=r"'fsap-99999999999999999' does not exist"):
        await laboratory.efs.access_point_folder(UNKNOWN_ACCESS_POINT)


def statement(principal: str, effect: str = "Allow", **more: object) -> Mapping[str, Any]:
    return {
        "Effect": effect,
        "Principal": {"AWS": principal},
        "Action": ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"],
        **more,
    }


@asynccontextmanager
async def policy(laboratory: Laboratory, *statements: Mapping[str, Any]) -> AsyncIterator[None]:
    """A policy of these statements; afterwards there is one that is open to all, since moto deletes none."""

    async def put(*statements: Mapping[str, Any]) -> None:
        text = json.dumps({"Version": "2012-10-17", "Statement": statements})
        await laboratory.aws.call(
            Service.EFS, "PutFileSystemPolicy", FileSystemId=laboratory.file_system, Policy=text
        )

    await put(*statements)
    try:
        yield
    finally:
        await put(statement("*"))


async def test_a_policy_for_the_account_refuses_those_without_signature(laboratory: Laboratory) -> None:
    async with policy(laboratory, statement(f"arn:aws:iam::{ACCOUNT_ID}:root")):
        for certificate in (None, laboratory.pem(laboratory.subject())):
            async with laboratory.refusal(
                "'a client without IAM signature' is not allowed ClientMount; mount with the option iam"
            ):
                assert await laboratory.ask(certificate) == DENIED
        assert await laboratory.ask(laboratory.pem(laboratory.subject(), CREDENTIALS)) == OK
    assert await laboratory.ask(None) == OK


async def test_s3_files_admits_only_signatures_of_identities_that_may_mount(laboratory: Laboratory) -> None:
    efs = laboratory.efs
    file_system = FileSystemId(await efs.create_s3_file_system("photos"))
    target, *_ = await efs.s3_files_mount_targets(file_system)
    s3_files = replace(laboratory, kind=FileSystemKind.S3_FILES, file_system=file_system, target=target)
    for certificate in (None, s3_files.pem(s3_files.subject())):
        async with s3_files.refusal("has no IAM signature"):
            assert await s3_files.ask(certificate) is None
    async with s3_files.refusal(f"'{DRIVER_ARN}' is not allowed s3files:ClientMount"):
        assert await s3_files.ask(s3_files.pem(s3_files.subject(), RESTRICTED)) == DENIED
    # Admitted, so it is the NFS server that refuses NFSv4.0.
    assert await s3_files.ask(s3_files.pem(s3_files.subject(), CREDENTIALS)) == OLD_VERSION
    # EFS needs no permission of the identity.
    assert await laboratory.ask(laboratory.pem(laboratory.subject(), RESTRICTED)) == OK


async def test_the_role_of_the_instance_mounts_with_an_access_point(laboratory: Laboratory) -> None:
    none = Path(os.devnull)
    options = CredentialOptions(
        region=REGION,
        files=ProfileFiles(credentials=none, config=none),
        metadata_endpoint=laboratory.efs.metadata_url,
    )
    found = await load_credentials(CredentialSource(kind=SourceKind.INSTANCE_ROLE), options)
    assert found.expires_at is not None
    assert timedelta(hours=5) < found.expires_at - datetime.now(UTC) < timedelta(hours=7)
    access_point = await laboratory.access_point("/role", PosixUser=USER, creation=CREATION)
    certificate = laboratory.pem(laboratory.subject(access_point), found.credentials)
    role = f"arn:aws:iam::{ACCOUNT_ID}:role/{INSTANCE_ROLE}"
    async with policy(laboratory, statement(role)):
        assert await laboratory.ask(certificate) == OK
    async with policy(laboratory, statement("*"), statement(role, "Deny")):
        async with laboratory.refusal(f"'{role}' is denied ClientMount"):
            assert await laboratory.ask(certificate) == DENIED
        assert await laboratory.ask(None) == OK


@pytest.mark.parametrize(
    ("credentials", "region", "age", "reason"),
    [
        pytest.param(
            replace(CREDENTIALS, access_key_id="AKIDUNKNOWN"),
            REGION,
            timedelta(),
            "IAM signature by key: 'AKIDUNKNOWN' is of no known access key and session token",
            id="unknown key",
        ),
        pytest.param(
            replace(CREDENTIALS, secret_access_key="guessed"),
            REGION,
            timedelta(),
            "IAM signature by key: 'embedded' does not match",
            id="wrong secret",
        ),
        pytest.param(
            CREDENTIALS,
            Region("eu-west-1"),
            timedelta(),
            "region than us-east-1",
            id="another region",
        ),
        pytest.param(
            replace(CREDENTIALS, session_token="made up"),
            REGION,
            timedelta(),
            "is of no known access key and session token",
            id="made-up token",
        ),
    ],
)
async def test_signatures_that_are_not_of_the_account_are_refused(
    laboratory: Laboratory, credentials: AwsCredentials, region: Region, age: timedelta, reason: str
) -> None:
    subject = replace(laboratory.subject(), region=region)
    certificate = laboratory.pem(subject, credentials, age=age)
    async with laboratory.refusal(reason):
        assert await laboratory.ask(certificate) is None


async def test_a_signature_outlives_neither_its_day_nor_is_taken_before(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The certificate itself is made to be valid for long, as no maker of kube-efs does.
    monkeypatch.setattr(certificates, "VALID_BEFORE", timedelta(days=2))
    monkeypatch.setattr(certificates, "VALID_AFTER", timedelta(days=2))
    for age, reason in ((timedelta(hours=25), "has expired"), (timedelta(hours=-1), "is of the future")):
        certificate = laboratory.pem(laboratory.subject(), CREDENTIALS, age=age)
        async with laboratory.refusal(f"IAM signature by key: 'embedded' {reason}"):
            assert await laboratory.ask(certificate) is None


async def test_servers_end_when_they_are_idle_and_with_the_cluster(tmp_path: Path) -> None:
    async with EmbeddedEfs(tmp_path, region=REGION) as efs:
        options = aws_options(efs.endpoint_url)
        async with AwsConnection(options) as aws:
            file_system = FileSystemId(await efs.create_file_system("data", zones=[ZoneName("us-east-1a")]))
            (target,) = await efs.mount_targets(file_system)
            laboratory = Laboratory(
                efs=efs,
                aws=aws,
                file_system=file_system,
                target=target,
                key=await ClientKey.generate(),
                folder=tmp_path,
            )
            first = await laboratory.access_point("/first", creation=CREATION)
            second = await laboratory.access_point("/second", creation=CREATION)
            certificate = laboratory.pem(laboratory.subject(first))
            servers = efs.data_plane.served(file_system).access_points
            assert await laboratory.ask(laboratory.pem(laboratory.subject(second))) == OK
            async with laboratory.tunnel(certificate) as tunnel:
                reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
                assert await answers(reader, writer)
                assert servers.running == {first, second}
                servers.idle_seconds = 0
                await efs.data_plane.settle()
                assert servers.running == {first}
                assert await answers(reader, writer)
                writer.close()
                await writer.wait_closed()
            servers.idle_seconds = 60
            assert await laboratory.ask(certificate) == OK
            assert await laboratory.ask(laboratory.pem(laboratory.subject(second))) == OK
        own = list(children_with(lambda line: str(tmp_path) in " ".join(line)))
        assert [child.name() for child in own].count("ganesha.nfsd") == 3
    assert not [child for child in own if child.is_running()]
