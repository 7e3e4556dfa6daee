"""Every parameter of the driver with every kind of invalid value: the code and the text."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from tests.unit.csi.served import Connect
from tests.unit.provisioning.backends.csi.csi_world import FS, CsiWorld

from kube_efs.csi.controller import ControllerService, controller_service
from kube_efs.csi.protocol import csi_pb2 as csi
from kube_efs.csi.protocol.csi_pb2_grpc import ControllerStub
from kube_efs.model.csi.parameters import _KNOWN

Parameters = dict[str, str]
NEEDFUL = {"provisioningMode": "efs-ap", "fileSystemId": str(FS), "directoryPerms": "700"}
ROLE = "arn:aws:iam::123456789012:role/storage"
CLAIM = {"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "team"}

MODES = "use efs-ap or efs-dir"
ID = "use an id such as fs-0123456789abcdef0"
SOURCES = "give one of fileSystemId, fileSystemIds, fileSystemIdConfigRef, fileSystemIdSecretRef"
OCTAL = "use three or four octal digits, such as 700"
BOOLEAN = "use true or false"
NUMBER = "is not a valid user or group ID; use a whole number from {} to 4294967295"
NAMES = "is not accepted by EFS; begin no name with a dot, and use none of #$&*;<>?^`{|}"
DEPTH = "is too deep; use at most 4 levels for basePath and subPathPattern"
VARIABLES = "has an unknown variable; use ${.PVC.name}, ${.PVC.namespace} and ${.PV.name} only"
LENGTH = "is too long; use at most 100 bytes for basePath and subPathPattern"
METADATA = "run csi-provisioner with --extra-create-metadata"
TAGS = "leave it out, or set no KUBE_EFS_ACCESS_POINT_TAGS"
LONG = "x" * 100
# What a pattern gets at its end for the request that is made here.
SUFFIX = "f0e1d2c3-0000-4000-8000-123456789abc"
NAME = f"pvc-{SUFFIX}"


def _of_file_systems(parameter: str) -> list[tuple[Parameters, str]]:
    alone = {} if parameter == "fileSystemId" else {"fileSystemId": "-"}
    malformed = {
        "fs-x": "'fs-x'",
        "0123456789abcdef0": "'0123456789abcdef0'",
        "fs-0123456789ABCDEF0": "'fs-0123456789ABCDEF0'",
        "fs-0123456": "'fs-0123456'",
        f"fs-{'0' * 41}": f"'fs-{'0' * 41}'",
        "fs-01234567\nx": r"'fs-01234567\nx'",
        f"{FS},fs-x": "'fs-x'",
        f"{FS} {FS}": f"'{FS} {FS}'",
        ",,": "',,'",
    }
    return [
        ({**alone, parameter: value}, f"{parameter}: {shown} is not a valid file system ID; {ID}")
        for value, shown in malformed.items()
    ]


def _of_references(parameter: str, kind: str) -> list[tuple[Parameters, str]]:
    values = ("a", "a/b", "a/b/c/d", "a/ /c", "A/b/c", "a/b/c d", "../b/c")
    return [
        *(
            (
                {"fileSystemId": "-", parameter: value},
                f"{parameter}: {value!r} is not a valid reference; use NAMESPACE/NAME/KEY of a {kind}",
            )
            for value in values
        ),
        (
            {"fileSystemId": "-", parameter: "a/b/c"},
            f"{kind} a/b data.c: is missing or empty; set it to the file system's ID",
        ),
        (
            {parameter: "a/b/c"},
            f"parameters fileSystemId and {parameter}: exclude each other; give one of them",
        ),
    ]


def _of_numbers(parameter: str, least: int, **beside: str) -> list[tuple[Parameters, str]]:
    values = ["root", "-1", "1.5", " 1", "1 ", "1_0", "0x1", "\u0661", "4294967296", "9223372036854775808"]
    rows = [(value, f"{value!r} ") for value in [*values, *map(str, range(least))]]
    return [
        ({parameter: value, **beside}, f"{parameter}: {shown}{NUMBER.format(least)}")
        for value, shown in [("", ""), *rows]
    ]


def _of_booleans(parameter: str) -> list[tuple[Parameters, str]]:
    values = {"": "", "yes": "'yes' ", "tRUE": "'tRUE' ", " true": "' true' ", "2": "'2' "}
    return [
        ({parameter: value}, f"{parameter}: {shown}is not a boolean; {BOOLEAN}")
        for value, shown in values.items()
    ]


REFUSED: dict[str, list[tuple[Parameters, str]]] = {
    "provisioningMode": [
        ({"provisioningMode": "-"}, f"provisioningMode: is missing; {MODES}"),
        ({"provisioningMode": ""}, f"provisioningMode: is not supported; {MODES}"),
        *(
            ({"provisioningMode": value}, f"provisioningMode: {value!r} is not supported; {MODES}")
            for value in ("efs-db", "EFS-AP", "s3files-ap", "efs-ap ")
        ),
    ],
    "fileSystemId": [
        ({"fileSystemId": "-"}, f"fileSystemId: is missing; {SOURCES}"),
        ({"fileSystemId": " "}, f"fileSystemId: is missing; {SOURCES}"),
        *_of_file_systems("fileSystemId"),
    ],
    "fileSystemIds": [
        (
            {"fileSystemIds": str(FS)},
            "parameters fileSystemId and fileSystemIds: exclude each other; give one of them",
        ),
        *_of_file_systems("fileSystemIds"),
    ],
    "fileSystemIdConfigRef": _of_references("fileSystemIdConfigRef", "ConfigMap"),
    "fileSystemIdSecretRef": _of_references("fileSystemIdSecretRef", "Secret"),
    "directoryPerms": [
        ({"directoryPerms": "-"}, f"directoryPerms: is missing; {OCTAL}"),
        ({"directoryPerms": ""}, f"directoryPerms: is missing; {OCTAL}"),
        *(
            ({"directoryPerms": value}, f"directoryPerms: {value!r} is not a valid octal mode; {OCTAL}")
            for value in ("rwx", "888", "70", "00700", "-700", " 700", "0o700")
        ),
    ],
    "uid": _of_numbers("uid", 0),
    "gid": _of_numbers("gid", 0),
    "gidRangeStart": [
        ({"gidRangeStart": "5"}, "gidRangeEnd: is missing; give it together with gidRangeStart"),
        *_of_numbers("gidRangeStart", 1, gidRangeEnd="4294967295"),
    ],
    "gidRangeEnd": [
        ({"gidRangeEnd": "5"}, "gidRangeStart: is missing; give it together with gidRangeEnd"),
        *_of_numbers("gidRangeEnd", 1, gidRangeStart="1"),
        *(
            (
                {"gidRangeStart": "5", "gidRangeEnd": value, **fixed},
                f"gidRangeEnd: '{value}' is not above gidRangeStart; use a number above 5",
            )
            for value in "45"
            for fixed in ({}, {"uid": "1", "gid": "1"})
        ),
    ],
    "basePath": [
        ({"basePath": "/1/2/3/4"}, f"root directory: '/1/2/3/4/{NAME}' {DEPTH}"),
        ({"basePath": "/a/.b"}, f"basePath: '/a/.b' {NAMES}"),
        ({"basePath": "/a/b\n"}, r"basePath: '/a/b\n' has a control character or slash; use plain names"),
        (
            {"basePath": f"/{LONG}"},
            f"root directory: '/{LONG}/{NAME}' {LENGTH}",
        ),
        *(
            ({"basePath": f"/a{character}b"}, f"basePath: '/a{character}b' {NAMES}")
            for character in "$#<>;`|&?{}^*"
        ),
        (
            {"provisioningMode": "efs-dir", "basePath": "/a:b"},
            f"root directory: '/a:b/{NAME}' has a colon; leave the colon out of basePath and subPathPattern",
        ),
    ],
    "subPathPattern": [
        *(
            ({"subPathPattern": pattern}, f"subPathPattern: {pattern!r} {VARIABLES}")
            for pattern in ("${.PVC.labels}", "${.pvc.name}", "${}", "a}", "${.PVC.name", "${${.PV.name}}")
        ),
        (
            {"subPathPattern": "${.PVC.name}"},
            f"subPathPattern: '${{.PVC.name}}' has no value; {METADATA}",
        ),
        ({"subPathPattern": "a;b"}, f"root directory: '/a;b-{SUFFIX}' {NAMES}"),
        ({"subPathPattern": "a/b/c/d/e"}, f"root directory: '/a/b/c/d/e-{SUFFIX}' {DEPTH}"),
        (
            {"basePath": "/a", "subPathPattern": "../b"},
            f"root directory: '/b-{SUFFIX}' leads out of basePath; leave out .. in subPathPattern",
        ),
    ],
    "ensureUniqueDirectory": [
        (
            {"provisioningMode": "efs-dir", "subPathPattern": "", "ensureUniqueDirectory": "false"},
            "root directory: '/' is not below basePath; use a subPathPattern that is not empty",
        ),
    ],
    "az": [
        ({"az": value}, f"az: {value!r} is not valid; use a name such as us-east-1a")
        for value in ("us east", "US-EAST-1A", "a,b", "us-east-1a\n")
    ],
    "reuseAccessPoint": [
        *_of_booleans("reuseAccessPoint"),
        (
            {"reuseAccessPoint": "true"},
            f"reuseAccessPoint: needs the claim's name and namespace; {METADATA}",
        ),
    ],
    "enforceZoneAffinity": _of_booleans("enforceZoneAffinity"),
    "enableTagging": [
        *_of_booleans("enableTagging"),
        (
            {"enableTagging": "false"},
            f"enableTagging: 'false' contradicts the tags of the driver; {TAGS}",
        ),
    ],
}

SECRETS: list[tuple[Parameters, str]] = [
    *(
        (
            {"awsRoleArn": value},
            "secret awsRoleArn: is not the ARN of a role; use arn:aws:iam::ACCOUNT:role/NAME",
        )
        for value in ("hush", "arn:aws:iam::1:role/hush", "arn:aws:iam::123456789012:user/hush", f"{ROLE}\n")
    ),
    *(
        (
            {"awsRoleArn": ROLE, "externalId": value},
            "secret externalId: is not a valid external ID; use 2 to 1224 letters, digits and _+=,.@:/-",
        )
        for value in ("h", "hu sh", "hush\n", "h" * 1225)
    ),
    *(
        ({"crossaccount": value, **role}, "secret crossaccount: is not a boolean; use true or false")
        for value in ("", "hush")
        for role in ({}, {"awsRoleArn": ROLE})
    ),
]


@pytest.fixture
def world() -> CsiWorld:
    return CsiWorld()


@pytest.fixture
async def stub(connect: Connect, world: CsiWorld) -> AsyncIterator[Any]:
    async with connect(controller_service(ControllerService(world.volumes, has_driver_tags=True))) as channel:
        yield ControllerStub(channel)


def request(parameters: Parameters, secrets: Parameters) -> csi.CreateVolumeRequest:
    modes = csi.VolumeCapability.AccessMode
    given = {key: value for key, value in {**NEEDFUL, **parameters}.items() if value != "-"}
    return csi.CreateVolumeRequest(
        name=NAME,
        parameters=given,
        secrets=secrets,
        volume_capabilities=[
            csi.VolumeCapability(
                mount=csi.VolumeCapability.MountVolume(),
                access_mode=modes(mode=modes.MULTI_NODE_MULTI_WRITER),
            )
        ],
    )


def test_every_parameter_is_tested() -> None:
    assert set(REFUSED) == set(_KNOWN)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        pytest.param(parameters, text, id=f"{name}-{number}")
        for name, rows in REFUSED.items()
        for number, (parameters, text) in enumerate(rows)
    ],
)
async def test_invalid_parameter_is_refused_with_the_reason(
    stub: Any, world: CsiWorld, parameters: Parameters, text: str
) -> None:
    assert await _refusal(stub, request(parameters, {})) == (StatusCode.INVALID_ARGUMENT, text)
    assert not world.api.calls


@pytest.mark.parametrize(("secrets", "text"), SECRETS)
async def test_invalid_secret_is_refused_and_not_shown(
    stub: Any, world: CsiWorld, secrets: Parameters, text: str
) -> None:
    code, details = await _refusal(stub, request({}, secrets))
    assert (code, details) == (StatusCode.INVALID_ARGUMENT, text)
    assert "hush" not in details
    assert not world.api.calls


@pytest.mark.parametrize("value", ["", "maybe", "TrUe"])
async def test_only_one_parameter_accepts_invalid_booleans(stub: Any, value: str) -> None:
    pattern = {"subPathPattern": "${.PVC.name}", "ensureUniqueDirectory": value}
    assert (await stub.CreateVolume(request({**pattern, **CLAIM}, {}))).volume.volume_id


async def _refusal(stub: Any, wanted: csi.CreateVolumeRequest) -> tuple[StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CreateVolume(wanted)
    return caught.value.code(), caught.value.details() or ""
