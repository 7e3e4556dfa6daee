"""What of a request may be shown, and what must not be."""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from kube_efs.csi.protocol.csi_pb2 import csi_secret
from kube_efs.telemetry.secrets import REMOVED

# The kubelet adds pods' tokens here, when the CSIDriver object asks for them and does not name the secrets.
_CONTEXT: Final = "volume_context"
_POD_TOKENS: Final = "csi.storage.k8s.io/serviceAccount.tokens"
# To remove these from a text would say nothing, and cut "true" out of it.
_TELLING_NOTHING: Final = frozenset({"", "true", "false"})


def shown_request(request: Message) -> dict[str, Any]:
    """The fields of a request that are set, by their names in the protocol, without those that are secret."""
    public = type(request)()
    public.CopyFrom(request)
    for field in _secret_fields(public):
        public.ClearField(field)
    if _CONTEXT in public.DESCRIPTOR.fields_by_name:
        getattr(public, _CONTEXT).pop(_POD_TOKENS, None)
    fields: dict[str, Any] = MessageToDict(public, preserving_proto_field_name=True)
    return fields


def without_secrets_of(request: Message, text: str) -> str:
    """The text with every secret value of the request replaced by ``[removed]``."""
    # The longest first: one secret may be a part of another.
    for value in sorted(set(_secret_values(request)), key=len, reverse=True):
        if value.lower() not in _TELLING_NOTHING:
            text = text.replace(value, REMOVED)
    return text


def _secret_fields(request: Message) -> list[str]:
    return [field.name for field in request.DESCRIPTOR.fields if field.GetOptions().Extensions[csi_secret]]


def _secret_values(request: Message) -> Iterator[str]:
    for field in _secret_fields(request):
        yield from getattr(request, field).values()  # the protocol has secrets in maps only
    yield getattr(request, _CONTEXT, {}).get(_POD_TOKENS, "")
