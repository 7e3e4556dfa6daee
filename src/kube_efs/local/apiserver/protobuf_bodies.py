"""Bodies in Kubernetes' protocol buffers, which ``kubectl create KIND`` and ``kubectl auth`` insist on.

Only what these commands send is known here (fields by number as in the ``generated.proto`` files of
k8s.io/api); everything else of this server is JSON.
"""

import base64
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from kube_efs.local.apiserver.json_types import Json, JsonValue
from kube_efs.local.apiserver.statuses import ApiError, bad_request

PROTOBUF = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Field(NamedTuple):
    """A field.

    ``type`` (of a map's values) is text, bytes, flag, number, skip, or the fields of a message.
    """

    name: str
    type: "str | _Message"
    repeated: bool = False
    is_map: bool = False


_Wire: TypeAlias = "int | memoryview"
_Message: TypeAlias = Mapping[int, _Field]


def _message(**fields: tuple[int, "str | _Message"]) -> _Message:
    return MappingProxyType({number: _Field(name, kind) for name, (number, kind) in fields.items()})


_OBJECT_META: _Message = MappingProxyType(
    {
        1: _Field("name", "text"),
        2: _Field("generateName", "text"),
        3: _Field("namespace", "text"),
        4: _Field("selfLink", "skip"),
        5: _Field("uid", "text"),
        6: _Field("resourceVersion", "text"),
        7: _Field("generation", "skip"),
        8: _Field("creationTimestamp", "skip"),
        11: _Field("labels", "text", is_map=True),
        12: _Field("annotations", "text", is_map=True),
    }
)
_NO_STATUS = {3: _Field("status", "skip")}
_METADATA = {1: _Field("metadata", _OBJECT_META)}
_ROLE_REF = _message(apiGroup=(1, "text"), kind=(2, "text"), name=(3, "text"))
_SUBJECT = _message(kind=(1, "text"), apiGroup=(2, "text"), name=(3, "text"), namespace=(4, "text"))
_RULE: _Message = MappingProxyType(
    {
        number: _Field(name, "text", repeated=True)
        for number, name in enumerate(
            ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"), start=1
        )
    }
)
_ROLE: _Message = MappingProxyType({**_METADATA, 2: _Field("rules", _RULE, repeated=True)})
_BINDING: _Message = MappingProxyType(
    {**_METADATA, 2: _Field("subjects", _SUBJECT, repeated=True), 3: _Field("roleRef", _ROLE_REF)}
)
_RESOURCE_ATTRIBUTES = _message(
    namespace=(1, "text"),
    verb=(2, "text"),
    group=(3, "text"),
    version=(4, "text"),
    resource=(5, "text"),
    subresource=(6, "text"),
    name=(7, "text"),
)
_ACCESS = _message(
    resourceAttributes=(1, _RESOURCE_ATTRIBUTES),
    nonResourceAttributes=(2, _message(path=(1, "text"), verb=(2, "text"))),
)
_BOUND_OBJECT = _message(kind=(1, "text"), apiVersion=(2, "text"), name=(3, "text"), uid=(4, "text"))
_TOKEN_REQUEST: _Message = MappingProxyType(
    {
        1: _Field("audiences", "text", repeated=True),
        3: _Field("boundObjectRef", _BOUND_OBJECT),
        4: _Field("expirationSeconds", "number"),
    }
)
_MESSAGES: Mapping[str, _Message] = MappingProxyType(
    {
        "ClusterRole": _ROLE,
        "ClusterRoleBinding": _BINDING,
        "ConfigMap": {
            **_METADATA,
            2: _Field("data", "text", is_map=True),
            3: _Field("binaryData", "bytes", is_map=True),
            4: _Field("immutable", "flag"),
        },
        "Namespace": {
            **_METADATA,
            2: _Field("spec", {1: _Field("finalizers", "text", repeated=True)}),
            **_NO_STATUS,
        },
        "Role": _ROLE,
        "RoleBinding": _BINDING,
        "Secret": {
            **_METADATA,
            2: _Field("data", "bytes", is_map=True),
            3: _Field("type", "text"),
            4: _Field("stringData", "text", is_map=True),
            5: _Field("immutable", "flag"),
        },
        "SelfSubjectAccessReview": {**_METADATA, 2: _Field("spec", _ACCESS), **_NO_STATUS},
        "SelfSubjectReview": {**_METADATA, 2: _Field("status", "skip")},
        "SelfSubjectRulesReview": {
            **_METADATA,
            2: _Field("spec", _message(namespace=(1, "text"))),
            **_NO_STATUS,
        },
        "ServiceAccount": {**_METADATA, 4: _Field("automountServiceAccountToken", "flag")},
        "TokenRequest": {**_METADATA, 2: _Field("spec", _TOKEN_REQUEST), **_NO_STATUS},
    }
)
# runtime.Unknown: 1 type (1 apiVersion, 2 kind), 2 the object, 3 and 4 encoding and content type
_ENVELOPE = _message(
    typeMeta=(1, _message(apiVersion=(1, "text"), kind=(2, "text"))),
    raw=(2, "bytes"),
    contentEncoding=(3, "skip"),
    contentType=(4, "skip"),
)


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


def _decode(content: memoryview, message: _Message) -> Json:
    result: Json = {}
    for number, value in _fields(content):
        field = message.get(number)
        if field is None:
            raise _unknown(f"messages with a field of number {number}")
        if field.type == "skip":
            continue
        if field.is_map:
            entry = _decode(_as_bytes(value), {1: _Field("key", "text"), 2: _Field("value", field.type)})
            result.setdefault(field.name, {})[entry.get("key", "")] = entry.get("value", "")
        elif field.repeated:
            result.setdefault(field.name, []).append(_value(value, field.type))
        else:
            result[field.name] = _value(value, field.type)
    return result


def _value(value: _Wire, kind: "str | _Message") -> JsonValue:
    match kind:
        case "text":
            return bytes(_as_bytes(value)).decode()
        case "bytes":
            return base64.b64encode(_as_bytes(value)).decode()
        case "flag":
            return bool(value)
        case "number":
            return value if isinstance(value, int) else None
        case _:
            return _decode(_as_bytes(value), kind) if isinstance(kind, Mapping) else None


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
