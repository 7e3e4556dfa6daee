"""Elements of certificate extensions: written by hand, by EFS's clients, and by nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_efs.der import OCTET_STRING, UTF8_STRING, Element, read_elements, read_text
from fake_efs.errors import InvalidValue


@pytest.mark.parametrize(
    ("der", "expected"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(b"\x0c\x00", [(UTF8_STRING, b"")], id="empty text"),
        pytest.param(b"\x0c\x01a\x04\x02bc", [(UTF8_STRING, b"a"), (OCTET_STRING, b"bc")], id="two elements"),
        pytest.param(b"\x0c\x81\x80" + b"a" * 128, [(UTF8_STRING, b"a" * 128)], id="128 bytes"),
        pytest.param(b"\x0c\x82\x01\x00" + b"a" * 256, [(UTF8_STRING, b"a" * 256)], id="256 bytes"),
    ],
)
def test_elements_are_read(der: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert read_elements(der) == tuple(Element(tag=tag, content=content) for tag, content in expected)


@pytest.mark.parametrize(
    ("der", "problem"),
    [
        pytest.param(b"\x0c", "ends within an element", id="tag alone"),
        pytest.param(b"\x0c\x02a", "ends within an element", id="cut off"),
        pytest.param(b"\x0c\x81\x01a", "another form", id="short length in the long form"),
        pytest.param(b"\x0c\x82\x00\x80" + b"a" * 128, "another form", id="leading zero"),
        pytest.param(b"\x0c\x80a\x00\x00", "another form", id="indefinite length"),
        pytest.param(b"\x0c\x82\x01", "another form", id="cut off in the length"),
    ],
)
def test_other_encodings_are_refused(der: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_elements(der)


@given(st.binary(max_size=300))
def test_what_is_read_is_all_that_was_there(der: bytes) -> None:
    try:
        elements = read_elements(der)
    except ValueError:
        return
    assert b"".join(element.content for element in elements) in der or len(elements) > 1
    sizes = [len(element.content) for element in elements]
    assert sum(sizes) + sum(2 if size < 128 else 3 if size < 256 else 4 for size in sizes) == len(der)


def test_a_text_stands_alone() -> None:
    assert read_text(b"\x0c\x02\xc3\xa4", field="name") == "ä"
    with pytest.raises(InvalidValue, match=r"name: '0c01610c0162' is no UTF8String"):
        read_text(b"\x0c\x01a\x0c\x01b", field="name")
