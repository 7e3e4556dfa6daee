"""Directories of volumes, requests for access points, and the reuse of existing ones."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.access_point_tags import Tag, TagPolicy
from kube_efs.model.csi.access_points import (
    AccessPoint,
    AccessPointRequest,
    PosixUser,
    VolumeRequest,
    access_point_request,
    check_existing,
    client_token,
    known_tokens,
    own_token,
    volume_directory,
)
from kube_efs.model.csi.errors import ExistingVolumeDiffers, InvalidArgument, RpcCode
from kube_efs.model.csi.parameters import ProvisioningMode, parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory, Relation
from kube_efs.model.efs.ids import FileSystemId

FS1, FS2 = FileSystemId("fs-0123456789abcdef0"), FileSystemId("fs-0123456789abcdef1")
UID = "4395bf6c-0756-4c8b-bdca-85f300ce3cac"
NAME = f"pvc-{UID}"
ORIGIN = VolumeOrigin(claim_name="data", claim_namespace="team", volume_name=NAME)
MINIMAL = {"provisioningMode": "efs-ap", "fileSystemId": FS1, "directoryPerms": "700"}


def request(
    parameters: Mapping[str, str] = MappingProxyType({}),
    *,
    name: str = NAME,
    origin: VolumeOrigin = ORIGIN,
    required_bytes: int = 0,
) -> VolumeRequest:
    return VolumeRequest(
        name=name,
        origin=origin,
        required_bytes=required_bytes,
        parameters=parse_parameters(
            {key: text for key, text in {**MINIMAL, **parameters}.items() if text != "-"}
        ),
    )


# --- directories


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        pytest.param({}, f"/{NAME}", id="volume's name"),
        pytest.param({"basePath": "dynamic"}, f"/dynamic/{NAME}", id="below a base"),
        pytest.param({"basePath": "//a/../b/"}, f"/b/{NAME}", id="below a base to be normalized"),
        pytest.param({"ensureUniqueDirectory": "false"}, f"/{NAME}", id="uniqueness is for patterns only"),
        pytest.param({"subPathPattern": "${.PVC.namespace}/${.PVC.name}"}, f"/team/data-{UID}", id="pattern"),
        pytest.param(
            {"subPathPattern": "${.PVC.namespace}/${.PVC.name}", "ensureUniqueDirectory": "false"},
            "/team/data",
            id="pattern without suffix",
        ),
        pytest.param(
            {"subPathPattern": "${.PV.name}", "ensureUniqueDirectory": "no"}, f"/{NAME}-{UID}", id="garbage"
        ),
        pytest.param(
            {"subPathPattern": "x", "basePath": "/b"}, f"/b/x-{UID}", id="pattern without variables"
        ),
        pytest.param({"subPathPattern": ""}, f"/-{UID}", id="empty pattern"),
        pytest.param({"subPathPattern": "a/../b", "ensureUniqueDirectory": "0"}, "/b", id="up and down"),
        pytest.param({"subPathPattern": "", "ensureUniqueDirectory": "false"}, "/", id="whole file system"),
        pytest.param(
            {"subPathPattern": "", "ensureUniqueDirectory": "false", "basePath": "/b"}, "/b", id="base"
        ),
        pytest.param({"basePath": "/a/b/c"}, f"/a/b/c/{NAME}", id="four levels"),
        pytest.param(
            {"basePath": "b" * 58}, f"/{'b' * 58}/{NAME}", id="one hundred bytes"
        ),  # 1 + 58 + 1 + 40
    ],
)
def test_volume_directory_is_built_from_the_class(parameters: Mapping[str, str], path: str) -> None:
    asked = request(parameters)
    assert str(volume_directory(asked)) == path
    assert volume_directory(asked) == volume_directory(request(parameters)), "a retry finds it again"


def test_volume_not_named_after_a_uid_gets_its_own_suffix() -> None:
    one, other = (
        volume_directory(request({"subPathPattern": "a"}, name=name)) for name in ("vol-1", "vol-2")
    )
    assert str(one) == "/a-eee9f485-6f3c-5b84-89c3-7fb8e0c78af7"
    assert one != other


@pytest.mark.parametrize(
    "name", ["n" * 65, "a/b", "..", ".hidden", "a b", "é", "a\nb", "-rf", "\udc80", "$(x)"]
)
def test_hash_replaces_an_unsafe_volume_name(name: str) -> None:
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    assert str(volume_directory(request(name=name))) == f"/{digest}"
    assert client_token(request(name=name)) == digest


TOO_LONG = "use at most 100 bytes for basePath and subPathPattern"
LEADS_OUT = "leads out of basePath; leave out .. in subPathPattern"
REFUSED_DIRECTORIES = [
    pytest.param({"basePath": "b" * 59}, f"'/{'b' * 59}/{NAME}' is too long; {TOO_LONG}", id="101 bytes"),
    pytest.param(
        {"basePath": "é" * 30}, f"'/{'é' * 30}/{NAME}' is too long; {TOO_LONG}", id="bytes, not characters"
    ),
    pytest.param(
        {"basePath": "/a/b/c/d"},
        f"'/a/b/c/d/{NAME}' is too deep; use at most 4 levels for basePath and subPathPattern",
        id="five levels",
    ),
    pytest.param(
        {"basePath": "/b", "subPathPattern": "../c"}, f"'/c-{UID}' {LEADS_OUT}", id="out of the base"
    ),
    pytest.param(
        {"basePath": "/b", "subPathPattern": "../b2", "ensureUniqueDirectory": "f"},
        f"'/b2' {LEADS_OUT}",
        id="beside the base",
    ),
    pytest.param(
        {"subPathPattern": "a$b"},
        f"'/a$b-{UID}' is not accepted by EFS; begin no name with a dot, and use none of #$&*;<>?^`{{|}}",
        id="dollar sign",
    ),
    pytest.param(
        {"subPathPattern": "a/.b"},
        f"'/a/.b-{UID}' is not accepted by EFS; begin no name with a dot, and use none of #$&*;<>?^`{{|}}",
        id="dot first",
    ),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED_DIRECTORIES)
def test_invalid_directory_is_refused(parameters: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        volume_directory(request(parameters))
    assert str(caught.value) == f"root directory: {message}"
    assert caught.value.code is RpcCode.INVALID_ARGUMENT


@pytest.mark.parametrize("variable", ["PVC.name", "PVC.namespace", "PV.name"])
def test_variable_without_a_value_is_refused(variable: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        volume_directory(request({"subPathPattern": f"${{.{variable}}}"}, origin=VolumeOrigin()))
    assert str(caught.value) == (
        f"subPathPattern: '${{.{variable}}}' has no value; run csi-provisioner with --extra-create-metadata"
    )


LABELED = replace(
    ORIGIN,
    labels={"team": "web", "app.kubernetes.io/name": "shop"},
    annotations={
        "example.com/path": "x..y",
        "up": "..",
        "dot": ".",
        "deep": "a/b",
        "up-and-down": "a/../../b",
    },
)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("${.PVC.namespace}/${.PVC.labels.team}", "/team/web"),
        ("${.PVC.labels.app.kubernetes.io/name}", "/shop"),
        ("${.PVC.annotations.example.com/path}-${.PVC.name}", "/x..y-data"),
    ],
)
def test_labels_and_annotations_of_the_claim_are_in_the_directory(pattern: str, path: str) -> None:
    parameters = {"subPathPattern": pattern, "ensureUniqueDirectory": "false"}
    assert str(volume_directory(request(parameters, origin=LABELED))) == path


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_missing_label_is_refused_with_the_remedy(kind: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        volume_directory(request({"subPathPattern": f"a${{.PVC.{kind}.none}}"}, origin=LABELED))
    assert str(caught.value) == (
        f"subPathPattern: '${{.PVC.{kind}.none}}' has no value; add it to the {kind} of the claim"
    )


@pytest.mark.parametrize("key", ["up", "dot", "deep", "up-and-down"])
def test_annotation_cannot_lead_to_the_directory_of_another_namespace(key: str) -> None:
    pattern = f"${{.PVC.namespace}}/${{.PVC.annotations.{key}}}"
    with pytest.raises(InvalidArgument) as caught:
        volume_directory(request({"subPathPattern": pattern}, origin=LABELED))
    assert str(caught.value) == (
        f"metadata.annotations[{key}]: {LABELED.annotations[key]!r} is not the name of a directory; "
        "use no slash, and no dot at the beginning"
    )


def test_variable_values_are_not_expanded_again() -> None:
    nested = VolumeOrigin(claim_name="${.PV.name}", volume_name="pv")
    with pytest.raises(InvalidArgument, match="is not accepted by EFS"):
        volume_directory(request({"subPathPattern": "${.PVC.name}"}, origin=nested))


def test_volume_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        volume_directory(request(name=""))
    assert str(caught.value) == "name: is missing; give the volume a name"


class TestDirectoriesWithoutAccessPoint:
    def test_plain_directories_can_be_deeper_than_access_points(self) -> None:
        asked = request({"provisioningMode": "efs-dir", "basePath": "/a/b/c/d/e"})
        assert str(volume_directory(asked)) == f"/a/b/c/d/e/{NAME}"

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            pytest.param(
                {"subPathPattern": "", "ensureUniqueDirectory": "false", "basePath": "/b"},
                "'/b' is not below basePath; use a subPathPattern that is not empty",
                id="base itself",
            ),
            pytest.param(
                {"subPathPattern": "", "ensureUniqueDirectory": "false"},
                "'/' is not below basePath; use a subPathPattern that is not empty",
                id="whole file system",
            ),
            pytest.param(
                {"basePath": "/a:b"},
                f"'/a:b/{NAME}' has a colon; leave the colon out of basePath and subPathPattern",
                id="colon",
            ),
        ],
    )
    def test_directory_outside_basepath_is_refused(self, parameters: Mapping[str, str], message: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            volume_directory(request({"provisioningMode": "efs-dir", **parameters}))
        assert str(caught.value) == f"root directory: {message}"


HOSTILE = st.lists(
    st.sampled_from(
        [
            *("a", "/", ".", "..", "-", ":", "é", "\n", "\x00", "$"),
            *("${.PVC.name}", "${.PV.name}", "${.PVC.annotations.a}"),
        ]
    )
).map("".join)


@given(
    mode=st.sampled_from(ProvisioningMode),
    base=HOSTILE,
    pattern=st.none() | HOSTILE,
    unique=st.booleans(),
    claim=HOSTILE | st.text(),
    name=st.text(min_size=1),
)
def test_any_directory_is_valid_for_efs_and_inside_its_base(
    mode: ProvisioningMode, base: str, pattern: str | None, unique: bool, claim: str, name: str
) -> None:
    parameters: dict[str, str] = {"provisioningMode": mode, "basePath": base}
    if pattern is not None:
        parameters |= {"subPathPattern": pattern, "ensureUniqueDirectory": str(unique)}
    origin = VolumeOrigin(
        claim_name=claim, claim_namespace="team", volume_name="pv", annotations={"a": claim}
    )
    try:
        asked = request(parameters, name=name, origin=origin)
        directory = volume_directory(asked)
    except InvalidArgument:
        return
    relation = directory.relation_to(asked.parameters.base)
    assert len(str(directory).encode()) <= 100
    assert not any(part.startswith(".") for part in directory.parts)
    assert str(directory).isprintable()
    if mode.makes_access_points:
        assert relation in {Relation.SAME, Relation.BELOW}
        assert len(directory.parts) <= 4
    else:
        handle = VolumeHandle(file_system_id=FS1, directory=directory, base=asked.parameters.base)
        assert parse_volume_handle(str(handle)) == handle
        assert len(str(handle).encode()) <= 128, "the longest volume id that CSI allows"


# --- requests


def test_access_point_request_matches_the_class() -> None:
    asked = request({"basePath": "/b"}, required_bytes=5 << 30)
    tags = TagPolicy(describes_volume=True)
    assert access_point_request(asked, FS1, PosixUser(uid=1000, gid=50000), tags) == AccessPointRequest(
        client_token=NAME,
        file_system_id=FS1,
        directory=Directory(("b", NAME)),
        permissions="700",
        user=PosixUser(uid=1000, gid=50000),
        tags=(
            Tag(key="efs.csi.aws.com/cluster", value="true"),
            Tag(key="kubernetes.io/created-for/pvc/name", value="data"),
            Tag(key="kubernetes.io/created-for/pvc/namespace", value="team"),
            Tag(key="kubernetes.io/created-for/pv/name", value=NAME),
            Tag(key="efs.csi.aws.com/requested-bytes", value="5368709120"),
        ),
    )


@pytest.mark.parametrize(
    ("given", "sent"), [("700", "700"), ("0777", "777"), ("007", "007"), ("2771", "2771")]
)
def test_access_point_has_the_permissions_of_the_class(given: str, sent: str) -> None:
    made = access_point_request(request({"directoryPerms": given}), FS1, PosixUser(uid=1, gid=1))
    assert made.permissions == sent


@pytest.mark.parametrize(("parameters", "enforced"), [({}, True), ({"posixUser": "none"}, False)])
def test_class_decides_whether_the_access_point_enforces_an_identity(
    parameters: Mapping[str, str], enforced: bool
) -> None:
    made = access_point_request(request(parameters), FS1, PosixUser(uid=7, gid=8))
    assert (made.user, made.enforces_user) == (PosixUser(uid=7, gid=8), enforced)


def test_driver_tags_override_class_tags_and_can_be_disabled() -> None:
    cluster = Tag(key="efs.csi.aws.com/cluster", value="blue")
    tags = TagPolicy(of_driver=(cluster, Tag(key="team")))
    tagged = access_point_request(request(), FS1, PosixUser(uid=1, gid=1), tags)
    assert tagged.tags[0] == cluster
    assert tagged.tags[-1] == Tag(key="team", value="")
    untagged = access_point_request(request({"enableTagging": "false"}), FS1, PosixUser(uid=1, gid=1))
    assert untagged.tags == ()


# --- client tokens


def test_creation_token_is_the_volume_name_on_any_file_system() -> None:
    assert client_token(request()) == NAME
    assert known_tokens(request(), FS1) == known_tokens(request(), FS2) == (NAME,)


# What aws-efs-csi-driver 3.4.1 computes: get64LenHash of the claim's name.
@pytest.mark.parametrize(
    ("claim", "token"),
    [
        ("data", "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"),
        ("efs-claim", "d3580977b85988d6cd4a7d1a8b4745f839b633cd685f264e261e1f6953af77ae"),
    ],
)
def test_creation_token_for_reuse_is_the_one_of_the_aws_driver(claim: str, token: str) -> None:
    reusing = request({"reuseAccessPoint": "true"}, origin=replace(ORIGIN, claim_name=claim))
    assert client_token(reusing) == token
    assert client_token(replace(reusing, name="pvc-again")) == token
    elsewhere = replace(reusing.origin, claim_namespace="other")
    assert client_token(replace(reusing, origin=elsewhere)) == token, "namespaces share"


def test_own_token_identifies_claim_and_file_system() -> None:
    reusing = request({"reuseAccessPoint": "true"})
    token = own_token(reusing, FS1)
    assert token == hashlib.sha256(f"{FS1}/team/data".encode()).hexdigest()
    assert len(token) == 64
    assert token == own_token(replace(reusing, name="pvc-again"), FS1)
    elsewhere = replace(ORIGIN, claim_namespace="other")
    assert token != own_token(replace(reusing, origin=elsewhere), FS1), "namespaces do not share"
    assert token != own_token(reusing, FS2), "file systems do not collide"
    assert known_tokens(reusing, FS1) == (token, client_token(reusing))


@pytest.mark.parametrize("missing", ["claim_name", "claim_namespace"])
def test_reuse_requires_the_claim_metadata(missing: str) -> None:
    known = {"claim_name": "data", "claim_namespace": "team", missing: ""}
    origin = VolumeOrigin(**known)  # type: ignore[arg-type]  # all of these are texts
    with pytest.raises(InvalidArgument) as caught:
        client_token(request({"reuseAccessPoint": "true"}, origin=origin))
    assert str(caught.value) == (
        "reuseAccessPoint: needs the claim's name and namespace; "
        "run csi-provisioner with --extra-create-metadata"
    )


@given(st.text(min_size=1))
def test_any_name_gives_a_creation_token_that_efs_accepts(name: str) -> None:
    token = client_token(request(name=name))
    assert 1 <= len(token) <= 64
    assert token.isascii()
    assert token.isprintable()


# --- access points that exist

ACCESS_POINT = AccessPointId("fsap-0123456789abcdef0")
FOUND = AccessPoint(
    access_point_id=ACCESS_POINT,
    file_system_id=FS1,
    directory=Directory(("tenant", "data")),
    user=PosixUser(uid=50000, gid=50000),
)
CLASS = {"basePath": "/tenant", "gidRangeStart": "50000", "gidRangeEnd": "50010"}
WITHOUT_USER = {"posixUser": "none", "gidRangeStart": "-", "gidRangeEnd": "-"}


@pytest.mark.parametrize(
    ("found", "parameters"),
    [
        pytest.param({}, {}, id="as it was made"),
        pytest.param({"directory": Directory(("tenant",))}, {}, id="base itself"),
        pytest.param({"user": PosixUser(uid=50010, gid=50010)}, {}, id="last of the range"),
        pytest.param({"user": PosixUser(uid=0, gid=7)}, {"uid": "0", "gid": "7"}, id="ids of the class"),
        pytest.param({}, {"basePath": "/x/..//tenant/"}, id="base to be normalized"),
        pytest.param({}, {"directoryPerms": "777"}, id="other permissions"),
        pytest.param({"tags": {"efs.csi.aws.com/requested-bytes": "0"}}, {}, id="same size"),
        pytest.param(
            {"tags": {"efs.csi.aws.com/requested-bytes": "9"}},
            {"reuseAccessPoint": "1"},
            id="reuse at any size",
        ),
        pytest.param({"file_system_id": FS2}, {}, id="another of the pool"),
        pytest.param({"user": None}, WITHOUT_USER, id="without an identity"),
    ],
)
def test_matching_access_point_is_reused(found: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
    check_existing(replace(FOUND, **found), request({**CLASS, **parameters}), [FS1, FS2])


ELSE = "delete it, or use another name"
DIFFERENT = [
    pytest.param(
        {"directory": Directory(("tenant-b", "data"))},
        {},
        f"has the root /tenant-b/data, which is not in basePath /tenant; {ELSE}",
        id="base with a common prefix",
    ),
    pytest.param(
        {"directory": Directory()},
        {},
        f"has the root /, which is not in basePath /tenant; {ELSE}",
        id="above",
    ),
    pytest.param({"user": None}, {}, f"has no POSIX user; {ELSE}", id="no identity"),
    pytest.param({}, WITHOUT_USER, f"has a POSIX user; {ELSE}", id="identity that the class does not want"),
    pytest.param(
        {"user": PosixUser(uid=50000, gid=49999)},
        {},
        f"has gid 49999, which is not in 50000-50010; {ELSE}",
        id="gid below the range",
    ),
    pytest.param(
        {"user": PosixUser(uid=50011, gid=50010)},
        {},
        f"has uid 50011, which is not in 50000-50010; {ELSE}",
        id="uid above the range",
    ),
    pytest.param({}, {"gid": "0"}, f"has gid 50000, which is not 0; {ELSE}", id="another gid"),
    pytest.param({}, {"uid": "1"}, f"has uid 50000, which is not 1; {ELSE}", id="another uid"),
    pytest.param(
        {"file_system_id": FS2},
        {},
        f"is on {FS2}, which the class does not name; {ELSE}",
        id="other file system",
    ),
]


@pytest.mark.parametrize(("found", "parameters", "message"), DIFFERENT)
def test_different_access_point_is_refused(
    found: Mapping[str, Any], parameters: Mapping[str, str], message: str
) -> None:
    with pytest.raises(ExistingVolumeDiffers) as caught:
        check_existing(replace(FOUND, **found), request({**CLASS, **parameters}), [FS1])
    assert str(caught.value) == f"access point: '{ACCESS_POINT}' {message}"
    assert caught.value.code is RpcCode.ALREADY_EXISTS


def test_same_name_with_another_size_is_refused() -> None:
    found = replace(FOUND, tags={"efs.csi.aws.com/requested-bytes": "1024"})
    check_existing(found, request(CLASS, required_bytes=1024), [FS1])
    with pytest.raises(ExistingVolumeDiffers) as caught:
        check_existing(found, request(CLASS, required_bytes=2048), [FS1])
    assert str(caught.value) == (
        f"capacity_range.required_bytes: '2048' is not what volume {NAME} was created with, 1024; "
        "request that size, or use another name"
    )
