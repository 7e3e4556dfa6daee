"""Answers: objects, lists and watch events as bytes, in the form that the client wants."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tinykube.api.lists import Page
from tinykube.api.watches import EventType, WatchEvent
from tinykube.objects.resources import ResourceType
from tinykube.objects.storage import Stored, encode
from tinykube.objects.values import Json
from tinykube.printers import printer_for, table_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Shows objects of one type in one form at one moment."""

    resource: ResourceType
    table: bool
    now: datetime

    def one(self, stored: Stored) -> bytes:
        """The answer to a request about one object."""
        if self.table:
            version = stored.json["metadata"].get("resourceVersion", "")
            return encode(self._table([stored.json], {"resourceVersion": version}))
        return stored.encoded

    def page(self, page: Page) -> bytes:
        """The answer to a list request."""
        if self.table:
            return encode(self._table((stored.json for stored in page.items), page.metadata))
        items = [self._item(stored) for stored in page.items]
        # Lists of custom resources come from another encoder, which writes the empty text too.
        metadata = {"continue": "", **page.metadata} if self.resource.custom else page.metadata
        return _list(self.resource.api_version, self.resource.list_name, metadata, items)

    def event(self, event: WatchEvent, *, first: bool) -> bytes:
        """One line of a watch; the first table of a watch has the column heads, as in Kubernetes."""
        if not self.table:
            return event_line(event.type, event.stored.encoded)
        shown = event.stored.json
        table = self._table([shown], {"resourceVersion": shown["metadata"]["resourceVersion"]})
        return event_line(event.type, encode(table if first else {**table, "columnDefinitions": None}))

    def _item(self, stored: Stored) -> bytes:
        """An item of a list; those of built-in types come without their type, as in Kubernetes."""
        encoded, prefix = stored.encoded, self.resource.type_prefix
        if self.resource.custom or not encoded.startswith(prefix):
            return encoded
        return b"{" + encoded[len(prefix) :]

    def _table(self, objects: Iterable[Json], metadata: Json) -> Json:
        printer = self.resource.printer or printer_for(self.resource.group, self.resource.kind)
        return table_for(printer, objects, metadata=metadata, now=self.now)


def event_line(event_type: EventType, shown: bytes) -> bytes:
    """A watch event as a line of JSON."""
    return b'{"type":"' + event_type.value.encode() + b'","object":' + shown + b"}\n"


def _list(api_version: str, kind: str, metadata: Json, items: list[bytes]) -> bytes:
    head = json.dumps({"kind": kind, "apiVersion": api_version, "metadata": metadata}, separators=(",", ":"))
    return head[:-1].encode() + b',"items":[' + b",".join(items) + b"]}\n"
