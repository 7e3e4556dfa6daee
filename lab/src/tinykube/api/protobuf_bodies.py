"""Bodies in Kubernetes' protocol buffers, which ``kubectl create KIND`` and ``kubectl auth`` insist on.

Only what these commands send is known here; everything else of this server is JSON.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from tinykube.api.protobuf_messages import MESSAGES, Field, Message
from tinykube.objects.json_types import Json, JsonValue
from tinykube.objects.statuses import ApiError, bad_request

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


# runtime.Unknown: 1 type (1 apiVersion, 2 kind), 2 the object, 3 and 4 encoding and content type
_ENVELOPE: Message = {
    1: Field("typeMeta", {1: Field("apiVersion", "text"), 2: Field("kind", "text")}),
    2: Field("raw", "bytes"),
    3: Field("contentEncoding", "skip"),
    4: Field("contentType", "skip"),
}
_Wire: TypeAlias = "int | memoryview"


def parse_protobuf(content: bytes) -> Json:
    """The object in a body; raises 400 for malformed ones, and 415 for kinds that are not known here."""
    if not content.startswith(_MAGIC):
        raise bad_request("the body does not begin as Kubernetes' protocol buffers do")
    try:
        envelope = _decode(memoryview(content)[len(_MAGIC) :], _ENVELOPE)
        type_meta = envelope.get("typeMeta", {})
        message = MESSAGES.get(type_meta.get("kind", ""))
        if message is None:
            raise _unknown(f"objects of kind {type_meta.get('kind')}")
        raw = base64.b64decode(envelope.get("raw", ""))
        return {**type_meta, **_decode(memoryview(raw), message)}
    except (IndexError, UnicodeDecodeError) as error:
        raise bad_request(f"malformed protocol buffers: {error}") from error


def _unknown(what: str) -> ApiError:
    return ApiError(
        415,
        "UnsupportedMediaType",
        f"{what} are not understood as protocol buffers here, send application/json "
        "(with kubectl: create -f or apply -f)",
    )


def _decode(content: memoryview, message: Message) -> Json:
    result: Json = {}
    for number, value in _fields(content):
        field = message.get(number)
        if field is None:
            raise _unknown(f"messages with a field of number {number}")
        if field.type == "skip":
            continue
        if field.is_map:
            entry = _decode(_as_bytes(value), {1: Field("key", "text"), 2: Field("value", field.type)})
            result.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
        elif field.repeated:
            result.setdefault(field.name, []).append(_value(value, field.type))
        else:
            found = _value(value, field.type)
            if found != "":  # which Go writes for a text that has not been set, too
                result[field.name] = found
    return result


def _value(value: _Wire, kind: "str | Message") -> JsonValue:
    return _CONVERSIONS[kind](value) if isinstance(kind, str) else _decode(_as_bytes(value), kind)


def _text(value: _Wire) -> JsonValue:
    return bytes(_as_bytes(value)).decode()


def _signed(value: _Wire) -> JsonValue:
    """A number, of which negative ones are sent as their complement of 64 bits."""
    if not isinstance(value, int):
        return None
    return value - (1 << 64) if value >> 63 else value


_CONVERSIONS: Mapping[str, Callable[[_Wire], JsonValue]] = MappingProxyType(
    {
        "bytes": lambda value: base64.b64encode(_as_bytes(value)).decode(),
        "flag": bool,
        "number": _signed,
        "text": _text,
    }
)


def _as_bytes(value: _Wire) -> memoryview:
    if isinstance(value, int):
        raise bad_request("malformed protocol buffers: a number where a text was expected")
    return value


def _fields(content: memoryview) -> Iterator[tuple[int, _Wire]]:
    """The fields of a message: their numbers and encoded values; raises IndexError when it is cut off."""
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, position = _varint(content, position)
            yield tag >> 3, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(content, position)
        elif wire_type in {_FIXED64, _FIXED32}:
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise bad_request("malformed protocol buffers: unknown wire type")
        if position + size > len(content):
            raise IndexError("cut off")
        yield tag >> 3, content[position : position + size]
        position += size


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
