"""The rules of efs-provisioner: refused claims, the volume of a claim, and the removal with a volume."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.claims import Claim, DataSource, ReclaimPolicy, StorageClass
from kube_efs.model.directory_volumes import (
    DirectoryProvisioner,
    directory_name,
    is_conventional,
    parse_request,
    permissions_for,
    removable_location,
    volume_for,
    volume_name,
    volume_of_directory,
)
from kube_efs.model.efs.directories import Directory, Permissions, parse_directory
from kube_efs.model.efs.ids import ClaimUid, FileSystemId
from kube_efs.model.efs.targets import TunnelTarget, TunnelTargets
from kube_efs.model.errors import ClaimRefused, NotYet, RemovalRefused
from kube_efs.model.gids import GidRange
from kube_efs.model.volumes import ClaimReference, CsiSource, NfsSource, Volume, VolumePhase

FS = FileSystemId("fs-47a2c22e")
SERVER = "fs-47a2c22e.efs.us-west-2.amazonaws.com"
UID = ClaimUid("557b4436-ed73-11e6-84b3-06a700dda5f5")
PROVISIONER = DirectoryProvisioner(
    name="example.com/aws-efs",
    file_system_id=FS,
    server=SERVER,
    base=Directory(("persistentvolumes",)),
)
TARGETS = TunnelTargets(targets={FS: TunnelTarget(file_system_id=FS, port=20490)})
SLOW = StorageClass(
    name="slow",
    provisioner="example.com/aws-efs",
    parameters={"gidMin": "40000", "gidMax": "50000", "gidAllocate": "true"},
)
OPEN = StorageClass(name="open", provisioner="example.com/aws-efs", parameters={"gidAllocate": "false"})
TLS = replace(SLOW, parameters={"tls": "true"})
CLAIM = Claim(
    namespace="default",
    name="efs",
    uid=UID,
    resource_version="7",
    storage_class="slow",
    access_modes=("ReadWriteMany",),
    requested_storage="1Mi",
    storage_provisioner="example.com/aws-efs",
)


def based_at(path: str) -> DirectoryProvisioner:
    return replace(PROVISIONER, base=parse_directory(path))


# --- what is asked for


def test_readme_class_and_claim_are_served() -> None:
    request = parse_request(CLAIM, SLOW, PROVISIONER, TARGETS)
    assert str(request.location) == f"fs-47a2c22e:/persistentvolumes/efs-pvc-{UID}"
    assert request.gids == GidRange(minimum=40000, maximum=50000)
    assert request.port is None
    assert request.reclaim_policy is ReclaimPolicy.DELETE
    assert request.mount_options == ("vers=4.1",)


def test_each_stateful_set_claim_gets_its_own_directory() -> None:
    claims = [replace(CLAIM, name=f"efs-web-{n}", uid=ClaimUid(f"{UID[:-1]}{n}")) for n in range(3)]
    requests = [parse_request(claim, SLOW, PROVISIONER, TARGETS) for claim in claims]
    assert [request.location.directory.parts[-1] for request in requests] == [
        f"efs-web-{n}-pvc-557b4436-ed73-11e6-84b3-06a700dda5f{n}" for n in range(3)
    ]


def test_class_without_gid_allocation_uses_no_group_id() -> None:
    assert parse_request(CLAIM, OPEN, PROVISIONER, TARGETS).gids is None


def test_only_tls_classes_need_a_tunnel() -> None:
    assert parse_request(CLAIM, SLOW, PROVISIONER, TunnelTargets()).port is None
    assert parse_request(CLAIM, TLS, PROVISIONER, TARGETS).port == 20490
    with pytest.raises(NotYet) as caught:
        parse_request(CLAIM, TLS, PROVISIONER, TunnelTargets())
    with pytest.raises(ClaimRefused, match="needs tunnels, which this controller does not manage"):
        parse_request(CLAIM, TLS, PROVISIONER, None)
    assert str(caught.value) == (
        "file system: 'fs-47a2c22e' has no tunnel port yet; it gets one with the next discovery"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param(
            {"is_block": True},
            "spec.volumeMode: 'Block' cannot be served by NFS; use Filesystem",
            id="block device",
        ),
        pytest.param(
            {"data_source": DataSource(kind="Any", name="x")},
            "spec.dataSource: 'Any x' cannot be copied; name a PersistentVolumeClaim or a VolumeSnapshot",
            id="data source of another kind",
        ),
        pytest.param(
            {"match_labels": {}},
            "spec.selector: is not supported; leave it out, each claim gets a directory of its own",
            id="empty selector",
        ),
        pytest.param(
            {"match_labels": {"a": "b"}},
            "spec.selector: is not supported; leave it out, each claim gets a directory of its own",
            id="selector with labels",
        ),
    ],
)
@pytest.mark.parametrize("of_class", [SLOW, OPEN, TLS], ids=["slow", "open", "tls"])
def test_unsupported_claims_are_refused(fields: dict[str, Any], text: str, of_class: StorageClass) -> None:
    with pytest.raises(ClaimRefused) as caught:
        parse_request(replace(CLAIM, **fields), of_class, PROVISIONER, TARGETS)
    assert str(caught.value) == text
    assert caught.value.field == text.partition(": ")[0]


def test_claims_of_a_malformed_class_are_refused() -> None:
    with pytest.raises(
        ClaimRefused,
        match=(
            r"StorageClass slow parameters\.gidMin: '7' is not a valid group "
            r"ID"
        ),
    ):
        parse_request(CLAIM, replace(SLOW, parameters={"gidMin": "7"}), PROVISIONER, TARGETS)


@pytest.mark.parametrize("option", ["port=2049", "addr=10.0.0.4", "mountport=1", "hard,port=2049"])
def test_tls_class_cannot_bypass_the_tunnel(option: str) -> None:
    of_class = replace(TLS, mount_options=("hard", option))
    with pytest.raises(ClaimRefused) as caught:
        parse_request(CLAIM, of_class, PROVISIONER, TARGETS)
    assert str(caught.value) == (
        f"StorageClass slow mountOptions: {option!r} cannot be combined with the tunnel; leave it out"
    )


# --- the volume


def test_directory_volume_matches_the_contract() -> None:
    volume = volume_for(parse_request(CLAIM, SLOW, PROVISIONER, TARGETS), gid=40000)
    assert volume == Volume(
        name="pvc-557b4436-ed73-11e6-84b3-06a700dda5f5",
        reclaim_policy=ReclaimPolicy.DELETE,
        storage_class="slow",
        provisioned_by="example.com/aws-efs",
        file_system_id=None,
        gid=40000,
        claim=ClaimReference(namespace="default", name="efs", uid=UID),
        nfs=NfsSource(
            server="fs-47a2c22e.efs.us-west-2.amazonaws.com",
            path="/persistentvolumes/efs-pvc-557b4436-ed73-11e6-84b3-06a700dda5f5",
        ),
        mount_options=("vers=4.1",),
        labels={},
        access_modes=("ReadWriteMany",),
        capacity="1Mi",
    )
    assert volume.claim is not None
    assert volume.claim.resource_version == "7"  # not compared, since it changes with the claim


def test_tls_volume_differs_only_in_server_and_port() -> None:
    plain = volume_for(parse_request(CLAIM, SLOW, PROVISIONER, TARGETS), gid=40000)
    tunnelled = volume_for(parse_request(CLAIM, TLS, PROVISIONER, TARGETS), gid=40000)
    assert plain.nfs is not None
    assert tunnelled == replace(
        plain,
        nfs=NfsSource(server="127.0.0.1", path=plain.nfs.path),
        file_system_id="fs-47a2c22e",
        mount_options=("port=20490", "vers=4.1"),
    )


def test_volume_of_a_class_without_gid_allocation_has_no_group_id() -> None:
    assert volume_for(parse_request(CLAIM, OPEN, PROVISIONER, TARGETS), gid=None).gid is None


@pytest.mark.parametrize(
    ("options", "plain", "tunnelled"),
    [
        ((), ("vers=4.1",), ("port=20490", "vers=4.1")),
        (("hard",), ("hard",), ("port=20490", "hard")),
        (
            ("nfsvers=4.0", "timeo=600"),
            ("nfsvers=4.0", "timeo=600"),
            ("port=20490", "nfsvers=4.0", "timeo=600"),
        ),
    ],
    ids=["the default", "one option", "more options"],
)
def test_class_mount_options_replace_the_default(
    options: tuple[str, ...], plain: tuple[str, ...], tunnelled: tuple[str, ...]
) -> None:
    for of_class, expected in ((SLOW, plain), (TLS, tunnelled)):
        request = parse_request(CLAIM, replace(of_class, mount_options=options), PROVISIONER, TARGETS)
        assert volume_for(request, gid=2000).mount_options == expected


def test_class_without_tls_can_set_any_mount_option() -> None:
    request = parse_request(CLAIM, replace(SLOW, mount_options=("port=2049",)), PROVISIONER, TARGETS)
    assert volume_for(request, gid=2000).mount_options == ("port=2049",)


@pytest.mark.parametrize(
    "fields",
    [
        {"access_modes": ("ReadWriteOnce", "ReadOnlyMany")},
        {"access_modes": ()},
        {"requested_storage": "1000000Ti"},
        {"requested_storage": "1e3"},
        {"storage_class": ""},
    ],
    ids=["access modes", "no access mode", "a huge size", "an invalid size", "no class"],
)
def test_claim_fields_are_copied_unchanged(fields: dict[str, Any]) -> None:
    volume = volume_for(parse_request(replace(CLAIM, **fields), SLOW, PROVISIONER, TARGETS), gid=2000)
    carried = {
        "access_modes": volume.access_modes,
        "requested_storage": volume.capacity,
        "storage_class": volume.storage_class,
    }
    assert carried | fields == carried


@pytest.mark.parametrize("policy", [ReclaimPolicy.DELETE, ReclaimPolicy.RETAIN])
def test_volume_has_the_reclaim_policy_of_its_class(policy: ReclaimPolicy) -> None:
    request = parse_request(CLAIM, replace(SLOW, reclaim_policy=policy), PROVISIONER, TARGETS)
    assert volume_for(request, gid=2000).reclaim_policy is policy


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/", f"/data-pvc-{UID}"),
        ("/persistentvolumes", f"/persistentvolumes/data-pvc-{UID}"),
        ("/a/b", f"/a/b/data-pvc-{UID}"),
    ],
)
def test_volume_path_is_below_the_base(base: str, path: str) -> None:
    request = parse_request(replace(CLAIM, name="data"), SLOW, based_at(base), TARGETS)
    assert volume_for(request, gid=2000).nfs == NfsSource(server=SERVER, path=path)


def test_directory_permissions_depend_on_the_group() -> None:
    assert permissions_for(40000) == Permissions(mode=0o2771, uid=None, gid=40000, enforced=True)
    assert permissions_for(None) == Permissions(mode=0o777, uid=None, gid=None, enforced=True, exact=True)


# --- names

# What Kubernetes accepts as the name of a claim (RFC 1123, DNS subdomain).
NAMES = st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", fullmatch=True)
UIDS = st.uuids().map(str).map(ClaimUid)


@given(NAMES, UIDS)
def test_directory_names_are_valid_file_names(name: str, uid: ClaimUid) -> None:
    claim = replace(CLAIM, name=name, uid=uid)
    made = directory_name(claim)
    assert len(made.encode()) <= 255
    assert parse_directory(f"/{made}").parts == (made,)
    assert made.endswith(f"-{volume_name(claim)}")
    assert made.startswith(name[:200])
    assert volume_of_directory(made) == volume_name(claim) == f"pvc-{uid}"


@given(NAMES, NAMES, UIDS, UIDS)
def test_claims_never_share_a_directory(one: str, other: str, uid: ClaimUid, other_uid: ClaimUid) -> None:
    if uid != other_uid:
        assert directory_name(replace(CLAIM, name=one, uid=uid)) != directory_name(
            replace(CLAIM, name=other, uid=other_uid)
        )


@pytest.mark.parametrize(
    ("length", "is_whole"), [(1, True), (213, True), (214, True), (215, False), (253, False)]
)
def test_claim_name_of_up_to_214_characters_is_kept(length: int, is_whole: bool) -> None:
    made = directory_name(replace(CLAIM, name="n" * length))
    assert made.startswith("n" * min(length, 205))
    assert (made == f"{'n' * length}-pvc-{UID}") is is_whole
    assert (len(made) == 255) is (length >= 214)


def test_long_names_never_change() -> None:
    # A new version of kube-efs must find the directories that an old one made.
    assert directory_name(replace(CLAIM, name="n" * 215)) == f"{'n' * 205}-407c5c50-pvc-{UID}"


def test_long_names_that_differ_at_the_end_give_different_directories() -> None:
    names = {directory_name(replace(CLAIM, name="n" * 250 + end)) for end in ("", "a", "b", "c")}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("directory", "volume"),
    [
        (f"efs-pvc-{UID}", f"pvc-{UID}"),
        (f"a.b-pvc-x-pvc-{UID}", f"pvc-{UID}"),
        (f"efs-pvc-{'1' * 8}-2222-3333-4444-{'5' * 12}-pvc-{UID}", f"pvc-{UID}"),
        (f"pvc-{UID}", None),
        (f"-pvc-{UID}", None),
        (f"efs-{UID}", None),
        (f"efs-pvc-{UID}.bak", None),
        (f"efs-pvc-{UID}\n", None),
        (f"efs-pvc-{UID[:-1]}", None),
        (f"efs-pvc-{UID.upper()}", None),
        (".kube-efs-trash", None),
        ("home", None),
        ("", None),
    ],
)
def test_directory_name_gives_its_volume(directory: str, volume: str | None) -> None:
    assert volume_of_directory(directory) == volume


# --- removal

RELEASED = Volume(
    name=f"pvc-{UID}",
    phase=VolumePhase.RELEASED,
    provisioned_by="example.com/aws-efs",
    claim=ClaimReference(namespace="default", name="data", uid=UID),
    nfs=NfsSource(server=SERVER, path=f"/a/b/data-pvc-{UID}"),
)


def on(server: str, *, file_system_id: str | None = None) -> Volume:
    nfs = NfsSource(server=server, path=f"/a/b/data-pvc-{UID}")
    return replace(RELEASED, nfs=nfs, file_system_id=file_system_id)


def at(path: str) -> Volume:
    return replace(RELEASED, nfs=NfsSource(server=SERVER, path=path))


@given(
    NAMES,
    UIDS,
    st.lists(st.sampled_from(["a", "b", "..b", "é"]), max_size=3),
    st.sampled_from([SLOW, OPEN, TLS]),
)
def test_created_directory_can_be_removed(
    name: str, uid: ClaimUid, base: list[str], of_class: StorageClass
) -> None:
    provisioner = replace(PROVISIONER, base=Directory(tuple(base)))
    request = parse_request(replace(CLAIM, name=name, uid=uid), of_class, provisioner, TARGETS)
    volume = volume_for(request, gid=2000 if request.gids else None)
    assert removable_location(volume, provisioner) == request.location
    assert is_conventional(volume)


@pytest.mark.parametrize(
    ("base", "path"),
    [
        pytest.param("/a/b", f"/a/b/data-pvc-{UID}", id="as it was made"),
        pytest.param("/a/b", "/a/b/pv/foo", id="deeper"),
        pytest.param("/", "/d", id="below the root"),
        pytest.param("/a/b", "/a/b/..d", id="dots in a name"),
        pytest.param("/a/b", "/a/b/with blank", id="blank"),
    ],
)
def test_directories_below_the_base_are_removed(base: str, path: str) -> None:
    location = removable_location(at(path), based_at(base))
    assert str(location) == f"fs-47a2c22e:{path}"


@pytest.mark.parametrize(
    ("base", "path"),
    [
        pytest.param("/a/b", "/foo/pv", id="outside the base"),
        pytest.param("/a/b", "/a/bc/d", id="sibling with a common prefix"),
        pytest.param("/a/b", "/a/b", id="base"),
        pytest.param("/a/b", "/a/b/", id="base with a slash"),
        pytest.param("/a/b", "/a", id="above the base"),
        pytest.param("/a/b", "/", id="root"),
        pytest.param("/", "/", id="root as base"),
        pytest.param("/a/b", "/a/b/../../etc/d", id="out through the parent"),
        pytest.param("/a/b", "/a/b/c/../d", id="in through the parent"),
        pytest.param("/a/b", "/a/b/./d", id="path with ."),
        pytest.param("/a/b", "/a/b/.", id="path with ."),
        pytest.param("/a/b", "/a/b/..", id="parent"),
        pytest.param("/a/b", "/a//b/d", id="two slashes"),
        pytest.param("/a/b", "//a/b/d", id="two leading slashes"),
        pytest.param("/a/b", "/a/b/d/", id="trailing slash"),
        pytest.param("/a/b", "a/b/d", id="relative"),
        pytest.param("/a/b", "", id="nothing"),
        pytest.param("/a/b", "/a/b/d\ne", id="newline"),
        pytest.param("/a/b", "/a/b/" + "d" * 256, id="invalid name"),
    ],
)
def test_removal_outside_the_base_is_refused(base: str, path: str) -> None:
    with pytest.raises(RemovalRefused) as caught:
        removable_location(at(path), based_at(base))
    error = caught.value
    assert (error.problem, error.field, error.value, error.remedy) == (
        "is not a plain path below the base",
        "spec.nfs.path",
        path,
        f"only directories strictly below {base} are removed; remove the volume manually",
    )


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param(on(SERVER), id="server itself"),
        pytest.param(on(SERVER, file_system_id="fs-47a2c22e"), id="server and its file system"),
        pytest.param(on("127.0.0.1", file_system_id="fs-47a2c22e"), id="through the tunnel"),
    ],
)
def test_volumes_on_the_file_system_of_the_provisioner_can_be_removed(volume: Volume) -> None:
    assert str(removable_location(volume, based_at("/a/b"))) == f"fs-47a2c22e:/a/b/data-pvc-{UID}"


REMOVED_FROM = (
    f"example.com/aws-efs removes directories only from {SERVER}, and from fs-47a2c22e through a tunnel; "
    "remove the volume manually"
)


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param(on("fs-1.efs.us-west-2.amazonaws.com"), id="another server"),
        pytest.param(on(SERVER.upper()), id="server in uppercase"),
        pytest.param(on(f"{SERVER}."), id="trailing dot"),
        pytest.param(on(f"{SERVER}.cn"), id="server with a common prefix"),
        pytest.param(on(f"us-west-2a.{SERVER}"), id="server of one zone"),
        pytest.param(on("10.0.0.4"), id="address"),
        pytest.param(on(""), id="no server"),
        pytest.param(on("127.0.0.1"), id="loopback without a file system"),
        pytest.param(on("127.0.0.1", file_system_id=""), id="loopback with an empty file system"),
        pytest.param(on("127.0.0.1", file_system_id="fs-1"), id="tunnel of another file system"),
        pytest.param(on("127.0.0.2", file_system_id="fs-47a2c22e"), id="another loopback address"),
        pytest.param(on("localhost", file_system_id="fs-47a2c22e"), id="loopback by name"),
        pytest.param(on(SERVER, file_system_id="fs-1"), id="server and another file system"),
    ],
)
def test_removal_is_refused_for_volumes_on_other_servers(volume: Volume) -> None:
    assert volume.nfs is not None
    with pytest.raises(RemovalRefused) as caught:
        removable_location(volume, based_at("/a/b"))
    error = caught.value
    assert (error.problem, error.field, error.value, error.remedy) == (
        "is not a server of this provisioner's volumes",
        "spec.nfs.server",
        volume.nfs.server,
        REMOVED_FROM,
    )


def test_provisioner_server_can_be_loopback_but_not_the_tunnel_of_another_file_system() -> None:
    provisioner = replace(based_at("/a/b"), server="127.0.0.1")
    assert str(removable_location(on("127.0.0.1"), provisioner)) == f"fs-47a2c22e:/a/b/data-pvc-{UID}"
    with pytest.raises(RemovalRefused, match=r"^spec\.nfs\.server: '127\.0\.0\.1' is not a server"):
        removable_location(on("127.0.0.1", file_system_id="fs-1"), provisioner)


@pytest.mark.parametrize(
    "csi", [None, CsiSource(handle="fs-47a2c22e:/a/b/d")], ids=["no source", "a CSI volume"]
)
def test_removal_is_refused_for_a_volume_without_nfs(csi: CsiSource | None) -> None:
    with pytest.raises(RemovalRefused) as caught:
        removable_location(replace(RELEASED, nfs=None, csi=csi), PROVISIONER)
    assert str(caught.value) == f"volume: 'pvc-{UID}' has no spec.nfs; remove the volume manually"


@given(st.lists(st.sampled_from(["a", "b", "c", ".", "..", "", "\n"]), max_size=6).map("/".join))
def test_removable_directories_are_strictly_below_the_base(path: str) -> None:
    try:
        location = removable_location(at(f"/{path}"), based_at("/a/b"))
    except RemovalRefused:
        return
    assert re.fullmatch(r"/a/b(/[abc])+", f"/{path}")
    assert str(location.directory) == f"/{path}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/a/b/data-pvc-{UID}", True),
        (f"/a/b/pv/data-pvc-{UID}", True),
        (f"/a/b/pvc-{UID}", False),
        (f"/a/b/data-pvc-{UID}/deeper", False),
        (f"/a/b/data-pvc-{UID}0", False),
        ("/a/b/pv/foo", False),
    ],
)
def test_directory_named_after_its_volume_is_recognized(path: str, expected: bool) -> None:
    assert is_conventional(at(path)) is expected


def test_volume_without_a_directory_has_no_named_directory() -> None:
    assert not is_conventional(replace(RELEASED, nfs=None))
