from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs.ids import parse_file_system_id, parse_region, parse_subnet_id, parse_zone_name
from kube_efs.model.errors import InvalidValue


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        pytest.param(parse_file_system_id, "fs-0123456789abcdef0", id="current file system"),
        pytest.param(parse_file_system_id, "fs-0123abcd", id="file system from before 2021"),
        pytest.param(parse_file_system_id, "fs-34a3p3", id="file system of the older system's README"),
        pytest.param(parse_subnet_id, "subnet-ao4u3pai", id="subnet of the older system's README"),
        pytest.param(parse_region, "us-gov-west-1", id="region"),
        pytest.param(parse_zone_name, "us-west-2-lax-1a", id="local zone"),
    ],
)
def test_valid_file_system_ids_are_accepted_unchanged(parse: Callable[[object], str], text: str) -> None:
    assert parse(text) == text


_FILE_SYSTEM_REMEDY = "use fs- and up to 40 digits and letters"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("fs-", id="prefix only"),
        pytest.param("0123abcd", id="no prefix"),
        pytest.param("fs-0123ABCD", id="uppercase letters"),
        pytest.param("fs-1\n", id="trailing newline"),
        pytest.param("fs-1\nconnect = evil:2049", id="line of stunnel.conf"),
        pytest.param("fs-1]", id="end of a section's name"),
        pytest.param("fs-../../etc", id="path"),
        pytest.param("fs-$(id)", id="shell"),
        pytest.param("fs-" + "1" * 41, id="too long"),
        pytest.param("fs-\N{ARABIC-INDIC DIGIT ONE}", id="digit that is not ASCII"),
        pytest.param(None, id="nothing"),
        pytest.param(7, id="number"),
        pytest.param(["fs-1"], id="list"),
    ],
)
def test_invalid_file_system_id_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_file_system_id(value, field="key")
    error = caught.value
    assert (error.problem, error.field, error.value) == ("is not valid", "key", value)
    assert error.remedy == _FILE_SYSTEM_REMEDY


@pytest.mark.parametrize(
    ("parse", "value", "field", "remedy"),
    [
        (parse_subnet_id, "subnet-1;", "subnet ID", "use subnet- and up to 40 digits and letters"),
        (parse_region, "us-east-1/", "region", "use a name such as us-east-1"),
        (parse_zone_name, "-a", "zone", "use a name such as us-east-1a"),
    ],
)
def test_errors_name_the_kind_of_id(
    parse: Callable[[object], str], value: str, field: str, remedy: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(value)
    assert str(caught.value) == f"{field}: {value!r} is not valid; {remedy}"


@given(st.one_of(st.text(), st.from_regex(r"(fs|subnet)-\w+\s?")))
def test_accepted_ids_contain_only_safe_characters(text: str) -> None:
    for parse in (parse_file_system_id, parse_subnet_id, parse_region, parse_zone_name):
        try:
            accepted = parse(text)
        except InvalidValue:
            continue
        assert accepted == text
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert len(text) <= 63
