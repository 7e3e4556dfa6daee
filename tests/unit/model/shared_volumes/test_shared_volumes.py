from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kube_efs.model.efs.ids import ClaimUid
from kube_efs.model.errors import InvalidValue
from kube_efs.model.shared_volumes.shared_volume import (
    OWNED,
    OWNER_NAME,
    OWNER_NAMESPACE,
    MarkedVolume,
    Marks,
    Owner,
    SharedVolumeSource,
    marks_among,
    marks_of,
    owner_of_claim,
)
from kube_efs.model.volumes import ClaimReference, CsiSource, Volume

SV1 = Owner(namespace="proj2", name="sv1")
LABELS = {OWNED: "true", OWNER_NAMESPACE: "proj2", OWNER_NAME: "sv1"}

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=4).map(".".join).filter(lambda name: len(name) <= 253)
owners = st.builds(Owner, namespace=labels, name=names)


def volume(owner: Owner = SV1, marks: Marks | None = None, **fields: object) -> MarkedVolume:
    made = replace(Volume(name=owner.volume_name), **fields)  # type: ignore[arg-type]
    return MarkedVolume(volume=made, marks=marks_of(owner) if marks is None else marks)


def test_names_match_the_older_system() -> None:
    assert (SV1.volume_name, SV1.claim_name, str(SV1)) == ("pv-proj2-sv1", "pvc-sv1", "proj2/sv1")


@given(owners)
def test_owner_is_read_from_the_claim_name(owner: Owner) -> None:
    assert owner_of_claim(owner.namespace, owner.claim_name) == owner


@pytest.mark.parametrize("name", ["pvc-", "data", "pv-x", ""])
def test_other_claim_names_have_no_owner(name: str) -> None:
    assert owner_of_claim("team", name) is None


@given(owners)
def test_names_are_valid_exactly_when_the_api_server_accepts_them(owner: Owner) -> None:
    if max(len(owner.volume_name), len(owner.claim_name)) <= 253:
        owner.check()
    else:
        with pytest.raises(InvalidValue, match="characters shorter"):
            owner.check()


def test_error_for_a_long_name_contains_the_remedy() -> None:
    with pytest.raises(InvalidValue) as caught:
        Owner(namespace="team", name="x" * 247).check()
    assert caught.value.field == "metadata.name"
    assert "is too long, as pv-... would be; use a name that is 2 characters shorter" in str(caught.value)


@given(owners)
def test_labels_are_valid_for_kubernetes(owner: Owner) -> None:
    for value in marks_of(owner).labels.values():
        assert len(value) <= 63
        assert value[0].isalnum()
        assert value[-1].isalnum()


@given(owners, owners)
def test_marks_identify_exactly_one_owner(one: Owner, other: Owner) -> None:
    assume(one != other)
    marks = marks_of(one)
    assert marks.names(one)
    assert marks.owner == one
    assert marks.suffice_for(one)
    assert not marks.names(other)
    assert not replace(marks, annotations={}).names(other)


def test_marks_are_found_among_other_labels_and_annotations() -> None:
    marks = marks_among({**LABELS, "app": "web"}, {OWNER_NAME: "sv1", "note": "x"})
    assert marks == Marks(labels=LABELS, annotations={OWNER_NAME: "sv1"})
    assert not marks_among({"app": "web"}, {})


LONG = Owner(namespace="team", name="l" * 64)


@pytest.mark.parametrize(
    ("owner", "marks", "suffice"),
    [
        pytest.param(SV1, Marks(labels=LABELS), True, id="labels of the older system"),
        pytest.param(SV1, Marks(labels={**LABELS, OWNED: "false"}), False, id="changed label"),
        pytest.param(SV1, Marks(labels={OWNED: "true"}), False, id="missing labels"),
        pytest.param(SV1, Marks(annotations=marks_of(SV1).annotations), False, id="annotations only"),
        pytest.param(
            SV1,
            replace(marks_of(SV1), annotations={OWNER_NAME: "x"}),
            False,
            id="changed annotation",
        ),
        pytest.param(LONG, replace(marks_of(LONG), annotations={}), False, id="shortened name only"),
    ],
)
def test_incomplete_marks_must_be_repaired(owner: Owner, marks: Marks, suffice: bool) -> None:
    assert marks.suffice_for(owner) is suffice


OWN_CLAIM = ClaimReference(namespace="proj2", name="pvc-sv1", uid=ClaimUid("u"))
OTHER = Marks(labels={**LABELS, OWNER_NAME: "other"})


@pytest.mark.parametrize(
    ("marks", "claim", "is_ours"),
    [
        pytest.param(None, None, True, id="marked, for no claim"),
        pytest.param(None, OWN_CLAIM, True, id="marked, for the claim"),
        pytest.param(Marks(labels={OWNED: "true"}), OWN_CLAIM, True, id="half marked, for the claim"),
        pytest.param(Marks(labels={OWNED: "true"}), None, False, id="half marked, for no claim"),
        pytest.param(OTHER, OWN_CLAIM, True, id="marked for another owner, for the claim"),
        pytest.param(OTHER, None, False, id="of another owner"),
        pytest.param(Marks(), OWN_CLAIM, False, id="created manually for the claim"),
        pytest.param(Marks(), None, False, id="created manually"),
        pytest.param(
            marks_of(Owner(namespace="proj2-sv1", name="x")),
            None,
            False,
            id="of an owner with the same volume name",
        ),
    ],
)
def test_marks_determine_the_owner_of_a_volume(
    marks: Marks | None, claim: ClaimReference | None, is_ours: bool
) -> None:
    assert volume(marks=marks, claim=claim).belongs_to(SV1) is is_ours


@pytest.mark.parametrize(
    ("handle", "options", "source"),
    [
        pytest.param("fs-1::fsap-2", (), ("fs-1", "fsap-2"), id="current handle"),
        pytest.param("efs:fs-1::fsap-2", (), ("fs-1", "fsap-2"), id="of newer drivers"),
        pytest.param("fs-1:/sub:fsap-2", (), ("fs-1", "fsap-2"), id="with a path"),
        pytest.param("fs-1", ("tls", "accesspoint=fsap-2"), ("fs-1", "fsap-2"), id="of early versions"),
        pytest.param("fs-1", ("tls",), None, id="without access point"),
        pytest.param("fs-1:/sub", ("accesspoint=fsap-2",), None, id="two parts"),
        pytest.param("fs-1::", (), None, id="empty access point"),
        pytest.param("", ("accesspoint=fsap-2",), None, id="empty"),
    ],
)
def test_handle_determines_the_source(
    handle: str, options: tuple[str, ...], source: tuple[str, str] | None
) -> None:
    found = volume(csi=CsiSource(handle=handle), mount_options=options).source
    assert (found and (found.file_system_id, found.access_point_id)) == source


def test_volume_of_another_kind_has_no_source() -> None:
    assert volume(csi=None, mount_options=("accesspoint=fsap-2",)).source is None


@given(
    st.from_regex(r"fs-[0-9a-f]{8,40}", fullmatch=True), st.from_regex(r"fsap-[0-9a-f]{8,40}", fullmatch=True)
)
def test_handle_parses_to_its_source(file_system_id: str, access_point_id: str) -> None:
    source = SharedVolumeSource(file_system_id=file_system_id, access_point_id=access_point_id)
    source.check()
    assert volume(csi=CsiSource(handle=source.handle)).source == source


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (("fs-1", "fsap-12345678"), "spec.fileSystemID: 'fs-1' is not a valid file system ID"),
        (("fs-12345678", "fsap-1"), "spec.accessPointID: 'fsap-1' is not a valid access point ID"),
        (("", ""), "spec.fileSystemID: is not a valid file system ID"),
    ],
)
def test_invalid_ids_are_refused(source: tuple[str, str], told: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        SharedVolumeSource(file_system_id=source[0], access_point_id=source[1]).check()
    assert told in str(caught.value)
