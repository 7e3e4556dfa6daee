"""Invalid answers of AWS: calls raise only errors of kube-efs, without any part of the answer.

One server stands for EFS, EC2, STS, instance metadata and the container agents, and always gives the same
invalid answer. Every public call and every source of credentials gets it.
"""

import asyncio
import contextlib
import inspect
import io
import itertools
import json
import logging
import shlex
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kube_efs.aws.connection import AwsConnection, AwsCredentials, AwsOptions
from kube_efs.aws.credential_loading import load_credentials
from kube_efs.aws.credential_sources import CredentialOptions, CredentialSource, ProfileFiles, SourceKind
from kube_efs.aws.credentials import assume_role
from kube_efs.aws.gateway import AwsGateway
from kube_efs.aws.metadata import InstanceMetadata
from kube_efs.aws.owned import Subnet
from kube_efs.model.csi.access_points import AccessPointRequest, PosixUser
from kube_efs.model.csi.file_system_templates import FileSystemTemplate, Scope
from kube_efs.model.csi.made_file_systems import FileSystemOwner, MadeFileSystem, Stage
from kube_efs.model.csi.volume_handles import AccessPointId
from kube_efs.model.efs.directories import parse_directory
from kube_efs.model.efs.ids import FileSystemId, MountTargetId, Region, SubnetId, VpcId, ZoneName
from kube_efs.model.errors import KubeEfsError
from kube_efs.telemetry.logging import configure

MARKER = "planted-4f9c-in-the-answer"
JWT = "planted-5e1b-jwt"
POD_TOKEN = "planted-6a2d-pod-token"
METADATA_TOKEN = "planted-7c3e-metadata-token"
SECRET_KEY = "planted-8d4f/Secret/Key"
PLANTED = (MARKER, JWT, POD_TOKEN, METADATA_TOKEN, SECRET_KEY)
FS, MT, AP = FileSystemId("fs-0123abcd"), MountTargetId("fsmt-0a"), AccessPointId("fsap-0123456789abcdef0")
ROLE = "arn:aws:iam::123456789012:role/efs"
ROLES = "/latest/meta-data/iam/security-credentials/"

# Answers


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; ``is_raw`` makes it bytes that are not HTTP, ``cut`` ends it too early.

    ``late`` answers the first requests to instance metadata correctly, so that the last one gets the answer.
    """

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    is_raw: bool = False
    late: bool = True


def _xml(inner: str) -> bytes:
    return inner.replace("M", MARKER).encode()


_CREDENTIALS = f"""<Credentials><AccessKeyId>{MARKER}</AccessKeyId>
<SecretAccessKey>{SECRET_KEY}</SecretAccessKey><SessionToken>{MARKER}</SessionToken>
<Expiration>{MARKER}</Expiration></Credentials>"""
_ENTRY = {
    "FileSystemId": MARKER,
    "MountTargetId": MARKER,
    "AccessPointId": MARKER,
    "SubnetId": MARKER,
    "LifeCycleState": MARKER,
    "IpAddress": MARKER,
    "SizeInBytes": {"Value": MARKER},
    "RootDirectory": {"Path": f"{MARKER}\n"},
    "PosixUser": {"Uid": MARKER},
    "Tags": [{"Key": MARKER}],
}
INVALID_BODIES: Mapping[str, bytes] = {
    "nothing": b"",
    "a page": f"<html><body>{MARKER}</body></html>".encode(),
    "a page that is not closed": f"<html><p>{MARKER}".encode(),
    "text": MARKER.encode(),
    "not text": MARKER.encode() + b"\xff\xfe\x00",
    "null": b"null",
    "a number": b"7",
    "a huge number": b"7" * 5000,
    "infinity": b'{"FileSystems": [{"FileSystemId": "fs-0123abcd", "SizeInBytes": {"Value": Infinity}}]}',
    "a list": f'["{MARKER}"]'.encode(),
    "a string": f'"{MARKER}"'.encode(),
    "half of a document": f'{{"FileSystems": [{{"FileSystemId": "{MARKER}'.encode(),
    "deep lists": b"[" * 50_000,
    "deep maps": b'{"Credentials":' * 50_000,
    "deep elements": b"<Credentials>" * 20_000,
    "closed deep elements": b"<E>" * 5_000 + b"</E>" * 5_000,
    "entities": b'<!DOCTYPE a [<!ENTITY b "' + MARKER.encode() + b'">]><a>&b;</a>',
    "another root": _xml("<Elsewhere><Code>M</Code></Elsewhere>"),
    "an error of STS": _xml(
        "<ErrorResponse><Error><Code>M</Code><Message>M</Message></Error><RequestId>M</RequestId></ErrorResponse>"
    ),
    "an error with a code": _xml(
        "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>M</Message></Error></ErrorResponse>"
    ),
    "an error without an error": b"<ErrorResponse/>",
    "an error of EC2": _xml(
        "<Response><Errors><Error><Code>M</Code><Message>M</Message></Error></Errors></Response>"
    ),
    "an empty error of EC2": b"<Response><Errors/></Response>",
    "an error of EFS": json.dumps({"ErrorCode": MARKER, "Message": MARKER, "AccessPointId": MARKER}).encode(),
    "an error in another form": json.dumps({"__type": [MARKER], "message": {"x": MARKER}}).encode(),
    "credentials of STS": f"<AssumeRoleResponse><AssumeRoleResult>{_CREDENTIALS}</AssumeRoleResult>"
    f"</AssumeRoleResponse>".encode(),
    "credentials without credentials": b"<AssumeRoleWithWebIdentityResponse>"
    b"<AssumeRoleWithWebIdentityResult/></AssumeRoleWithWebIdentityResponse>",
    "another account": b"<GetCallerIdentityResponse/>",
    "credentials of a container": json.dumps(
        {"AccessKeyId": MARKER, "SecretAccessKey": SECRET_KEY, "Token": MARKER, "Expiration": MARKER}
    ).encode(),
    "credentials that are lists": json.dumps(
        {"AccessKeyId": [MARKER], "SecretAccessKey": {"x": SECRET_KEY}, "Token": 7, "Version": 1}
    ).encode(),
    "credentials that are surrogates": b'{"Version": 1, "AccessKeyId": "\\ud800", '
    b'"SecretAccessKey": "\\ud800", "Token": "\\ud800", "SessionToken": "\\ud800"}',
    "a failure as credentials": json.dumps({"Code": MARKER, "Message": MARKER}).encode(),
    "another version of credentials": json.dumps({"Version": MARKER}).encode(),
    "an identity": json.dumps(
        {"region": MARKER + "\n", "availabilityZone": MARKER, "instanceId": f"{MARKER} "}
    ).encode(),
    "invalid entries": json.dumps(
        {key: [_ENTRY] for key in ("FileSystems", "MountTargets", "AccessPoints")}
        | {"Policy": {"x": 1}, "SecurityGroups": [7]}
        | _ENTRY
    ).encode(),
    "entries that are none": json.dumps(
        {key: [MARKER, 7, None] for key in ("FileSystems", "MountTargets", "AccessPoints", "SecurityGroups")}
    ).encode(),
    "lists that are none": json.dumps(
        dict.fromkeys(("FileSystems", "MountTargets", "AccessPoints", "SecurityGroups", "Policy"), MARKER)
    ).encode(),
    "invalid items of EC2": _xml(
        "<DescribeSubnetsResponse><requestId>M</requestId><subnetSet><item><subnetId>M</subnetId></item></subnetSet>"
        "<reservationSet><item><instancesSet><item/></instancesSet></item></reservationSet>"
        "<securityGroupInfo><item><ipPermissions><item><fromPort>M</fromPort></item></ipPermissions></item>"
        "</securityGroupInfo><networkAclSet><item><associationSet><item><subnetId>subnet-1</subnetId></item>"
        "</associationSet><entrySet><item><protocol>-1</protocol></item></entrySet></item></networkAclSet>"
        "<vpcSet><item/></vpcSet><entrySet><item><cidr>M</cidr></item></entrySet></DescribeSubnetsResponse>"
    ),
}
_HEADERS = st.sampled_from(
    [
        (),
        (("Content-Type", "text/xml"),),
        (("Content-Type", "application/json"),),
        (("Content-Type", f"text/html; charset={MARKER}"),),
        (("Content-Encoding", "gzip"),),
        (("Transfer-Encoding", MARKER),),
        (("x-amzn-ErrorType", f"{MARKER}:{MARKER}"), ("x-amzn-RequestId", MARKER)),
        (("Location", f"http://127.0.0.1:9/{MARKER}"),),
        (("Date", MARKER), ("Content-Type", MARKER)),
    ]
)
_BODIES = st.one_of(
    st.sampled_from(sorted(INVALID_BODIES)).map(INVALID_BODIES.__getitem__),
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(MARKER),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["Credentials", "Code", "Error", "Errors", "Token", "Version", *_ENTRY]),
                inner,
            )
        ),
        max_leaves=10,
    ).map(lambda value: json.dumps(value).encode()),
)
ANSWERS = st.builds(
    Answer,
    status=st.sampled_from([200, 200, 200, 201, 204, 301, 307, 400, 403, 404, 409, 418, 500, 502]),
    body=_BODIES,
    headers=_HEADERS,
    cut=st.sampled_from([False] * 5 + [True]),
    is_raw=st.sampled_from([False] * 9 + [True]),
    late=st.booleans(),
)


@dataclass
class World:
    """The server and the calls; its event loop lasts longer than an example."""

    runner: asyncio.Runner
    folder: Path
    answer: Answer = field(default_factory=Answer)
    url: str = ""
    log: io.StringIO = field(default_factory=io.StringIO)
    gateway: AwsGateway | None = None
    exit_stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.exit_stack.callback(server.close)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.gateway = await self.exit_stack.enter_async_context(AwsGateway(self.aws_options))

    @property
    def aws_options(self) -> AwsOptions:
        return AwsOptions(
            region=Region("eu-west-1"),
            endpoint_url=self.url,
            credentials=AwsCredentials(access_key_id="AKIA", secret_access_key=SECRET_KEY),
            max_concurrency=50,
            max_attempts=1,
            read_timeout_seconds=2,
            call_timeout_seconds=5,
        )

    @property
    def credential_options(self) -> CredentialOptions:
        return CredentialOptions(
            region=Region("eu-west-1"),
            files=ProfileFiles(credentials=self.folder / "credentials", config=self.folder / "config"),
            sts_endpoint_url=self.url,
            metadata_endpoint=self.url,
            container_endpoint=self.url,
            timeout_seconds=5,
            attempts=1,
            retry_seconds=0,
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (
                    int(line.split(":")[1])
                    for line in head.splitlines()
                    if line.lower().startswith("content-length")
                ),
                0,
            )
            asked = head + (await reader.readexactly(length)).decode()
            writer.write(self._reply(asked))
            await writer.drain()
        writer.close()

    def _reply(self, asked: str) -> bytes:
        answer, target = self.answer, asked.split(" ")[1]
        if answer.late and target in {"/latest/api/token", ROLES}:
            answer = Answer(body=b"r" if target == ROLES else METADATA_TOKEN.encode())
        if answer.is_raw:
            return b"HTTP/1.1 " + answer.body + MARKER.encode() + b"\r\n\r\n"
        # The answer repeats the request, including secrets.
        body = answer.body.replace(b"</Message>", asked.encode() + b"</Message>")
        head = f"HTTP/1.1 {answer.status} {MARKER}\r\n"
        head += f"Content-Length: {len(body) + 10 * answer.cut}\r\nConnection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        return head.encode() + b"\r\n" + body

    def judge(self, calls: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
        """Make all calls at once; each returns a value, or an error of kube-efs without the answer."""
        self.log.seek(0)
        self.log.truncate()

        async def outcome(call: Callable[[], Awaitable[object]]) -> BaseException | None:
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - which one it may be is what is tested
                return error
            return None

        async def outcomes() -> list[BaseException | None]:
            return await asyncio.gather(*(outcome(call) for call in calls.values()))

        for name, error in zip(calls, self.runner.run(outcomes()), strict=True):
            if error is None:
                continue
            told = "".join(traceback.format_exception(error)) + str(error) + repr(error)
            assert isinstance(error, KubeEfsError), (name, told)
            assert [one for one in PLANTED if one in told] == [], (name, told)
        logged = self.log.getvalue()
        assert [one for one in PLANTED if one in logged] == [], logged


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with asyncio.Runner() as runner:
        world = World(runner=runner, folder=tmp_path_factory.mktemp("answers"))
        configure("DEBUG", stream=world.log)
        runner.run(world.start())
        yield world
        runner.run(world.exit_stack.aclose())
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _calls(gateway: AwsGateway) -> dict[str, Callable[[], Awaitable[object]]]:
    points, owned, network = gateway.access_points, gateway.owned, gateway.network
    s3_files, made = gateway.s3_files, gateway.made_file_systems
    subnet, vpc, zone = SubnetId("subnet-1"), VpcId("vpc-1"), ZoneName("eu-west-1a")
    place = Subnet(subnet_id=subnet, zone=zone, vpc_id=vpc)
    owner = FileSystemOwner(scope=Scope.CLAIM, name="pvc-1", cluster="cluster")
    one = MadeFileSystem(file_system_id=FS, owner=owner, stage=Stage.READY, token="token")
    request = AccessPointRequest(
        file_system_id=FS,
        client_token="token",
        directory=parse_directory("/x", field="x"),
        user=PosixUser(uid=1, gid=1),
        permissions="700",
        tags=(),
    )
    return {
        "file_systems": gateway.file_systems,
        "file_system": lambda: gateway.file_system(FS),
        "mount_targets": lambda: gateway.mount_targets(FS),
        "file_system_policy": lambda: gateway.file_system_policy(FS),
        "create_file_system": lambda: gateway.create_file_system("token"),
        "delete_file_system": lambda: gateway.delete_file_system(FS),
        "create_mount_target": lambda: gateway.create_mount_target(FS, subnet),
        "delete_mount_target": lambda: gateway.delete_mount_target(MT),
        "ensure_mount_targets": lambda: gateway.ensure_mount_targets(FS, [place], ["sg-1"]),
        "delete_mount_targets": lambda: gateway.delete_mount_targets(FS),
        "network.subnets": lambda: network.subnets([subnet]),
        "access_points.list": lambda: points.list(FS),
        "network.zone_ids": network.zone_ids,
        "access_points.get": lambda: points.get(AP, FS),
        "access_points.create": lambda: points.create(request),
        "access_points.delete": lambda: points.delete(AP),
        "s3_files.list": lambda: s3_files.list(FS),
        "s3_files.get": lambda: s3_files.get(AP, FS),
        "s3_files.create": lambda: s3_files.create(request),
        "s3_files.delete": lambda: s3_files.delete(AP),
        "s3_files.addresses": lambda: s3_files.addresses(FS),
        "s3_files.file_systems": s3_files.file_systems,
        "s3_files.mount_targets": lambda: s3_files.mount_targets(FS),
        "s3_files.security_groups": lambda: s3_files.security_groups(MT),
        "owned.subnets_of_instances": lambda: owned.subnets_of_instances(["i-1"]),
        "owned.subnets": lambda: owned.subnets([subnet]),
        "owned.network_ranges": lambda: owned.network_ranges(vpc),
        "owned.ensure_security_group": lambda: owned.ensure_security_group("infra", vpc, ["10.0.0.0/8"], {}),
        "owned.security_groups_named": lambda: owned.security_groups_named("infra", ("a", "b")),
        "made_file_systems.with_token": lambda: made.with_token("token"),
        "made_file_systems.get": lambda: made.get(FS),
        "made_file_systems.list": made.list,
        "made_file_systems.create": lambda: made.create("token", FileSystemTemplate(), {}),
        "made_file_systems.configure": lambda: made.configure(FS, FileSystemTemplate()),
        "made_file_systems.set_stage": lambda: made.set_stage(FS, Stage.READY),
        "made_file_systems.set_checked": lambda: made.set_checked(one),
        "owned.find": lambda: owned.find("infra"),
        "owned.delete_security_group": lambda: owned.delete_security_group("sg-1"),
        "interfaces.of_instances": lambda: gateway.interfaces.of_instances(["i-1"]),
        "security_groups.of_mount_target": lambda: gateway.security_groups.of_mount_target(MT),
        "security_groups.describe": lambda: gateway.security_groups.describe(["sg-1"]),
        "security_groups.in_prefix_list": lambda: gateway.security_groups.in_prefix_list("pl-1"),
        "network_acls.of_subnets": lambda: gateway.network_acls.of_subnets([subnet]),
    }


def _methods(of: object) -> set[str]:
    return {
        name
        for name, _ in inspect.getmembers(type(of), inspect.iscoroutinefunction)
        if not name.startswith("_")
    }


def test_every_public_call_is_tested(world: World) -> None:
    assert world.gateway is not None
    parts = {name: part for name, part in vars(world.gateway).items() if not name.startswith("_")}
    public = {f"{name}.{method}" for name, part in parts.items() for method in _methods(part)}
    # It releases the clients, and makes no call.
    assert public | (_methods(world.gateway) - {"close"}) == set(_calls(world.gateway))


# The library treats these bodies with a status of 500 and above unlike others. It treats those as with 400.
_FAILURES = ("nothing", "a page", "a page that is not closed", "an error of EFS", "an error of EC2")


@pytest.mark.parametrize(
    ("body", "status"),
    [*itertools.product(INVALID_BODIES, (200, 400)), *itertools.product(_FAILURES, (500,))],
)
def test_calls_raise_only_typed_errors_for_invalid_answers(body: str, status: int, world: World) -> None:
    assert world.gateway is not None
    world.answer = Answer(status=status, body=INVALID_BODIES[body])
    world.judge(_calls(world.gateway))


@given(answer=ANSWERS)
@settings(
    max_examples=settings().max_examples * 2 // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_calls_raise_only_typed_errors_for_any_answer(answer: Answer, world: World) -> None:
    assert world.gateway is not None
    world.answer = answer
    world.judge(_calls(world.gateway))


def _sources(world: World) -> dict[str, Callable[[], Awaitable[object]]]:
    options, folder = world.credential_options, world.folder
    (folder / "jwt").write_text(JWT)
    (folder / "pod-token").write_text(POD_TOKEN)
    (folder / "printed").write_bytes(world.answer.body)
    (folder / "complaint").write_bytes(world.answer.body + MARKER.encode())
    script = f"cat {folder}/printed; cat {folder}/complaint >&2; exit {int(world.answer.status != 200)}"
    (folder / "config").write_text(
        f"[profile role]\nrole_arn = {ROLE}\nsource_profile = keys\nendpoint_url = {world.url}\n"
        f"[profile process]\ncredential_process = sh -c {shlex.quote(script)}\n"
        "[profile instance]\nregion = eu-west-1\n"
    )
    (folder / "credentials").write_text(
        f"[keys]\naws_access_key_id = AKIA\naws_secret_access_key = {SECRET_KEY}\n"
    )
    sources = {
        "container": CredentialSource(kind=SourceKind.CONTAINER, target="/c"),
        "pod identity": CredentialSource(
            kind=SourceKind.POD_IDENTITY, target=f"{world.url}/p", token_file=f"{folder}/pod-token"
        ),
        "web identity": CredentialSource(
            kind=SourceKind.WEB_IDENTITY, target=ROLE, token_file=f"{folder}/jwt"
        ),
        "instance role": CredentialSource(kind=SourceKind.INSTANCE_ROLE),
        "profile with a role": CredentialSource(kind=SourceKind.PROFILE, target="role"),
        "profile with a program": CredentialSource(kind=SourceKind.PROFILE, target="process"),
        "profile of the instance": CredentialSource(kind=SourceKind.PROFILE, target="instance"),
    }

    def loading(source: CredentialSource) -> Callable[[], Awaitable[object]]:
        return lambda: load_credentials(source, options)

    async def another_account() -> object:
        async with AwsConnection(world.aws_options) as connection:
            return await assume_role(connection, ROLE)

    async def calls_with_a_role() -> object:
        web_identity = sources["web identity"]
        signed = AwsOptions(
            region=Region("eu-west-1"),
            endpoint_url=world.url,
            credentials_source=lambda: load_credentials(web_identity, options),
            max_attempts=1,
        )
        async with AwsGateway(signed) as gateway:
            return await gateway.file_systems()

    async def metadata(ask: Callable[[InstanceMetadata], Awaitable[Any]]) -> object:
        async with InstanceMetadata(world.url) as asked:
            return await ask(asked)

    return {
        **{name: loading(source) for name, source in sources.items()},
        "role of another account": another_account,
        "calls with a role": calls_with_a_role,
        "identity": lambda: metadata(InstanceMetadata.identity),
        "zone id": lambda: metadata(InstanceMetadata.zone_id),
        "subnets": lambda: metadata(InstanceMetadata.subnets),
    }


@pytest.mark.parametrize("body", INVALID_BODIES)
def test_credential_sources_raise_only_typed_errors_for_invalid_answers(body: str, world: World) -> None:
    world.answer = Answer(body=INVALID_BODIES[body])
    world.judge(_sources(world))


@given(answer=ANSWERS)
@example(answer=Answer(status=403, body=INVALID_BODIES["an error with a code"]))
@settings(
    max_examples=settings().max_examples // 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_credential_sources_raise_only_typed_errors_for_any_answer(answer: Answer, world: World) -> None:
    world.answer = answer
    world.judge(_sources(world))
