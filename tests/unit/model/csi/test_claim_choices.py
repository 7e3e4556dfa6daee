"""Choices of claims: which annotations a class allows, and their effect on the request."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.csi.access_points import VolumeRequest, volume_request
from kube_efs.model.csi.errors import InvalidArgument
from kube_efs.model.csi.parameters import parse_parameters
from kube_efs.model.csi.root_directories import VolumeOrigin

CLASS = {
    "provisioningMode": "efs-ap",
    "fileSystemId": "fs-0123456789abcdef0",
    "directoryPerms": "700",
    "uid": "500",
}
ALLOWING = {"allowedUids": "1000-1999, 7", "allowedGids": "0,3000", "allowedDirectoryPerms": "750,0770"}
UID, GID, MODE = (f"efs.csi.aws.com/{name}" for name in ("uid", "gid", "directoryPerms"))


def request(annotations: Mapping[str, str], parameters: Mapping[str, str] = ALLOWING) -> VolumeRequest:
    origin = VolumeOrigin(claim_name="data", claim_namespace="team", annotations=annotations)
    return volume_request("pvc-1", parse_parameters({**CLASS, **parameters}), origin, 0)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, (500, None, 0o700), id="the class decides"),
        pytest.param({UID: "1000"}, (1000, None, 0o700), id="first of a range"),
        pytest.param({UID: "1999"}, (1999, None, 0o700), id="last of a range"),
        pytest.param({UID: "7", GID: "0"}, (7, 0, 0o700), id="single numbers"),
        pytest.param({MODE: "0750"}, (500, None, 0o750), id="mode"),
        pytest.param({"example.com/uid": "0"}, (500, None, 0o700), id="annotation of another"),
    ],
)
def test_claim_chooses_within_the_limits_of_its_class(
    annotations: Mapping[str, str], expected: tuple[int | None, int | None, int]
) -> None:
    chosen = request(annotations).parameters
    assert (chosen.uid, chosen.gid, chosen.mode) == expected


NUMBER = "is not a valid user or group ID; use a whole number from 0 to 4294967295"


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        pytest.param(
            {UID: "0"}, f"[{UID}]: '0' is not allowed by the class; the class allows 1000-1999, 7", id="root"
        ),
        pytest.param(
            {UID: "2000"},
            f"[{UID}]: '2000' is not allowed by the class; the class allows 1000-1999, 7",
            id="above",
        ),
        pytest.param(
            {GID: "1000"},
            f"[{GID}]: '1000' is not allowed by the class; the class allows 0, 3000",
            id="uid as gid",
        ),
        pytest.param({GID: ""}, f"[{GID}]: {NUMBER}", id="empty"),
        pytest.param({UID: "7,0"}, f"[{UID}]: '7,0' {NUMBER}", id="list"),
        pytest.param(
            {MODE: "777"},
            f"[{MODE}]: '777' is not allowed by the class; the class allows 750, 770",
            id="mode",
        ),
        pytest.param(
            {MODE: "4750"},
            f"[{MODE}]: '4750' is not allowed by the class; the class allows 750, 770",
            id="setuid",
        ),
    ],
)
def test_other_choices_are_refused(annotations: Mapping[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        request(annotations)
    assert str(caught.value) == f"metadata.annotations{message}"


@pytest.mark.parametrize(
    ("name", "parameter"), [(UID, "allowedUids"), (GID, "allowedGids"), (MODE, "allowedDirectoryPerms")]
)
def test_class_without_the_parameter_allows_no_choice(name: str, parameter: str) -> None:
    others = {key: text for key, text in ALLOWING.items() if key != parameter}
    with pytest.raises(InvalidArgument) as caught:
        request({name: "7"}, others)
    assert str(caught.value) == (
        f"metadata.annotations[{name}]: '7' is not allowed by the class, which has no {parameter}; "
        "remove the annotation, or use another class"
    )


@pytest.mark.parametrize("parameter", ALLOWING)
def test_class_with_choices_requires_the_claim(parameter: str) -> None:
    parameters = parse_parameters({**CLASS, parameter: ALLOWING[parameter]})
    with pytest.raises(InvalidArgument) as caught:
        volume_request("pvc-1", parameters, VolumeOrigin(), 0)
    assert str(caught.value) == (
        "allowedUids, allowedGids, allowedDirectoryPerms: needs the claim's name and namespace; "
        "run csi-provisioner with --extra-create-metadata"
    )


@given(st.dictionaries(st.sampled_from([UID, GID, MODE]), st.text() | st.integers().map(str)))
def test_no_annotation_gives_an_identity_that_the_class_does_not_allow(annotations: dict[str, str]) -> None:
    try:
        chosen = request(annotations).parameters
    except InvalidArgument:
        return
    assert chosen.uid in {500, 7} or 1000 <= (chosen.uid or 0) <= 1999
    assert chosen.gid in {None, 0, 3000}
    assert chosen.mode in {0o700, 0o750, 0o770}
