"""What of a request may be shown, and what must not be.

Requests have what users write into classes and volumes, which may be megabytes. They are shown short: what is
left out is counted, and costs no time.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kube_efs.csi.protocol.csi_pb2 import csi_secret
from kube_efs.model.secrets import shortened

# The kubelet adds pods' tokens here, when the CSIDriver object asks for them and does not name the secrets.
_CONTEXT: Final = "volume_context"
_POD_TOKENS: Final = "csi.storage.k8s.io/serviceAccount.tokens"
_MAX_TEXT: Final = 1000
_MAX_ENTRIES: Final = 50


def shown_request(request: Message) -> dict[str, Any]:
    """The fields of a request that are set, by their names in the protocol, without those that are secret."""
    return {
        field.name: _shown(field, value)
        for field, value in request.ListFields()
        if not field.GetOptions().Extensions[csi_secret]
    }


def secrets_of(request: Message) -> Iterator[str]:
    """Every secret value of a request."""
    for field in request.DESCRIPTOR.fields:
        if field.GetOptions().Extensions[csi_secret]:
            yield from getattr(request, field.name).values()  # the protocol has secrets in maps only
    yield getattr(request, _CONTEXT, {}).get(_POD_TOKENS, "")


def _shown(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - any field of any message
    if field.message_type and isinstance(value, Mapping):
        of_values = field.message_type.fields_by_name["value"]
        shown = {
            shortened(str(key), _MAX_TEXT): _shown_one(of_values, one)
            for key, one in islice(value.items(), _MAX_ENTRIES)
            if key != _POD_TOKENS
        }
        return shown if len(value) <= _MAX_ENTRIES else {**shown, "...": _more(value)}
    if field.is_repeated:
        shown_ones = [_shown_one(field, one) for one in islice(value, _MAX_ENTRIES)]
        return shown_ones if len(value) <= _MAX_ENTRIES else [*shown_ones, f"... {_more(value)}"]
    return _shown_one(field, value)


def _shown_one(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401
    if field.message_type:
        return shown_request(value)
    if field.enum_type:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name else value
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return shortened(value, _MAX_TEXT) if isinstance(value, str) else value


def _more(value: Mapping[Any, Any] | Sequence[Any]) -> str:
    return f"({len(value) - _MAX_ENTRIES} more entries)"
