"""Values in ASN.1's distinguished encoding (X.690), as far as EFS's certificate extensions use it."""

from dataclasses import dataclass
from typing import Final

from fake_efs.errors import InvalidValue

OCTET_STRING: Final = 0x04
UTF8_STRING: Final = 0x0C
UTC_TIME: Final = 0x17
SEQUENCE: Final = 0x30
FIRST_EXPLICIT: Final = 0xA0  # [0] EXPLICIT

_LONG_FORM: Final = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A tag and the content that it is for."""

    tag: int
    content: bytes


def read_elements(der: bytes) -> tuple[Element, ...]:
    """The elements that follow one another and leave nothing over; raises ValueError."""
    elements = []
    while der:
        element, der = _split_first(der)
        elements.append(element)
    return tuple(elements)


def read_text(der: bytes, *, field: str) -> str:
    """The text of a UTF8String that is all there is; raises InvalidValue about ``field``."""
    try:
        (element,) = read_elements(der)
    except ValueError:
        element = None
    if element is None or element.tag != UTF8_STRING:
        raise InvalidValue("is no UTF8String", field=field, value=der.hex())
    try:
        return element.content.decode()
    except UnicodeDecodeError as error:
        raise InvalidValue("is not UTF-8", field=field, value=der.hex()) from error


def _split_first(der: bytes) -> tuple[Element, bytes]:
    if len(der) < 2:
        raise ValueError("ends within an element")
    tag, size, start = der[0], der[1], 2
    if size >= _LONG_FORM:
        start += size - _LONG_FORM
        size = int.from_bytes(der[2:start], "big")
        if der[2:start] != _shortest(size):
            raise ValueError("has a length in another form than the shortest")
    end = start + size
    if end > len(der):
        raise ValueError("ends within an element")
    return Element(tag=tag, content=der[start:end]), der[end:]


def _shortest(size: int) -> bytes | None:
    """The octets of a length in the long form, None when it has to be in the short one."""
    return size.to_bytes((size.bit_length() + 7) // 8, "big") if size >= _LONG_FORM else None
