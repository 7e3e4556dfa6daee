"""CreateVolume requests that are refused before AWS is called; see also test_refused_parameters.py."""

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

Parameters = dict[str, str]
NEEDFUL = {"provisioningMode": "efs-ap", "fileSystemId": str(FS), "directoryPerms": "700"}
ROLE = "arn:aws:iam::123456789012:role/storage"
CLAIM = {"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "team"}

NAMES = "is not accepted by EFS; begin no name with a dot, and use none of #$&*;<>?^`{|}"
DEPTH = "is too deep; use at most 4 levels for basePath and subPathPattern"
LENGTH = "is too long; use at most 100 bytes for basePath and subPathPattern"
TAGS = "leave it out, or set no KUBE_EFS_ACCESS_POINT_TAGS"
METADATA = "run csi-provisioner with --extra-create-metadata"
LONG = "x" * 100
# The suffix of a pattern for this request.
SUFFIX = "f0e1d2c3-0000-4000-8000-123456789abc"
NAME = f"pvc-{SUFFIX}"

REFUSED: list[tuple[Parameters, str]] = [
    (
        {"provisioningMode": "efs-db"},
        "provisioningMode: 'efs-db' is not supported; use one of efs-ap, efs-dir, s3files-ap, efs-fs",
    ),
    (
        {"enableTagging": "false"},
        f"enableTagging: 'false' contradicts the tags of the driver; {TAGS}",
    ),
    *(
        (
            {"fileSystemId": "-", parameter: "a/b/c"},
            f"{kind} a/b data.c: is missing or empty; set it to the file system's ID",
        )
        for parameter, kind in [("fileSystemIdConfigRef", "ConfigMap"), ("fileSystemIdSecretRef", "Secret")]
    ),
    ({"basePath": "/1/2/3/4"}, f"root directory: '/1/2/3/4/{NAME}' {DEPTH}"),
    ({"basePath": f"/{LONG}"}, f"root directory: '/{LONG}/{NAME}' {LENGTH}"),
    (
        {"provisioningMode": "efs-dir", "basePath": "/a:b"},
        f"root directory: '/a:b/{NAME}' has a colon; leave the colon out of basePath and subPathPattern",
    ),
    ({"subPathPattern": "${.PVC.name}"}, f"subPathPattern: '${{.PVC.name}}' has no value; {METADATA}"),
    ({"subPathPattern": "a;b"}, f"root directory: '/a;b-{SUFFIX}' {NAMES}"),
    ({"subPathPattern": "a/b/c/d/e"}, f"root directory: '/a/b/c/d/e-{SUFFIX}' {DEPTH}"),
    (
        {"basePath": "/a", "subPathPattern": "../b"},
        f"root directory: '/b-{SUFFIX}' leads out of basePath; leave out .. in subPathPattern",
    ),
    (
        {"provisioningMode": "efs-dir", "subPathPattern": "", "ensureUniqueDirectory": "false"},
        "root directory: '/' is not below basePath; use a subPathPattern that is not empty",
    ),
    ({"reuseAccessPoint": "true"}, f"reuseAccessPoint: needs the claim's name and namespace; {METADATA}"),
]

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
    controller = ControllerService(
        world.volumes, world.claims.get, world.sources, world.snapshots, has_driver_tags=True
    )
    async with connect(controller_service(controller)) as channel:
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


@pytest.mark.parametrize(("parameters", "text"), REFUSED)
async def test_invalid_request_is_refused_with_the_reason(
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
