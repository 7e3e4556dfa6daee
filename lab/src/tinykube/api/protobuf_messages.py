"""Which fields the kinds have that come as protocol buffers: what ``kubectl create KIND`` can send of them.

By number as in the ``generated.proto`` files of k8s.io/api and k8s.io/apimachinery.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias


class Field(NamedTuple):
    """A field.

    ``type`` (of a map's values) is text, bytes, flag, number, skip, or the fields of a message.
    """

    name: str
    type: "str | Message"
    repeated: bool = False
    is_map: bool = False


Message: TypeAlias = Mapping[int, Field]


def _message(**fields: tuple[int, "str | Message"]) -> Message:
    return MappingProxyType({number: Field(name, kind) for name, (number, kind) in fields.items()})


_OWNER = _message(
    kind=(1, "text"),
    name=(3, "text"),
    uid=(4, "text"),
    apiVersion=(5, "text"),
    controller=(6, "flag"),
    blockOwnerDeletion=(7, "flag"),
)
_OBJECT_META: Message = MappingProxyType(
    {
        1: Field("name", "text"),
        2: Field("generateName", "text"),
        3: Field("namespace", "text"),
        4: Field("selfLink", "skip"),
        5: Field("uid", "text"),
        6: Field("resourceVersion", "text"),
        7: Field("generation", "skip"),
        8: Field("creationTimestamp", "skip"),
        11: Field("labels", "text", is_map=True),
        12: Field("annotations", "text", is_map=True),
        13: Field("ownerReferences", _OWNER, repeated=True),
    }
)
_NO_STATUS = {3: Field("status", "skip")}
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
_ROLE: Message = MappingProxyType({**_METADATA, 2: Field("rules", _RULE, repeated=True)})
_BINDING: Message = MappingProxyType(
    {**_METADATA, 2: Field("subjects", _SUBJECT, repeated=True), 3: Field("roleRef", _ROLE_REF)}
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
_TOKEN_REQUEST: Message = MappingProxyType(
    {
        1: Field("audiences", "text", repeated=True),
        3: Field("boundObjectRef", _BOUND_OBJECT),
        4: Field("expirationSeconds", "number"),
    }
)
MESSAGES: Mapping[str, Message] = MappingProxyType(
    {
        "ClusterRole": _ROLE,
        "ClusterRoleBinding": _BINDING,
        "ConfigMap": {
            **_METADATA,
            2: Field("data", "text", is_map=True),
            3: Field("binaryData", "bytes", is_map=True),
            4: Field("immutable", "flag"),
        },
        "Namespace": {
            **_METADATA,
            2: Field("spec", {1: Field("finalizers", "text", repeated=True)}),
            **_NO_STATUS,
        },
        "Role": _ROLE,
        "RoleBinding": _BINDING,
        "Secret": {
            **_METADATA,
            2: Field("data", "bytes", is_map=True),
            3: Field("type", "text"),
            4: Field("stringData", "text", is_map=True),
            5: Field("immutable", "flag"),
        },
        "SelfSubjectAccessReview": {**_METADATA, 2: Field("spec", _ACCESS), **_NO_STATUS},
        "SelfSubjectReview": {**_METADATA, 2: Field("status", "skip")},
        "SelfSubjectRulesReview": {
            **_METADATA,
            2: Field("spec", _message(namespace=(1, "text"))),
            **_NO_STATUS,
        },
        "ServiceAccount": {**_METADATA, 4: Field("automountServiceAccountToken", "flag")},
        "TokenRequest": {**_METADATA, 2: Field("spec", _TOKEN_REQUEST), **_NO_STATUS},
    }
)
