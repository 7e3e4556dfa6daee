"""Bodies in Kubernetes' protocol buffers, which ``kubectl create KIND`` and ``kubectl auth`` insist on.

Only what they send for the kinds of the pages is known here; everything else is JSON.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tinykube.objects.statuses import ApiError, bad_request
from tinykube.objects.values import Json

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_ENVELOPE: Final = "Unknown"
_KINDS: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        "ConfigMap": {1: "metadata ObjectMeta", 2: "data map", 3: "binaryData map bytes"},
        "Namespace": {1: "metadata ObjectMeta"},
        "Role": {1: "metadata ObjectMeta", 2: "rules list PolicyRule"},
        "RoleBinding": {1: "metadata ObjectMeta", 2: "subjects list Subject", 3: "roleRef RoleRef"},
        "Secret": {1: "metadata ObjectMeta", 2: "data map bytes", 3: "type"},
        "SelfSubjectReview": {1: "metadata ObjectMeta"},
        "ServiceAccount": {1: "metadata ObjectMeta"},
    }
)
"""Fields by number: name and type, which is text unless given, after ``map`` (from text) or ``list``.

The numbers are those of the ``generated.proto`` files of k8s.io/api and k8s.io/apimachinery.
"""
_PARTS: Final[Mapping[str, Mapping[int, str]]] = MappingProxyType(
    {
        _ENVELOPE: {1: "typeMeta TypeMeta", 2: "raw bytes"},
        "ObjectMeta": {
            1: "name",
            2: "generateName",
            3: "namespace",
            5: "uid",
            6: "resourceVersion",
            11: "labels map",
            12: "annotations map",
        },
        "PolicyRule": {
            1: "verbs list",
            2: "apiGroups list",
            3: "resources list",
            4: "resourceNames list",
            5: "nonResourceURLs list",
        },
        "RoleRef": {1: "apiGroup", 2: "kind", 3: "name"},
        "Subject": {1: "kind", 2: "apiGroup", 3: "name", 4: "namespace"},
        "TypeMeta": {1: "apiVersion", 2: "kind"},
    }
)


def parse_protobuf(content: bytes) -> Json:
    """The object in a body; raises 400 for malformed ones, and 415 for kinds that are not known here."""
    if not content.startswith(_MAGIC):
        raise bad_request("the body does not begin as Kubernetes' protocol buffers do")
    try:
        envelope = _classes()[_ENVELOPE].FromString(content[len(_MAGIC) :])
        type_meta = MessageToDict(envelope).get("typeMeta", {})
        if (kind := type_meta.get("kind", "")) not in _KINDS:
            raise ApiError(
                415,
                "UnsupportedMediaType",
                f"objects of kind {kind} are not understood as protocol buffers here, send application/json "
                "(with kubectl: create -f or apply -f)",
            )
        return {**type_meta, **MessageToDict(_classes()[kind].FromString(envelope.raw))}  # type: ignore[attr-defined]
    except DecodeError as error:
        raise bad_request(f"malformed protocol buffers: {error}") from error


@cache
def _classes() -> Mapping[str, type[Message]]:
    messages = {**_KINDS, **_PARTS}
    file = FileDescriptorProto(name="kubernetes.proto", syntax="proto3")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, text in fields.items():
            name, *kind = text.split()
            field = described.field.add(name=name, json_name=name, number=number)
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
            if kind[:1] == ["map"]:
                entry = described.nested_type.add(name=f"{name[0].upper()}{name[1:]}Entry")
                entry.options.map_entry = True
                _set_type(entry.field.add(name="key", number=1), [])
                _set_type(entry.field.add(name="value", number=2), kind[1:])
                kind = ["list", f"{message}.{entry.name}"]
            if kind[:1] == ["list"]:
                field.label = FieldDescriptorProto.LABEL_REPEATED
                kind = kind[1:]
            _set_type(field, kind)
    pool = DescriptorPool()
    pool.Add(file)
    return {message: GetMessageClass(pool.FindMessageTypeByName(message)) for message in messages}


def _set_type(field: FieldDescriptorProto, kind: list[str]) -> None:
    match kind:
        case []:
            field.type = FieldDescriptorProto.TYPE_STRING
        case ["bytes"]:
            field.type = FieldDescriptorProto.TYPE_BYTES
        case [message]:
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{message}"
