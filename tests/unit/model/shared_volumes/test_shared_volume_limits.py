import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.errors import InvalidValue
from kube_efs.model.shared_volumes.limits import ANNOTATION, Allowance, Limits, parse_allowance
from kube_efs.model.shared_volumes.shared_volume import SharedVolumeSource

SOURCE = SharedVolumeSource(file_system_id="fs-1", access_point_id="fsap-2")


@pytest.mark.parametrize(
    ("text", "permits"),
    [
        ("*", True),
        ("fs-1", True),
        ("fsap-2", True),
        ("fs-9, fsap-2", True),
        ("fs-9 fs-1", True),
        ("fs-9,*", True),
        ("fs-9", False),
        ("fsap-1", False),
        ("", False),
        (" , ", False),
    ],
)
def test_allowance_permits_its_ids(text: str, permits: bool) -> None:
    assert parse_allowance(text, field="x").permits(SOURCE) is permits


@pytest.mark.parametrize("text", ["fs-", "fs-1;fs-2", "fs-1/fsap-2", "all", "fs-G", "fs-1\x00"])
def test_invalid_allowance_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_allowance(text, field="here")
    assert caught.value.field == "here"
    assert "use ids such as" in str(caught.value)


@given(st.frozensets(st.from_regex(r"(fs|fsap)-[0-9a-f]{1,40}", fullmatch=True), min_size=1))
def test_printed_allowance_parses_to_the_same_value(ids: frozenset[str]) -> None:
    assert parse_allowance(str(Allowance(ids)), field="x") == Allowance(ids)


NOTHING, ONE = Allowance(frozenset()), Allowance(frozenset({"fs-1"}))


@pytest.mark.parametrize(
    ("limits", "annotation", "allowance"),
    [
        pytest.param(Limits(), None, Allowance(), id="no limits"),
        pytest.param(Limits(), "fs-1", ONE, id="annotation limits"),
        pytest.param(Limits(others=NOTHING), "fs-1", ONE, id="annotation allows all"),
        pytest.param(Limits(others=NOTHING), None, NOTHING, id="settings limit all"),
        pytest.param(
            Limits(by_namespace={"team": NOTHING}),
            "fs-1",
            NOTHING,
            id="settings for the namespace take precedence",
        ),
        pytest.param(
            Limits(by_namespace={"other": NOTHING}), None, Allowance(), id="settings for another namespace"
        ),
    ],
)
def test_settings_and_annotation_determine_the_allowance(
    limits: Limits, annotation: str | None, allowance: Allowance
) -> None:
    assert limits.allowance("team", annotation) == allowance


def test_refusal_lists_the_allowed_ids() -> None:
    with pytest.raises(InvalidValue) as caught:
        Limits(others=Allowance(frozenset({"fs-9", "fsap-8"}))).check("team", None, SOURCE)
    assert str(caught.value) == (
        "spec: 'fs-1::fsap-2' is not allowed in namespace team, which may use fs-9, fsap-8;"
        f" use another one, or have an administrator change annotation {ANNOTATION} of the Namespace"
    )


def test_invalid_annotation_allows_nothing() -> None:
    with pytest.raises(InvalidValue) as caught:
        Limits().check("team", "everything", SOURCE)
    assert f"annotation {ANNOTATION} of namespace team: 'everything' is not a valid ID" in str(caught.value)
