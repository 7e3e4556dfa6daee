from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_efs.model.efs.ids import parse_file_system_id, parse_region, parse_subnet_id, parse_zone_name
from kube_efs.model.errors import InvalidValue


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        pytest.param(parse_file_system_id, "fs-0123456789abcdef0", id="file system of today"),
        pytest.param(parse_file_system_id, "fs-0123abcd", id="file system of before 2021"),
        pytest.param(parse_file_system_id, "fs-34a3p3", id="file system of the older system's README"),
        pytest.param(parse_subnet_id, "subnet-ao4u3pai", id="subnet of the older system's README"),
        pytest.param(parse_region, "us-gov-west-1", id="region"),
        pytest.param(parse_zone_name, "us-west-2-lax-1a", id="local zone"),
    ],
)
def test_ids_of_the_field_are_taken_as_they_are(parse: Callable[[object], str], text: str) -> None:
    assert parse(text) == text


_FILE_SYSTEM_REMEDY = "use fs- and up to 40 digits and letters"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("fs-", id="prefix only"),
        pytest.param("0123abcd", id="no prefix"),
        pytest.param("fs-0123ABCD", id="capitals"),
        pytest.param("fs-1\n", id="a newline at the end"),
        pytest.param("fs-1\nconnect = evil:2049", id="a line of stunnel.conf"),
        pytest.param("fs-1]", id="the end of a section's name"),
        pytest.param("fs-../../etc", id="a path"),
        pytest.param("fs-$(id)", id="shell"),
        pytest.param("fs-" + "1" * 41, id="too long"),
        pytest.param("fs-\N{ARABIC-INDIC DIGIT ONE}", id="a digit that is not ASCII"),
        pytest.param(None, id="nothing"),
        pytest.param(7, id="a number"),
        pytest.param(["fs-1"], id="a list"),
    ],
)
def test_anything_else_is_no_file_system(value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_file_system_id(value, field="key")
    error = caught.value
    assert (error.problem, error.field, error.value) == ("is not valid", "key", value)
    assert error.remedy == _FILE_SYSTEM_REMEDY


@pytest.mark.parametrize(
    ("parse", "value", "field", "remedy"),
    [
        (parse_subnet_id, "subnet-1;", "subnet id", "use subnet- and up to 40 digits and letters"),
        (parse_region, "us-east-1/", "region", "use a name such as us-east-1"),
        (parse_zone_name, "-a", "zone", "use a name such as us-east-1a"),
    ],
)
def test_the_other_ids_say_what_they_are(
    parse: Callable[[object], str], value: str, field: str, remedy: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(value)
    assert str(caught.value) == f"{field}: {value!r} is not valid; {remedy}"


@given(st.one_of(st.text(), st.from_regex(r"(fs|subnet)-\w+\s?")))
def test_what_is_accepted_is_harmless_everywhere(text: str) -> None:
    for parse in (parse_file_system_id, parse_subnet_id, parse_region, parse_zone_name):
        try:
            accepted = parse(text)
        except InvalidValue:
            continue
        assert accepted == text
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert len(text) <= 63
