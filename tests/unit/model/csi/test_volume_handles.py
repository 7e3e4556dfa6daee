"""Every form of volume handle that a version of the AWS driver has accepted or written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.strategies import file_names

from kube_efs.model.csi.errors import InvalidArgument, RpcCode
from kube_efs.model.csi.volume_handles import AccessPointId, VolumeHandle, parse_volume_handle
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId
from kube_efs.model.efs.kinds import FileSystemKind

FS = FileSystemId("fs-abcd1234")
AP = AccessPointId("fsap-0123456789abcdef0")

# The three-field forms of the contract's table, each also with the type before it.
FORMS = [
    pytest.param(FS, (), None, "efs:fs-abcd1234", id="file system"),
    pytest.param(f"{FS}:", (), None, "efs:fs-abcd1234", id="empty path"),
    pytest.param(f"{FS}::", (), None, "efs:fs-abcd1234", id="empty access point"),
    pytest.param(f"{FS}:/", (), None, "efs:fs-abcd1234", id="root"),
    pytest.param(f"{FS}:/p", ("p",), None, "efs:fs-abcd1234:/p", id="path"),
    pytest.param(f"{FS}:/p:", ("p",), None, "efs:fs-abcd1234:/p", id="path and an empty access point"),
    pytest.param(f"{FS}::{AP}", (), AP, f"efs:fs-abcd1234::{AP}", id="access point"),
    pytest.param(f"{FS}:/p:{AP}", ("p",), AP, f"efs:fs-abcd1234:/p:{AP}", id="path in an access point"),
    pytest.param(f"{FS}:/a/b/", ("a", "b"), None, "efs:fs-abcd1234:/a/b", id="trailing slash"),
    pytest.param(f"{FS}://a//b", ("a", "b"), None, "efs:fs-abcd1234:/a/b", id="repeated slashes"),
    pytest.param(f"{FS}:/a/./b/../c", ("a", "c"), None, "efs:fs-abcd1234:/a/c", id="dots"),
    pytest.param(f"{FS}:a/b", ("a", "b"), None, "efs:fs-abcd1234:/a/b", id="relative path"),
    pytest.param(f"{FS}:../../a", ("a",), None, "efs:fs-abcd1234:/a", id="never above the root"),
    pytest.param(f"{FS}:.", (), None, "efs:fs-abcd1234", id="dot"),
]


@pytest.mark.parametrize("prefix", ["", "efs:"])
@pytest.mark.parametrize(("text", "parts", "access_point", "canonical"), FORMS)
def test_valid_handle_is_parsed(
    prefix: str, text: str, parts: tuple[str, ...], access_point: AccessPointId | None, canonical: str
) -> None:
    handle = parse_volume_handle(prefix + text)
    assert handle == VolumeHandle(file_system_id=FS, directory=Directory(parts), access_point_id=access_point)
    assert str(handle) == canonical


@pytest.mark.parametrize(("text", "parts", "access_point", "canonical"), FORMS)
def test_handle_of_s3_files_has_the_same_parts(
    text: str, parts: tuple[str, ...], access_point: AccessPointId | None, canonical: str
) -> None:
    handle = parse_volume_handle(f"s3files:{text}")
    assert handle == VolumeHandle(
        kind=FileSystemKind.S3_FILES,
        file_system_id=FS,
        directory=Directory(parts),
        access_point_id=access_point,
    )
    assert str(handle) == canonical.replace("efs:", "s3files:", 1)


def test_directory_of_s3_files_belongs_to_no_claim() -> None:
    assert parse_volume_handle(f"s3files:{FS}:/base/./pvc-1").base is None


@pytest.mark.parametrize("digits", ["0" * 8, "0123456789abcdef0", "f" * 40])
def test_ids_of_valid_lengths_are_accepted(digits: str) -> None:
    handle = parse_volume_handle(f"fs-{digits}::fsap-{digits}")
    assert (handle.file_system_id, handle.access_point_id) == (f"fs-{digits}", f"fsap-{digits}")


MALFORMED = [
    pytest.param("", "is missing", "", id="nothing"),
    pytest.param("fs-abcd1234:/p:fsap-abcd1234:", "has too many fields", None, id="four fields"),
    pytest.param("efs:fs-abcd1234:/p:fsap-abcd1234:x", "has too many fields", None, id="five fields"),
    pytest.param("nfs:fs-abcd1234", "has an unknown type", None, id="another type"),
    pytest.param("EFS:fs-abcd1234", "has an unknown type", None, id="type in uppercase"),
    pytest.param(":fs-abcd1234", "has an unknown type", None, id="empty type"),
    pytest.param("s3files:", "is not a valid file system ID", "", id="S3 Files without a file system"),
    pytest.param("s3files", "is not a valid file system ID", "s3files", id="S3 Files without a colon"),
    pytest.param("s3files:efs:fs-abcd1234", "is not a valid file system ID", "efs", id="two types"),
    pytest.param("efs", "is not a valid file system ID", "efs", id="type without a colon"),
    pytest.param("efs:", "is not a valid file system ID", "", id="type only"),
    pytest.param("efs::/p", "is not a valid file system ID", "", id="no file system"),
    pytest.param("vol-abcd1234", "is not a valid file system ID", "vol-abcd1234", id="ID of another service"),
    pytest.param("fs-abcd123", "is not a valid file system ID", "fs-abcd123", id="seven digits"),
    pytest.param(f"fs-{'a' * 41}", "is not a valid file system ID", f"fs-{'a' * 41}", id="41 digits"),
    pytest.param("fs-ABCD1234", "is not a valid file system ID", "fs-ABCD1234", id="uppercase digits"),
    pytest.param(
        "fs-abcd123g", "is not a valid file system ID", "fs-abcd123g", id="letter that is not hexadecimal"
    ),
    pytest.param("fs-abcd1234\n", "is not a valid file system ID", "fs-abcd1234\n", id="trailing line break"),
    pytest.param(
        "fs-abcd1234,ro", "is not a valid file system ID", "fs-abcd1234,ro", id="option after the ID"
    ),
    pytest.param("fs-abcd1234::fsap-1", "is not a valid access point ID", "fsap-1", id="short access point"),
    pytest.param(
        "fs-abcd1234::fs-abcd1234",
        "is not a valid access point ID",
        "fs-abcd1234",
        id="other ID instead of an access point",
    ),
    pytest.param(
        "fs-abcd1234::fsap-abcd1234,tls",
        "is not a valid access point ID",
        "fsap-abcd1234,tls",
        id="two options",
    ),
    pytest.param(
        "fs-abcd1234:/a\nconnect=evil",
        "has a control character or slash",
        "/a\nconnect=evil",
        id="line break",
    ),
]


@pytest.mark.parametrize(("text", "problem", "value"), MALFORMED)
def test_malformed_handle_is_refused(text: str, problem: str, value: str | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_volume_handle(text)
    error = caught.value
    assert (error.problem, error.field, error.code) == (problem, "volume ID", RpcCode.INVALID_ARGUMENT)
    assert error.value == (text if value is None else value)
    assert error.remedy


# --- directories made for claims

OWN = VolumeHandle(
    file_system_id=FS, directory=Directory(("base", "team", "pvc-1")), base=Directory(("base",))
)


@pytest.mark.parametrize(
    ("base", "text"),
    [
        pytest.param(("base",), "efs:fs-abcd1234:/base/./team/pvc-1", id="below a base"),
        pytest.param(("base", "team"), "efs:fs-abcd1234:/base/team/./pvc-1", id="two levels"),
        pytest.param((), "efs:fs-abcd1234:/./base/team/pvc-1", id="below the root"),
    ],
)
def test_handle_of_a_claim_directory_contains_its_base(base: tuple[str, ...], text: str) -> None:
    handle = VolumeHandle(file_system_id=FS, directory=OWN.directory, base=Directory(base))
    assert str(handle) == text
    assert parse_volume_handle(text) == handle


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("fs-abcd1234:/base/./name", id="without the type"),
        pytest.param("efs:fs-abcd1234:/base/./name/", id="with a trailing slash"),
        pytest.param("efs:fs-abcd1234:/base/././name", id="with two marks"),
        pytest.param("efs:fs-abcd1234:/base/./a/./name", id="with separate marks"),
        pytest.param("efs:fs-abcd1234:/base/./../name", id="leading out of the base"),
        pytest.param("efs:fs-abcd1234:/base/./.", id="without a name"),
        pytest.param("efs:fs-abcd1234:base/./name", id="relative"),
        pytest.param("efs:fs-abcd1234:/base/./name:", id="with a colon at the end"),
        pytest.param("efs:fs-abcd1234:/base/./name:fsap-abcd1234", id="in an access point"),
        pytest.param("efs:fs-abcd1234:/base/name", id="without the mark"),
        pytest.param("efs:fs-abcd1234:/a\n/./../b", id="with a line break in a resolved component"),
    ],
)
def test_handwritten_handle_is_never_read_as_a_claim_directory(text: str) -> None:
    assert parse_volume_handle(text).base is None


@pytest.mark.parametrize(
    ("directory", "base", "access_point"),
    [
        pytest.param(("base",), ("base",), None, id="base itself"),
        pytest.param(("base2",), ("base",), None, id="next to the base"),
        pytest.param(("base", "a"), ("base",), AP, id="in an access point"),
    ],
)
def test_claim_directory_must_be_below_its_base(
    directory: tuple[str, ...], base: tuple[str, ...], access_point: AccessPointId | None
) -> None:
    with pytest.raises(InvalidArgument, match="is not below its base"):
        VolumeHandle(
            file_system_id=FS,
            directory=Directory(directory),
            base=Directory(base),
            access_point_id=access_point,
        )


def test_handle_path_cannot_contain_a_colon() -> None:
    with pytest.raises(InvalidArgument, match="has a colon"):
        VolumeHandle(file_system_id=FS, directory=Directory(("a:b",)))


# --- any handle

HEX = st.text("0123456789abcdef", min_size=8, max_size=40)
PARTS = st.lists(file_names(max_size=12, excluded="/:"), max_size=4).map(tuple)
OWN_PARTS = st.lists(file_names(max_size=12, excluded="/:"), min_size=1, max_size=4).map(tuple)
STATIC = st.builds(
    lambda kind, fs, parts, ap: VolumeHandle(
        kind=kind,
        file_system_id=FileSystemId(f"fs-{fs}"),
        directory=Directory(parts),
        access_point_id=AccessPointId(f"fsap-{ap}") if ap else None,
    ),
    st.sampled_from(FileSystemKind),
    HEX,
    PARTS,
    st.none() | HEX,
)
OF_CLAIMS = st.builds(
    lambda fs, base, own: VolumeHandle(
        file_system_id=FileSystemId(f"fs-{fs}"), directory=Directory(base + own), base=Directory(base)
    ),
    HEX,
    PARTS,
    OWN_PARTS,
)


@given(STATIC | OF_CLAIMS)
def test_written_handle_parses_to_the_same_value(handle: VolumeHandle) -> None:
    assert parse_volume_handle(str(handle)) == handle


HOSTILE = st.lists(
    st.sampled_from(
        ["efs", "s3files", ":", "/", ".", "..", ",", "\n", "=", FS, AP, "fs-", "a", "é", "\x00", "\udc80"]
    )
).map("".join)


@given(st.text() | HOSTILE)
def test_any_text_is_refused_or_gives_one_canonical_handle(text: str) -> None:
    try:
        handle = parse_volume_handle(text)
    except InvalidArgument:
        return
    assert parse_volume_handle(str(handle)) == handle
    assert str(handle).isprintable()
    assert (handle.base is None) or str(handle) == text
