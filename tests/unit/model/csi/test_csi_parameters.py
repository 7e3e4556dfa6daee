"""The parameters of classes of the CSI driver: a case for each row of the contract's table."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.claim_choices import AllowedChoices
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.parameters import (
    DEFAULT_GIDS,
    FileSystemReference,
    ProvisioningMode,
    ReferenceKind,
    VolumeParameters,
    parse_origin,
    parse_parameters,
    parse_referenced,
)
from kube_efs.model.csi.root_directories import VolumeOrigin
from kube_efs.model.efs.directories import Directory
from kube_efs.model.efs.ids import FileSystemId, ZoneName
from kube_efs.model.gids import GidRange

FS1, FS2 = FileSystemId("fs-0123456789abcdef0"), FileSystemId("fs-0123456789abcdef1")
MINIMAL = {"provisioningMode": "efs-ap", "fileSystemId": FS1, "directoryPerms": "700"}


def given_parameters(**changes: str | None) -> dict[str, str]:
    return {name: text for name, text in {**MINIMAL, **changes}.items() if text is not None}


def test_minimal_class_has_the_default_parameters() -> None:
    assert parse_parameters(MINIMAL) == VolumeParameters(
        provisioning=ProvisioningMode.ACCESS_POINT,
        file_systems=(FS1,),
        mode=0o700,
        uid=None,
        gid=None,
        gids=DEFAULT_GIDS,
        base=Directory(),
        pattern=None,
        unique=True,
        zone=None,
        reuses_access_point=False,
        zone_affinity=False,
        tagged=True,
        warnings=(),
    )
    assert (DEFAULT_GIDS.minimum, DEFAULT_GIDS.maximum) == (50_000, 7_000_000)


def test_class_of_the_older_driver_example_is_parsed() -> None:
    parameters = parse_parameters(
        {
            "provisioningMode": "efs-ap",
            "fileSystemId": "fs-09a658ebf884ec043",
            "directoryPerms": "700",
            "uid": "1000",
            "gid": "1000",
            "gidRangeStart": "1000",
            "gidRangeEnd": "2000",
            "basePath": "/dynamic_provisioning",
        }
    )
    assert parameters == VolumeParameters(
        provisioning=ProvisioningMode.ACCESS_POINT,
        file_systems=(FileSystemId("fs-09a658ebf884ec043"),),
        mode=0o700,
        uid=1000,
        gid=1000,
        gids=GidRange(minimum=1000, maximum=2000),
        base=Directory(("dynamic_provisioning",)),
    )


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        pytest.param(
            {"provisioningMode": "efs-dir"}, "provisioning", ProvisioningMode.DIRECTORY, id="efs-dir"
        ),
        pytest.param(
            {"provisioningMode": "s3files-ap"},
            "provisioning",
            ProvisioningMode.S3_FILES_ACCESS_POINT,
            id="s3files-ap",
        ),
        pytest.param({"fileSystemId": f" {FS1} "}, "file_systems", (FS1,), id="blanks around an id"),
        pytest.param({"fileSystemId": f"{FS1}, {FS2},"}, "file_systems", (FS1, FS2), id="several ids"),
        pytest.param({"fileSystemId": f"{FS2},{FS1},{FS2}"}, "file_systems", (FS2, FS1), id="id twice"),
        pytest.param(
            {"fileSystemId": None, "fileSystemIds": f"{FS1},{FS2}"}, "file_systems", (FS1, FS2), id="pool"
        ),
        pytest.param({"directoryPerms": "0777"}, "mode", 0o777, id="four digits"),
        pytest.param({"directoryPerms": "2771"}, "mode", 0o2771, id="setgid"),
        pytest.param({"uid": "0"}, "uid", 0, id="root"),
        pytest.param({"gid": "0"}, "gid", 0, id="root's group"),
        pytest.param({"uid": "+007"}, "uid", 7, id="sign and zeros"),
        pytest.param({"uid": "4294967295"}, "uid", 4294967295, id="largest uid"),
        pytest.param(
            {"gidRangeStart": "1", "gidRangeEnd": "2"}, "gids", GidRange(minimum=1, maximum=2), id="two gids"
        ),
        pytest.param(
            {"gidRangeStart": "50000", "gidRangeEnd": "7000000"},
            "gids",
            GidRange(minimum=50000, maximum=7000000),
            id="wide range",
        ),
        pytest.param({"basePath": "a//b/../c/"}, "base", Directory(("a", "c")), id="base to be normalized"),
        pytest.param({"basePath": "/"}, "base", Directory(), id="root as base"),
        pytest.param({"subPathPattern": ""}, "pattern", "", id="empty pattern"),
        pytest.param({"ensureUniqueDirectory": "F"}, "unique", False, id="no suffix"),
        pytest.param({"az": "us-east-1a"}, "zone", ZoneName("us-east-1a"), id="zone"),
        pytest.param({"az": ""}, "zone", None, id="empty zone"),
        pytest.param({"reuseAccessPoint": "TRUE"}, "reuses_access_point", True, id="reuse"),
        pytest.param({"enforceZoneAffinity": "1"}, "zone_affinity", True, id="zone affinity"),
        pytest.param({"enableTagging": "False"}, "tagged", False, id="no tags"),
        pytest.param({"posixUser": "none"}, "enforces_user", False, id="no identity"),
        pytest.param({"posixUser": "none"}, "uid", 0, id="without an identity, root owns"),
        pytest.param({"posixUser": "none", "uid": "7"}, "gid", 0, id="and its group"),
        pytest.param({"posixUser": "none", "gid": "7"}, "gid", 7, id="unless the class says otherwise"),
        pytest.param(
            {"allowedUids": "0, 1000-1999", "allowedGids": "5", "allowedDirectoryPerms": "700,0750"},
            "allowed",
            AllowedChoices(
                uids=(GidRange(minimum=0, maximum=0), GidRange(minimum=1000, maximum=1999)),
                gids=(GidRange(minimum=5, maximum=5),),
                modes=(0o700, 0o750),
            ),
            id="choices",
        ),
        pytest.param(
            {"uid": "7", "gid": "7", "allowedUids": "50000-60000"},
            "allowed",
            AllowedChoices(uids=(GidRange(minimum=50000, maximum=60000),)),
            id="choices within the range of allocated numbers, of which none is allocated",
        ),
        pytest.param({"csi.storage.k8s.io/pvc/name": "x"}, "warnings", (), id="parameters of the sidecar"),
    ],
)
def test_valid_parameters_are_parsed(changes: Mapping[str, str | None], field: str, value: object) -> None:
    parameters = parse_parameters(given_parameters(**changes))
    assert getattr(parameters, field) == value
    assert parameters.warnings == ()


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_go_spelling_of_true_is_read(text: str) -> None:
    assert parse_parameters(given_parameters(reuseAccessPoint=text)).reuses_access_point


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_go_spelling_of_false_is_read(text: str) -> None:
    assert not parse_parameters(given_parameters(enableTagging=text)).tagged


# --- file system ids that stand elsewhere

CONFIG = FileSystemReference(kind=ReferenceKind.CONFIG_MAP, namespace="infra", name="efs", key="id")
SECRET = FileSystemReference(kind=ReferenceKind.SECRET, namespace="infra", name="efs", key="id")


@pytest.mark.parametrize(
    ("changes", "reference"),
    [
        pytest.param({"fileSystemIdConfigRef": "infra/efs/id"}, CONFIG, id="ConfigMap"),
        pytest.param({"fileSystemIdSecretRef": " infra / efs / id "}, SECRET, id="Secret, with blanks"),
        pytest.param(
            {"fileSystemIdConfigRef": " ", "fileSystemIdSecretRef": "infra/efs/id"},
            SECRET,
            id="blank reference",
        ),
        pytest.param(
            {"fileSystemId": " ", "fileSystemIdConfigRef": "infra/efs/id"}, CONFIG, id="beside a blank id"
        ),
    ],
)
def test_reference_to_a_file_system_is_parsed(
    changes: Mapping[str, str], reference: FileSystemReference
) -> None:
    parameters = given_parameters(**{"fileSystemId": None, **changes})
    assert parse_parameters(parameters).file_systems == reference


@pytest.mark.parametrize("reference", [CONFIG, SECRET])
def test_referenced_file_system_is_validated(reference: FileSystemReference) -> None:
    assert parse_referenced(f" {FS1}\n", reference) == (FS1,)
    for nothing in (None, "", " \n"):
        with pytest.raises(InvalidArgument) as caught:
            parse_referenced(nothing, reference)
        assert str(caught.value) == (
            f"{reference.kind} infra/efs data.id: is missing or empty; set it to the file system's ID"
        )


def test_error_does_not_contain_the_value_of_a_secret() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_referenced("hunter2", SECRET)
    error = caught.value
    assert str(error) == (
        "Secret infra/efs data.id: is not a valid file system ID; use an id such as fs-0123456789abcdef0"
    )
    assert "hunter2" not in repr(error.args)
    assert error.__suppress_context__
    with pytest.raises(InvalidArgument, match="hunter2"):
        parse_referenced("hunter2", CONFIG)


# --- what is refused; every refused value is in test_refused_parameters.py


def test_default_tags_require_tagging() -> None:
    off = given_parameters(enableTagging="false")
    assert not parse_parameters(off).tagged
    with pytest.raises(InvalidArgument) as caught:
        parse_parameters(off, has_driver_tags=True)
    assert str(caught.value) == (
        "enableTagging: 'false' contradicts the tags of the driver; "
        "leave it out, or set no KUBE_EFS_ACCESS_POINT_TAGS"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"reuseAccessPoint": "x", "provisioningMode": "x"}, "reuseAccessPoint", id="booleans first"
        ),
        pytest.param({"provisioningMode": "x", "uid": "x"}, "provisioningMode", id="then the mode"),
        pytest.param({"uid": "x", "gid": "x"}, "uid", id="uid before gid"),
        pytest.param({"gid": "x", "gidRangeStart": "x"}, "gid", id="gid before the range"),
    ],
)
def test_first_invalid_parameter_is_reported(changes: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_parameters(given_parameters(**changes))
    assert caught.value.field == message


@pytest.mark.parametrize(
    ("needed", "misspelt", "told"),
    [
        ("fileSystemId", "fileSystemID", "fileSystemId"),
        ("fileSystemId", "filesystemids", "fileSystemIds"),
        ("provisioningMode", "ProvisioningMode", "provisioningMode"),
        ("directoryPerms", "directoryPerm", "directoryPerms"),
    ],
)
def test_refusal_names_the_misspelt_parameter(needed: str, misspelt: str, told: str) -> None:
    given = dict(given_parameters())
    given[misspelt] = given.pop(needed)
    with pytest.raises(InvalidArgument) as caught:
        parse_parameters(given)
    assert caught.value.field == needed
    assert caught.value.remedy.endswith(f"; {misspelt!r} is not known, did you mean {told}?")


# --- what is served all the same, with a warning

WITHOUT_EFFECT = [
    pytest.param(
        {"basepath": "/x"},
        "parameter: 'basepath' is not known and has no effect; did you mean basePath?",
        id="name in lowercase",
    ),
    pytest.param(
        {"fileSytemId": "x"},
        "parameter: 'fileSytemId' is not known and has no effect; did you mean fileSystemId?",
        id="misspelt name",
    ),
    pytest.param(
        {"zzz": "x"}, "parameter: 'zzz' is not known and has no effect; leave it out", id="foreign name"
    ),
    pytest.param(
        {"ensureUniqueDirectory": "no"},
        "ensureUniqueDirectory: 'no' is not a boolean and counts as true; use true or false",
        id="invalid boolean",
    ),
    pytest.param(
        {"provisioningMode": "s3files-ap", "enforceZoneAffinity": "true"},
        "enforceZoneAffinity: 'true' has no effect because S3 Files has no file systems of one zone; "
        "leave it out",
        id="zone affinity of S3 Files",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WITHOUT_EFFECT)
def test_parameters_without_effect_cause_a_warning(changes: Mapping[str, str], message: str) -> None:
    parameters = parse_parameters(given_parameters(**changes))
    assert [str(warning) for warning in parameters.warnings] == [message]
    assert parameters.unique


def test_claim_is_read_from_the_sidecar_metadata() -> None:
    parameters = {
        "csi.storage.k8s.io/pvc/name": "data",
        "csi.storage.k8s.io/pvc/namespace": "team",
        "csi.storage.k8s.io/pv/name": "pvc-1",
    }
    assert parse_origin(parameters) == VolumeOrigin(
        claim_name="data", claim_namespace="team", volume_name="pvc-1"
    )
    assert parse_origin({}) == VolumeOrigin()


KEYS = ["uid", "gid", "gidRangeStart", "gidRangeEnd", "basePath", "subPathPattern", "az", "fileSystemId"]
TEXTS = st.text() | st.sampled_from(["", "1", "50000", "true", "/a", "${.PV.name}", FS1, "a/b/c"])


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(), TEXTS))
def test_any_parameters_are_refused_or_valid(changes: dict[str, str]) -> None:
    try:
        parameters = parse_parameters({**MINIMAL, **changes})
    except InvalidArgument:
        return
    assert parameters.file_systems
    assert 0 <= (parameters.uid or 0) < 2**32
    assert 1 <= parameters.gids.minimum < parameters.gids.maximum < 2**32
    assert not {".", ".."} & set(parameters.base.parts)
