"""Bodies in Kubernetes' protocol buffers, which ``kubectl create KIND`` and ``kubectl auth`` insist on.

Only what they send for the kinds of the pages is known here; everything else is JSON. The numbers of fields
are those of the ``generated.proto`` files of k8s.io/api and k8s.io/apimachinery.
"""

import base64
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from tinykube.objects.statuses import ApiError, bad_request
from tinykube.objects.values import Json, JsonValue

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _BYTES = 0, 2


class Field(NamedTuple):
    """A field.

    ``type`` (of a map's values) is text, bytes, skip, or the fields of a message.
    """

    name: str
    type: "str | Message"
    repeated: bool = False
    is_map: bool = False


Message: TypeAlias = Mapping[int, Field]


def _message(**fields: tuple[int, "str | Message"]) -> Message:
    return MappingProxyType({number: Field(name, kind) for name, (number, kind) in fields.items()})


_OBJECT_META: Message = MappingProxyType(
    {
        **_message(
            name=(1, "text"),
            generateName=(2, "text"),
            namespace=(3, "text"),
            selfLink=(4, "skip"),
            uid=(5, "text"),
            resourceVersion=(6, "text"),
            generation=(7, "skip"),
            creationTimestamp=(8, "skip"),
        ),
        11: Field("labels", "text", is_map=True),
        12: Field("annotations", "text", is_map=True),
    }
)
_METADATA = {1: Field("metadata", _OBJECT_META)}
_ROLE_REF = _message(apiGroup=(1, "text"), kind=(2, "text"), name=(3, "text"))
_SUBJECT = _message(kind=(1, "text"), apiGroup=(2, "text"), name=(3, "text"), namespace=(4, "text"))
_RULE: Message = MappingProxyType(
    {
        number: Field(name, "text", repeated=True)
        for number, name in enumerate(
            ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), start=1
        )
    }
)
_MESSAGES: Mapping[str, Message] = MappingProxyType(
    {
        "ConfigMap": {
            **_METADATA,
            2: Field("data", "text", is_map=True),
            3: Field("binaryData", "bytes", is_map=True),
        },
        "Namespace": {**_METADATA, 2: Field("spec", "skip"), 3: Field("status", "skip")},
        "Role": {**_METADATA, 2: Field("rules", _RULE, repeated=True)},
        "RoleBinding": {
            **_METADATA,
            2: Field("subjects", _SUBJECT, repeated=True),
            3: Field("roleRef", _ROLE_REF),
        },
        "Secret": {**_METADATA, 2: Field("data", "bytes", is_map=True), 3: Field("type", "text")},
        "SelfSubjectReview": {**_METADATA, 2: Field("status", "skip")},
        "ServiceAccount": _METADATA,
    }
)
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
        message = _MESSAGES.get(type_meta.get("kind", ""))
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
    content = _as_bytes(value)
    if not isinstance(kind, str):
        return _decode(content, kind)
    return base64.b64encode(content).decode() if kind == "bytes" else bytes(content).decode()


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
        if wire_type != _BYTES:
            raise bad_request("malformed protocol buffers: unknown wire type")
        size, position = _varint(content, position)
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
